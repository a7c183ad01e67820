/** Sequences of like length put together, so that no batch has padding and all are about as large. */

/** Rows that keep a device busy; more would only take memory. */
export interface Batch {
  /** Places in the list that was given, by rising length. */
  readonly members: readonly number[];
  readonly tokens: number;
}

/** Each batch has at most `most` tokens, unless a single sequence has more. */
export function batchesOf(lengths: readonly number[], most: number): Batch[] {
  const order = lengths.map((_, i) => i).sort((a, b) => lengths[a]! - lengths[b]! || a - b);
  const batches: { members: number[]; tokens: number }[] = [];
  for (const i of order) {
    const last = batches.at(-1);
    if (last && last.tokens + lengths[i]! <= most) {
      last.members.push(i);
      last.tokens += lengths[i]!;
    } else batches.push({ members: [i], tokens: lengths[i]! });
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
