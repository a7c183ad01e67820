/** Products for machines without a BLAS library, and of shapes it does not take. */
import { sizeOf } from "../../../core/dtype.ts";
import { blocks, dtype, type Family, type Launch, numbers, rowBlocks, type Sizes } from "./family.ts";

/** Threads per row of a matrix-vector product whose rows are contiguous: a warp, or more for few rows. */
export function planMatVec(rows: number, length: number): number {
  let threads = 32;
  while (threads < 256 && rows * (threads / 32) < 3072 && length >= 32 * threads) threads *= 2;
  return threads;
}

function gemmTiles(s: Sizes, tile: number): Launch {
  return blocks(s.batch! * Math.ceil(s.m! / tile) * Math.ceil(s.n! / tile));
}

export const matmul: readonly Family[] = [
  {
    file: "gemm",
    pattern: "gemm_{T}",
    over: { T: numbers },
    args: "batch m n k a_row_stride a_col_stride b_row_stride b_col_stride num_dims info* a* b* c*",
    launch: (s, b) => gemmTiles(s, sizeOf(dtype(b)) === 8 ? 64 : 128),
  },
  {
    file: "gemm",
    pattern: "gemm_small_{T}",
    over: { T: numbers },
    args: "batch m n k a_row_stride a_col_stride b_row_stride b_col_stride num_dims info* a* b* c*",
    launch: (s, b) => gemmTiles(s, sizeOf(dtype(b)) === 8 ? 32 : 64),
  },
  {
    file: "gemm",
    pattern: "gemv_{T}",
    over: { T: numbers },
    args: "batch m k a_row_stride a_col_stride x_stride num_dims info* a* x* y* row_threads:u32",
    launch: (s, b) =>
      s.a_row_stride === 1 && s.a_col_stride !== 1
        ? blocks(s.batch! * Math.ceil(s.m! / ((2 * 16) / sizeOf(dtype(b)))))
        : rowBlocks(s.batch! * s.m!, s.row_threads!),
  },
];
