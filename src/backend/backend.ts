/**
 * What a device must give, memory and the core ops, and what it may give beyond. The ops above have checked shapes, dtypes
 * and devices before they call a backend, so a backend only computes. Conventions that hold for every op:
 *
 * - A `View` is a storage seen through a layout; any strides and offset are allowed, broadcast (stride 0) included.
 * - Results are new contiguous storages in row-major order, unless an op says that it writes into a view.
 * - Zero-element views are allowed everywhere.
 * - Operands of one call live on this backend. Ops borrow their operands.
 * - Ids are u8, u32 or i64. The largest value of the id type means "nothing": reads give 0, writes are skipped. Any
 *   other id out of range is an `InvalidIndex` error, thrown at once or, by an asynchronous device, at the next read.
 */
import type { DType } from "../core/dtype.ts";
import type { Layout } from "../core/layout.ts";
import type { QuantType } from "../core/quant-types.ts";
import type { FusedOps } from "./fused-ops.ts";
import type { PageCopier, PagedAttention, PagedLatentAttention } from "./paged-attention.ts";
import type { Storage } from "./storage.ts";
import type { CachedAttention, CacheRows, LatentAttention, Recorder, TransformerSupport } from "./transformers.ts";

export interface View {
  readonly storage: Storage;
  readonly layout: Layout;
}

export const unaryOps = [
  "neg",
  "recip",
  "exp",
  "log",
  "sin",
  "cos",
  "tanh",
  "erf",
  "ceil",
  "floor",
  "round",
  "normcdf",
  "abs",
  "sqr",
  "sqrt",
  "gelu",
  "gelu_erf",
  "relu",
  "silu",
  "sign",
  "sigmoid",
  "elu",
  "powf",
] as const;
export type UnaryOp = (typeof unaryOps)[number];

export const binaryOps = ["add", "sub", "mul", "div", "maximum", "minimum", "pow"] as const;
export type BinaryOp = (typeof binaryOps)[number];

export const compareOps = ["eq", "ne", "lt", "le", "gt", "ge"] as const;
export type CompareOp = (typeof compareOps)[number];

export const reduceOps = ["sum", "min", "max", "argmin", "argmax"] as const;
export type ReduceOp = (typeof reduceOps)[number];

export interface MemoryStats {
  /** Bytes that tensors hold now. */
  readonly live: number;
  /** Bytes kept for reuse. */
  readonly cached: number;
  /** The largest `live` so far. */
  readonly peak: number;
  /** How many storages hold the live bytes. */
  readonly storages: number;
  /** Bytes of files that tensors show in place: the system's pages, which `live` does not count. */
  readonly mapped?: number;
  /** Of a GPU: bytes taken of its own memory and of the host's that it maps, and what it does so by. */
  readonly regions?: { readonly own: number; readonly host: number; readonly policy: string };
}

/** What new tensors can have, and where that is, for people. */
export interface Available {
  readonly bytes: number;
  /** Of these, those that all kernels reach as fast as they can, where others are slower. */
  readonly near?: number;
  readonly where: string;
}

/** A piece of device memory; only its backend knows more. */
export interface Block {
  readonly bytes: number;
}

/** A file that is open now. */
export interface OpenFile {
  readonly path: string;
  readonly size: number;
  readonly descriptor: number;
}

export interface FileRange {
  readonly file: OpenFile;
  readonly start: number;
  readonly bytes: number;
}

/** Fills `out` completely. */
export type ReadInto = (out: Uint8Array) => Promise<void>;

/** What libraries that work on a device's memory need. */
export interface NativeMemory {
  /** The address of a storage's first byte: of the process's memory, or of the device's. */
  address(storage: Storage): bigint;
}

/** Bytes on their way to the host. */
export interface PendingRead {
  /** Waits until they are there and hands them on, piece by piece; they are valid during the call. Call it once. */
  finish(take: (bytes: Uint8Array, start: number) => void): void;
}

export interface DeviceMemory {
  /** Uninitialised memory; throws `OutOfMemory` with sizes. */
  alloc(bytes: number): Block;
  free(block: Block): void;
  /**
   * Memory that shows a part of a file, which need not stay open, without a copy; null where there is none. What is written
   * to it does not reach the file.
   */
  map?(range: FileRange): Block | null;
  memory(): MemoryStats;
  available(): Available;
  /** Returns cached memory to the system. */
  trim(): void;

