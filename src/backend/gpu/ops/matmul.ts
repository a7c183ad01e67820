/** Matrix products: by the vendor's BLAS where it is found and the strides suit it, else by Wick's own kernels. */
import { type DType, sizeOf } from "../../../core/dtype.ts";
import { collapse, Layout, numel } from "../../../core/layout.ts";
import type { View } from "../../backend.ts";
import type { Storage } from "../../storage.ts";
import { isGemmType } from "../device-blas.ts";
import { isSmallProduct, planMatVec } from "../families/matmul.ts";
import { planProduct } from "../families/product.ts";
import { at, type Gpu } from "../gpu.ts";

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
  } else if (isMatVec(p) || !byBlas(gpu, p, out)) {
    byKernel(gpu, p, out);
  }
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

function byBlas(gpu: Gpu, { dtype, m, n, k, a, b }: Product, out: number): boolean {
  if (!isGemmType(dtype)) return false;
  const [la, lb] = [leading(a, m, k), leading(b, k, n)];
  const batch = collapse([a.batch, b.batch]);
  if (!la || !lb || batch.shape.length > 1) return false;
  return gpu.gemm({
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
  });
}

function byKernel(gpu: Gpu, { dtype, m, n, k, a, b }: Product, out: number): void {
  const { shape, strides } = collapse([a.batch, b.batch]);
  const batch = numel(shape);
  const layout = (first: number[], second: number[]) => ({
    batch,
    num_dims: shape.length,
    info: shape.length === 0 ? 0 : gpu.words(shape, first, second),
  });
  if (n === 1) {
    const sizes = {
      m,
      k,
      a_row_stride: a.row,
      a_col_stride: a.col,
      x_stride: b.row,
      row_threads: planMatVec(m, k),
    };
    gpu.launch(`gemv_${dtype}`, { ...layout(strides[0]!, strides[1]!), ...sizes, a: a.at, x: b.at, out });
  } else if (m === 1) {
    // The transposed product: bᵀ (n, k) times a's only row.
    const sizes = {
      m: n,
      k,
      a_row_stride: b.col,
      a_col_stride: b.row,
      x_stride: a.col,
      row_threads: planMatVec(n, k),
    };
    gpu.launch(`gemv_${dtype}`, { ...layout(strides[1]!, strides[0]!), ...sizes, a: b.at, x: a.at, out });
  } else {
    const unit = gpu.matrixUnit(dtype);
    const values = {
      ...layout(strides[0]!, strides[1]!),
      m,
      n,
      k,
      a: a.at,
      b: b.at,
      out,
    };
    // The kernels on matrix units read 16 bytes at a time; what does not lie so is widened on its way by the others.
    if (unit === "fma" || !inPieces(a, m, k) || !inPieces(b, k, n)) {
      gpu.launch(`gemm${isSmallProduct(batch, m, n, gpu.multiprocessors) ? "_small" : ""}_${dtype}`, {
        ...values,
        a_row_stride: a.row,
        a_col_stride: a.col,
        b_row_stride: b.row,
        b_col_stride: b.col,
      });
    } else {
      const { multiprocessors } = gpu;
      const { size, launch } = planProduct(
        { batch, m, n },
        { unit, arch: gpu.context.properties.arch, multiprocessors },
      );
      const [byRows, byColumns] = [a.col === 1, b.row === 1];
      gpu.launch(`product${size}_${byRows ? "k" : "m"}${byColumns ? "k" : "n"}_${dtype}`, {
        ...values,
        ...launch,
        a_step: byRows ? a.row : a.col,
        b_step: byColumns ? b.col : b.row,
      });
    }
  }
}

/** Whether halves can be read in pieces of 16 bytes: along rows or columns, each of whole pieces. */
function inPieces({ at, row, col, batch }: Matrices, rows: number, cols: number): boolean {
  const [length, step] = col === 1 ? [cols, row] : [rows, row === 1 ? col : 1];
  return (
    at % 16 === 0 &&
    length % 8 === 0 &&
    step % 8 === 0 &&
    batch.strides.every((stride, i) => batch.shape[i] === 1 || stride % 8 === 0)
  );
}
