/**
 * SentencePiece's unigrams: of all ways to cut a text into tokens the one with the best sum of scores. A character that
 * no token is made of costs more than any token, and is given as it is.
 */

/** What an unknown character costs beyond the worst token. */
const PENALTY = 10;

interface Node {
  readonly next: Map<number, Node>;
  /** -1 where no token ends. */
  id: number;
}

export class Unigrams {
  readonly #root: Node = { next: new Map(), id: -1 };
  readonly #scores: Float64Array;
  readonly #unknown: number;

  /** Scores of the tokens; that of the unknown one is not used. */
  constructor(tokens: readonly string[], scores: ArrayLike<number>, unknown: number) {
    this.#scores = Float64Array.from(scores);
    let worst = Number.POSITIVE_INFINITY;
    for (const [id, token] of tokens.entries()) {
      if (id !== unknown) worst = Math.min(worst, scores[id]!);
      if (token !== "") this.#insert(token, id);
    }
    this.#unknown = worst - PENALTY;
    if (unknown >= 0) this.#scores[unknown] = this.#unknown;
  }

  #insert(token: string, id: number): void {
    let node = this.#root;
    for (let i = 0; i < token.length; i++) {
      const unit = token.charCodeAt(i);
      let child = node.next.get(unit);
      if (!child) {
        child = { next: new Map(), id: -1 };
        node.next.set(unit, child);
      }
      node = child;
    }
    // Of tokens with the same text the last one counts, as in the library's own table.
    node.id = id;
  }

  split(text: string): string[] {
    const { length } = text;
    const best = new Float64Array(length + 1).fill(Number.NEGATIVE_INFINITY);
    /** Where the token that ends here starts. */
    const from = new Int32Array(length + 1);
    best[0] = 0;
    for (let at = 0; at < length; ) {
      const unit = text.charCodeAt(at);
      const width = unit >= 0xd800 && unit < 0xdc00 && at + 1 < length ? 2 : 1;
      let isKnown = false;
      let node: Node | undefined = this.#root;
      for (let end = at; end < length; ) {
        node = node.next.get(text.charCodeAt(end++));
        if (!node) break;
        if (node.id < 0) continue;
        isKnown ||= end - at === width;
        const score = best[at]! + this.#scores[node.id]!;
        if (score > best[end]!) {
          best[end] = score;
          from[end] = at;
        }
      }
      const score = best[at]! + this.#unknown;
      if (!isKnown && score > best[at + width]!) {
        best[at + width] = score;
        from[at + width] = at;
      }
      at += width;
    }
    const pieces: string[] = [];
    for (let end = length; end > 0; end = from[end]!) pieces.push(text.slice(from[end], end));
    return pieces.reverse();
  }
}
