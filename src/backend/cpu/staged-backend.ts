/**
 * The CPU device over all memory of the machine, by WebAssembly's kernels: every op says here along which dims it can be cut,
 * for where its operands are not in the heap.
 */
import { f8RowBytes } from "../../core/cache-rows.ts";
import type { DType } from "../../core/dtype.ts";
import { type Layout, numel, type Shape } from "../../core/layout.ts";
import type { QuantType } from "../../core/quant-types.ts";
import type { BinaryOp, CompareOp, ReduceOp, UnaryOp, View } from "../backend.ts";
import type { ConvParams, PoolParams, RopeKind, SdpaParams, Size2d } from "../fused-ops.ts";
import type { PagedAttentionParams } from "../paged-attention.ts";
import type { Storage } from "../storage.ts";
import { blockTypes } from "./abi.ts";
import { isNative } from "./blocks.ts";
import { type CpuMemoryOptions, MemoryBackend } from "./memory-backend.ts";
import { fillPieces } from "./staging/fill.ts";
import { firstBadId, rowsOf, selectRows } from "./staging/ids.ts";
import { withPagesInHeap } from "./staging/pages.ts";
import { type Axis, sameDims } from "./staging/pieces.ts";
import { reduceLongRows } from "./staging/reduce.ts";
import { copyContiguous } from "./staging/stage.ts";
import { Staging, type Views } from "./staging/staging.ts";

/** Small enough to stay in the cores' caches between the copy and the kernel. */
const PIECE_BYTES = 4 * 2 ** 20;

/** Fewer columns than this have a kernel of their own. */
const COLUMNS = 16;

export interface CpuBackendOptions extends CpuMemoryOptions {
  /** How much of the heap the pieces of an op may take, for tests. */
  readonly pieceBytes?: number;
}

export class StagedBackend extends MemoryBackend {
  readonly #staging: Staging;
  readonly #pieceBytes: number;

  constructor({ pieceBytes = PIECE_BYTES, ...memory }: CpuBackendOptions = {}) {
    super(memory);
    this.#pieceBytes = pieceBytes;
    this.#staging = new Staging(this, pieceBytes);
  }

  override fill(dtype: DType, n: number, value: number | bigint): Storage {
    return fillPieces(this, dtype, n, this.#pieceBytes, (count) => super.fill(dtype, count, value), true);
  }

  override random(kind: "uniform" | "normal", dtype: DType, n: number, seed: bigint, a: number, b: number): Storage {
    const part = (count: number, first: number) => this.randomFrom(kind, dtype, count, seed, a, b, first);
    return fillPieces(this, dtype, n, this.#pieceBytes, part, false);
  }

  override unary(op: UnaryOp, x: View, param: number): Storage {
    return this.#elementwise(x.storage.dtype, [x], ([x]) => super.unary(op, x, param));
  }

  override affine(x: View, mul: number, add: number): Storage {
    return this.#elementwise(x.storage.dtype, [x], ([x]) => super.affine(x, mul, add));
  }

  override binary(op: BinaryOp, a: View, b: View): Storage {
    return this.#elementwise(a.storage.dtype, [a, b], ([a, b]) => super.binary(op, a, b));
  }

  override compare(op: CompareOp, a: View, b: View): Storage {
    return this.#elementwise("u8", [a, b], ([a, b]) => super.compare(op, a, b));
  }

  override where(cond: View, onTrue: View, onFalse: View): Storage {
    const views = [cond, onTrue, onFalse] as const;
    return this.#elementwise(onTrue.storage.dtype, views, ([c, t, f]) => super.where(c, t, f));
  }

  override cast(x: View, to: DType): Storage {
    return this.#elementwise(to, [x], ([x]) => super.cast(x, to));
  }

  override copy(src: View, dst: View): void {
    const { shape } = src.layout;
    if (!isNative(src) && !isNative(dst)) super.copy(src, dst);
    else if (src.layout.isContiguous() && dst.layout.isContiguous()) copyContiguous(src, dst);
    else
      this.#staging.update(
        [dst, src] as const,
        () => sameDims(shape, 2),
        shape,
        "overwrite",
        ([to, from]) => super.copy(from, to),
      );
  }

  override advance(counts: View, by: number): void {
    const { shape } = counts.layout;
    this.#staging.update(
      [counts] as const,
      () => sameDims(shape, 1),
      shape,
      "update",
      ([own]) => super.advance(own, by),
    );
  }

