/**
 * Byte-pair encoding of a word: the neighbours whose merge ranks best are joined until no merge is left. Symbols are
 * numbers and merges a hash table of pairs of them, so that a megabyte without a break takes a second, too.
 */

/** Words up to this many symbols are searched for their best pair; longer ones keep their pairs in a heap. */
const SHORT = 24;
/** Longer words hardly come twice. */
const CACHED_LENGTH = 64;
const CACHED_WORDS = 2 ** 16;
const NONE = 2 ** 31 - 1;
const WORD_START = /(?<=[^▁])(?=▁)/;
/** Ranks and places share a number. */
const PLACES = 2 ** 26;

export class Merges {
  readonly #symbols = new Map<string, number>();
  /** Symbols of single code units, which are most. */
  readonly #units = new Int32Array(65536).fill(-1);
  /** Open addressing: left and right symbol, rank, and what they become. */
  readonly #table: Int32Array;
  readonly #mask: number;
  readonly #cache = new Map<string, readonly string[]>();
  /** Whether no merge reaches across the start of a word, as SentencePiece marks it: then texts are cut there. */
  readonly #hasWords: boolean;

  /** In the order of their ranks. */
  constructor(pairs: readonly (readonly [string, string])[]) {
    const slots = 2 ** Math.ceil(Math.log2(Math.max(pairs.length, 1) * 2));
    this.#mask = slots - 1;
    this.#table = new Int32Array(slots * 4).fill(-1);
    this.#hasWords = !pairs.some(([left, right]) => /[^▁]▁/.test(left + right));
    for (const [rank, [left, right]] of pairs.entries()) {
      this.#insert(this.#symbol(left), this.#symbol(right), rank, this.#symbol(left + right));
    }
  }

  /** The tokens of a word, or characters where there are none for them. */
  split(word: string): readonly string[] {
    const cached = this.#cache.get(word);
    if (cached) return cached;
    if (this.#hasWords && WORD_START.test(word)) return word.split(WORD_START).flatMap((part) => this.split(part));
    const tokens = this.#merged(word);
    if (word.length <= CACHED_LENGTH) {
      if (this.#cache.size >= CACHED_WORDS) this.#cache.clear();
      this.#cache.set(word, tokens);
    }
    return tokens;
  }

  #symbol(text: string): number {
    const known = this.#symbols.get(text);
    if (known !== undefined) return known;
    const symbol = this.#symbols.size;
    this.#symbols.set(text, symbol);
    if (text.length === 1) this.#units[text.charCodeAt(0)] = symbol;
    return symbol;
  }

  #insert(left: number, right: number, rank: number, result: number): void {
    const table = this.#table;
    for (let at = this.#slot(left, right); ; at = (at + 4) & (this.#mask * 4 + 3)) {
      // The first of two that are the same ranks better.
      if (table[at] === left && table[at + 1] === right) return;
      if (table[at] !== -1) continue;
      table[at] = left;
      table[at + 1] = right;
      table[at + 2] = rank;
      table[at + 3] = result;
      return;
    }
  }

