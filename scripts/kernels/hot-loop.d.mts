import type { Instruction } from "./listing.mjs";
/** How many accesses of so many bytes each. */
export type Widths = readonly (readonly [bytes: number, count: number])[];
export interface RoundFacts {
  readonly matrix: number;
  readonly dot: number;
  /** Other vector instructions. */
  readonly vector: number;
  readonly scalar: number;
  readonly shared: number;
  readonly loads: Widths;
  readonly stores: Widths;
  /** Accesses that may be to any memory. */
  readonly flat: number;
  /** The matrix unit's share by count. */
  readonly counted?: number;
}
export function bytesOf(instruction: Pick<Instruction, "name">): number;
export function widthsOf(round: readonly Pick<Instruction, "name">[], way: "load" | "store"): Widths;
export function cyclesOf(
  round: readonly Pick<Instruction, "name">[],
  arch: string,
): { readonly matrix: number; readonly vector: number; readonly shared: number; readonly memory: number };
export function shareByCount(round: readonly Pick<Instruction, "name">[], arch: string): number;
export function hotRound(instructions: readonly Instruction[]): Instruction[];
export function roundFacts(round: readonly Pick<Instruction, "name">[], arch: string): RoundFacts;
