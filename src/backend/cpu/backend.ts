/** The CPU device: lays out arguments and calls one WebAssembly kernel per op. */
import { type DType, dtypes, encode, sizeOf } from "../../core/dtype.ts";
import { fail } from "../../core/errors.ts";
import { collapse, Layout, numel, type Shape } from "../../core/layout.ts";
import { type QuantType, quantTypes } from "../../core/quant-types.ts";
import {
  type Available,
  type Backend,
  type BinaryOp,
  type Block,
  binaryOps,
  type CompareOp,
  compareOps,
  type MemoryStats,
  type ReduceOp,
  reduceOps,
  type UnaryOp,
  unaryOps,
  type View,
} from "../backend.ts";
import type { ConvParams, PoolParams, RopeKind, SdpaParams, Size2d } from "../fused-ops.ts";
import { Storage } from "../storage.ts";
import { formatBytes, Usage } from "../usage.ts";
import { CPU_BYTES, Engine, ERROR_AT, INFO_AT } from "./engine.ts";

interface CpuBlock extends Block {
  readonly at: number;
}

/** Ops over less than this stay on one thread, so that small programs start no worker. */
const SHARE_FROM_BYTES = 256 * 1024;
const ropeKinds = ["rope", "rope_i", "rope_thd"] as const;

const code = (dtype: DType): number => dtypes[dtype].code;
const shiftOf = (dtype: DType): number => Math.log2(sizeOf(dtype));
const blockAt = (storage: Storage): number => (storage.block as CpuBlock).at;
/** The address of a view's first element. */
const at = (view: View): number => blockAt(view.storage) + view.layout.offset * sizeOf(view.storage.dtype);

export class CpuBackend implements Backend {
  readonly name = "cpu";
  readonly engine = new Engine();
  readonly #info = new Int32Array(this.engine.memory.buffer, INFO_AT, 256);
  readonly #usage = new Usage();
  readonly #error = new Int32Array(this.engine.memory.buffer, ERROR_AT, 8);

  get threads(): number {
    return this.engine.threads;
  }

  set threads(n: number) {
    this.engine.threads = n;
  }

  alloc(bytes: number): CpuBlock {
    if (bytes >= SHARE_FROM_BYTES) this.engine.startWorkers();
    const block = { at: this.engine.alloc(bytes), bytes };
    this.#usage.add(bytes);
    return block;
  }

  free(block: Block): void {
    this.engine.release((block as CpuBlock).at);
    this.#usage.remove(block.bytes);
  }

  memory(): MemoryStats {
    return this.#usage.stats(this.engine.cached);
  }

  available(): Available {
    const { available: bytes } = this.engine;
    return { bytes, where: `${formatBytes(bytes)} of the ${formatBytes(CPU_BYTES)} that the device can hold` };
  }

  describe(): string {
    const { threads, variant } = this.engine;
    return `WebAssembly SIMD${variant === "relaxed" ? " with fused multiply-add" : ""}, ${threads} thread${threads === 1 ? "" : "s"}`;
  }

  /** WebAssembly memory cannot be returned to the system. */
  trim(): void {}

  async synchronize(): Promise<void> {}

  write(dst: Storage, byteOffset: number, data: Uint8Array): void {
    this.engine.bytes(blockAt(dst) + byteOffset, data.byteLength).set(data);
  }

  async read(src: Storage, byteOffset: number, byteLength: number): Promise<Uint8Array> {
    return this.readSync(src, byteOffset, byteLength);
  }

  readSync(src: Storage, byteOffset: number, byteLength: number): Uint8Array {
    const out = new Uint8Array(byteLength);
    out.set(this.engine.bytes(blockAt(src) + byteOffset, byteLength));
    return out;
  }

  fill(dtype: DType, n: number, value: number | bigint): Storage {
    const bits = encode([value], dtype).reduceRight((acc, byte) => (acc << 8n) | BigInt(byte), 0n);
    return this.#make(dtype, n, (out) => this.engine.kernels.fill(shiftOf(dtype), n, out, BigInt.asIntN(64, bits)));
  }

