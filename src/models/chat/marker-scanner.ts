/** Text cut at markers, however it arrives: the end of what came so far is held while it may be the start of one. */

export type Scanned = { readonly text: string } | { readonly marker: string };

export class MarkerScanner {
  readonly #markers: readonly string[];
  #held = "";

  /** Where one marker is the start of another, the longer one counts. */
  constructor(markers: readonly string[]) {
    this.#markers = [...markers].sort((a, b) => b.length - a.length);
  }

  push(text: string): Scanned[] {
    const found: Scanned[] = [];
    let rest = this.#held + text;
    for (;;) {
      const next = this.#first(rest);
      if (!next) break;
      // A longer marker may begin where this one does.
      if (this.#mayGrow(rest.slice(next.at))) {
        if (next.at > 0) found.push({ text: rest.slice(0, next.at) });
        this.#held = rest.slice(next.at);
        return found;
      }
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
    if (rest === "") return [];
    const marker = this.#markers.find((marker) => rest.startsWith(marker));
    if (marker === undefined) return [{ text: rest }];
    const after = rest.slice(marker.length);
    return [{ marker }, ...(after === "" ? [] : [{ text: after }])];
  }

  #first(text: string): { at: number; marker: string } | undefined {
    let first: { at: number; marker: string } | undefined;
    for (const marker of this.#markers) {
      const at = text.indexOf(marker);
      if (at >= 0 && (!first || at < first.at)) first = { at, marker };
    }
    return first;
  }

  #mayGrow(rest: string): boolean {
    return this.#markers.some((marker) => marker.length > rest.length && marker.startsWith(rest));
  }
}

/** The length of the longest end of `text` that is the start of `marker` and not all of it. */
function overlap(text: string, marker: string): number {
  for (let n = Math.min(text.length, marker.length - 1); n > 0; n--) if (text.endsWith(marker.slice(0, n))) return n;
  return 0;
}
