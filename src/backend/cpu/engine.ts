/**
 * The WebAssembly side of the CPU device: the module, its shared memory and the worker threads. Workers take part when
 * they are up and nobody waits for them: until then the main thread does all chunks of an op by itself.
 */

import { readFileSync } from "node:fs";
import { availableParallelism } from "node:os";
import { setFlagsFromString } from "node:v8";
import { Worker } from "node:worker_threads";
import { chosen, variable } from "../../core/environment.ts";
import { fail } from "../../core/errors.ts";
import { Heap } from "../heap.ts";
import { formatBytes, type Usage } from "../usage.ts";
import { memoryMap, PAGE, pages } from "./abi.ts";
import type { Kernels, Thread, Threads, TmpAddress } from "./kernels.ts";
import { addressOfBuffer } from "./libc.ts";
import { settle } from "./native/pending.ts";
import { Reserve, recording } from "./recording.ts";

const MAX_THREADS = 64;
/**
 * Large blocks are a little longer than asked for, so that tensors of a round size do not all start at the same place of
 * a page: loads that meet stores at equal page offsets wait for each other.
 */
const STAGGER_FROM = 2 ** 16;
const STAGGER = 1280;
/** At most so many words are at INFO. */
export const INFO_WORDS = 256;
/** All that WebAssembly's memory can hold. */
export const CPU_BYTES = pages.maximum * PAGE;

const WORKER = `
const { workerData: d } = require("node:worker_threads");
new WebAssembly.Instance(d.module, { env: { memory: d.memory } }).exports.work(d.index, d.scratch);
`;

export class Engine {
  readonly #memory: WebAssembly.Memory;
  readonly #kernels: Kernels;
  #recordedKernels: Kernels | undefined;
  /** "relaxed" has fused multiply-add; "simd" is for engines without it. */
  readonly variant: "relaxed" | "simd";
  readonly #heap = new Heap();
  readonly #module: WebAssembly.Module;
  #threads: number;
  #workers = 0;
  #base: number | undefined;
  /** What recorded runs took, as long as they may be run again. */
  readonly #reserves = new Set<Reserve>();

