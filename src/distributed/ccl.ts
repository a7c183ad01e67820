/** NCCL and RCCL on a GPU's stream: collectives take their turn among the kernels, and are recorded with them. */

import type { GpuBackend } from "../backend/gpu/backend.ts";
import { CCL_ABORT, CCL_BYTE, type Ccl, cclReductions, cclTypes } from "../backend/gpu/ccl.ts";
import type { GpuContext, Handle } from "../backend/gpu/driver.ts";
import { type DType, sizeOf } from "../core/dtype.ts";
import { fail } from "../core/errors.ts";
import type { CollectiveLibrary, Reduction, Span } from "./communicator.ts";

/** What the watching thread does for a communicator: stops it where a rank is lost. */
export interface Watch {
  guard(library: string, prototype: string, handle: bigint): void;
  unguard(handle: bigint): void;
  /** Throws where a rank is lost. */
  check(): void;
}

export class CclCommunicator implements CollectiveLibrary {
  readonly name: string;
  readonly recordable = true;
  readonly #ccl: Ccl;
  readonly #context: GpuContext;
  readonly #comm: Handle;
  readonly #watch: Watch;
  readonly #recordings: () => number;
  /** Memory for the barrier's number. */
  readonly #word: bigint;
  #ended = false;

  /** Waits until all ranks have come. */
  constructor(ccl: Ccl, gpu: GpuBackend, id: Uint8Array, rank: number, size: number, watch: Watch) {
    const { context } = gpu;
    this.#ccl = ccl;
    this.#context = context;
    this.#watch = watch;
    this.#recordings = () => gpu.graphs;
    this.name = `${ccl.name} ${ccl.version}`;
    context.activate();
    const { code, comm } = ccl.init(size, id, rank);
    if (code !== 0) this.#failed("ncclCommInitRank", code);
    this.#comm = comm;
    watch.guard(ccl.library, CCL_ABORT, comm);
    this.#word = context.malloc(8);
  }

  reduces(dtype: DType): boolean {
    return cclTypes[dtype] !== undefined;
  }

  allReduce(from: Span, to: Span, reduction: Reduction): void {
    const [type, op] = [cclTypes[from.dtype]!, cclReductions[reduction]];
    this.#run("allReduce", from.at, to.at, from.count, type, op, this.#comm, this.#context.stream);
  }

  allGather(from: Span, to: Span): void {
    this.#run("allGather", from.at, to.at, bytesOf(from), CCL_BYTE, this.#comm, this.#context.stream);
  }

  reduceScatter(from: Span, to: Span, reduction: Reduction): void {
    const [type, op] = [cclTypes[from.dtype]!, cclReductions[reduction]];
    this.#run("reduceScatter", from.at, to.at, to.count, type, op, this.#comm, this.#context.stream);
  }

  broadcast(span: Span, root: number): void {
    const { at } = span;
    this.#run("broadcast", at, at, bytesOf(span), CCL_BYTE, root, this.#comm, this.#context.stream);
  }

  send(span: Span, to: number): void {
    this.#run("send", span.at, bytesOf(span), CCL_BYTE, to, this.#comm, this.#context.stream);
  }

  receive(span: Span, from: number): void {
    this.#run("receive", span.at, bytesOf(span), CCL_BYTE, from, this.#comm, this.#context.stream);
  }

  sendReceive(span: Span, to: number, into: Span, from: number): void {
    this.check();
    this.#require("ncclGroupStart", this.#ccl.api.groupStart());
    try {
      this.send(span, to);
      this.receive(into, from);
    } finally {
      this.#require("ncclGroupEnd", this.#ccl.api.groupEnd());
    }
  }

  barrier(): void {
    const word: Span = { at: this.#word, count: 1, dtype: "i32" };
    this.allReduce(word, word, "sum");
    this.#context.synchronizeSync();
    this.check();
  }

  /** Throws where a rank is lost, or the library has met an error since. */
  check(): void {
    if (this.#ended) return;
    this.#watch.check();
    const code = this.#ccl.asyncError(this.#comm);
    if (code !== 0) this.#failed("a collective", code);
  }

  [Symbol.dispose](): void {
    if (this.#ended) return;
    this.#ended = true;
    this.#watch.unguard(this.#comm);
    this.#context.synchronizeSync();
    // The library would wait until recordings with its calls are gone, and those that are still there may stay for ever.
    if (this.#recordings() === 0) this.#ccl.api.destroy(this.#comm);
    this.#context.free(this.#word);
  }

  #run(call: keyof Ccl["api"], ...args: (bigint | number)[]): void {
    this.check();
    this.#context.activate();
    this.#context.fence();
    this.#require(call, this.#ccl.api[call](...args));
  }

  #require(call: string, code: number): void {
    if (code !== 0) this.#failed(call, code);
  }

  #failed(call: string, code: number): never {
    // A rank that is gone is the better reason.
    this.#watch.check();
    return fail("CollectiveFailed", `${this.name}: ${call} failed: ${this.#ccl.describe(code)}`);
  }
}

const bytesOf = ({ count, dtype }: Span): number => count * sizeOf(dtype);
