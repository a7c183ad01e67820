/** Products for machines without a BLAS library, and of shapes it does not take. */
import { type DType, sizeOf } from "../../../core/dtype.ts";
import { blocks, family, numbers, rowBlocks } from "./family.ts";

/** Threads per row of a matrix-vector product whose rows are contiguous: a warp, or more for few rows. */
export function planMatVec(rows: number, length: number): number {
  let threads = 32;
  while (threads < 256 && rows * (threads / 32) < 3072 && length >= 32 * threads) threads *= 2;
  return threads;
}

/** Rows and columns of the result that a block makes; half as many of 8 bytes each. */
const GEMM_TILE = 128;
const gemmTile = (type: DType, small: boolean): number => GEMM_TILE / (sizeOf(type) === 8 ? 2 : 1) / (small ? 2 : 1);

/** Whether there are too few large tiles for all multiprocessors. */
export const isSmallProduct = (batch: number, m: number, n: number, multiprocessors: number): boolean =>
  batch * Math.ceil(m / GEMM_TILE) * Math.ceil(n / GEMM_TILE) < multiprocessors;

/** Vectors of 16 bytes side by side that a block reads of a matrix whose columns are contiguous, at least. */
const GEMV_VECTORS = 2;

export const matmul = [
  family({
    file: "gemm",
    pattern: "gemm{small}_{T}",
    over: { small: ["", "_small"], T: numbers },
    apart: ["small"],
    args: "a* b* out* batch m n k a_row_stride a_col_stride b_row_stride b_col_stride num_dims info*",
    defines: { GEMM_TILE },
    launch: (s, b) => {
      const tile = gemmTile(b.T, b.small !== "");
      return blocks(s.batch * Math.ceil(s.m / tile) * Math.ceil(s.n / tile));
    },
  }),
  family({
    file: "gemm",
    pattern: "gemv_{T}",
    over: { T: numbers },
    args: "a* x* out* batch m k a_row_stride a_col_stride x_stride num_dims info* row_threads:u32",
    defines: { GEMV_VECTORS },
    launch: (s, b) =>
      s.a_row_stride === 1 && s.a_col_stride !== 1
        ? blocks(s.batch * Math.ceil(s.m / ((GEMV_VECTORS * 16) / sizeOf(b.T))))
        : rowBlocks(s.batch * s.m, s.row_threads),
  }),
] as const;