  override reduce(op: ReduceOp, x: View, dims: number): Storage {
    const long = isNative(x) ? reduceLongRows(this, op, x, dims, this.#pieceBytes) : null;
    const dtype = op.startsWith("arg") ? "u32" : x.storage.dtype;
    return long ?? this.#rows(dtype, [x], dims, [], ([x]) => super.reduce(op, x, dims));
  }

  override cumsum(x: View): Storage {
    return this.#rows(x.storage.dtype, [x], 1, lastOf(x), ([x]) => super.cumsum(x));
  }

  override argsort(x: View, descending: boolean): Storage {
    return this.#rows("u32", [x], 1, lastOf(x), ([x]) => super.argsort(x, descending));
  }

  override softmax(x: View, log: boolean): Storage {
    return this.#rows(x.storage.dtype, [x], 1, lastOf(x), ([x]) => super.softmax(x, log));
  }

  override rmsNorm(x: View, weight: View | null, eps: number): Storage {
    return this.#rows(x.storage.dtype, [x, weight] as const, 1, lastOf(x), ([x, w]) => super.rmsNorm(x, w, eps));
  }

  override layerNorm(x: View, weight: View | null, bias: View | null, eps: number): Storage {
    const views = [x, weight, bias] as const;
    return this.#rows(x.storage.dtype, views, 1, lastOf(x), ([x, w, b]) => super.layerNorm(x, w, b, eps));
  }

  protected override encodeRows(x: View): Storage {
    const row = f8RowBytes(x.layout.shape.at(-1)!);
    return this.#rows("f8e4m3", [x], 1, [row], ([x]) => super.encodeRows(x));
  }

  protected override decodeRows(x: View, d: number, to: DType): Storage {
    return this.#rows(to, [x], 1, [d], ([x]) => super.decodeRows(x, d, to));
  }

  override indexSelect(x: View, ids: View, dim: number): Storage {
    const shape = x.layout.shape.with(dim, ids.layout.numel);
    const { dtype } = x.storage;
    // Of a large tensor only the slices that are named are moved.
    const isSparse = isNative(x) && numel(shape) < x.layout.numel;
    const axes = () =>
      isSparse
        ? [{ units: ids.layout.numel, dims: [null, 0], out: dim }]
        : shape.map((units, d) => ({ units, dims: d === dim ? [null, 0] : [d, null], out: d }));
    const run = ([x, ids]: readonly [View, View]) =>
      isSparse ? selectRows(this, x, ids, dim) : super.indexSelect(x, ids, dim);
    const loose = isSparse ? [x] : [];
    return this.#named("indexSelect", x, ids, dim, () =>
      this.#staging.run({ views: [x, ids] as const, axes, dtype, shape, loose, run }),
    );
  }

