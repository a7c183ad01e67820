/** A GPU as a backend: each method is one op of ops/, after bringing f8e4m3, which kernels only cast, to f32. */
import type { DType } from "../../core/dtype.ts";
import { Layout } from "../../core/layout.ts";
import type { QuantType } from "../../core/quant-types.ts";
import type {
  Available,
  Backend,
  BinaryOp,
  Block,
  CompareOp,
  MemoryStats,
  ReduceOp,
  UnaryOp,
  View,
} from "../backend.ts";
import type { ConvParams, LinearParams, PoolParams, SdpaParams, Size2d, SumAndNorm } from "../fused-ops.ts";
import type { Storage } from "../storage.ts";
import type { CachedAttention, Preparation, Recorder, TransformerNeeds, TransformerSupport } from "../transformers.ts";
import { copyLayout } from "./copy.ts";
import { isGemmType } from "./device-blas.ts";
import type { GpuPlatform } from "./driver.ts";
import { at, Gpu } from "./gpu.ts";
import { sdpa } from "./ops/attention.ts";
import * as conv from "./ops/conv.ts";
import { GpuCachedAttention, GpuRecorder } from "./ops/decode.ts";
import * as elementwise from "./ops/elementwise.ts";
import * as indexing from "./ops/indexing.ts";
import { linear } from "./ops/linear.ts";
import { matmul } from "./ops/matmul.ts";
import * as quantized from "./ops/quantized.ts";
import * as reductions from "./ops/reduce.ts";
import * as rows from "./ops/rows.ts";
import { GpuSampler } from "./ops/sample.ts";
import { loadingKernels, productKernels, transformerKernels } from "./transformer-kernels.ts";

const isF8 = (view: View | null): boolean => view?.storage.dtype === "f8e4m3";

export class GpuBackend implements Backend {
  readonly name: string;
  readonly gpu: Gpu;
  readonly recorder: Recorder;
  readonly cachedAttention: CachedAttention;
  readonly transformers: TransformerSupport;

  constructor(name: string, platform: GpuPlatform, ordinal: number) {
    this.name = name;
    this.gpu = new Gpu(this, platform, ordinal);
    this.recorder = new GpuRecorder(this.gpu);
    this.cachedAttention = new GpuCachedAttention(this.gpu);
    this.transformers = {
      prepare: (needs) => this.#prepare(needs),
      sampler: (vocab, specs) => GpuSampler.for(this.gpu, vocab, specs),
    };
  }

  alloc(bytes: number): Block {
    return this.gpu.alloc(bytes);
  }

  free(block: Block): void {
    this.gpu.free(block);
  }

  memory(): MemoryStats {
    return this.gpu.memory();
  }

  available(): Available {
    return this.gpu.available();
  }

  describe(): string {
    const { name, arch } = this.gpu.context.properties;
    return `${name}, ${arch}`;
  }

  trim(): void {
    this.gpu.trim();
  }

  synchronize(): Promise<void> {
    return this.gpu.synchronize();
  }

  #prepare(needs: TransformerNeeds): Preparation {
    // A compiler that is not there is told by the first kernel that needs it.
    const quietly = (work: Promise<void>): Promise<void> => work.catch(() => {});
    return { toLoad: quietly(this.gpu.prepare(loadingKernels(needs))), toRun: quietly(this.#prepareToRun(needs)) };
  }

  /** Whether kernels for the products of prompts are needed is known once the BLAS library has been tried. */
  async #prepareToRun(needs: TransformerNeeds): Promise<void> {
    const { dtype } = needs;
    await Promise.all([
      this.gpu.prepare(transformerKernels(needs)),
      isGemmType(dtype) ? this.gpu.prepareBlas(dtype) : undefined,
    ]);
    if (!this.gpu.blas) await this.gpu.prepare(productKernels(needs));
  }

  write(dst: Storage, byteOffset: number, data: Uint8Array): void {
    this.gpu.write(dst, byteOffset, data);
  }

  read(src: Storage, byteOffset: number, byteLength: number): Promise<Uint8Array> {
    return this.gpu.read(src, byteOffset, byteLength);
  }

  readSync(src: Storage, byteOffset: number, byteLength: number): Uint8Array {
    return this.gpu.readSync(src, byteOffset, byteLength);
  }

  fill(dtype: DType, n: number, value: number | bigint): Storage {
    return elementwise.constant(this.gpu, dtype, n, value);
  }

  random(kind: "uniform" | "normal", dtype: DType, n: number, seed: bigint, a: number, b: number): Storage {
    return elementwise.random(this.gpu, kind, dtype, n, seed, a, b);
  }

  unary(op: UnaryOp, x: View, param: number): Storage {
    return this.#widened([x], ([w]) => elementwise.unary(this.gpu, op, w, param));
  }

  affine(x: View, mul: number, add: number): Storage {
    return this.#widened([x], ([w]) => elementwise.affine(this.gpu, w, mul, add));
  }

  binary(op: BinaryOp, a: View, b: View): Storage {
    return this.#widened([a, b], ([x, y]) => elementwise.binary(this.gpu, op, x, y));
  }

  compare(op: CompareOp, a: View, b: View): Storage {
    return this.#widened([a, b], ([x, y]) => elementwise.compare(this.gpu, op, x, y), false);
  }

  where(cond: View, onTrue: View, onFalse: View): Storage {
    return elementwise.where(this.gpu, cond, onTrue, onFalse);
  }

