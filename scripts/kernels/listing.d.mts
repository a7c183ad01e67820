export interface Instruction {
  readonly at: number;
  readonly name: string;
  readonly operands: string;
  /** Where a branch goes. */
  readonly to?: number;
}
export interface Block {
  readonly code: readonly Instruction[];
  readonly next: readonly number[];
}
export interface Loop {
  readonly head: number;
  readonly blocks: ReadonlySet<number>;
  readonly back: readonly number[];
}
export function functionsOf(listing: string): Map<string, Instruction[]>;
export function blocksOf(instructions: readonly Instruction[]): Block[];
export function loopsOf(blocks: readonly Block[]): Loop[];
export function roundOf(blocks: readonly Block[], loop: Loop, avoided: readonly Loop[]): Instruction[];
