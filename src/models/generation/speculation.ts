/**
 * Guessing what comes next, so that the model checks several tokens in one pass instead of computing one. It keeps those
 * it would have chosen itself, by the same draws: the text is the same as without, up to rounding.
 */
import { fail } from "../../core/errors.ts";
import type { Transformer } from "../transformer.ts";

export interface Drafter {
  /** At most `most` tokens that may come behind `ids`; none where it has no guess. */
  propose(ids: readonly number[], most: number): readonly number[] | Promise<readonly number[]>;
  /** Throws where its tokens are not those of the model that checks them. */
  check?(model: Transformer): void;
}

export interface SpeculationOptions {
  /** The most tokens that are guessed at once. Default 7: eight rows cost a GPU little more than one. */
  readonly tokens?: number;
}

export class Speculation {
  readonly drafter: Drafter;
  readonly most: number;
  /** How many it guesses now: more as they prove right. */
  #reach: number;
  #drafted = 0;
  #accepted = 0;

  constructor(drafter: Drafter, { tokens = 7 }: SpeculationOptions = {}) {
    if (!Number.isInteger(tokens) || tokens < 1) {
      fail("InvalidArgument", `speculation: tokens must be a whole number from 1 up, not ${tokens}`);
    }
    this.drafter = drafter;
    this.most = tokens;
    this.#reach = Math.min(tokens, 3);
  }

  /** Tokens guessed so far. */
  get drafted(): number {
    return this.#drafted;
  }

  /** Those of them that the model chose, too. */
  get accepted(): number {
    return this.#accepted;
  }

  /** A guess of what follows `ids`, of no more tokens than `room`. */
  async draft(ids: readonly number[], room: number): Promise<readonly number[]> {
    const most = Math.min(this.#reach, room);
    return most > 0 ? (await this.drafter.propose(ids, most)).slice(0, most) : [];
  }

  /** Hears how many of a guess were right. */
  learn(drafted: number, accepted: number): void {
    this.#drafted += drafted;
    this.#accepted += accepted;
    if (drafted === 0) return;
    this.#reach = accepted === drafted ? Math.min(this.most, Math.max(this.#reach, 2 * drafted)) : accepted + 1;
  }

  toString(): string {
    return `Speculation(${this.#accepted} of ${this.#drafted} tokens accepted)`;
  }

  [Symbol.for("nodejs.util.inspect.custom")](): string {
    return this.toString();
  }
}

export interface PromptLookupOptions extends SpeculationOptions {
  /** The most and the fewest last tokens that are looked for. Default 4 and 2. */
  readonly longest?: number;
  readonly shortest?: number;
}

/**
 * Guesses that the text goes on as it did where its last tokens stood before: right where it repeats itself or its
 * prompt, as summaries, edits and code do, and free where it does not.
 */
export function promptLookup({ longest = 4, shortest = 2, tokens }: PromptLookupOptions = {}): Speculation {
  if (!Number.isInteger(longest) || !Number.isInteger(shortest) || shortest < 1 || longest < shortest) {
    fail("InvalidArgument", `promptLookup: from ${shortest} to ${longest} last tokens cannot be looked for`);
  }
  const propose = (ids: readonly number[], most: number): readonly number[] => {
    for (let length = Math.min(longest, ids.length - 1); length >= shortest; length--) {
      const end = lastOccurrence(ids, length);
      if (end > 0) return ids.slice(end, end + most);
    }
    return [];
  };
  return new Speculation({ propose }, tokens === undefined ? {} : { tokens });
}

/** Where the newest earlier occurrence of the last `length` ids ends; 0 where there is none. */
function lastOccurrence(ids: readonly number[], length: number): number {
  const tail = ids.length - length;
  for (let start = tail - 1; start >= 0; start--) {
    let same = 0;
    while (same < length && ids[start + same] === ids[tail + same]) same++;
    if (same === length) return start + length;
  }
  return 0;
}
