/** Products for machines without a BLAS library, and of shapes it does not take. */
import { type DType, isFloat, sizeOf } from "../../../core/dtype.ts";
import { BLOCK, blocks, family, floats, numbers, rowBlocks } from "./family.ts";

/** Threads per row of a matrix-vector product whose rows are contiguous: a warp, or more for few rows. */
export function planMatVec(rows: number, length: number): number {
  let threads = 32;
  while (threads < 256 && rows * (threads / 32) < 3072 && length >= 32 * threads) threads *= 2;
  return threads;
}

/** A small product's blocks make so many rows and columns each, half as many of 8 bytes; a large one's 2 × 4 times as many. */
const GEMM_TILE = 64;
const LARGE_DOWN = 2;
const LARGE_ACROSS = 4;
/** How much of a large tile is made in the time of a small one of its size, with a multiprocessor to itself. */
const LARGE_GAIN = 1.15;
/**
 * Blocks of a small product that keep a multiprocessor busy, how much of k each has at least, and what that is a multiple of. Fewer
 * parts than these gain less than it takes to add them up.
 */
const SMALL_CROWD = 4;
const LEAST_DEPTH = 32;
const LEAST_PARTS = 4;
const SLICE = 16;

const tilesOf = (type: DType, small: boolean, { batch, m, n }: Omit<ProductSizes, "k">): number => {
  const tile = sizeOf(type) === 8 ? GEMM_TILE / 2 : GEMM_TILE;
  const [down, across] = small ? [tile, tile] : [LARGE_DOWN * tile, LARGE_ACROSS * tile];
  return batch * Math.ceil(m / down) * Math.ceil(n / across);
};

export interface ProductSizes {
  readonly batch: number;
  readonly m: number;
  readonly n: number;
  readonly k: number;
}

export interface GemmPlan {
  readonly size: "large" | "small";
  /** How much of k each block multiplies: sums of parts are added afterwards. */
  readonly depth: number;
}

/**
 * Large tiles where they take fewer rounds over the multiprocessors, of floats alone: integers have no kernel for them. Where even
 * small tiles are too few, several blocks share each.
 */
export function planGemm(type: DType, s: ProductSizes, multiprocessors: number): GemmPlan {
  const rounds = (small: boolean): number => Math.ceil(tilesOf(type, small, s) / multiprocessors);
  const large = (rounds(false) * LARGE_DOWN * LARGE_ACROSS) / LARGE_GAIN;
  if (isFloat(type) && large <= rounds(true)) return { size: "large", depth: s.k };
  const tiles = tilesOf(type, true, s);
  // Sums of halves must not be rounded before they are added. From a block per multiprocessor on, adding costs what it gains.
  if (sizeOf(type) < 4 || tiles > multiprocessors) return { size: "small", depth: s.k };
  const parts = Math.min(Math.floor((SMALL_CROWD * multiprocessors) / tiles), Math.floor(s.k / LEAST_DEPTH));
  return { size: "small", depth: parts >= LEAST_PARTS ? SLICE * Math.ceil(s.k / parts / SLICE) : s.k };
}

/** For any number of rows the same order of additions: one after the other. */
export const invariantGemm = (k: number): GemmPlan => ({ size: "small", depth: k });

/** Vectors of 16 bytes side by side that a block reads of a matrix whose columns are contiguous, at least. */
const GEMV_VECTORS = 2;

const gemmArgs = "a* b* out* batch m n k a_row_stride a_col_stride b_row_stride b_col_stride num_dims info* depth";

export const matmul = [
  family({
    file: "gemm",
    pattern: "gemm_{T}",
    over: { T: floats },
    args: gemmArgs,
    defines: { GEMM_TILE },
    launch: (s, b) => blocks(tilesOf(b.T, false, s) * Math.ceil(s.k / s.depth)),
  }),
  family({
    file: "gemm",
    pattern: "gemm_small_{T}",
    over: { T: numbers },
    args: gemmArgs,
    launch: (s, b) => blocks(tilesOf(b.T, true, s) * Math.ceil(s.k / s.depth), 1, BLOCK / 2),
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
