/** The CPU device over WebAssembly's memory: lays out arguments and calls one kernel per op. */
import { f8RowBytes } from "../../core/cache-rows.ts";
import { type DType, encode, sizeOf } from "../../core/dtype.ts";
import { type Layout, numel, type Shape } from "../../core/layout.ts";
import type { QuantType } from "../../core/quant-types.ts";
import type { Backend, BinaryOp, CompareOp, ReduceOp, UnaryOp, View } from "../backend.ts";
import type { ConvParams, PoolParams, RopeKind, SdpaParams, Size2d } from "../fused-ops.ts";
import { PAGE_SIZE, type PagedAttention, type PagedAttentionParams } from "../paged-attention.ts";
import type { Storage } from "../storage.ts";
import type { CacheRows } from "../transformers.ts";
import { blockTypes, codes, shiftOf } from "./abi.ts";
import type {
  Address,
  Bytes,
  ColStride,
  Cols,
  Count,
  Dim,
  Inner,
  OutAddress,
  RowStride,
  Rows,
  Size,
  Stride,
} from "./kernels.ts";
import { at, CONTIGUOUS, code, count, flag, NOWHERE, outAt, WasmFrame } from "./wasm-frame.ts";

export class WasmBackend extends WasmFrame implements Backend {
  /** Keys and values are read in their pages, by heads of any size. */
  readonly pagedAttention: PagedAttention = {
    supports: (dtype, _headDim, stored) => stored === dtype,
    attend: (q, k, v, p) => this.attendPages(q, k, v, p),
  };

  readonly cacheRows: CacheRows = {
    encode: (x) => this.encodeRows(x),
    decode: (rows, d, to) => this.decodeRows(rows, d, to),
  };

  protected encodeRows(x: View): Storage {
    const { storage, layout } = x;
    const cols = layout.shape.at(-1)! as Cols;
    const rows = (layout.numel / cols) as Rows;
    return this.make("f8e4m3", rows * f8RowBytes(cols), (out) =>
      this.engine.kernels.encodeCacheRows(code(storage.dtype), rows, cols, at(x), out),
    );
  }

  protected decodeRows(x: View, d: number, to: DType): Storage {
    const { shape, strides, numel } = x.layout;
    const rows = (shape.length > 1 ? shape.at(-2)! : 1) as Rows;
    const groups = (numel / (rows * shape.at(-1)!)) as Count;
    const stride = (strides.at(-3) ?? 0) as Bytes;
    return this.make(to, groups * rows * d, (out) =>
      this.engine.kernels.decodeCacheRows(code(to), groups, stride, rows, d as Cols, at(x), out),
    );
  }

  fill(dtype: DType, n: number, value: number | bigint): Storage {
    const bits = encode([value], dtype).reduceRight((acc, byte) => (acc << 8n) | BigInt(byte), 0n);
    return this.make(dtype, n, (out) =>
      this.engine.kernels.fill(shiftOf(dtype), n as Count, out, BigInt.asIntN(64, bits)),
    );
  }

  random(kind: "uniform" | "normal", dtype: DType, n: number, seed: bigint, a: number, b: number): Storage {
    return this.randomFrom(kind, dtype, n, seed, a, b, 0);
  }

  /** The elements from `first`, which is even, on. */
  protected randomFrom(
    kind: "uniform" | "normal",
    dtype: DType,
    n: number,
    seed: bigint,
    a: number,
    b: number,
    first: number,
  ): Storage {
    const [key, draw] = [BigInt.asIntN(64, seed), BigInt(first / 2)];
    return this.make(dtype, n, (out) =>
      this.engine.kernels.random(codes.random[kind], code(dtype), n as Count, out, key, draw, a, b),
    );
  }

  unary(op: UnaryOp, x: View, param: number): Storage {
    const { dtype } = x.storage;
    const n = count(x.layout);
    return this.make(dtype, n, (out) =>
      this.engine.kernels.unary(codes.unary[op], code(dtype), n, this.layouts(x.layout), at(x), out, param),
    );
  }

  affine(x: View, mul: number, add: number): Storage {
    const { dtype } = x.storage;
    const n = count(x.layout);
    return this.make(dtype, n, (out) =>
      this.engine.kernels.affine(code(dtype), n, this.layouts(x.layout), at(x), out, mul, add),
    );
  }

  binary(op: BinaryOp, a: View, b: View): Storage {
    const { dtype } = a.storage;
    const n = count(a.layout);
    return this.make(dtype, n, (out) =>
      this.engine.kernels.binary(codes.binary[op], code(dtype), n, this.layouts(a.layout, b.layout), at(a), at(b), out),
    );
  }

