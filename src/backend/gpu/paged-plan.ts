/**
 * How sequences that go on by one token each, of any lengths, are shared among the blocks of a decode over pages: a long one is
 * cut into more parts than a short one, so that none takes much longer than all of them on average.
 */
import type { PagedPlanner } from "../paged-attention.ts";
import { MAX_COUNTERS } from "./attention-plan.ts";

/** A word of a plan is parts · PLAN_PARTS · PLAN_SEQUENCES + part · PLAN_SEQUENCES + sequence; before all is how many there are. */
const PLAN_SEQUENCES = 8192;
const PLAN_PARTS = 512;
export const planDefines = { PLAN_SEQUENCES, PLAN_PARTS };

/** The most parts of a sequence: each has a place in scratch memory. */
export const MOST_PARTS = 32;
/** A part has so many keys or more, and a sequence of two such is not cut: joining takes as long. */
const LEAST_KEYS = 64;

export class PartsPlanner implements PagedPlanner {
  /** Entries that fill the device. */
  readonly #wanted: number;

  /** `blocks` fill the device, and each entry has `each` of them. */
  constructor(blocks: number, each: number) {
    this.#wanted = Math.ceil(blocks / each);
  }

  /** Null where there are more blocks than counters. */
  static for(blocks: number, each: number, rows: number): PartsPlanner | null {
    return rows * each > MAX_COUNTERS || rows > PLAN_SEQUENCES ? null : new PartsPlanner(blocks, each);
  }

  words(rows: number): number {
    return 1 + rows + Math.max(this.#wanted, Math.ceil(rows / 2));
  }

  plan(lengths: readonly number[]): number[] {
    const rows = lengths.length;
    const total = lengths.reduce((sum, length) => sum + length, 0);
    let share = Math.max(LEAST_KEYS, total / Math.max(this.#wanted, rows));
    const most = this.words(rows) - 1;
    const cut = () => lengths.map((length) => partsOf(length, share));
    let parts = cut();
    while (parts.reduce((sum, count) => sum + count, 0) > most) {
      share *= 1.25;
      parts = cut();
    }
    const entries = parts.flatMap((count, sequence) =>
      Array.from({ length: count }, (_, part) => (count * PLAN_PARTS + part) * PLAN_SEQUENCES + sequence),
    );
    return [entries.length, ...entries];
  }
}

function partsOf(length: number, share: number): number {
  const most = Math.ceil(length / LEAST_KEYS);
  return most <= 2 ? 1 : Math.max(1, Math.min(MOST_PARTS, most, Math.round(length / share)));
}
