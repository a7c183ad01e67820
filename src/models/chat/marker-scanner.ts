/** Text cut at markers, however it arrives: the end of what came so far is held while it may be the start of one. */

export type Scanned = { readonly text: string } | { readonly marker: string };

export class MarkerScanner {
  readonly #markers: readonly string[];
  #held = "";

  /** No marker is the start of another. */
  constructor(markers: readonly string[]) {
    this.#markers = markers;
  }

  push(text: string): Scanned[] {
    const found: Scanned[] = [];
    let rest = this.#held + text;
    for (let next = this.#first(rest); next; next = this.#first(rest)) {
      if (next.at > 0) found.push({ text: rest.slice(0, next.at) });
      found.push({ marker: next.marker });
      rest = rest.slice(next.at + next.marker.length);
    }
    const keep = Math.max(0, ...this.#markers.map((marker) => overlap(rest, marker)));
    this.#held = rest.slice(rest.length - keep);
    if (rest.length > keep) found.push({ text: rest.slice(0, rest.length - keep) });
    return found;
  }

  end(): Scanned[] {
    const rest = this.#held;
    this.#held = "";
    return rest === "" ? [] : [{ text: rest }];
  }

  #first(text: string): { at: number; marker: string } | undefined {
    let first: { at: number; marker: string } | undefined;
    for (const marker of this.#markers) {
      const at = text.indexOf(marker);
      if (at >= 0 && (!first || at < first.at)) first = { at, marker };
    }
    return first;
  }
}

/** The length of the longest end of `text` that `marker` starts with and goes on from. */
export function overlap(text: string, marker: string): number {
  for (let n = Math.min(text.length, marker.length - 1); n > 0; n--) if (text.endsWith(marker.slice(0, n))) return n;
  return 0;
}