  write(dst: Storage, byteOffset: number, data: Uint8Array): void;
  /** Writes what `read` puts into the memory it is given: the device's own, or what the device copies from by itself. */
  receive(dst: Storage, byteOffset: number, byteLength: number, read: ReadInto): Promise<void>;
  /** The result is a copy. */
  read(src: Storage, byteOffset: number, byteLength: number): Promise<Uint8Array>;
  readSync(src: Storage, byteOffset: number, byteLength: number): Uint8Array;
  /** Begins to read what is there when the work enqueued so far is done. Absent where reading takes no waiting. */
  beginRead?(src: Storage, byteOffset: number, byteLength: number): PendingRead;
  /** Enqueues a copy from another device's storage; false, or absent, where bytes have to pass through the host's hands. */
  copyFrom?(dst: Storage, dstOffset: number, src: Storage, srcOffset: number, byteLength: number): boolean;
}

/** What cannot be composed of anything else. */
export interface CoreOps {
  fill(dtype: DType, n: number, value: number | bigint): Storage;
  /** Philox 4×32-10 keyed by `seed`: uniform on [a, b) or normal with mean a and deviation b. Float dtypes. */
  random(kind: "uniform" | "normal", dtype: DType, n: number, seed: bigint, a: number, b: number): Storage;

  /** `param` is elu's alpha and powf's exponent. Floats; neg, abs, sqr, sign and relu also integers. */
  unary(op: UnaryOp, x: View, param: number): Storage;
  /** Both views have the result's shape. */
  binary(op: BinaryOp, a: View, b: View): Storage;
  /** As `binary`; the result is u8. */
  compare(op: CompareOp, a: View, b: View): Storage;
  where(cond: View, onTrue: View, onFalse: View): Storage;
  cast(x: View, to: DType): Storage;
  /** Copies between views of one shape and dtype; `dst` does not overlap itself. */
  copy(src: View, dst: View): void;

  /** Reduces the last `dims` dims; the result has the others. argmin and argmax give u32, the first index wins. */
  reduce(op: ReduceOp, x: View, dims: number): Storage;
  /** Running sum along the last dim. */
  cumsum(x: View): Storage;
  /** The stable order of the last dim as u32; NaN last. */
  argsort(x: View, descending: boolean): Storage;

  /** out[i,j,k] = x[i, ids[i,j,k], k] for dim 1; ids may be smaller than x on the other dims. */
  gather(x: View, ids: View, dim: number): Storage;
  /** dst[i, ids[i,j,k], k] = (or +=) src[i,j,k] for dim 1; `dst` is contiguous, src and ids have one shape. */
  scatter(dst: View, ids: View, src: View, dim: number, add: boolean): void;

  /** (…, m, k) × (…, k, n) with equal leading dims (broadcast ones have stride 0). */
  matmul(a: View, b: View): Storage;

  /** All weights of quantized blocks, a contiguous u8 view, as f32, f16 or bf16. */
  dequantize(type: QuantType, blocks: View, to: DType): Storage;
  /** x, whose last dim is a whole number of blocks, as blocks; `UnsupportedOp` for types that it does not write. */
  quantize(type: QuantType, x: View): Storage;
}

export interface Backend extends DeviceMemory, CoreOps, Partial<FusedOps> {
  /** The device's name as users write it: "cpu", "rocm:0". */
  readonly name: string;
  /** The hardware, for people. */
  describe?(): string;
  synchronize(): Promise<void>;

  /**
   * Goes through `run` without computing, so that what it needs is compiled side by side and not piece by piece. Its results
   * are not to be used. Absent where nothing is compiled.
   */
  rehearse?(run: () => Promise<void>): Promise<void>;

  /** Absent where only the device itself knows its memory. */
  readonly nativeMemory?: NativeMemory;
  readonly recorder?: Recorder;
  readonly cachedAttention?: CachedAttention;
  readonly cacheRows?: CacheRows;
  readonly latentAttention?: LatentAttention;
  readonly pagedAttention?: PagedAttention;
  readonly pagedLatentAttention?: PagedLatentAttention;
  /** What copies pages of these pools, (pages, …) of one size and contiguous. Absent where that is done pool by pool. */
  pageCopier?(pools: readonly View[]): PageCopier;
  readonly transformers?: TransformerSupport;
  /**
   * What `run` computes has rows that do not depend on each other, bit by bit: not on how many there are in a call, nor on
   * how a prompt was cut. Slower; absent where rows never depend on each other.
   */
  invariantly?<T>(run: () => T): T;
}