  /** Where in the table a pair is; -1 where it cannot be merged. */
  #find(left: number, right: number): number {
    const table = this.#table;
    for (let at = this.#slot(left, right); table[at] !== -1; at = (at + 4) & (this.#mask * 4 + 3)) {
      if (table[at] === left && table[at + 1] === right) return at;
    }
    return -1;
  }

  #slot(left: number, right: number): number {
    let hash = Math.imul(left, 0x9e3779b1) ^ Math.imul(right, 0x85ebca6b);
    hash ^= hash >>> 15;
    return ((Math.imul(hash, 0x2c1b3c6d) >>> 7) % (this.#mask + 1)) * 4;
  }

  #rank(left: number, right: number): number {
    if (left < 0 || right < 0) return NONE;
    const at = this.#find(left, right);
    return at < 0 ? NONE : this.#table[at + 2]!;
  }

  #merged(word: string): string[] {
    const units = word.length;
    const ids = new Int32Array(units);
    const starts = new Int32Array(units + 1);
    let count = 0;
    for (let i = 0; i < units; count++) {
      starts[count] = i;
      const unit = word.charCodeAt(i);
      const isPair = unit >= 0xd800 && unit < 0xdc00 && i + 1 < units;
      ids[count] = isPair ? (this.#symbols.get(word.slice(i, i + 2)) ?? -1) : this.#units[unit]!;
      i += isPair ? 2 : 1;
    }
    starts[count] = units;
    const left = count <= SHORT ? this.#mergeShort(ids, starts, count) : this.#mergeLong(ids, starts, count);
    const tokens = new Array<string>(left);
    for (let i = 0; i < left; i++) tokens[i] = word.slice(starts[i], starts[i + 1]);
    return tokens;
  }

  /** Joins in place; says how many symbols are left. */
  #mergeShort(ids: Int32Array, starts: Int32Array, symbols: number): number {
    let count = symbols;
    const ranks = new Int32Array(count);
    for (let i = 0; i + 1 < count; i++) ranks[i] = this.#rank(ids[i]!, ids[i + 1]!);
    for (;;) {
      let best = -1;
      let rank = NONE;
      for (let i = 0; i + 1 < count; i++) {
        if (ranks[i]! < rank) {
          rank = ranks[i]!;
          best = i;
        }
      }
      if (best < 0) return count;
      ids[best] = this.#table[this.#find(ids[best]!, ids[best + 1]!) + 3]!;
      ids.copyWithin(best + 1, best + 2, count);
      ranks.copyWithin(best + 1, best + 2, count);
      starts.copyWithin(best + 1, best + 2, count + 1);
      count--;
      if (best > 0) ranks[best - 1] = this.#rank(ids[best - 1]!, ids[best]!);
      if (best + 1 < count) ranks[best] = this.#rank(ids[best]!, ids[best + 1]!);
    }
  }

  #mergeLong(ids: Int32Array, starts: Int32Array, count: number): number {
    const next = Int32Array.from({ length: count }, (_, i) => (i + 1 < count ? i + 1 : -1));
    const before = Int32Array.from({ length: count }, (_, i) => i - 1);
    const heap = new Heap(count);
    const offer = (at: number): void => {
      const rank = this.#rank(ids[at]!, ids[next[at]!]!);
      if (rank !== NONE) heap.push(rank * PLACES + at);
    };
    for (let i = 0; i + 1 < count; i++) offer(i);
    for (let least = heap.pop(); least >= 0; least = heap.pop()) {
      const at = least % PLACES;
      const right = next[at]!;
      // The pair may have been merged with others since.
      if (ids[at] === GONE || right < 0 || this.#rank(ids[at]!, ids[right]!) !== (least - at) / PLACES) continue;
      ids[at] = this.#table[this.#find(ids[at]!, ids[right]!) + 3]!;
      ids[right] = GONE;
      next[at] = next[right]!;
      if (next[at]! >= 0) {
        before[next[at]!] = at;
        offer(at);
      }
      if (before[at]! >= 0) offer(before[at]!);
    }
    let left = 0;
    const end = starts[count]!;
    for (let i = 0; i >= 0; i = next[i]!) starts[left++] = starts[i]!;
    starts[left] = end;
    return left;
  }
}

/** Became part of its neighbour on the left. */
const GONE = -2;

/** Of numbers; the least comes first. */
class Heap {
  #items: Float64Array;
  #count = 0;

  constructor(capacity: number) {
    this.#items = new Float64Array(capacity + 1);
  }

  push(value: number): void {
    if (this.#count === this.#items.length) {
      const larger = new Float64Array(this.#count * 2);
      larger.set(this.#items);
      this.#items = larger;
    }
    const items = this.#items;
    let at = this.#count++;
    while (at > 0) {
      const parent = (at - 1) >> 1;
      if (items[parent]! <= value) break;
      items[at] = items[parent]!;
      at = parent;
    }
    items[at] = value;
  }

  /** -1 where there is none. */
  pop(): number {
    if (this.#count === 0) return -1;
    const items = this.#items;
    const least = items[0]!;
    const last = items[--this.#count]!;
    let at = 0;
    for (;;) {
      let child = at * 2 + 1;
      if (child >= this.#count) break;
      if (child + 1 < this.#count && items[child + 1]! < items[child]!) child++;
      if (items[child]! >= last) break;
      items[at] = items[child]!;
      at = child;
    }
    items[at] = last;
    return least;
  }
}
