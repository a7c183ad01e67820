/** Matrix products: by the vendor's BLAS where it is found and the strides suit it, else by Wick's own kernels. */
import { type DType, sizeOf } from "../../../core/dtype.ts";
import { collapse, Layout, numel } from "../../../core/layout.ts";
import type { View } from "../../backend.ts";
import type { Storage } from "../../storage.ts";
import { hasWarpgroups, type MatrixUnit } from "../attention-plan.ts";
import { isGemmType } from "../device-blas.ts";
import type { Gemm } from "../driver.ts";
import { invariantGemm, planGemm, planMatVec } from "../families/matmul.ts";
import { invariantProduct, planProduct } from "../families/product.ts";
import { at, type Gpu } from "../gpu.ts";
import { reduceColumns } from "./reduce.ts";

/** A batch of matrices in memory: address, the strides of rows and columns, and the layout of the batch dims. */
export interface Matrices {
  readonly at: number;
  readonly row: number;
  readonly col: number;
  readonly batch: Layout;
}

export interface Product {
  readonly dtype: DType;
  readonly m: number;
  readonly n: number;
  readonly k: number;
  readonly a: Matrices;
  readonly b: Matrices;
}

export function matmul(gpu: Gpu, a: View, b: View): Storage {
  const lead = a.layout.rank - 2;
  const [m, k] = a.layout.shape.slice(lead) as [number, number];
  const n = b.layout.shape[lead + 1]!;
  const { dtype } = a.storage;
  const batch = numel(a.layout.shape.slice(0, lead));
  return gpu.filled(dtype, batch * m * n, (out) =>
    multiply(gpu, { dtype, m, n, k, a: matrices(a), b: matrices(b) }, out),
  );
}

function matrices(view: View): Matrices {
  const { shape, strides } = view.layout;
  const lead = shape.length - 2;
  const batch = new Layout(shape.slice(0, lead), strides.slice(0, lead));
  return { at: at(view), row: strides[lead]!, col: strides[lead + 1]!, batch };
}

/** Writes the contiguous (batch, m, n) product to `out`. */
export function multiply(gpu: Gpu, p: Product, out: number): void {
  const batch = p.a.batch.numel;
  if (p.k === 0) {
    gpu.context.memset(BigInt(out), 0, batch * p.m * p.n * sizeOf(p.dtype));
    return;
  }
  const gemm = gpu.isInvariant || isMatVec(p) ? null : libraryProduct(p, out);
  if (!gemm || gpu.tuning?.prefersOwn(gemm) || !gpu.gemm(gemm)) byKernel(gpu, p, out);
}

/** Adds a product to what is at `out` by the library; false where that does not do it, or not best. */
export function addProduct(gpu: Gpu, p: Product, out: number): boolean {
  const gemm = libraryProduct(p, out);
  return gemm !== null && !gpu.tuning?.prefersOwn(gemm) && gpu.gemm({ ...gemm, adds: true });
}

/** One row times a matrix whose rows are contiguous, or the same the other way round: bound by memory, faster by gemv. */
function isMatVec({ dtype, m, n, a, b }: Product): boolean {
  if ((m !== 1 && n !== 1) || a.batch.numel !== 1 || sizeOf(dtype) === 8) return false;
  return a.col === 1 && b.row === 1;
}

/** How BLAS would read a matrix of `rows` × `cols`: by rows, by columns, or not at all. */
function leading(x: Matrices, rows: number, cols: number): { readonly trans: boolean; readonly ld: number } | null {
  // The stride of a dim of size 1 means nothing.
  const row = rows === 1 ? cols : x.row;
  const col = cols === 1 ? 1 : x.col;
  if (col === 1 && row >= Math.max(1, cols)) return { trans: false, ld: row };
  const [r, c] = [rows === 1 ? 1 : x.row, cols === 1 ? rows : x.col];
  if (r === 1 && c >= Math.max(1, rows)) return { trans: true, ld: c };
  return null;
}

