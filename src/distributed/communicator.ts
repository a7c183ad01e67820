/**
 * Collectives over tensors: what processes that run a model together say to each other. Every rank makes the same calls in
 * the same order, with tensors of the same dtype. Results are the same on every rank, bit by bit, where all get them.
 */
import type { Device } from "../backend/device.ts";
import { type DType, sizeOf } from "../core/dtype.ts";
import { fail } from "../core/errors.ts";
import { formatShape, numel, type Shape } from "../core/layout.ts";
import { Tensor } from "../ops/index.ts";

export const reductions = ["sum", "max", "min"] as const;
export type Reduction = (typeof reductions)[number];

/** Native memory: where it begins, how many elements it has, and of what. */
export interface Span {
  readonly at: bigint;
  readonly count: number;
  readonly dtype: DType;
}

/** A library of collectives over native memory, in the order of the device's work. */
export interface CollectiveLibrary extends Disposable {
  /** For people: "Open MPI 4.1.4". */
  readonly name: string;
  /** Whether its calls become part of recorded work. */
  readonly recordable: boolean;
  /** What it cannot add up by itself goes through f32. */
  reduces(dtype: DType): boolean;
  /** `from` and `to` may be the same. */
  allReduce(from: Span, to: Span, reduction: Reduction): void;
  /** `to` has room for what every rank has, in their order. */
  allGather(from: Span, to: Span): void;
  /** `from` has a part for every rank, in their order. */
  reduceScatter(from: Span, to: Span, reduction: Reduction): void;
  broadcast(span: Span, root: number): void;
  send(span: Span, to: number): void;
  receive(span: Span, from: number): void;
  /** Both at once; either may be this rank itself. */
  sendReceive(span: Span, to: number, into: Span, from: number): void;
  barrier(): void;
}

/** Runs `work` with the memory of contiguous tensors, which it may write. */
export type WithMemory = (tensors: readonly Tensor[], work: (...spans: Span[]) => void) => void;

export class Communicator implements Disposable {
  readonly rank: number;
  readonly size: number;
  readonly device: Device;
  readonly #library: CollectiveLibrary;
  readonly #withMemory: WithMemory;
  #bytes = 0;
  #calls = 0;

  constructor(rank: number, size: number, device: Device, library: CollectiveLibrary, withMemory: WithMemory) {
    this.rank = rank;
    this.size = size;
    this.device = device;
    this.#library = library;
    this.#withMemory = withMemory;
  }

  /** The library that does it. */
  get name(): string {
    return this.#library.name;
  }

  /** Whether collectives become part of recorded work. */
  get recordable(): boolean {
    return this.#library.recordable;
  }