  compare(op: CompareOp, a: View, b: View): Storage {
    const n = count(a.layout);
    const info = () => this.layouts(a.layout, b.layout);
    return this.make("u8", n, (out) =>
      this.engine.kernels.compare(codes.compare[op], code(a.storage.dtype), n, info(), at(a), at(b), out),
    );
  }

  where(cond: View, onTrue: View, onFalse: View): Storage {
    const { dtype } = onTrue.storage;
    const n = count(cond.layout);
    return this.make(dtype, n, (out) => {
      const info = this.layouts(cond.layout, onTrue.layout, onFalse.layout);
      this.engine.kernels.whereCond(
        code(cond.storage.dtype),
        code(dtype),
        n,
        info,
        at(cond),
        at(onTrue),
        at(onFalse),
        out,
      );
    });
  }

  cast(x: View, to: DType): Storage {
    const n = count(x.layout);
    return this.make(to, n, (out) =>
      this.engine.kernels.cast(code(x.storage.dtype), code(to), n, this.layouts(x.layout), at(x), out),
    );
  }

  copy(src: View, dst: View): void {
    const n = count(src.layout);
    if (n === 0) return;
    this.engine.kernels.copy(shiftOf(src.storage.dtype), n, this.layouts(src.layout, dst.layout), at(src), outAt(dst));
  }

  advance(counts: View, by: number): void {
    this.engine.advance(at(counts), counts.layout.numel, by);
  }

  reduce(op: ReduceOp, x: View, dims: number): Storage {
    const { dtype } = x.storage;
    const [rows, cols] = this.rows(x.layout, dims);
    return this.make(op.startsWith("arg") ? "u32" : dtype, rows, (out) =>
      this.engine.kernels.reduce(
        codes.reduce[op],
        code(dtype),
        rows,
        cols,
        cols === 0 ? CONTIGUOUS : this.layouts(x.layout),
        at(x),
        out,
      ),
    );
  }

  cumsum(x: View): Storage {
    const { dtype } = x.storage;
    const [rows, cols] = this.rows(x.layout, 1);
    return this.make(dtype, rows * cols, (out) =>
      this.engine.kernels.cumsum(code(dtype), rows, cols, this.layouts(x.layout), at(x), out),
    );
  }

  argsort(x: View, descending: boolean): Storage {
    const { dtype } = x.storage;
    const [rows, cols] = this.rows(x.layout, 1);
    const { kernels } = this.engine;
    return this.make("u32", rows * cols, (out) =>
      this.packed(x, (from) =>
        this.temporary(kernels.argsortTmp(code(dtype), rows, cols), (tmp) =>
          kernels.argsort(code(dtype), flag(descending), rows, cols, from, out, tmp),
        ),
      ),
    );
  }

  indexSelect(x: View, ids: View, dim: number): Storage {
    const shape = x.layout.shape.with(dim, ids.layout.numel);
    return this.#gather("indexSelect", x, ids, broadcastIds(ids.layout, dim, shape), dim);
  }

  gather(x: View, ids: View, dim: number): Storage {
    return this.#gather("gather", x, ids, ids.layout, dim);
  }