/** The product as a library is asked for it; null where no library takes such strides. */
export function libraryProduct({ dtype, m, n, k, a, b }: Product, out: number): Gemm | null {
  if (!isGemmType(dtype)) return null;
  const [la, lb] = [leading(a, m, k), leading(b, k, n)];
  const batch = collapse([a.batch, b.batch]);
  if (!la || !lb || batch.shape.length > 1) return null;
  return {
    type: dtype,
    m,
    n,
    k,
    a: BigInt(a.at),
    transA: la.trans,
    lda: la.ld,
    strideA: batch.strides[0]![0] ?? 0,
    b: BigInt(b.at),
    transB: lb.trans,
    ldb: lb.ld,
    strideB: batch.strides[1]![0] ?? 0,
    c: BigInt(out),
    strideC: m * n,
    batch: batch.shape[0] ?? 1,
  };
}

/** The batch as kernels are told of it, the strides of the first operand before those of the second. */
function batchOf(gpu: Gpu, first: Matrices, second: Matrices): { batch: number; num_dims: number; info: number } {
  const { shape, strides } = collapse([first.batch, second.batch]);
  return {
    batch: numel(shape),
    num_dims: shape.length,
    info: shape.length === 0 ? 0 : gpu.words(shape, strides[0]!, strides[1]!),
  };
}

export function byKernel(gpu: Gpu, p: Product, out: number): void {
  const { dtype, m, n, k, a, b } = p;
  const isOne = gpu.isInvariant ? () => false : (size: number) => size === 1;
  if (isOne(n)) {
    matVec(gpu, dtype, { lines: m, k, line: a.row, step: a.col, x: b.row }, a, b, out);
  } else if (isOne(m)) {
    // The transposed product: bᵀ (n, k) times a's only row.
    matVec(gpu, dtype, { lines: n, k, line: b.col, step: b.row, x: a.col }, b, a, out);
  } else {
    const unit = gpu.matrixUnit(dtype);
    if (unit !== "fma") inPieces(gpu, 2, p, (pieces) => onUnit(gpu, unit, pieces, out));
    else if (dtype === "f32" && a.batch.numel * m * n * k >= WORTH_COPIES * gpu.multiprocessors)
      inPieces(gpu, 4, p, (pieces) => byMultiplyAdds(gpu, pieces, out));
    else byMultiplyAdds(gpu, p, out);
  }
}

/**
 * Multiply-adds in f32 read 16 bytes at a time, too, where they can; from so many of a multiprocessor on two copies cost less than
 * other reads.
 */
const WORTH_COPIES = 2 ** 21;

function byMultiplyAdds(gpu: Gpu, { dtype, m, n, k, a, b }: Product, out: number): void {
  const batch = batchOf(gpu, a, b);
  const { size, depth, parts } = gpu.isInvariant
    ? invariantGemm(k)
    : planGemm(dtype, { batch: batch.batch, m, n, k }, gpu.multiprocessors, hasWarpgroups(gpu.context.properties.arch));
  const multiplyTo = (to: number): void => {
    const values = {
      ...{ ...batch, m, n, k, depth, parts, a: a.at, b: b.at, out: to },
      ...{ a_row_stride: a.row, a_col_stride: a.col, b_row_stride: b.row, b_col_stride: b.col },
    };
    if (size === "large") gpu.launch(`gemm_${dtype}`, values);
    else if (size === "small") gpu.launch(`gemm_small_${dtype}`, values);
    else gpu.launch(`gemm_${size}_f32`, values);
  };
  if (parts === 1) {
    multiplyTo(out);
    return;
  }
  const numbers = batch.batch * m * n;
  gpu.temporary(parts * numbers * sizeOf(dtype), (sums) => {
    multiplyTo(sums);
    const columns = { outer: 1, inner: numbers, length: parts, outerStride: 0, lengthStride: numbers };
    reduceColumns(gpu, "sum", dtype, columns, sums, out);
  });
}

