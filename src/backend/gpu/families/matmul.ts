/** Products for machines without a BLAS library, and of shapes it does not take. */
import { type DType, isFloat, sizeOf } from "../../../core/dtype.ts";
import { BLOCK, blocks, family, floats, type Launch, numbers, rowBlocks } from "./family.ts";

/** Threads per row of a matrix-vector product whose rows are contiguous: a warp, or more for few rows. */
export function planMatVec(rows: number, length: number): number {
  let threads = 32;
  while (threads < 256 && rows * (threads / 32) < 3072 && length >= 32 * threads) threads *= 2;
  return threads;
}

/** Rows and columns of the result that a small product's blocks make, half as many of 8 bytes. */
const GEMM_TILE = 64;
/** Blocks of a cluster that share the depth of a small tile out. */
const GEMM_SPLIT = 4;
/**
 * Of a tile: its size in small ones, how many blocks of a cluster make it together, of how many threads; how many such blocks keep a
 * multiprocessor half busy, and the rate of a busy one beside the others, measured on an H200.
 */
const gemmSizes = {
  large: { down: 2, across: 4, blocks: 1, threads: BLOCK, fewest: 1, rate: 1 },
  small: { down: 1, across: 1, blocks: 1, threads: BLOCK / 2, fewest: 2.5, rate: 0.73 },
  pair: { down: 1, across: 2, blocks: 2, threads: BLOCK / 2, fewest: 1, rate: 0.85 },
  split: { down: 1, across: 1, blocks: GEMM_SPLIT, threads: BLOCK / 2, fewest: 2.5, rate: 0.73 },
} as const;
type GemmSize = keyof typeof gemmSizes;

/** How much of a large tile is made in the time of a small one of its size, with a multiprocessor to itself, where nothing was measured. */
const LARGE_GAIN = 1.15;
/**
 * Blocks of a small product that keep a multiprocessor busy, how much of k each has at least, and what that is a multiple of. Fewer
 * parts than these gain less than it takes to add them up, which costs as much as so many products of a multiprocessor.
 */
const SMALL_CROWD = 4;
const LEAST_DEPTH = 32;
const LEAST_PARTS = 4;
const SLICE = 16;
const ADDING = 2 ** 20;

const tilesOf = (type: DType, size: GemmSize, { batch, m, n }: Omit<ProductSizes, "k">): number => {
  const tile = sizeOf(type) === 8 ? GEMM_TILE / 2 : GEMM_TILE;
  const { down, across } = gemmSizes[size];
  return batch * Math.ceil(m / (down * tile)) * Math.ceil(n / (across * tile));
};

export interface ProductSizes {
  readonly batch: number;
  readonly m: number;
  readonly n: number;
  readonly k: number;
}

export interface GemmPlan {
  readonly size: GemmSize;
  /** How much of k each block multiplies. */
  readonly depth: number;
  /** Of how many such parts the sums are left, to be added afterwards. */
  readonly parts: number;
}

const whole = (size: GemmSize, { k }: ProductSizes): GemmPlan => ({
  size,
  depth: Math.min(k, SLICE * Math.ceil(k / gemmSizes[size].blocks / SLICE)),
  parts: 1,
});

/** A small product of which several blocks make each tile: as many as there is room for; null where those are too few. */
function inParts(type: DType, s: ProductSizes, multiprocessors: number): GemmPlan | null {
  const tiles = tilesOf(type, "small", s);
  // Sums of halves must not be rounded before they are added. From a block per multiprocessor on, adding costs what it gains.
  if (sizeOf(type) < 4 || tiles > multiprocessors) return null;
  const parts = Math.min(Math.floor((SMALL_CROWD * multiprocessors) / tiles), Math.floor(s.k / LEAST_DEPTH));
  if (parts < LEAST_PARTS) return null;
  const depth = SLICE * Math.ceil(s.k / parts / SLICE);
  return { size: "small", depth, parts: Math.ceil(s.k / depth) };
}

/**
 * Large tiles where they take fewer rounds over the multiprocessors, of floats alone: integers have no kernel for them. Where even
 * small tiles are too few, several blocks share each: those of a cluster, where there are clusters, or any.
 */
export function planGemm(type: DType, s: ProductSizes, multiprocessors: number, clusters = false): GemmPlan {
  if (type === "f32" && clusters) return planClusters(s, multiprocessors);
  const rounds = (size: GemmSize): number => Math.ceil(tilesOf(type, size, s) / multiprocessors);
  const { down, across } = gemmSizes.large;
  if (isFloat(type) && (rounds("large") * down * across) / LARGE_GAIN <= rounds("small")) return whole("large", s);
  return inParts(type, s, multiprocessors) ?? whole("small", s);
}

/** The plan with which the last multiprocessor is done first. */
function planClusters(s: ProductSizes, multiprocessors: number): GemmPlan {
  const cost = ({ size, depth, parts }: GemmPlan): number => {
    const { down, across, blocks, fewest, rate } = gemmSizes[size];
    const each = Math.ceil((tilesOf("f32", size, s) * blocks * parts) / multiprocessors);
    const products = Math.max(each, fewest) * down * across * GEMM_TILE ** 2 * depth;
    return products / rate + (parts > 1 ? ADDING : 0);
  };
  const plans = [whole("large", s), whole("pair", s), whole("split", s), inParts("f32", s, multiprocessors)];
  return plans.reduce((best, plan) => (plan && cost(plan) < cost(best!) ? plan : best))!;
}

/** For any number of rows the same order of additions: one after the other. */
export const invariantGemm = (k: number): GemmPlan => ({ size: "small", depth: k, parts: 1 });

/** Vectors of 16 bytes side by side that a block reads of a matrix whose columns are contiguous, at least. */
const GEMV_VECTORS = 2;

const gemmArgs = "a* b* out* batch m n k a_row_stride a_col_stride b_row_stride b_col_stride num_dims info* depth";

const gemmBlocks = (type: DType, size: GemmSize, s: ProductSizes, parts: number): Launch =>
  blocks(tilesOf(type, size, s) * gemmSizes[size].blocks * parts, 1, gemmSizes[size].threads);

export const matmul = [
  family({
    file: "gemm",
    pattern: "gemm_{T}",
    over: { T: floats },
    args: gemmArgs,
    plan: "parts",
    defines: { GEMM_TILE, GEMM_SPLIT },
    launch: (s, b) => gemmBlocks(b.T, "large", s, s.parts),
  }),
  family({
    file: "gemm",
    pattern: "gemm_small_{T}",
    over: { T: numbers },
    args: gemmArgs,
    plan: "parts",
    launch: (s, b) => gemmBlocks(b.T, "small", s, s.parts),
  }),
  family({
    file: "gemm",
    pattern: "gemm_{size}_{T}",
    over: { size: ["pair", "split"], T: ["f32"] },
    args: gemmArgs,
    plan: "parts",
    launch: (s, b) => gemmBlocks(b.T, b.size, s, s.parts),
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