  cast(x: View, to: DType): Storage {
    return elementwise.cast(this.gpu, x, to);
  }

  copy(src: View, dst: View): void {
    copyLayout(this.gpu, src.storage.dtype, at(src), src.layout, at(dst), dst.layout);
  }

  reduce(op: ReduceOp, x: View, dims: number): Storage {
    return this.#widened([x], ([w]) => reductions.reduce(this.gpu, op, w, dims), !op.startsWith("arg"));
  }

  cumsum(x: View): Storage {
    return this.#widened([x], ([w]) => reductions.cumsum(this.gpu, w));
  }

  argsort(x: View, descending: boolean): Storage {
    return this.#widened([x], ([w]) => reductions.argsort(this.gpu, w, descending), false);
  }

  indexSelect(x: View, ids: View, dim: number): Storage {
    return indexing.indexSelect(this.gpu, x, ids, dim);
  }

  gather(x: View, ids: View, dim: number): Storage {
    return indexing.gather(this.gpu, "gather", x, ids, ids.layout, dim);
  }

  scatter(dst: View, ids: View, src: View, dim: number, add: boolean): void {
    indexing.scatter(this.gpu, add ? "scatterAdd" : "scatter", dst, ids, ids.layout.strides, src, dim);
  }

  indexAdd(dst: View, ids: View, src: View, dim: number): void {
    indexing.indexAdd(this.gpu, dst, ids, src, dim);
  }

  matmul(a: View, b: View): Storage {
    return this.#widened([a, b], ([x, y]) => matmul(this.gpu, x, y));
  }

  conv2d(x: View, w: View, p: ConvParams): Storage {
    return this.#widened([x, w], ([a, b]) => conv.conv2d(this.gpu, a, b, p));
  }

  convTranspose2d(x: View, w: View, p: ConvParams): Storage {
    return this.#widened([x, w], ([a, b]) => conv.convTranspose2d(this.gpu, a, b, p));
  }

  pool2d(kind: "avg" | "max", x: View, p: PoolParams): Storage {
    return this.#widened([x], ([w]) => conv.pool2d(this.gpu, kind, w, p));
  }

  upsampleNearest2d(x: View, size: Size2d): Storage {
    return this.#widened([x], ([w]) => conv.upsampleNearest2d(this.gpu, w, size));
  }

  upsampleBilinear2d(x: View, size: Size2d, alignCorners: boolean, steps: Size2d | null): Storage {
    return this.#widened([x], ([w]) => conv.upsampleBilinear2d(this.gpu, w, size, alignCorners, steps));
  }

  softmax(x: View, log: boolean): Storage {
    return this.#widened([x], ([w]) => rows.softmax(this.gpu, w, log));
  }

  rmsNorm(x: View, weight: View | null, eps: number): Storage {
    return this.#widened([x, weight], ([a, w]) => rows.rmsNorm(this.gpu, a, w, eps));
  }

  linear(x: View, w: View, type: QuantType | null, p: LinearParams): Storage | null {
    return linear(this.gpu, x, w, type, p);
  }

  layerNorm(x: View, weight: View | null, bias: View | null, eps: number): Storage {
    return this.#widened([x, weight, bias], ([a, w, b]) => rows.layerNorm(this.gpu, a, w, b, eps));
  }

  addRmsNorm(x: View, residual: View, weight: View | null, eps: number): SumAndNorm | null {
    return isF8(x) ? null : rows.addRmsNorm(this.gpu, x, residual, weight, eps);
  }

  glu(act: "silu" | "gelu", gate: View, up: View): Storage | null {
    return isF8(gate) ? null : rows.glu(this.gpu, act, gate, up);
  }

  rope(kind: "rope" | "rope_i" | "rope_thd", x: View, cos: View, sin: View): Storage {
    return this.#widened([x, cos, sin], ([a, c, s]) => rows.rope(this.gpu, kind, a, c, s));
  }

  sdpa(q: View, k: View, v: View, mask: View | null, p: SdpaParams): Storage | null {
    return sdpa(this.gpu, q, k, v, mask, p);
  }

  advance(counts: View, by: number): void {
    this.gpu.launch("advance_i64", { counts: at(counts), numel: counts.layout.numel, by });
  }

  dequantize(type: QuantType, blocks: View, to: DType): Storage {
    return quantized.dequantize(this.gpu, type, blocks, to);
  }

  quantizedRows(type: QuantType, blocks: View, ids: View, to: DType): Storage {
    return quantized.quantizedRows(this.gpu, type, blocks, ids, to);
  }

  quantize(type: QuantType, x: View): Storage {
    if (x.storage.dtype === "f32") return quantized.quantize(this.gpu, type, x);
    const storage = this.cast(x, "f32");
    storage.retain();
    try {
      return quantized.quantize(this.gpu, type, { storage, layout: Layout.contiguous(x.layout.shape) });
    } finally {
      storage.release();
    }
  }

  qmatmul(type: QuantType, x: View, blocks: View): Storage {
    return quantized.qmatmul(this.gpu, type, x, blocks);
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
  #widened<const V extends readonly (View | null)[]>(views: V, run: (views: V) => Storage, back = true): Storage {
    if (!views.some(isF8)) return run(views);
    const wide = views.map((v) => {
      if (!v) return null;
      const storage = this.cast(v, "f32");
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
