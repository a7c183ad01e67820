/** A GPU as a backend: each method is one op of ops/, after bringing f8e4m3, which kernels only cast, to f32. */
import type { DType } from "../../core/dtype.ts";
import { Layout } from "../../core/layout.ts";
import type { QuantType } from "../../core/quant-types.ts";
import type { Backend, BinaryOp, CompareOp, ReduceOp, UnaryOp, View } from "../backend.ts";
import type {
  ConvParams,
  EpilogueParams,
  ExpertParams,
  GluActivation,
  LinearParams,
  PoolParams,
  RoutedParams,
  SdpaParams,
  Size2d,
  SumAndNorm,
  ValuesAndIds,
} from "../fused-ops.ts";
import type { PageCopier, PagedAttention, PagedLatentAttention } from "../paged-attention.ts";
import type { Storage } from "../storage.ts";
import type {
  CachedAttention,
  LatentAttention,
  Preparation,
  Recorder,
  TransformerNeeds,
  TransformerSupport,
} from "../transformers.ts";
import { copyLayout } from "./copy.ts";
import { isGemmType } from "./device-blas.ts";
import { at, Gpu } from "./gpu.ts";
import { addedProduct } from "./ops/added-product.ts";
import { sdpa, sdpaVarlen } from "./ops/attention.ts";
import * as conv from "./ops/conv.ts";
import { GpuCachedAttention, GpuPagedAttention, GpuRecorder } from "./ops/decode.ts";
import * as elementwise from "./ops/elementwise.ts";
import * as experts from "./ops/experts.ts";
import * as indexing from "./ops/indexing.ts";
import { GpuLatentAttention, GpuPagedLatentAttention } from "./ops/latent.ts";
import { linear } from "./ops/linear.ts";
import { matmul } from "./ops/matmul.ts";
import { GpuPageCopier } from "./ops/page-copier.ts";
import * as quantized from "./ops/quantized.ts";
import * as reductions from "./ops/reduce.ts";
import * as rows from "./ops/rows.ts";
import { GpuSampler } from "./ops/sample.ts";
import { loadingKernels, productKernels, quantProductKernels, transformerKernels } from "./transformer-kernels.ts";

const isF8 = (view: View | null): boolean => view?.storage.dtype === "f8e4m3";

export class GpuBackend extends Gpu implements Backend {
  readonly recorder: Recorder = new GpuRecorder(this);
  readonly cachedAttention: CachedAttention = new GpuCachedAttention(this);
  readonly latentAttention: LatentAttention = new GpuLatentAttention(this);
  readonly pagedAttention: PagedAttention = new GpuPagedAttention(this);
  readonly pagedLatentAttention: PagedLatentAttention = new GpuPagedLatentAttention(this);
  readonly transformers: TransformerSupport = {
    prepare: (needs) => this.#prepare(needs),
    sampler: (vocab, slots) => GpuSampler.for(this, vocab, slots),
  };

  protected override get backend(): Backend {
    return this;
  }

  describe(): string {
    const { name, arch } = this.context.properties;
    return `${name}, ${arch}`;
  }

  pageCopier(pools: readonly View[]): PageCopier {
    return new GpuPageCopier(this, pools);
  }

  #prepare(needs: TransformerNeeds): Preparation {
    // A compiler that is not there is told by the first kernel that needs it.
    const quietly = (work: Promise<void>): Promise<void> => work.catch(() => {});
    return { toLoad: quietly(this.prepare(loadingKernels(needs))), toRun: quietly(this.#prepareToRun(needs)) };
  }

  /** Whether kernels for the products of prompts are needed is known once the BLAS library has been tried. */
  async #prepareToRun(needs: TransformerNeeds): Promise<void> {
    const { dtype } = needs;
    const { properties, kernelsWritePinned } = this.context;
    await Promise.all([
      this.prepare([...transformerKernels(needs, properties.arch), ...quantProductKernels(needs, properties.arch)]),
      kernelsWritePinned ? this.prepare(["copy2d_u32"]) : undefined,
      isGemmType(dtype) ? this.prepareBlas(dtype) : undefined,
    ]);
    if (!this.blas) await this.prepare(productKernels(needs, this.matrixUnit(dtype), properties.arch));
  }

