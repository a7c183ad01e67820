/** Sequences of like length put together, so that no batch has padding and all are about as large. */

/** Places in the list that was given, by rising length; each batch has at most `most` tokens, or a single sequence. */
export function batchesOf(lengths: readonly number[], most: number): number[][] {
  const order = lengths.map((_, i) => i).sort((a, b) => lengths[a]! - lengths[b]! || a - b);
  const batches: number[][] = [];
  let tokens = 0;
  for (const i of order) {
    tokens += lengths[i]!;
    const last = batches.at(-1);
    if (last && tokens <= most) last.push(i);
    else {
      batches.push([i]);
      tokens = lengths[i]!;
    }
  }
  return batches;
}

/** Neighbours of one length. */
export interface Run {
  /** The first row. */
  readonly start: number;
  readonly count: number;
  readonly length: number;
}

export function runsOf(lengths: readonly number[]): Run[] {
  const runs: { start: number; count: number; length: number }[] = [];
  let row = 0;
  for (const length of lengths) {
    const last = runs.at(-1);
    if (last?.length === length) last.count++;
    else runs.push({ start: row, count: 1, length });
    row += length;
  }
  return runs;
}
