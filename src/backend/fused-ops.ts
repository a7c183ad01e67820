/**
 * What a device may do in one go because it is faster so. Each of these has a composed default in ops/composed/ that needs
 * the core ops alone: a device leaves out what it has no kernel for, and returns null where it has none for these dtypes
 * and sizes.
 */
import type { DType } from "../core/dtype.ts";
import type { QuantType } from "../core/quant-types.ts";
import type { View } from "./backend.ts";
import type { Storage } from "./storage.ts";

/** [height, width]. */
export type Size2d = readonly [number, number];

export interface ConvParams {
  readonly stride: Size2d;
  readonly padding: Size2d;
  readonly dilation: Size2d;
  readonly groups: number;
  /** Of the result. */
  readonly size: Size2d;
}

export interface PoolParams {
  readonly kernel: Size2d;
  readonly stride: Size2d;
  /** Of the result. */
  readonly size: Size2d;
}

export interface SdpaParams<V extends View = View> {
  readonly scale: number;
  /** Row i sees keys ≤ i + tk − tq. */
  readonly causal: boolean;
  /** Scores become tanh(s / softcap) · softcap; 0 turns it off. */
  readonly softcap: number;
  /** With causal a row sees only its last `window` keys, without it those at most `window` away; 0 turns it off. */
  readonly window: number;
  /** (hq), contiguous: a logit of each head that has its share of the weights, and no value. */
  readonly sinks: V | null;
}

/**
 * How a gate opens what is beside it: silu(gate) · up, gelu(gate) · up, or gpt-oss's g · sigmoid(1.702 g) · (u + 1) with
 * g = min(gate, 7) and u = up within ±7.
 */
export type GluActivation = "silu" | "gelu" | "clampedSwiglu";

/** What a layer may do to each of its results. */
export type EpilogueActivation = "silu" | "gelu" | "geluErf" | "relu";

/** What follows a product (…, n). */
export interface EpilogueParams<V extends View = View> {
  /** (n). */
  readonly bias: V | null;
  readonly activation: EpilogueActivation | null;
  /** Of the product's shape. */
  readonly residual: V | null;
}

/** What a linear layer does besides the product. */
export interface LinearParams<V extends View = View> {
  /** x is RMS-normalised before the product. */
  readonly norm: { readonly weight: V; readonly eps: number } | null;
  readonly bias: V | null;
  /** The first half of w's rows are the gates of the second: the result is act(gate) · up, of half as many columns. */
  readonly glu: GluActivation | null;
  /** Of the result, without a gate. Default none. */
  readonly activation?: EpilogueActivation | undefined;
  /** Added to the result, and of its shape. */
  readonly residual: V | null;
  /** Nobody reads the residual afterwards: the result may take its memory. Default false. */
  readonly spendsResidual?: boolean | undefined;
  /** The type of the weights that the result is multiplied with next: a device may bring it into their order beside. Default unknown. */
  readonly next?: QuantType | null | undefined;
}

/** As `LinearParams`, by expert. */
export interface ExpertParams<V extends View = View> {
  /** x is RMS-normalised before the product. */
  readonly norm: { readonly weight: V; readonly eps: number } | null;
  /** (experts, n). */
  readonly bias: V | null;
  readonly glu: GluActivation | null;
  /** (n, k): the slots of each row are summed so, in f32. Without a gate. */
  readonly mix: V | null;
  /** Added to that sum, and of its shape. */
  readonly residual: V | null;
}

/** What one row goes through: experts that its scores choose, all of one type. */
export interface RoutedParams<V extends View = View> {
  /** How many experts it is given. */
  readonly count: number;
  readonly type: QuantType;
  /** x is RMS-normalised before the product. */
  readonly norm: { readonly weight: V; readonly eps: number } | null;
  readonly glu: GluActivation;
  /** Added to the result, and of its shape. */
  readonly residual: V | null;
}

export interface ValuesAndIds {
  readonly values: Storage;
  /** u32. */
  readonly ids: Storage;
}

export interface SumAndNorm {
  readonly sum: Storage;
  readonly normed: Storage;
}

export type RopeKind = "rope" | "rope_i" | "rope_thd";

export interface FusedOps<V extends View = View> {
  /** x · mul + add, in x's dtype. */
  affine(x: V, mul: number, add: number): Storage | null;