  fill(dtype: DType, n: number, value: number | bigint): Storage {
    return elementwise.constant(this, dtype, n, value);
  }

  random(kind: "uniform" | "normal", dtype: DType, n: number, seed: bigint, a: number, b: number): Storage {
    return elementwise.random(this, kind, dtype, n, seed, a, b);
  }

  unary(op: UnaryOp, x: View, param: number): Storage {
    return this.#widened([x], ([w]) => elementwise.unary(this, op, w, param));
  }

  affine(x: View, mul: number, add: number): Storage {
    return this.#widened([x], ([w]) => elementwise.affine(this, w, mul, add));
  }

  binary(op: BinaryOp, a: View, b: View): Storage {
    return this.#widened([a, b], ([x, y]) => elementwise.binary(this, op, x, y));
  }

  compare(op: CompareOp, a: View, b: View): Storage {
    return this.#widened([a, b], ([x, y]) => elementwise.compare(this, op, x, y), false);
  }

  where(cond: View, onTrue: View, onFalse: View): Storage {
    return elementwise.where(this, cond, onTrue, onFalse);
  }

  cast(x: View, to: DType): Storage {
    return elementwise.cast(this, x, to);
  }

  copy(src: View, dst: View): void {
    copyLayout(this, src.storage.dtype, at(src), src.layout, at(dst), dst.layout);
  }

  reduce(op: ReduceOp, x: View, dims: number): Storage {
    return this.#widened([x], ([w]) => reductions.reduce(this, op, w, dims), !op.startsWith("arg"));
  }

  cumsum(x: View): Storage {
    return this.#widened([x], ([w]) => reductions.cumsum(this, w));
  }

  argsort(x: View, descending: boolean): Storage {
    return this.#widened([x], ([w]) => reductions.argsort(this, w, descending), false);
  }

  indexSelect(x: View, ids: View, dim: number): Storage {
    return indexing.indexSelect(this, x, ids, dim);
  }

  gather(x: View, ids: View, dim: number): Storage {
    return indexing.gather(this, "gather", x, ids, ids.layout, dim);
  }

  scatter(dst: View, ids: View, src: View, dim: number, add: boolean): void {
    indexing.scatter(this, add ? "scatterAdd" : "scatter", dst, ids, ids.layout.strides, src, dim);
  }

  indexAdd(dst: View, ids: View, src: View, dim: number): void {
    indexing.indexAdd(this, dst, ids, src, dim);
  }

  matmul(a: View, b: View): Storage {
    return this.#widened([a, b], ([x, y]) => matmul(this, x, y), true, "f16");
  }

  conv2d(x: View, w: View, p: ConvParams): Storage {
    return this.#widened([x, w], ([a, b]) => conv.conv2d(this, a, b, p));
  }

  convTranspose2d(x: View, w: View, p: ConvParams): Storage {
    return this.#widened([x, w], ([a, b]) => conv.convTranspose2d(this, a, b, p));
  }

  pool2d(kind: "avg" | "max", x: View, p: PoolParams): Storage {
    return this.#widened([x], ([w]) => conv.pool2d(this, kind, w, p));
  }

  upsampleNearest2d(x: View, size: Size2d): Storage {
    return this.#widened([x], ([w]) => conv.upsampleNearest2d(this, w, size));
  }

  upsampleBilinear2d(x: View, size: Size2d, alignCorners: boolean, steps: Size2d | null): Storage {
    return this.#widened([x], ([w]) => conv.upsampleBilinear2d(this, w, size, alignCorners, steps));
  }

  softmax(x: View, log: boolean): Storage {
    return this.#widened([x], ([w]) => rows.softmax(this, w, log));
  }

  rmsNorm(x: View, weight: View | null, eps: number): Storage {
    return this.#widened([x, weight], ([a, w]) => rows.rmsNorm(this, a, w, eps));
  }