  override gather(x: View, ids: View, dim: number): Storage {
    const { shape } = ids.layout;
    const axes = () => shape.map((units, d) => ({ units, dims: d === dim ? [null, d] : [d, d], out: d }));
    const views = [within(x, shape, dim), ids] as const;
    const run = ([x, ids]: readonly [View, View]) => super.gather(x, ids, dim);
    return this.#named("gather", x, ids, dim, () =>
      this.#staging.run({ views, axes, dtype: x.storage.dtype, shape, run }),
    );
  }

  override scatter(dst: View, ids: View, src: View, dim: number, add: boolean): void {
    const { shape } = src.layout;
    const axes = () => shape.map((units, d) => ({ units, dims: d === dim ? [null, d, d] : [d, d, d], out: d }));
    this.#named(add ? "scatterAdd" : "scatter", dst, ids, dim, () =>
      this.#staging.update([within(dst, shape, dim), ids, src] as const, axes, shape, "update", ([dst, ids, src]) =>
        super.scatter(dst, ids, src, dim, add),
      ),
    );
  }

  override indexAdd(dst: View, ids: View, src: View, dim: number): void {
    const { shape } = src.layout;
    const axes = () => shape.map((units, d) => ({ units, dims: d === dim ? [null, 0, d] : [d, null, d], out: d }));
    this.#named("indexAdd", dst, ids, dim, () =>
      this.#staging.update([dst, ids, src] as const, axes, shape, "update", ([dst, ids, src]) =>
        super.indexAdd(dst, ids, src, dim),
      ),
    );
  }

  override matmul(a: View, b: View): Storage {
    const lead = a.layout.rank - 2;
    const [m, n] = [a.layout.shape[lead]!, b.layout.shape[lead + 1]!];
    const batch = a.layout.shape.slice(0, lead);
    const axes = () => [
      ...sameDims(batch, 2),
      { units: m, dims: [lead, null], out: lead },
      { units: n, dims: [null, lead + 1], out: lead + 1, grain: COLUMNS },
    ];
    const run = ([a, b]: readonly [View, View]) => super.matmul(a, b);
    return this.#staging.run({ views: [a, b] as const, axes, dtype: a.storage.dtype, shape: [...batch, m, n], run });
  }

  override conv2d(x: View, w: View, p: ConvParams): Storage {
    const run = ([x, w]: readonly [View, View]) => super.conv2d(x, w, p);
    return this.#convolved(x, w, w.layout.shape[0]!, p.size, p.groups === 1 ? 0 : null, run);
  }

  override convTranspose2d(x: View, w: View, p: ConvParams): Storage {
    const outputs = w.layout.shape[1]! * p.groups;
    const run = ([x, w]: readonly [View, View]) => super.convTranspose2d(x, w, p);
    return this.#convolved(x, w, outputs, p.size, p.groups === 1 ? 1 : null, run);
  }

  override pool2d(kind: "avg" | "max", x: View, p: PoolParams): Storage {
    return this.#plane(x, p.size, ([x]) => super.pool2d(kind, x, p));
  }

  override upsampleNearest2d(x: View, size: Size2d): Storage {
    return this.#plane(x, size, ([x]) => super.upsampleNearest2d(x, size));
  }

  override upsampleBilinear2d(x: View, size: Size2d, alignCorners: boolean, scale: Size2d | null): Storage {
    return this.#plane(x, size, ([x]) => super.upsampleBilinear2d(x, size, alignCorners, scale));
  }

  override rope(kind: RopeKind, x: View, cos: View, sin: View): Storage {
    const { shape } = x.layout;
    const heads = kind === "rope_thd" ? 2 : 1;
    const ofBatch = cos.layout.rank === 3 ? 0 : null;
    const axes = () => [
      { units: shape[0]!, dims: [0, ofBatch, ofBatch], out: 0 },
      { units: shape[heads]!, dims: [heads, null, null], out: heads },
    ];
    const views = [x, cos, sin] as const;
    const run = ([x, cos, sin]: readonly [View, View, View]) => super.rope(kind, x, cos, sin);
    return this.#staging.run({ views, axes, dtype: x.storage.dtype, shape, run });
  }

  override sdpa(q: View, k: View, v: View, mask: View | null, p: SdpaParams): Storage {
    const shape = q.layout.shape.with(3, v.layout.shape[3]!);
    const axes = () => [
      { units: shape[0]!, dims: [0, 0, 0, 0, null], out: 0 },
      // The heads of a group go with the keys that they share.
      { units: k.layout.shape[1]!, dims: [1, 1, 1, 1, 0], out: 1 },
    ];
    const views = [q, k, v, mask, p.sinks] as const;
    const run = ([q, k, v, mask, sinks]: readonly [View, View, View, View | null, View | null]) =>
      super.sdpa(q, k, v, mask, { ...p, sinks });
    return this.#staging.run({ views, axes, dtype: q.storage.dtype, shape, run });
  }

  protected override attendPages(q: View, k: View, v: View, p: PagedAttentionParams): Storage {
    const views = [q, k, v, p.tables, p.lengths, p.offsets, p.cos, p.sin, p.starts, p.sinks] as const;
    if (!isNative(p.k) && !isNative(p.v) && !views.some((view) => view && isNative(view))) {
      return super.attendPages(q, k, v, p);
    }
    const shape = [q.layout.shape[0]!, q.layout.shape[1]!];
    const run = ([q, k, v, tables, lengths, offsets, cos, sin, starts, sinks]: typeof views) =>
      withPagesInHeap(this, { ...p, tables, lengths, offsets, cos, sin, starts, sinks }, (own) =>
        super.attendPages(q, k, v, own),
      );
    return this.#staging.run({ views, axes: () => [], dtype: q.storage.dtype, shape, run });
  }

  override dequantize(type: QuantType, blocks: View, to: DType): Storage {
    const { size, bytes } = blockTypes[type];
    const count = blocks.layout.numel / bytes;
    const views = [{ storage: blocks.storage, layout: blocks.layout.reshape([count, bytes])! }] as const;
    const axes = () => [{ units: count, dims: [0], out: 0 }];
    const run = ([blocks]: readonly [View]) => super.dequantize(type, blocks, to);
    return this.#staging.run({ views, axes, dtype: to, shape: [count, size], run });
  }

  override quantize(type: QuantType, x: View): Storage {
    const { size, bytes } = blockTypes[type];
    const lead = x.layout.shape.slice(0, -1);
    const perRow = x.layout.shape.at(-1)! / size;
    const split = x.layout.reshape([...lead, perRow, size]);
    if (!split) return super.quantize(type, x);
    const shape = [...lead, perRow, bytes];
    const run = ([x]: readonly [View]) => super.quantize(type, x);
    const views = [{ storage: x.storage, layout: split }] as const;
    return this.#staging.run({ views, axes: () => sameDims([...lead, perRow], 1), dtype: "u8", shape, run });
  }

  override quantizedRows(type: QuantType, blocks: View, ids: View, to: DType): Storage {
    if (!isNative(blocks) && !isNative(ids)) return super.quantizedRows(type, blocks, ids, to);
    const { size, bytes } = blockTypes[type];
    const shape = [ids.layout.numel, (blocks.layout.shape[1]! / bytes) * size];
    const run = ([blocks, ids]: readonly [View, View]) =>
      isNative(blocks)
        ? rowsOf(this, blocks, ids, (rows, places) => super.quantizedRows(type, rows, places, to))
        : super.quantizedRows(type, blocks, ids, to);
    const axes = () => [{ units: ids.layout.numel, dims: [null, 0], out: 0 }];
    return this.#named("rows", blocks, ids, 0, () =>
      this.#staging.run({ views: [blocks, ids] as const, axes, dtype: to, shape, loose: [blocks], run }),
    );
  }

  override qmatmul(type: QuantType, x: View, blocks: View): Storage {
    const lead = x.layout.shape.slice(0, -1);
    const n = blocks.layout.shape[0]!;
    const axes = (): Axis[] => [
      ...lead.map((units, d) => ({ units, dims: [d, null], out: d })),
      { units: n, dims: [null, 0], out: lead.length },
    ];
    const run = ([x, blocks]: readonly [View, View]) => super.qmatmul(type, x, blocks);
    return this.#staging.run({ views: [x, blocks] as const, axes, dtype: x.storage.dtype, shape: [...lead, n], run });
  }

  #elementwise<const V extends Views>(dtype: DType, views: V, run: (views: V) => Storage): Storage {
    const { shape } = views[0]!.layout;
    return this.#staging.run({ views, axes: () => sameDims(shape, views.length), dtype, shape, run });
  }

  /** Over the last `dims` dims of the first view; the others belong to every row. */
  #rows<const V extends Views>(dtype: DType, views: V, dims: number, last: Shape, run: (views: V) => Storage): Storage {
    const { shape } = views[0]!.layout;
    const lead = shape.slice(0, shape.length - dims);
    const axes = () => lead.map((units, d) => ({ units, dims: views.map((_, i) => (i === 0 ? d : null)), out: d }));
    return this.#staging.run({ views, axes, dtype, shape: [...lead, ...last], run });
  }

  #plane(x: View, size: Size2d, run: (views: readonly [View]) => Storage): Storage {
    const lead = x.layout.shape.slice(0, 2);
    const axes = () => sameDims(lead, 1);
    return this.#staging.run({ views: [x] as const, axes, dtype: x.storage.dtype, shape: [...lead, ...size], run });
  }

  /** `outputs` channels by the weights w, of which a dim may count them. */
  #convolved(
    x: View,
    w: View,
    outputs: number,
    size: Size2d,
    outputDim: number | null,
    run: (views: readonly [View, View]) => Storage,
  ): Storage {
    const batch = x.layout.shape[0]!;
    const axes = () => [
      { units: batch, dims: [0, null], out: 0 },
      ...(outputDim === null ? [] : [{ units: outputs, dims: [null, outputDim], out: 1 }]),
    ];
    const shape = [batch, outputs, ...size];
    return this.#staging.run({ views: [x, w] as const, axes, dtype: x.storage.dtype, shape, run });
  }

  /** What is wrong with an id is said of all ids, not of a piece of them. */
  #named<T>(op: string, x: View, ids: View, dim: number, run: () => T): T {
    try {
      return run();
    } catch (error) {
      if (isNative(x) || isNative(ids)) firstBadId(this, op, ids, x.layout.shape[dim]!, dim);
      throw error;
    }
  }
}

const lastOf = (x: View): Shape => x.layout.shape.slice(-1);

/** The part of x that ids of this shape can name along `dim`. */
function within(x: View, shape: Shape, dim: number): View {
  const layout = shape.reduce((cut: Layout, size, d) => (d === dim ? cut : cut.narrow(d, 0, size)), x.layout);
  return { storage: x.storage, layout };
}