  /** Bytes that this rank has given to collectives, and how many there were. Replays of recorded work do not count. */
  get moved(): { readonly bytes: number; readonly calls: number } {
    return { bytes: this.#bytes, calls: this.#calls };
  }

  /** The sum, or another reduction, of the x of all ranks, on every one. */
  allReduce(x: Tensor, reduction: Reduction = "sum"): Tensor {
    const from = this.#own(x, "allReduce");
    if (!this.#library.reduces(x.dtype)) {
      using wide = from.toDType("f32");
      this.#run([wide], (span) => this.#library.allReduce(span, span, reduction));
      return wide.toDType(x.dtype);
    }
    const to = this.#empty(x.shape, x.dtype);
    this.#run([from, to], (a, b) => this.#library.allReduce(a, b, reduction));
    return to;
  }

  /** As `allReduce`, into x itself, which must be contiguous and nobody else's. */
  allReduceInto(x: Tensor, reduction: Reduction = "sum"): Tensor {
    if (!x.layout.isContiguous() || !this.#library.reduces(x.dtype)) return this.allReduce(x, reduction);
    this.#own(x, "allReduce");
    this.#run([x], (span) => this.#library.allReduce(span, span, reduction));
    return x;
  }

  /** The x of all ranks, one after the other: (ranks, …). */
  allGather(x: Tensor): Tensor {
    const from = this.#own(x, "allGather");
    const to = this.#empty([this.size, ...x.shape], x.dtype);
    this.#run([from, to], (a, b) => this.#library.allGather(a, b));
    return to;
  }

  /** Of x (ranks, …) the sum over all ranks of the part that is this rank's: (…). */
  reduceScatter(x: Tensor, reduction: Reduction = "sum"): Tensor {
    const from = this.#own(x, "reduceScatter");
    if (x.shape[0] !== this.size) {
      fail("ShapeMismatch", `reduceScatter: ${formatShape(x.shape)} must have a part for each of ${this.size} ranks`);
    }
    if (!this.#library.reduces(x.dtype)) {
      using wide = from.toDType("f32");
      using part = this.#scattered(wide, reduction);
      return part.toDType(x.dtype);
    }
    return this.#scattered(from, reduction);
  }

  /** The root's x on every rank; the others' say the shape and dtype. */
  broadcast(x: Tensor, root = 0): Tensor {
    return this.broadcastInto(this.#own(x, "broadcast").copy(), root);
  }

  /** As `broadcast`, into x itself, which must be contiguous and nobody else's. */
  broadcastInto(x: Tensor, root = 0): Tensor {
    this.#peer(root, "broadcast", true);
    const to = this.#own(x, "broadcast");
    this.#run([to], (span) => this.#library.broadcast(span, root));
    return to;
  }

  send(x: Tensor, to: number): void {
    this.#peer(to, "send", false);
    this.#run([this.#own(x, "send")], (span) => this.#library.send(span, to));
  }

  receive(shape: Shape, dtype: DType, from: number): Tensor {
    this.#peer(from, "receive", false);
    const to = this.#empty(shape, dtype);
    this.#run([to], (span) => this.#library.receive(span, from));
    return to;
  }

  /** Sends x to one rank while it receives as much from another, or from itself: of ranks in a ring none waits for the next. */
  sendReceive(x: Tensor, to: number, from: number): Tensor {
    this.#peer(to, "sendReceive", true);
    this.#peer(from, "sendReceive", true);
    const own = this.#own(x, "sendReceive");
    const into = this.#empty(x.shape, x.dtype);
    this.#run([own, into], (a, b) => this.#library.sendReceive(a, to, b, from));
    return into;
  }

  /** Waits until all ranks are here. */
  barrier(): void {
    this.#library.barrier();
  }

  [Symbol.dispose](): void {
    this.#library[Symbol.dispose]();
  }

  #scattered(from: Tensor, reduction: Reduction): Tensor {
    const to = this.#empty(from.shape.slice(1), from.dtype);
    this.#run([from, to], (a, b) => this.#library.reduceScatter(a, b, reduction));
    return to;
  }

  #run(tensors: readonly Tensor[], work: (...spans: Span[]) => void): void {
    const [first] = tensors as [Tensor];
    this.#bytes += numel(first.shape) * sizeOf(first.dtype);
    this.#calls++;
    // Nothing to say is the same on all ranks.
    if (numel(first.shape) > 0) this.#withMemory(tensors, work);
  }

  #empty(shape: Shape, dtype: DType): Tensor {
    return Tensor.empty(shape, { dtype, device: this.device });
  }

  #own(x: Tensor, call: string): Tensor {
    if (x.device === this.device) return x.contiguous();
    return fail(
      "DeviceMismatch",
      `${call}: the tensor is on ${x.device.name}, the communicator on ${this.device.name}`,
    );
  }

  #peer(rank: number, call: string, itself: boolean): void {
    if (Number.isInteger(rank) && rank >= 0 && rank < this.size && (itself || rank !== this.rank)) return;
    const others = itself ? "" : ` and not this one, ${this.rank}`;
    fail("InvalidArgument", `${call}: ranks are 0 to ${this.size - 1}${others}; ${rank} was asked for`);
  }
}
