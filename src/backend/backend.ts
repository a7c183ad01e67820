/**
 * What a device must implement, and nothing else. `Tensor` has checked shapes, dtypes and devices before it calls a
 * backend, so a backend only computes. Conventions that hold for every method:
 *
 * - A `View` is a storage seen through a layout; any strides and offset are allowed, broadcast (stride 0) included.
 * - Results are new contiguous storages in row-major order, unless a method says that it writes into a view.
 * - Zero-element views are allowed everywhere.
 * - Operands of one call live on this backend. Methods borrow their operands.
 * - Ids are u8, u32 or i64. The largest value of the id type means "nothing": reads give 0, writes are skipped. Any
 *   other id out of range is an `InvalidIndex` error, thrown at once or, by an asynchronous device, at the next read.
 */
import type { DType } from "../core/dtype.ts";
import type { Layout } from "../core/layout.ts";
import type { QuantType } from "../core/quant-types.ts";
import type { Storage } from "./storage.ts";

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

export interface Window2d {
  readonly stride: readonly [number, number];
  readonly padding: readonly [number, number];
  readonly dilation: readonly [number, number];
}
export interface ConvParams extends Window2d {
  readonly groups: number;
}
export interface ConvTransposeParams extends ConvParams {
  readonly outputPadding: readonly [number, number];
}

export interface SdpaParams {
  readonly scale: number;
  /** Row i sees keys ≤ i + tk − tq. */
  readonly causal: boolean;
  /** Scores become tanh(s / softcap) · softcap; 0 turns it off. */
  readonly softcap: number;
  /** With causal: a row sees only its last `window` keys; 0 turns it off. */
  readonly window: number;
}

/** Where the rows of a step stand in a cache, and how it attends to what is there. */
export interface CachedAttentionParams extends Omit<SdpaParams, "causal"> {
  /** (positions, rotary/2) for every position there may be. */
  readonly cos: View;
  readonly sin: View;
  /** Pairs are neighbours (2i, 2i + 1) and not (i, i + rotary/2). */
  readonly interleaved: boolean;
  /** Positions that the caches (batch, kv heads, capacity, d) hold already; they have room for the new ones. */
  readonly k: View;
  readonly v: View;
  readonly past: number;
  /** i64 (batch), in place of `past`: the positions there are with the new ones, read when the work runs. */
  readonly lengths: View | null;
  /** i64 (batch): how many positions before a sequence's first one are padding, which counts as position 0. */
  readonly padding: View | null;
  /** Additive, broadcast to (batch, heads, t, keys), for the keys there are, or for the capacity with `lengths`. */
  readonly mask: View | null;
}

/** Work that was recorded, to be run again on the same memory. */
export interface Graph extends Disposable {
  /** Enqueues the work. */
  replay(): void;
}

/** What a linear layer of few rows does besides the product, in the same kernel. */
export interface LinearParams {
  /** x is RMS-normalised before the product. */
  readonly norm: { readonly weight: View; readonly eps: number } | null;
  readonly bias: View | null;
  /** The first half of w's rows are the gates of the second: the result is act(gate) · up, of half as many columns. */
  readonly glu: "silu" | "gelu" | null;
  /** Added to the result, and of its shape. */
  readonly residual: View | null;
}

export interface SumAndNorm {
  readonly sum: Storage;
  readonly normed: Storage;
}

/** How the tokens of one sequence are chosen; the values are those of `SamplingOptions`, checked. */
export interface SamplerSpec {
  /** 0 takes the likeliest token. */
  readonly temperature: number;
  /** 0 is all. */
  readonly topK: number;
  readonly topP: number;
  readonly minP: number;
  readonly repetitionPenalty: number;
  /** Of this sequence alone: the random number of a step is SplitMix64 of the seed and the step. */
  readonly seed: bigint;
  /** Tokens that count as seen. */
  readonly prompt: readonly number[];
}

/** Chooses tokens without the host: what was seen and the step are kept on the device. */
export interface TokenSampler extends Disposable {
  /**
   * Enqueues the choice of one token per sequence, from f32 logits (b, vocab) with contiguous rows into u32 ids (b); each
   * run, or replay, is one step. A sequence whose largest logit is not finite gets the id 0xffffffff and makes no step:
   * whoever reads the ids throws `ValueOutOfRange` then.
   */
  sample(logits: View, ids: Storage): void;
}

