/**
 * The native side of the CPU device: machine code that is read, or emitted, at its first use, once per process and
 * instruction set, and the threads that run it.
 */

import { recording } from "../recording.ts";
import type { Kernel } from "./catalogue.ts";
import { type Isa, isaKey } from "./isa.ts";
import { executable } from "./memory.ts";
import { type Job, JobList, NativePool } from "./pool.ts";
import { emit, StoredCode } from "./stored.ts";
import { chooseIsa } from "./tier.ts";

let pool: NativePool | undefined;

/** The code of an instruction set, of which a process has one. */
class Code {
  readonly #isa: Isa;
  readonly #addresses = new Map<string, number>();
  readonly #stored: StoredCode | null;

  constructor(isa: Isa) {
    this.#isa = isa;
    this.#stored = StoredCode.of(isa);
  }

  address(kernel: Kernel): number {
    const { name } = kernel;
    let address = this.#addresses.get(name);
    if (address === undefined) {
      address = this.#stored?.address(name) ?? executable(emit(kernel, this.#isa));
      this.#addresses.set(name, address);
    }
    return address;
  }
}
const codes = new Map<string, Code>();

export class Native {
  readonly isa: Isa;
  #code: Code | undefined;

  constructor(isa: Isa) {
    this.isa = isa;
  }

  /** The address of a kernel. */
  kernel(kernel: Kernel): number {
    this.#code ??= codeOf(this.isa);
    return this.#code.address(kernel);
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

function codeOf(isa: Isa): Code {
  const key = isaKey(isa);
  const code = codes.get(key) ?? new Code(isa);
  codes.set(key, code);
  return code;
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