  /** x with dim `dim` replaced by ids' single dim. */
  indexSelect(x: V, ids: V, dim: number): Storage | null;
  /** dst[i, ids[j], k] += src[i,j,k] for dim 1; `dst` is contiguous. */
  indexAdd(dst: V, ids: V, src: V, dim: number): void;

  /** x (b, c, h, w), w (o, c/groups, kh, kw) → (b, o, h', w'). */
  conv2d(x: V, w: V, p: ConvParams): Storage | null;
  /** x (b, c, h, w), w (c, o/groups, kh, kw) → (b, o, h', w'). */
  convTranspose2d(x: V, w: V, p: ConvParams): Storage | null;
  pool2d(kind: "avg" | "max", x: V, p: PoolParams): Storage | null;
  upsampleNearest2d(x: V, size: Size2d): Storage | null;
  /** `scale` overrides in/out as the source step where the user gave a scale factor. */
  upsampleBilinear2d(x: V, size: Size2d, alignCorners: boolean, scale: Size2d | null): Storage | null;

  /** Over the last dim. */
  softmax(x: V, log: boolean): Storage | null;
  rmsNorm(x: V, weight: V | null, eps: number): Storage | null;
  layerNorm(x: V, weight: V | null, bias: V | null, eps: number): Storage | null;
  /** sum = x + residual, rounded to their dtype, and its rmsNorm. */
  addRmsNorm(x: V, residual: V, weight: V | null, eps: number): SumAndNorm | null;
  /** The gate and what it opens are of one shape. */
  glu(act: GluActivation, gate: V, up: V): Storage | null;
  /** rope, rope_i: x (b, h, t, d); rope_thd: x (b, t, h, d). cos, sin: (t', d/2) or (b, t', d/2). */
  rope(kind: RopeKind, x: V, cos: V, sin: V): Storage | null;
  /** q (b, hq, tq, d), k (b, hk, tk, d), v (b, hk, tk, dv); mask is additive and broadcast to (b, hq, tq, tk). */
  sdpa(q: V, k: V, v: V, mask: V | null, p: SdpaParams<V>): Storage | null;
  /**
   * Attention within each of the sequences whose rows lie one behind the other: q (rows, hq, d), k (rows, hk, d),
   * v (rows, hk, dv) → (rows, hq, dv). Sequence i has the rows from offsets[i] to offsets[i + 1]; i64, contiguous, from 0
   * to rows.
   */
  sdpaVarlen(q: V, k: V, v: V, offsets: V, p: SdpaParams<V>): Storage | null;
  /** activation(y + bias) + residual. */
  epilogue(y: V, p: EpilogueParams<V>): Storage | null;
  /**
   * x (m, k) · wᵀ: w is (n, k) in x's dtype or, with `type`, (n, bytes) of quantized blocks, which nobody writes to any more:
   * a device may keep them in another form, too.
   */
  linear(x: V, w: V, type: QuantType | null, p: LinearParams<V>): Storage | null;

  /** The k largest of the last dim in order, with `softmax` theirs in f32; of equal ones the first before, NaN last. */
  topk(x: V, k: number, softmax: boolean): ValuesAndIds | null;
  /**
   * A row for each of ids' slots (n, k), which are u32: x's row, of which there are n or n · k, through one of the experts
   * w (experts, out, in), or (experts, out, bytes) of quantized blocks with `type`. With a mix, a row for each n.
   */
  expertLinear(x: V, w: V, type: QuantType | null, ids: V, p: ExpertParams<V>): Storage | null;
  /**
   * x (1, hidden) through the experts that scores (1, experts) choose, as `topk` with a softmax and two `expertLinear` make it: gates
   * and what they open (experts, 2 · width, bytes), and down again (experts, hidden, bytes).
   */
  routedExperts(x: V, scores: V, open: V, down: V, p: RoutedParams<V>): Storage | null;
  /** Σ over k of y (n · k, hidden) by mix (n, k), and `residual` (n, hidden), in f32 → (n, hidden) in y's dtype. */
  mixExperts(y: V, mix: V, residual: V | null): Storage | null;

  /** The rows of quantized `blocks` (rows, bytes) that the 1-D ids name, as floats. */
  quantizedRows(type: QuantType, blocks: V, ids: V, to: DType): Storage | null;
  /** x (…, k) · wᵀ with w (n, k) as quantized `blocks` (n, bytes) → (…, n) in x's dtype. */
  qmatmul(type: QuantType, x: V, blocks: V): Storage | null;

  /** counts[i] += by, in place; i64. */
  advance(counts: V, by: number): void;
}
