/**
 * What the CPU device does while a step is recorded, taken down as it happens: jobs of machine code and calls of
 * WebAssembly's kernels, all of which find what they need in memory. The few places that compute, or give memory out, ask
 * here whether a recording goes on; what JavaScript itself does with the memory cannot be repeated and ends it.
 */
import type { Block } from "../backend.ts";
import type { Usage } from "../usage.ts";
import type { Job } from "./native/pool.ts";

let current: Recording | null = null;

/** The recording that goes on, if any. */
export const recording = (): Recording | null => current;

/** Jobs that follow each other, or anything else. */
export type Action = Job[] | (() => void);

export class Recording {
  readonly actions: Action[] = [];
  /** Memory whose address was taken. */
  readonly used = new Set<Block>();
  readonly reserve: Reserve;
  #problem: string | null = null;

  constructor(reserve: Reserve) {
    this.reserve = reserve;
  }

  /** Takes down what `run` does. */
  during(run: () => void): void {
    current = this;
    try {
      run();
    } finally {
      current = null;
    }
  }

  /** Why it cannot be run again, if so. */
  get problem(): string | null {
    return this.#problem;
  }

  /** The memory that it uses and has not made. */
  get borrowed(): Block[] {
    return [...this.used].filter((block) => !this.#hasMade(block));
  }

  /** A block is freed: what the run itself has made stays in reserve. */
  free(block: Block): void {
    if (this.used.has(block) && !this.#hasMade(block)) this.refuse("memory that it uses is freed");
  }

  #hasMade(block: Block): boolean {
    return "at" in block && this.reserve.has(block.at as number);
  }

  refuse(why: string): void {
    this.#problem ??= why;
  }

  addJobs(jobs: readonly Job[]): void {
    const last = this.actions.at(-1);
    if (Array.isArray(last)) last.push(...jobs);
    else this.actions.push([...jobs]);
  }

  add(action: () => void): void {
    this.actions.push(action);
  }
}

/** Memory of the heap that a recorded run took: whoever gives it back, it is nobody else's until this is disposed. */
export class Reserve implements Disposable {
  readonly #usage: Usage;
  readonly #release: (at: number) => void;
  /** Sizes of what is in use, and of what was given back. */
  readonly #taken = new Map<number, number>();
  readonly #left = new Map<number, number>();

  constructor(usage: Usage, release: (at: number) => void) {
    this.#usage = usage;
    this.#release = release;
  }

  add(at: number, bytes: number): void {
    this.#taken.set(at, bytes);
  }

  /** What was given back since the recording began serves again, in the order of the work. */
  reuse(bytes: number): number | undefined {
    for (const [at, size] of this.#left) {
      if (size !== bytes) continue;
      this.#left.delete(at);
      this.#usage.remove(bytes);
      this.#taken.set(at, bytes);
      return at;
    }
    return undefined;
  }

  has(at: number): boolean {
    return this.#taken.has(at) || this.#left.has(at);
  }

  /** Takes what is given back, where it came from here. */
  takeBack(at: number): boolean {
    const bytes = this.#taken.get(at);
    if (bytes === undefined) return false;
    this.#taken.delete(at);
    this.#left.set(at, bytes);
    this.#usage.add(bytes);
    return true;
  }

  /** What is still in use is its user's from here on. */
  [Symbol.dispose](): void {
    for (const [at, bytes] of this.#left) {
      this.#usage.remove(bytes);
      this.#release(at);
    }
    this.#left.clear();
    this.#taken.clear();
  }
}