  constructor() {
    const loaded = load();
    this.variant = loaded.variant;
    this.#module = loaded.module;
    this.#memory = new WebAssembly.Memory({ ...pages, shared: true });
    const { exports } = new WebAssembly.Instance(this.#module, { env: { memory: this.#memory } });
    this.#kernels = exports as unknown as Kernels;
    const base = Heap.roundUp(this.kernels.heapBase());
    this.#heap.extend(base, this.#memory.buffer.byteLength - base);
    this.kernels.enter(0 as Thread, this.#scratch());
    this.#threads = defaultThreads();
    this.kernels.setThreads(this.#threads as Threads);
  }

  /** Who reads or writes it finds all machine code done. */
  get memory(): WebAssembly.Memory {
    settle();
    recording()?.refuse("JavaScript reads or writes tensors");
    return this.#memory;
  }

  /** Who calls them does, too. */
  get kernels(): Kernels {
    settle();
    if (recording() === null) return this.#kernels;
    this.#recordedKernels ??= this.#recorded();
    return this.#recordedKernels;
  }

  /** Kernels that are taken down when they are called. */
  #recorded(): Kernels {
    const info = new Int32Array(this.#memory.buffer, memoryMap.INFO, INFO_WORDS);
    const taken = Object.entries(this.#kernels).map(([name, kernel]: [string, (...args: unknown[]) => unknown]) => {
      if (name.endsWith("Tmp")) return [name, kernel];
      const call = (...args: unknown[]) => {
        const again = kernel.bind(null, ...args) as () => void;
        const words = args.includes(memoryMap.INFO) ? info.slice() : null;
        const withWords = () => {
          info.set(words!);
          again();
        };
        recording()!.add(words ? withWords : again);
        again();
      };
      return [name, call];
    });
    return Object.fromEntries(taken) as Kernels;
  }

  /** The `n` i64 at `at`, each more by `by`. */
  advance(at: number, n: number, by: number): void {
    settle();
    const counts = new BigInt64Array(this.#memory.buffer, at, n);
    const step = BigInt(by);
    const run = () => {
      for (let i = 0; i < n; i++) counts[i]! += step;
    };
    recording()?.add(run);
    run();
  }

  /** From here on what is taken while a recording goes on is in the reserve, until its end. */
  beginReserve(usage: Usage): Reserve {
    const reserve = new Reserve(usage, (at) => this.#heap.release(at));
    this.#reserves.add(reserve);
    return reserve;
  }

  endReserve(reserve: Reserve): void {
    this.#reserves.delete(reserve);
    reserve[Symbol.dispose]();
  }

  get threads(): number {
    return this.#threads;
  }

  set threads(n: number) {
    if (!Number.isInteger(n) || n < 1 || n > MAX_THREADS) {
      fail("InvalidArgument", `cpu: threads must be a whole number from 1 to ${MAX_THREADS}, not ${n}`);
    }
    this.#threads = n;
    this.kernels.setThreads(n as Threads);
    if (this.#workers > 0) this.startWorkers();
  }

  /** Starts the workers that are missing. Called before the first work that is worth sharing. */
  startWorkers(): void {
    while (this.#workers < this.#threads - 1) {
      const index = ++this.#workers;
      const scratch = this.#scratch();
      const workerData = { module: this.#module, memory: this.#memory, index, scratch };
      // Without a listener a failing worker would end the process; without workers everything still works.
      new Worker(WORKER, { eval: true, workerData, execArgv: [] }).on("error", () => {}).unref();
    }
  }

  /** The address of WebAssembly's memory, which does not move. */
  get base(): number {
    this.#base ??= addressOfBuffer(this.#memory.buffer);
    return this.#base;
  }

  bytes(at: number, length: number): Uint8Array {
    return new Uint8Array(this.memory.buffer, at, length);
  }

  /** The address of `bytes` bytes; undefined where there is no room. */
  take(bytes: number): number | undefined {
    const size = bytes < STAGGER_FROM ? bytes : bytes + STAGGER;
    const going = recording();
    const reserve = going && this.#reserves.has(going.reserve) ? going.reserve : null;
    const again = reserve?.reuse(bytes);
    if (again !== undefined) return again;
    const at = this.#heap.take(size) ?? (this.#grow(size) ? this.#heap.take(size) : undefined);
    if (reserve && at !== undefined) reserve.add(at, bytes);
    else going?.refuse("two devices compute");
    return at;
  }

  /** The same; throws `OutOfMemory`. */
  alloc(bytes: number): number {
    const at = this.take(bytes);
    if (at !== undefined) return at;
    const [used, free] = [this.#memory.buffer.byteLength - this.#heap.free, this.#heap.free].map(formatBytes);
    return fail(
      "OutOfMemory",
      `cpu: cannot allocate ${formatBytes(bytes)}: ${used} are in use, ${free} are free in pieces, and WebAssembly's memory holds at most ${formatBytes(CPU_BYTES)}. Dispose tensors, use a scope(), or a smaller dtype`,
    );
  }

  release(at: number): void {
    for (const reserve of this.#reserves) if (reserve.takeBack(at)) return;
    this.#heap.release(at);
  }

  /** Calls `visit` with every range that nobody uses. */
  eachFree(visit: (at: number, bytes: number) => void): void {
    this.#heap.eachFree(visit);
  }

  /** Bytes that the system has given and that nobody uses. */
  get cached(): number {
    return this.#heap.free;
  }

  /** Bytes that it can still give, in pieces perhaps. */
  get available(): number {
    return CPU_BYTES - this.#memory.buffer.byteLength + this.#heap.free;
  }

  /** A thread's private memory. */
  #scratch(): TmpAddress {
    return this.alloc(this.kernels.scratchBytes()) as TmpAddress;
  }

  /** Makes room for `bytes` at the end of the memory. */
  #grow(bytes: number): boolean {
    const end = this.#memory.buffer.byteLength;
    const needed = Math.ceil((Heap.roundUp(bytes) - this.#heap.freeBefore(end)) / PAGE);
    // A quarter more than asked: untouched pages cost nothing, and growing is slow.
    for (const step of [needed + Math.max(256, end / PAGE / 4), needed].map(Math.floor)) {
      if (end / PAGE + step > pages.maximum) continue;
      try {
        this.#memory.grow(step);
      } catch {
        continue; // the system refused the larger step; try the exact one
      }
      this.#heap.extend(end, step * PAGE);
      return true;
    }
    return false;
  }
}

function defaultThreads(): number {
  const asked = variable("WICK_THREADS");
  if (asked === undefined) return Math.min(availableParallelism(), MAX_THREADS);
  const n = Number(asked);
  if (!Number.isInteger(n) || n < 1 || n > MAX_THREADS) {
    fail("InvalidArgument", `WICK_THREADS="${asked}" must be a whole number from 1 to ${MAX_THREADS}`);
  }
  return n;
}

function load(): { module: WebAssembly.Module; variant: "relaxed" | "simd" } {
  // Node 20 has relaxed SIMD behind a flag that may be set before the first compilation.
  const force = chosen("WICK_SIMD");
  if (Number(process.versions.node.split(".")[0]) < 22) setFlagsFromString("--experimental-wasm-relaxed-simd");
  const read = (variant: string) =>
    readFileSync(new URL(`../../../dist/wasm/kernels.${variant}.wasm`, import.meta.url));
  const relaxed = force === "plain" ? undefined : read("relaxed");
  if (relaxed && WebAssembly.validate(relaxed)) return { module: new WebAssembly.Module(relaxed), variant: "relaxed" };
  return { module: new WebAssembly.Module(read("simd")), variant: "simd" };
}