  random(kind: "uniform" | "normal", dtype: DType, n: number, seed: bigint, a: number, b: number): Storage {
    return this.#make(dtype, n, (out) =>
      this.engine.kernels.random(kind === "normal" ? 1 : 0, code(dtype), n, out, BigInt.asIntN(64, seed), a, b),
    );
  }

  unary(op: UnaryOp, x: View, param: number): Storage {
    const { dtype } = x.storage;
    const n = x.layout.numel;
    return this.#make(dtype, n, (out) =>
      this.engine.kernels.unary(unaryOps.indexOf(op), code(dtype), n, this.#layouts(x.layout), at(x), out, param),
    );
  }

  affine(x: View, mul: number, add: number): Storage {
    const { dtype } = x.storage;
    const n = x.layout.numel;
    return this.#make(dtype, n, (out) =>
      this.engine.kernels.affine(code(dtype), n, this.#layouts(x.layout), at(x), out, mul, add),
    );
  }

  binary(op: BinaryOp, a: View, b: View): Storage {
    const { dtype } = a.storage;
    const n = a.layout.numel;
    return this.#make(dtype, n, (out) =>
      this.engine.kernels.binary(
        binaryOps.indexOf(op),
        code(dtype),
        n,
        this.#layouts(a.layout, b.layout),
        at(a),
        at(b),
        out,
      ),
    );
  }

  compare(op: CompareOp, a: View, b: View): Storage {
    const n = a.layout.numel;
    const info = () => this.#layouts(a.layout, b.layout);
    return this.#make("u8", n, (out) =>
      this.engine.kernels.compare(compareOps.indexOf(op), code(a.storage.dtype), n, info(), at(a), at(b), out),
    );
  }

  where(cond: View, onTrue: View, onFalse: View): Storage {
    const { dtype } = onTrue.storage;
    const n = cond.layout.numel;
    return this.#make(dtype, n, (out) => {
      const info = this.#layouts(cond.layout, onTrue.layout, onFalse.layout);
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
    const n = x.layout.numel;
    return this.#make(to, n, (out) =>
      this.engine.kernels.cast(code(x.storage.dtype), code(to), n, this.#layouts(x.layout), at(x), out),
    );
  }

  copy(src: View, dst: View): void {
    const n = src.layout.numel;
    if (n === 0) return;
    this.engine.kernels.copy(shiftOf(src.storage.dtype), n, this.#layouts(src.layout, dst.layout), at(src), at(dst));
  }

  reduce(op: ReduceOp, x: View, dims: number): Storage {
    const { dtype } = x.storage;
    const [rows, cols] = this.#rows(x.layout, dims);
    return this.#make(op.startsWith("arg") ? "u32" : dtype, rows, (out) =>
      this.engine.kernels.reduce(
        reduceOps.indexOf(op),
        code(dtype),
        rows,
        cols,
        cols === 0 ? 0 : this.#layouts(x.layout),
        at(x),
        out,
      ),
    );
  }

  cumsum(x: View): Storage {
    const { dtype } = x.storage;
    const [rows, cols] = this.#rows(x.layout, 1);
    return this.#make(dtype, rows * cols, (out) =>
      this.engine.kernels.cumsum(code(dtype), rows, cols, this.#layouts(x.layout), at(x), out),
    );
  }

  argsort(x: View, descending: boolean): Storage {
    const { dtype } = x.storage;
    const [rows, cols] = this.#rows(x.layout, 1);
    const { kernels } = this.engine;
    return this.#make("u32", rows * cols, (out) =>
      this.#packed(x, (from) =>
        this.#temporary(kernels.argsortTmp(code(dtype), rows, cols), (tmp) =>
          kernels.argsort(code(dtype), Number(descending), rows, cols, from, out, tmp),
        ),
      ),
    );
  }

  indexSelect(x: View, ids: View, dim: number): Storage {
    const shape = x.layout.shape.with(dim, ids.layout.numel);
    return this.#gather(x, ids, broadcastIds(ids.layout, dim, shape), dim);
  }

  gather(x: View, ids: View, dim: number): Storage {
    return this.#gather(x, ids, ids.layout, dim);
  }

  #gather(x: View, ids: View, idLayout: { shape: Shape; strides: readonly number[] }, dim: number): Storage {
    const { shape } = idLayout;
    const { dtype } = x.storage;
    const n = numel(shape);
    return this.#make(dtype, n, (out) => {
      const info = this.#write([shape.length, ...shape, ...x.layout.strides, ...idLayout.strides]);
      const size = x.layout.shape[dim]!;
      this.engine.kernels.gather(shiftOf(dtype), code(ids.storage.dtype), n, dim, info, size, at(x), at(ids), out);
      this.#checkIndex("gather", size, dim);
    });
  }

  scatter(dst: View, ids: View, src: View, dim: number, add: boolean): void {
    this.#scatter(dst, ids, ids.layout.strides, src, dim, add);
  }

  indexAdd(dst: View, ids: View, src: View, dim: number): void {
    this.#scatter(dst, ids, broadcastIds(ids.layout, dim, src.layout.shape).strides, src, dim, true);
  }

  #scatter(dst: View, ids: View, idStrides: readonly number[], src: View, dim: number, add: boolean): void {
    const { shape, strides } = src.layout;
    const n = src.layout.numel;
    if (n === 0) return;
    const info = this.#write([shape.length, ...shape, ...dst.layout.strides, ...idStrides, ...strides]);
    const [type, idType] = [code(src.storage.dtype), code(ids.storage.dtype)];
    const size = dst.layout.shape[dim]!;
    this.engine.kernels.scatter(type, idType, Number(add), n, dim, info, size, at(dst), at(ids), at(src));
    this.#checkIndex("scatter", size, dim);
  }

  matmul(a: View, b: View): Storage {
    const { dtype } = a.storage;
    const lead = a.layout.rank - 2;
    const [m, k] = a.layout.shape.slice(lead) as [number, number];
    const n = b.layout.shape[lead + 1]!;
    const batchShape = a.layout.shape.slice(0, lead);
    const batch = numel(batchShape);
    const { kernels } = this.engine;
    return this.#make(dtype, batch * m * n, (out) => {
      const strides = [a, b].map((v) => v.layout.strides.slice(0, lead));
      const info = batch === 1 ? 0 : this.#write([lead, ...batchShape, ...strides.flat()]);
      const [aRow, aCol] = a.layout.strides.slice(lead) as [number, number];
      const [bRow, bCol] = b.layout.strides.slice(lead) as [number, number];
      this.#temporary(kernels.matmulTmp(code(dtype), batch, m, n, k), (tmp) =>
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
    const [, , kh, kw] = w.layout.shape;
    const { size } = p;
    const words = [...x.layout.shape, outputs, kh!, kw!, ...p.stride, ...p.padding, ...p.dilation, p.groups, ...size];
    return this.#make(dtype, x.layout.shape[0]! * outputs * numel(size), (out) => {
      const params = this.#write([...words, ...x.layout.strides, ...w.layout.strides]);
      this.#temporary(kernels[`${name}Tmp`](code(dtype), params), (tmp) =>
        kernels[name](code(dtype), params, at(x), at(w), out, tmp),
      );
    });
  }

  pool2d(kind: "avg" | "max", x: View, { kernel, stride, size }: PoolParams): Storage {
    const { dtype } = x.storage;
    const [b, c] = x.layout.shape as [number, number, number, number];
    return this.#make(dtype, b * c * numel(size), (to) => {
      const params = this.#write([...x.layout.shape, ...kernel, ...stride, ...size, ...x.layout.strides]);
      this.engine.kernels.pool2d(kind === "max" ? 1 : 0, code(dtype), params, at(x), to);
    });
  }

  upsampleNearest2d(x: View, size: Size2d): Storage {
    const { dtype } = x.storage;
    return this.#make(dtype, x.layout.shape[0]! * x.layout.shape[1]! * numel(size), (out) => {
      const params = this.#write([...x.layout.shape, ...size, ...x.layout.strides]);
      this.engine.kernels.upsampleNearest2d(code(dtype), params, at(x), out);
    });
  }

  upsampleBilinear2d(x: View, size: Size2d, alignCorners: boolean, scale: Size2d | null): Storage {
    const { dtype } = x.storage;
    const [scaleH, scaleW] = size.map((out, i) =>
      bilinearStep(x.layout.shape[i + 2]!, out, alignCorners, scale?.[i]),
    ) as [number, number];
    return this.#make(dtype, x.layout.shape[0]! * x.layout.shape[1]! * numel(size), (out) => {
      const params = this.#write([...x.layout.shape, ...size, ...x.layout.strides]);
      this.engine.kernels.upsampleBilinear2d(code(dtype), params, at(x), out, Number(alignCorners), scaleH, scaleW);
    });
  }

  softmax(x: View, log: boolean): Storage {
    const { dtype } = x.storage;
    const [rows, cols] = this.#rows(x.layout, 1);
    return this.#make(dtype, rows * cols, (out) =>
      this.engine.kernels.softmax(code(dtype), Number(log), rows, cols, this.#layouts(x.layout), at(x), out),
    );
  }

  rmsNorm(x: View, weight: View | null, eps: number): Storage {
    return this.#normalize(x, weight, null, (rows, cols, w, _b, out) =>
      this.engine.kernels.rmsNorm(code(x.storage.dtype), rows, cols, this.#layouts(x.layout), at(x), w, out, eps),
    );
  }

  layerNorm(x: View, weight: View | null, bias: View | null, eps: number): Storage {
    return this.#normalize(x, weight, bias, (rows, cols, w, b, out) =>
      this.engine.kernels.layerNorm(code(x.storage.dtype), rows, cols, this.#layouts(x.layout), at(x), w, b, out, eps),
    );
  }

  #normalize(
    x: View,
    weight: View | null,
    bias: View | null,
    run: (rows: number, cols: number, w: number, b: number, out: number) => void,
  ): Storage {
    const [rows, cols] = this.#rows(x.layout, 1);
    return this.#make(x.storage.dtype, rows * cols, (out) =>
      this.#packed(weight, (w) => this.#packed(bias, (b) => run(rows, cols, w, b, out))),
    );
  }

  rope(kind: RopeKind, x: View, cos: View, sin: View): Storage {
    const { dtype } = x.storage;
    const { shape, strides, rank } = x.layout;
    const [b, y, z, d] = shape as [number, number, number, number];
    const [h, t] = kind === "rope_thd" ? [z, y] : [y, z];
    const perBatch = cos.layout.rank === 3 ? cos.layout.shape[1]! * cos.layout.shape[2]! : 0;
    return this.#make(dtype, x.layout.numel, (out) =>
      this.#packed(cos, (c) =>
        this.#packed(sin, (s) => {
          const info = x.layout.isContiguous() ? 0 : this.#write([rank, ...shape, ...strides]);
          this.engine.kernels.rope(ropeKinds.indexOf(kind), code(dtype), b, h, t, d, info, at(x), c, s, perBatch, out);
        }),
      ),
    );
  }

  sdpa(q: View, k: View, v: View, mask: View | null, p: SdpaParams): Storage {
    const { dtype } = q.storage;
    const [b, hq, tq, d] = q.layout.shape as [number, number, number, number];
    const [, hk, tk] = k.layout.shape as [number, number, number, number];
    const dv = v.layout.shape[3]!;
    return this.#make(dtype, b * hq * tq * dv, (out) => {
      const views = [q, k, v, ...(mask ? [mask] : [])];
      const words = [b, hq, hk, tq, tk, d, dv, Number(p.causal), p.window, ...views.flatMap((x) => x.layout.strides)];
      const params = this.#write(words);
      this.engine.kernels.sdpa(code(dtype), params, at(q), at(k), at(v), mask ? at(mask) : 0, out, p.scale, p.softcap);
    });
  }

  dequantize(type: QuantType, blocks: View, to: DType): Storage {
    const { id, size, bytes } = quantTypes[type];
    const n = (blocks.layout.numel / bytes) * size;
    return this.#make(to, n, (out) => this.engine.kernels.dequantize(id, size, bytes, code(to), n, at(blocks), out));
  }

  quantizedRows(type: QuantType, blocks: View, ids: View, to: DType): Storage {
    const { id, size, bytes } = quantTypes[type];
    const [rows, rowBytes] = blocks.layout.shape as [number, number];
    const k = (rowBytes / bytes) * size;
    const count = ids.layout.numel;
    const stride = ids.layout.strides[0]!;
    const idType = code(ids.storage.dtype);
    return this.#make(to, count * k, (out) => {
      const { kernels } = this.engine;
      kernels.quantizedRows(id, size, bytes, code(to), idType, count, stride, rows, k, at(blocks), at(ids), out);
      this.#checkIndex("rows", rows, 0);
    });
  }

  quantize(type: QuantType, x: View): Storage {
    const { id, size, bytes } = quantTypes[type];
    const { dtype } = x.storage;
    const n = x.layout.numel;
    return this.#make("u8", (n / size) * bytes, (out) =>
      this.engine.kernels.quantize(id, size, bytes, code(dtype), n, this.#layouts(x.layout), at(x), out),
    );
  }

  qmatmul(type: QuantType, x: View, blocks: View): Storage {
    const { id, size, bytes } = quantTypes[type];
    const { dtype } = x.storage;
    const { kernels } = this.engine;
    const [m, k] = this.#rows(x.layout, 1);
    const n = blocks.layout.shape[0]!;
    return this.#make(dtype, m * n, (out) =>
      this.#packed(x, (from) =>
        this.#temporary(kernels.qmatmulTmp(size, m, k), (tmp) =>
          kernels.qmatmul(id, size, bytes, code(dtype), m, n, k, from, at(blocks), out, tmp),
        ),
      ),
    );
  }

  /** A new storage filled by `run`, which is given its address; nothing runs for zero elements. */
  #make(dtype: DType, n: number, run: (out: number) => void): Storage {
    const storage = Storage.alloc(this, dtype, n);
    if (n === 0) return storage;
    try {
      run(blockAt(storage));
    } catch (error) {
      storage.discard();
      throw error;
    }
    return storage;
  }

  #temporary<T>(bytes: number, run: (at: number) => T): T {
    if (bytes === 0) return run(0);
    const tmp = this.engine.alloc(bytes >>> 0);
    try {
      return run(tmp);
    } finally {
      this.engine.release(tmp);
    }
  }

  /** The address of the view's elements in row-major order: its own, or that of a temporary copy; 0 for no view. */
  #packed<T>(view: View | null, run: (at: number) => T): T {
    if (!view) return run(0);
    if (view.layout.isContiguous()) return run(at(view));
    const { dtype } = view.storage;
    const n = view.layout.numel;
    return this.#temporary(n * sizeOf(dtype), (to) => {
      const info = this.#layouts(view.layout, Layout.contiguous(view.layout.shape));
      this.engine.kernels.copy(shiftOf(dtype), n, info, at(view), to);
      return run(to);
    });
  }

  #rows(layout: Layout, dims: number): [rows: number, cols: number] {
    const split = layout.rank - dims;
    return [numel(layout.shape.slice(0, split)), numel(layout.shape.slice(split))];
  }

  /** Writes merged dims and strides for the kernels; 0 when every operand is contiguous. */
  #layouts(...layouts: Layout[]): number {
    if (layouts.every((l) => l.isContiguous())) return 0;
    const { shape, strides } = collapse(layouts);
    if (shape.length === 0) return 0;
    return this.#write([shape.length, ...shape, ...strides.flat()]);
  }

  #write(words: readonly number[]): number {
    this.#info.set(words);
    return INFO_AT;
  }

  #checkIndex(op: string, size: number, dim: number): void {
    if (this.#error[0] === 0) return;
    const [id, position] = new BigInt64Array(this.engine.memory.buffer, ERROR_AT + 8, 2) as unknown as [bigint, bigint];
    this.#error[0] = 0;
    fail("InvalidIndex", `${op}: id ${id} at position ${position} is out of range for dim ${dim} of size ${size}`);
  }
}

/** 1-D ids repeated over every dim of `shape` but `dim`. */
function broadcastIds(ids: Layout, dim: number, shape: Shape): { shape: Shape; strides: number[] } {
  return { shape, strides: shape.map((_, i) => (i === dim ? ids.strides[0]! : 0)) };
}

function bilinearStep(from: number, to: number, alignCorners: boolean, given: number | undefined): number {
  if (alignCorners) return to > 1 ? (from - 1) / (to - 1) : 0;
  return given ?? from / to;
}
