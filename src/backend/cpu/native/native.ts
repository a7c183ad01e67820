/**
 * The native side of the CPU device: machine code that is emitted at its first use, once per process and instruction
 * set, and the threads that run it.
 */

import { recording } from "../recording.ts";
import { Assembler } from "./assembler.ts";
import { type Isa, isaText } from "./isa.ts";
import { executable } from "./memory.ts";
import { type Job, JobList, NativePool } from "./pool.ts";
import { chooseIsa } from "./tier.ts";

/** Emits a kernel: void kernel(const void* args, size_t lo, size_t hi, void* scratch), by the System V convention. */
export type Generator = (a: Assembler, isa: Isa) => void;

let pool: NativePool | undefined;
const emitted = new Map<string, number>();

export class Native {
  readonly isa: Isa;
  readonly #kernels = new Map<string, number>();

  constructor(isa: Isa) {
    this.isa = isa;
  }

  /** The address of the kernel called `name`. */
  kernel(name: string, generator: Generator): number {
    const known = this.#kernels.get(name);
    if (known !== undefined) return known;
    const key = `${isaText(this.isa)} ${name}`;
    let address = emitted.get(key);
    if (address === undefined) {
      const a = new Assembler();
      generator(a, this.isa);
      address = executable(a.finish());
      emitted.set(key, address);
    }
    this.#kernels.set(name, address);
    return address;
  }

  /** Runs jobs one after the other on `threads` threads. */
  run(threads: number, ...jobs: readonly Job[]): void {
    recording()?.addJobs(jobs);
    poolOf(threads).run(...jobs);
  }

  /** The same, except that it may return before they are done: see pending.ts. */
  give(threads: number, ...jobs: readonly Job[]): void {
    recording()?.addJobs(jobs);
    poolOf(threads).give(...jobs);
  }

  /** The same for what is done once, whatever is recorded. */
  prepare(threads: number, ...jobs: readonly Job[]): void {
    poolOf(threads).give(...jobs);
  }

  /** Jobs to be run again. */
  list(threads: number, jobs: readonly Job[]): JobList {
    return new JobList(jobs, threads);
  }

  replay(threads: number, list: JobList): void {
    poolOf(threads).replay(list);
  }
}

function poolOf(threads: number): NativePool {
  pool ??= new NativePool();
  pool.threads = threads;
  return pool;
}

/** The native side, where the machine has one and WICK_CPU does not forbid it. */
export function findNative(): Native | null {
  const isa = chooseIsa();
  return isa && new Native(isa);
}