export interface MemoryStats {
  /** Bytes that tensors hold now. */
  readonly live: number;
  /** Bytes kept for reuse. */
  readonly cached: number;
  /** The largest `live` so far. */
  readonly peak: number;
  /** How many storages hold the live bytes. */
  readonly storages: number;
  /** Of a GPU: bytes taken of its own memory and of the host's that it maps, and what it does so by. */
  readonly regions?: { readonly own: number; readonly host: number; readonly policy: string };
}

/** What new tensors can have, and where that is, for people. */
export interface Available {
  readonly bytes: number;
  readonly where: string;
}

/** A piece of device memory; only its backend knows more. */
export interface Block {
  readonly bytes: number;
}

/** What a device may ready before a transformer runs. */
export interface TransformerNeeds {
  /** What it computes in. */
  readonly dtype: DType;
  /** The block types of its quantized weights. */
  readonly quantTypes: readonly QuantType[];
  /** The dtypes of its other weights. */
  readonly storedTypes: readonly DType[];
  /** Whether its norms are stored less one. */
  readonly normsAreShifted: boolean;
  /** Whether matrices are not quantized. */
  readonly hasPlainWeights: boolean;
  readonly headDim: number;
  readonly hiddenSize: number;
  readonly activation: "silu" | "gelu" | "geluErf" | "relu";
  /** Rotary pairs are neighbours. */
  readonly interleaved: boolean;
  /** Attention's scores have a cap, or a scale that is not positive. */
  readonly scoresAreShaped: boolean;
  readonly embeddingsAreScaled: boolean;
  readonly logitsAreCapped: boolean;
}

/** Neither is ever rejected: what could not be readied fails where it is used. */
export interface Preparation {
  /** What converts weights as they come. */
  readonly toLoad: Promise<void>;
  readonly toRun: Promise<void>;
}

export interface Backend extends QuantizedOps {
  /** The device's name as users write it: "cpu", "rocm:0". */
  readonly name: string;

  /** Uninitialised memory; throws `OutOfMemory` with sizes. */
  alloc(bytes: number): Block;
  free(block: Block): void;
  memory(): MemoryStats;
  available(): Available;
  /** Returns cached memory to the system. */
  trim(): void;
  synchronize(): Promise<void>;
  /** Readies what a transformer will need; it works without, too. */
  prepare(needs: TransformerNeeds): Preparation;

  write(dst: Storage, byteOffset: number, data: Uint8Array): void;
  /** The result is a copy. */
  read(src: Storage, byteOffset: number, byteLength: number): Promise<Uint8Array>;
  readSync(src: Storage, byteOffset: number, byteLength: number): Uint8Array;

  fill(dtype: DType, n: number, value: number | bigint): Storage;
  /** Philox 4×32-10 keyed by `seed`: uniform on [a, b) or normal with mean a and deviation b. Float dtypes. */
  random(kind: "uniform" | "normal", dtype: DType, n: number, seed: bigint, a: number, b: number): Storage;

  /** `param` is elu's alpha and powf's exponent. Floats; neg, abs, sqr, sign and relu also integers. */
  unary(op: UnaryOp, x: View, param: number): Storage;
  /** x · mul + add, in x's dtype. */
  affine(x: View, mul: number, add: number): Storage;
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

  /** x with dim `dim` replaced by ids' single dim. */
  indexSelect(x: View, ids: View, dim: number): Storage;
  /** out[i,j,k] = x[i, ids[i,j,k], k] for dim 1; ids may be smaller than x on the other dims. */
  gather(x: View, ids: View, dim: number): Storage;
  /** dst[i, ids[i,j,k], k] = (or +=) src[i,j,k] for dim 1; `dst` is contiguous, src and ids have one shape. */
  scatter(dst: View, ids: View, src: View, dim: number, add: boolean): void;
  /** dst[i, ids[j], k] += src[i,j,k] for dim 1; `dst` is contiguous. */
  indexAdd(dst: View, ids: View, src: View, dim: number): void;

  /** (…, m, k) × (…, k, n) with equal leading dims (broadcast ones have stride 0). */
  matmul(a: View, b: View): Storage;