  #gather(
    op: "indexSelect" | "gather",
    x: View,
    ids: View,
    idLayout: { shape: Shape; strides: readonly number[] },
    dim: number,
  ): Storage {
    const { shape } = idLayout;
    const { dtype } = x.storage;
    const n = numel(shape) as Count;
    return this.make(dtype, n, (out) => {
      const info = this.put([shape.length, ...shape, ...x.layout.strides, ...idLayout.strides]);
      const size = x.layout.shape[dim] as Size;
      this.engine.kernels.gather(
        shiftOf(dtype),
        code(ids.storage.dtype),
        n,
        dim as Dim,
        info,
        size,
        at(x),
        at(ids),
        out,
      );
      this.checkIndex(op, size, dim);
    });
  }

  scatter(dst: View, ids: View, src: View, dim: number, add: boolean): void {
    this.#scatter(add ? "scatterAdd" : "scatter", dst, ids, ids.layout.strides, src, dim);
  }

  indexAdd(dst: View, ids: View, src: View, dim: number): void {
    this.#scatter("indexAdd", dst, ids, broadcastIds(ids.layout, dim, src.layout.shape).strides, src, dim);
  }

  #scatter(
    op: "scatter" | "scatterAdd" | "indexAdd",
    dst: View,
    ids: View,
    idStrides: readonly number[],
    src: View,
    dim: number,
  ): void {
    const { shape, strides } = src.layout;
    const n = count(src.layout);
    if (n === 0) return;
    const info = this.put([shape.length, ...shape, ...dst.layout.strides, ...idStrides, ...strides]);
    const [type, idType] = [code(src.storage.dtype), code(ids.storage.dtype)];
    const size = dst.layout.shape[dim] as Size;
    const add = flag(op !== "scatter");
    this.engine.kernels.scatter(type, idType, add, n, dim as Dim, info, size, outAt(dst), at(ids), at(src));
    this.checkIndex(op, size, dim);
  }

  matmul(a: View, b: View): Storage {
    const { dtype } = a.storage;
    const lead = a.layout.rank - 2;
    const [m, k] = a.layout.shape.slice(lead) as [Rows, Inner];
    const n = b.layout.shape[lead + 1] as Cols;
    const batchShape = a.layout.shape.slice(0, lead);
    const batch = numel(batchShape) as Count;
    const { kernels } = this.engine;
    return this.make(dtype, batch * m * n, (out) => {
      const strides = [a, b].map((v) => v.layout.strides.slice(0, lead));
      const info = batch === 1 ? CONTIGUOUS : this.put([lead, ...batchShape, ...strides.flat()]);
      const [aRow, aCol] = a.layout.strides.slice(lead) as [RowStride, ColStride];
      const [bRow, bCol] = b.layout.strides.slice(lead) as [RowStride, ColStride];
      this.temporary(kernels.matmulTmp(code(dtype), batch, m, n, k), (tmp) =>
        kernels.matmul(code(dtype), batch, m, n, k, info, at(a), aRow, aCol, at(b), bRow, bCol, out, tmp),
      );
    });
  }

  conv2d(x: View, w: View, p: ConvParams): Storage {
    return this.#conv("conv2d", x, w, p, w.layout.shape[0]!);
  }

  convTranspose2d(x: View, w: View, p: ConvParams): Storage {
    return this.#conv("convTranspose2d", x, w, p, w.layout.shape[1]! * p.groups);
  }

  #conv(name: "conv2d" | "convTranspose2d", x: View, w: View, p: ConvParams, outputs: number): Storage {
    const { dtype } = x.storage;
    const { kernels } = this.engine;
    const { batch, channels, input } = image(x);
    return this.make(dtype, batch * outputs * numel(p.size), (out) => {
      const params = this.params("conv", {
        batch,
        channels,
        input,
        outputs,
        kernel: w.layout.shape.slice(2),
        stride: p.stride,
        padding: p.padding,
        dilation: p.dilation,
        groups: p.groups,
        output: p.size,
        xStrides: x.layout.strides,
        wStrides: w.layout.strides,
      });
      this.temporary(kernels[`${name}Tmp`](code(dtype), params), (tmp) =>
        kernels[name](code(dtype), params, at(x), at(w), out, tmp),
      );
    });
  }

  pool2d(kind: "avg" | "max", x: View, { kernel, stride, size }: PoolParams): Storage {
    const { dtype } = x.storage;
    const { batch, channels, input } = image(x);
    return this.make(dtype, batch * channels * numel(size), (out) => {
      const params = this.params("pooling", {
        batch,
        channels,
        input,
        kernel,
        stride,
        output: size,
        xStrides: x.layout.strides,
      });
      this.engine.kernels.pool2d(codes.pool[kind], code(dtype), params, at(x), out);
    });
  }

  upsampleNearest2d(x: View, size: Size2d): Storage {
    const { dtype } = x.storage;
    const { batch, channels, input } = image(x);
    return this.make(dtype, batch * channels * numel(size), (out) => {
      const params = this.params("upsampling", { batch, channels, input, output: size, xStrides: x.layout.strides });
      this.engine.kernels.upsampleNearest2d(code(dtype), params, at(x), out);
    });
  }

  upsampleBilinear2d(x: View, size: Size2d, alignCorners: boolean, scale: Size2d | null): Storage {
    const { dtype } = x.storage;
    const { batch, channels, input } = image(x);
    const [scaleH, scaleW] = size.map((out, i) => bilinearStep(input[i]!, out, alignCorners, scale?.[i])) as [
      number,
      number,
    ];
    return this.make(dtype, batch * channels * numel(size), (out) => {
      const params = this.params("upsampling", { batch, channels, input, output: size, xStrides: x.layout.strides });
      this.engine.kernels.upsampleBilinear2d(code(dtype), params, at(x), out, flag(alignCorners), scaleH, scaleW);
    });
  }

  softmax(x: View, log: boolean): Storage {
    const { dtype } = x.storage;
    const [rows, cols] = this.rows(x.layout, 1);
    return this.make(dtype, rows * cols, (out) =>
      this.engine.kernels.softmax(code(dtype), flag(log), rows, cols, this.layouts(x.layout), at(x), out),
    );
  }

  rmsNorm(x: View, weight: View | null, eps: number): Storage {
    return this.#normalize(x, weight, null, (rows, cols, w, _b, out) =>
      this.engine.kernels.rmsNorm(code(x.storage.dtype), rows, cols, this.layouts(x.layout), at(x), w, out, eps),
    );
  }

  layerNorm(x: View, weight: View | null, bias: View | null, eps: number): Storage {
    return this.#normalize(x, weight, bias, (rows, cols, w, b, out) =>
      this.engine.kernels.layerNorm(code(x.storage.dtype), rows, cols, this.layouts(x.layout), at(x), w, b, out, eps),
    );
  }

  #normalize(
    x: View,
    weight: View | null,
    bias: View | null,
    run: (rows: Rows, cols: Cols, w: Address, b: Address, out: OutAddress) => void,
  ): Storage {
    const [rows, cols] = this.rows(x.layout, 1);
    return this.make(x.storage.dtype, rows * cols, (out) =>
      this.packed(weight, (w) => this.packed(bias, (b) => run(rows, cols, w, b, out))),
    );
  }

  rope(kind: RopeKind, x: View, cos: View, sin: View): Storage {
    const { dtype } = x.storage;
    const { shape, strides, rank } = x.layout;
    const [b, y, z, d] = shape as readonly number[] as [Size, Size, Size, Size];
    const [h, t] = kind === "rope_thd" ? [z, y] : [y, z];
    const perBatch = (cos.layout.rank === 3 ? cos.layout.shape[1]! * cos.layout.shape[2]! : 0) as Stride;
    return this.make(dtype, x.layout.numel, (out) =>
      this.packed(cos, (c) =>
        this.packed(sin, (s) => {
          const info = x.layout.isContiguous() ? CONTIGUOUS : this.put([rank, ...shape, ...strides]);
          this.engine.kernels.rope(codes.rope[kind], code(dtype), b, h, t, d, info, at(x), c, s, perBatch, out);
        }),
      ),
    );
  }

  sdpa(q: View, k: View, v: View, mask: View | null, p: SdpaParams): Storage {
    const { dtype } = q.storage;
    const [b, hq, tq, d] = q.layout.shape as [number, number, number, number];
    const [, hk, tk] = k.layout.shape as [number, number, number, number];
    const dv = v.layout.shape[3]!;
    return this.make(dtype, b * hq * tq * dv, (out) => {
      const params = this.params("sdpa", {
        b,
        hq,
        hk,
        tq,
        tk,
        d,
        dv,
        causal: flag(p.causal),
        window: p.window,
        qStrides: q.layout.strides,
        kStrides: k.layout.strides,
        vStrides: v.layout.strides,
        maskStrides: mask?.layout.strides ?? [],
      });
      this.engine.kernels.sdpa(
        code(dtype),
        params,
        at(q),
        at(k),
        at(v),
        mask ? at(mask) : NOWHERE,
        p.sinks ? at(p.sinks) : NOWHERE,
        out,
        p.scale,
        p.softcap,
      );
    });
  }

  protected attendPages(q: View, k: View, v: View, p: PagedAttentionParams): Storage {
    const { dtype } = q.storage;
    const [, hk, , d] = p.k.layout.shape as [number, number, number, number];
    const [rows, width] = q.layout.shape as [number, number];
    const hq = width / d;
    const [sequences, pages] = p.tables.layout.shape as [number, number];
    const { kernels } = this.engine;
    const places = [at(p.offsets), at(p.lengths), at(p.tables)] as const;
    return this.make(dtype, rows * width, (out) =>
      this.temporary((rows * width * sizeOf(dtype)) as Bytes, (turned) => {
        const own = this.params("pages", {
          sequences,
          hq,
          hk,
          d,
          pairs: p.cos.layout.shape[1]!,
          interleaved: flag(p.interleaved),
          width: pages,
          qRow: q.layout.strides[0]!,
          kRow: k.layout.strides[0]!,
          vRow: v.layout.strides[0]!,
        });
        const [starts, kPages, vPages] = [p.starts ? at(p.starts) : NOWHERE, outAt(p.k), outAt(p.v)];
        const tables = [at(p.cos), at(p.sin)] as const;
        const to = turned as number as OutAddress;
        kernels.enterPages(code(dtype), own, at(q), at(k), at(v), ...tables, ...places, starts, kPages, vPages, to);
        this.attendTurned(turned as number as Address, rows, hq, p, out);
      }),
    );
  }

  /** The rows of queries, turned, over the pages. */
  protected attendTurned(turned: Address, _rows: number, hq: number, p: PagedAttentionParams, out: OutAddress): void {
    const { dtype } = p.k.storage;
    const [, hk, , d] = p.k.layout.shape as [number, number, number, number];
    const [sequences, pages] = p.tables.layout.shape as [number, number];
    const width = hq * d;
    const places = [at(p.offsets), at(p.lengths), at(p.tables)] as const;
    const pageStrides = [hk * PAGE_SIZE * d, PAGE_SIZE * d, d, 1];
    const params = this.params("sdpa", {
      b: sequences,
      hq,
      hk,
      tq: 0,
      tk: 0,
      d,
      dv: d,
      causal: 1,
      window: p.window,
      qStrides: [0, d, width, 1],
      kStrides: pageStrides,
      vStrides: pageStrides,
      maskStrides: [],
    });
    const sinks = p.sinks ? at(p.sinks) : NOWHERE;
    this.engine.kernels.sdpaPages(
      code(dtype),
      params,
      turned,
      at(p.k),
      at(p.v),
      sinks,
      ...places,
      pages as Count,
      p.singles as Count,
      out,
      p.scale,
      p.softcap,
    );
  }

  dequantize(type: QuantType, blocks: View, to: DType): Storage {
    const { id, size, bytes } = blockTypes[type];
    const n = ((blocks.layout.numel / bytes) * size) as Count;
    return this.make(to, n, (out) => this.engine.kernels.dequantize(id, size, bytes, code(to), n, at(blocks), out));
  }

  quantizedRows(type: QuantType, blocks: View, ids: View, to: DType): Storage {
    const { id, size, bytes } = blockTypes[type];
    const [rows, rowBytes] = blocks.layout.shape as readonly number[] as [Rows, number];
    const k = ((rowBytes / bytes) * size) as Cols;
    const n = count(ids.layout);
    const stride = ids.layout.strides[0] as Stride;
    const idType = code(ids.storage.dtype);
    return this.make(to, n * k, (out) => {
      const { kernels } = this.engine;
      kernels.quantizedRows(id, size, bytes, code(to), idType, n, stride, rows, k, at(blocks), at(ids), out);
      this.checkIndex("rows", rows, 0);
    });
  }

  quantize(type: QuantType, x: View): Storage {
    const { id, size, bytes } = blockTypes[type];
    const { dtype } = x.storage;
    const n = count(x.layout);
    return this.make("u8", (n / size) * bytes, (out) =>
      this.engine.kernels.quantize(id, size, bytes, code(dtype), n, this.layouts(x.layout), at(x), out),
    );
  }

  qmatmul(type: QuantType, x: View, blocks: View): Storage {
    const { id, size } = blockTypes[type];
    const { dtype } = x.storage;
    const { kernels } = this.engine;
    const [m, cols] = this.rows(x.layout, 1);
    const k = cols as number as Inner;
    const n = blocks.layout.shape[0] as Cols;
    return this.make(dtype, m * n, (out) =>
      this.packed(x, (from) =>
        this.temporary(kernels.qmatmulTmp(m, k), (tmp) =>
          kernels.qmatmul(id, size, code(dtype), m, n, k, from, at(blocks), out, tmp),
        ),
      ),
    );
  }
}

function image(x: View): { batch: number; channels: number; input: number[] } {
  const [batch, channels, ...input] = x.layout.shape as [number, number, number, number];
  return { batch, channels, input };
}

/** 1-D ids repeated over every dim of `shape` but `dim`. */
function broadcastIds(ids: Layout, dim: number, shape: Shape): { shape: Shape; strides: number[] } {
  return { shape, strides: shape.map((_, i) => (i === dim ? ids.strides[0]! : 0)) };
}

function bilinearStep(from: number, to: number, alignCorners: boolean, given: number | undefined): number {
  if (alignCorners) return to > 1 ? (from - 1) / (to - 1) : 0;
  return given ?? from / to;
}
