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

/** The most capable of those that are `usable`, which is asked of the best only: its answer costs a library. */
export function bestOf(candidates: readonly Candidate[], usable: (candidate: Candidate) => boolean): Candidate | null {
  const known = candidates.flatMap((candidate) => {
    const { properties } = candidate;
    return properties ? [{ candidate, values: merits.map((merit) => merit(candidate, properties)) }] : [];
  });
  known.sort((a, b) => b.values.map((value, i) => value - a.values[i]!).find((difference) => difference !== 0) ?? 0);
  return known.find(({ candidate }) => usable(candidate))?.candidate ?? null;
}
