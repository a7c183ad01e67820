/** Which of several GPUs to take. A machine with an APU and a card has both, in an order of the vendor's choice. */
import type { GpuProperties } from "./driver.ts";

export interface Candidate {
  readonly platform: "rocm" | "cuda";
  readonly ordinal: number;
  /** Null where they cannot be read. */
  readonly properties: GpuProperties | null;
}

/** What counts, first things first: the larger is the better. */
const merits: readonly ((candidate: Candidate, properties: GpuProperties) => number)[] = [
  (_, { integrated }) => (integrated ? 0 : 1),
  (_, { totalBytes }) => totalBytes,
  (_, { multiprocessors }) => multiprocessors,
  ({ ordinal }) => -ordinal,
  ({ platform }) => (platform === "rocm" ? 1 : 0),
];

/** Those that are `usable`, the most capable first; that is asked when their turn comes: its answer costs a library. */
export function* ranked(
  candidates: readonly Candidate[],
  usable: (candidate: Candidate) => boolean,
): Generator<Candidate> {
  const known = candidates.flatMap((candidate) => {
    const { properties } = candidate;
    return properties ? [{ candidate, values: merits.map((merit) => merit(candidate, properties)) }] : [];
  });
  known.sort((a, b) => b.values.map((value, i) => value - a.values[i]!).find((difference) => difference !== 0) ?? 0);
  for (const { candidate } of known) if (usable(candidate)) yield candidate;
}