  linear(x: View, w: View, type: QuantType | null, p: LinearParams): Storage | null {
    return linear(this, x, w, type, p) ?? addedProduct(this, x, w, type, p);
  }

  layerNorm(x: View, weight: View | null, bias: View | null, eps: number): Storage {
    return this.#widened([x, weight, bias], ([a, w, b]) => rows.layerNorm(this, a, w, b, eps));
  }

  addRmsNorm(x: View, residual: View, weight: View | null, eps: number): SumAndNorm | null {
    return isF8(x) ? null : rows.addRmsNorm(this, x, residual, weight, eps);
  }

  epilogue(y: View, p: EpilogueParams): Storage | null {
    return isF8(y) ? null : rows.epilogue(this, y, p);
  }

  glu(act: GluActivation, gate: View, up: View): Storage | null {
    return isF8(gate) ? null : rows.glu(this, act, gate, up);
  }

  topk(x: View, k: number, softmax: boolean): ValuesAndIds | null {
    return experts.topk(this, x, k, softmax);
  }

  expertLinear(x: View, w: View, type: QuantType | null, ids: View, p: ExpertParams): Storage | null {
    return experts.expertLinear(this, x, w, type, ids, p);
  }

  routedExperts(x: View, scores: View, open: View, down: View, p: RoutedParams): Storage | null {
    return experts.routedExperts(this, x, scores, open, down, p);
  }

  mixExperts(y: View, mix: View, residual: View | null): Storage | null {
    return experts.mixExperts(this, y, mix, residual);
  }

  rope(kind: "rope" | "rope_i" | "rope_thd", x: View, cos: View, sin: View): Storage {
    return this.#widened([x, cos, sin], ([a, c, s]) => rows.rope(this, kind, a, c, s));
  }

  sdpa(q: View, k: View, v: View, mask: View | null, p: SdpaParams): Storage | null {
    return sdpa(this, q, k, v, mask, p);
  }

  sdpaVarlen(q: View, k: View, v: View, offsets: View, p: SdpaParams): Storage | null {
    return sdpaVarlen(this, q, k, v, offsets, p);
  }

  advance(counts: View, by: number): void {
    this.launch("advance_i64", { counts: at(counts), numel: counts.layout.numel, by });
  }

  dequantize(type: QuantType, blocks: View, to: DType): Storage {
    return quantized.dequantize(this, type, blocks, to);
  }

  quantizedRows(type: QuantType, blocks: View, ids: View, to: DType): Storage {
    return quantized.quantizedRows(this, type, blocks, ids, to);
  }

  quantize(type: QuantType, x: View): Storage {
    if (x.storage.dtype === "f32") return quantized.quantize(this, type, x);
    const storage = this.cast(x, "f32");
    storage.retain();
    try {
      return quantized.quantize(this, type, { storage, layout: Layout.contiguous(x.layout.shape) });
    } finally {
      storage.release();
    }
  }

  qmatmul(type: QuantType, x: View, blocks: View): Storage {
    return quantized.qmatmul(this, type, x, blocks);
  }

  /** An intermediate result in another dtype. */
  #narrowed(y: Storage, to: DType): Storage {
    y.retain();
    try {
      return this.cast({ storage: y, layout: Layout.contiguous([y.length]) }, to);
    } finally {
      y.release();
    }
  }

  /** Runs `run` on the views as they are, or on f32 copies where they are f8e4m3; `back` rounds the result to f8e4m3. */
  /** Products take f8 as f16, which holds every f8: then matrix units do them, and sum in f32 all the same. */
  #widened<const V extends readonly (View | null)[]>(
    views: V,
    run: (views: V) => Storage,
    back = true,
    as: "f32" | "f16" = "f32",
  ): Storage {
    if (!views.some(isF8)) return run(views);
    const wide = views.map((v) => {
      if (!v) return null;
      const storage = this.cast(v, as);
      storage.retain();
      return { storage, layout: Layout.contiguous(v.layout.shape) };
    });
    try {
      const y = run(wide as unknown as V);
      return back ? this.#narrowed(y, "f8e4m3") : y;
    } finally {
      for (const v of wide) v?.storage.release();
    }
  }
}