interface MatVec {
  readonly lines: number;
  readonly k: number;
  /** From line to line, inside of one, and from one element of the vector to the next. */
  readonly line: number;
  readonly step: number;
  readonly x: number;
}

function matVec(gpu: Gpu, dtype: DType, s: MatVec, matrix: Matrices, vector: Matrices, out: number): void {
  gpu.launch(`gemv_${dtype}`, {
    ...batchOf(gpu, matrix, vector),
    m: s.lines,
    k: s.k,
    a_row_stride: s.line,
    a_col_stride: s.step,
    x_stride: s.x,
    row_threads: planMatVec(s.lines, s.k),
    a: matrix.at,
    x: vector.at,
    out,
  });
}

/** Halves on a matrix unit, from operands in pieces of 16 bytes. */
function onUnit(gpu: Gpu, unit: Exclude<MatrixUnit, "fma">, { dtype, m, n, k, a, b }: Product, out: number): void {
  const batch = batchOf(gpu, a, b);
  const device = { unit, arch: gpu.context.properties.arch, multiprocessors: gpu.multiprocessors };
  const { size, launch } = gpu.isInvariant
    ? invariantProduct(m, unit)
    : planProduct({ batch: batch.batch, m, n, k }, device);
  const [byRows, byColumns] = [a.col === 1, b.row === 1];
  gpu.launch(`product${size}_${byRows ? "k" : "m"}${byColumns ? "k" : "n"}_${dtype}`, {
    ...{ ...batch, m, n, k, a: a.at, b: b.at, out },
    ...launch,
    a_step: byRows ? a.row : a.col,
    b_step: byColumns ? b.col : b.row,
  });
}

/** A product whose operands lie in pieces of 16 bytes, of so many bytes per element: as they are, or copied. */
function inPieces<T>(gpu: Gpu, bytes: 2 | 4, p: Product, run: (p: Product) => T): T {
  return padded(gpu, bytes, p.a, p.m, p.k, (a) => padded(gpu, bytes, p.b, p.k, p.n, (b) => run({ ...p, a, b })));
}

/** Whether matrices lie in such pieces: along rows or columns, each of whole ones. */
function liesInPieces({ at, row, col, batch }: Matrices, rows: number, cols: number, piece: number): boolean {
  const [length, step] = col === 1 ? [cols, row] : [rows, row === 1 ? col : 1];
  return (
    at % 16 === 0 &&
    length % piece === 0 &&
    step % piece === 0 &&
    batch.strides.every((stride, i) => batch.shape[i] === 1 || stride % piece === 0)
  );
}

/** The matrices, or a temporary copy of them whose lines end with zeros. One that a batch shares is copied once. */
function padded<T>(gpu: Gpu, bytes: 2 | 4, x: Matrices, rows: number, cols: number, run: (x: Matrices) => T): T {
  const piece = 16 / bytes;
  if (liesInPieces(x, rows, cols, piece)) return run(x);
  const byRows = Math.abs(x.col) <= Math.abs(x.row);
  const [lines, length] = byRows ? [rows, cols] : [cols, rows];
  const pitch = piece * Math.ceil(length / piece);
  const { shape, strides } = x.batch;
  const kept = Layout.contiguous(shape.map((size, i) => (strides[i] === 0 ? 1 : size)));
  const own = collapse([new Layout(kept.shape, strides)]);
  return gpu.temporary(kept.numel * lines * pitch * bytes, (at) => {
    gpu.launch(`pad_lines_${bytes}`, {
      ...{ x: x.at, out: at, batch: kept.numel, lines, length },
      ...{ line_step: byRows ? x.row : x.col, step: byRows ? x.col : x.row },
      ...{ num_dims: own.shape.length, info: own.shape.length === 0 ? 0 : gpu.words(own.shape, own.strides[0]!) },
    });
    const steps = kept.strides.map((stride, i) => (strides[i] === 0 ? 0 : stride * lines * pitch));
    return run({ at, row: byRows ? pitch : 1, col: byRows ? 1 : pitch, batch: new Layout(shape, steps) });
  });
}