  /** x (b, c, h, w), w (o, c/groups, kh, kw) → (b, o, h', w'). */
  conv2d(x: View, w: View, p: ConvParams): Storage;
  /** x (b, c, h, w), w (c, o/groups, kh, kw) → (b, o, h', w'). */
  convTranspose2d(x: View, w: View, p: ConvTransposeParams): Storage;
  pool2d(kind: "avg" | "max", x: View, kernel: readonly [number, number], stride: readonly [number, number]): Storage;
  upsampleNearest2d(x: View, size: readonly [number, number]): Storage;
  /** `scale` overrides in/out as the source step where the user gave a scale factor. */
  upsampleBilinear2d(
    x: View,
    size: readonly [number, number],
    alignCorners: boolean,
    scale: readonly [number, number] | null,
  ): Storage;

  /** Over the last dim. */
  softmax(x: View, log: boolean): Storage;
  rmsNorm(x: View, weight: View | null, eps: number): Storage;
  /** silu(gate) · up or gelu(gate) · up for views of one shape; null where the device has no fused kernel. */
  glu(act: "silu" | "gelu", gate: View, up: View): Storage | null;
  /**
   * x (m, k) · wᵀ for few rows: w is (n, k) in x's dtype or, with `type`, (n, bytes) of quantized blocks. Null where the
   * device has no such kernel or many kernels are faster: the caller then composes it of other ops.
   */
  linear(x: View, w: View, type: QuantType | null, p: LinearParams): Storage | null;
  layerNorm(x: View, weight: View | null, bias: View | null, eps: number): Storage;
  /** sum = x + residual, rounded to their dtype, and its rmsNorm; null where the device has no fused kernel. */
  addRmsNorm(x: View, residual: View, weight: View | null, eps: number): SumAndNorm | null;
  /** rope, rope_i: x (b, h, t, d); rope_thd: x (b, t, h, d). cos, sin: (t', d/2) or (b, t', d/2). */
  rope(kind: "rope" | "rope_i" | "rope_thd", x: View, cos: View, sin: View): Storage;
  /**
   * q (b, hq, tq, d), k (b, hk, tk, d), v (b, hk, tk, dv); mask is additive and broadcast to (b, hq, tq, tk). Null where
   * the device has no fused kernel for these dtypes and sizes: the caller then composes it of other ops.
   */
  sdpa(q: View, k: View, v: View, mask: View | null, p: SdpaParams): Storage | null;

  /** One spec per sequence. Null where the device has no kernels for it: the host samples then. */
  sampler(vocab: number, specs: readonly SamplerSpec[]): TokenSampler | null;

  /** Null on devices that cannot record their work. */
  readonly graphs: GraphOps | null;
}

/** Decoding without the host: steps that find all they need in device memory are recorded once and replayed. */
export interface GraphOps {
  /** Why work is not recorded here, though the other ops are there; null where it is. */
  readonly recordingProblem: string | null;
  /** Whether `attention` has kernels for heads of this size. */
  supports(dtype: DType, headDim: number): boolean;
  /**
   * One step of attention over a cache: the rows of q (batch · t, heads · d) and k, v (batch · t, kv heads · d), whose
   * last dim is contiguous, are turned by their positions, k and v enter the cache, and each query sees the keys up to
   * its own. The result is (batch, heads, t, d).
   */
  attention(q: View, k: View, v: View, p: CachedAttentionParams): Storage;
  /** counts[i] += by, in place; i64. */
  advance(counts: View, by: number): void;
  /**
   * Runs `run`, then records it. What the recorded run allocates is reserved until the graph is disposed; all else that
   * it uses must live as long. Moving data between host and device while it records is an error: it would happen once.
   */
  capture(run: () => void): Graph;
}

/**
 * Ops on quantized weights: contiguous u8 views of blocks, a row being a whole number of them. Floats here are f32, f16
 * and bf16. A device has all of these ops or none.
 */
export interface QuantizedOps {
  /** All weights as floats. */
  dequantize(type: QuantType, blocks: View, to: DType): Storage;
  /** The rows of `blocks` (rows, bytes) that the 1-D ids name, as floats. */
  quantizedRows(type: QuantType, blocks: View, ids: View, to: DType): Storage;
  /** x, whose last dim is a whole number of blocks, as blocks of one of the writable types. */
  quantize(type: QuantType, x: View): Storage;
  /** x (…, k) · wᵀ with w (n, k) as `blocks` (n, bytes) → (…, n) in x's dtype. */
  qmatmul(type: QuantType, x: View, blocks: View): Storage;
}
