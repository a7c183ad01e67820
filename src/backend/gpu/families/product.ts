/** Products of halves on a matrix unit. */
import { hasWarpgroups, type MatrixUnit, unitDefines } from "../attention-plan.ts";
import { blocks, family } from "./family.ts";
import type { ProductSizes } from "./matmul.ts";

/** Rows and columns of the result that a block makes. */
const PRODUCT_TILE = 128;
/** How much of k is in shared memory at once, and how many such slices: with copies beside arithmetic, and one without. */
const PRODUCT_ASYNC_SLICE = 64;
const PRODUCT_ASYNC_STAGES = 3;
export const PRODUCT_SLICE = 32;

/** Blocks of a cluster that share the depth of a product out, where they are no pair. */
const PRODUCT_SPLIT = 4;

const half = { rows: 1 / 2, cols: 1, more: 1, grouped: true } as const;
/**
 * Of a block: what it makes, in tiles; slices beyond PRODUCT_ASYNC_STAGES; whether it is made by Hopper's warpgroups, else by any unit;
 * how many make it together.
 */
const blockSizes = {
  "": { rows: 1, cols: 1, more: 0, grouped: false, blocks: 1 },
  _small: { rows: 1 / 2, cols: 1 / 2, more: 1, grouped: false, blocks: 1 },
  _wide: { rows: 1, cols: 2, more: 1, grouped: true, blocks: 1 },
  _square: { rows: 1, cols: 1, more: 3, grouped: true, blocks: 1 },
  _half: { ...half, blocks: 1 },
  _pair: { ...half, blocks: 2 },
  _split: { ...half, blocks: PRODUCT_SPLIT },
} as const;
export type ProductSize = keyof typeof blockSizes;

export interface ProductPlan<Size extends ProductSize = ProductSize> {
  readonly size: Size;
  readonly launch: {
    readonly tile_rows: number;
    readonly tile_cols: number;
    /** Blocks that make a tile together. */
    readonly tile_blocks: number;
    readonly threads: number;
    readonly shared_bytes: number;
  };
}

export interface Target {
  readonly unit: Exclude<MatrixUnit, "fma">;
  readonly arch: string;
  readonly multiprocessors: number;
}

/** How a block of that size multiplies, as kernels/product.h does. */
export function planBlock<Size extends ProductSize>(size: Size, unit: Target["unit"]): ProductPlan<Size> {
  const isAsync = unit === "mma";
  const { rows, cols, more, grouped, blocks } = blockSizes[size];
  const [tile_rows, tile_cols] = [rows * PRODUCT_TILE, cols * PRODUCT_TILE];
  // Four waves, or twice as many where each makes half as many columns.
  const waves = unit.startsWith("wmma") && size !== "_small" ? 8 : 4;
  const threads = grouped ? 2 * tile_rows : waves * (unit === "mfma" ? 64 : 32);
  const stages = isAsync ? PRODUCT_ASYNC_STAGES + more : 1;
  // Rows of an odd number of 16-byte pieces, or mixed ones.
  const row = isAsync ? 2 * PRODUCT_ASYNC_SLICE : (((2 * PRODUCT_SLICE) / 16) | 1) * 16;
  const shared_bytes = stages * (tile_rows + tile_cols) * row;
  return { size, launch: { tile_rows, tile_cols, tile_blocks: blocks, threads, shared_bytes } };
}

/** By size: how many blocks keep a multiprocessor half busy, and the rate of a busy one beside the others. */
export type BlockRates<Size extends ProductSize> = Readonly<Record<Size, readonly [fewest: number, rate: number]>>;
/** Measured on an H200, where the others are never the best beside those by warpgroups. */
const denseRates: BlockRates<"" | "_small"> = { "": [1, 0.6], _small: [2, 0.4] };
const groupedRates: BlockRates<"_wide" | "_square" | "_half"> = { _wide: [1, 1], _square: [1, 0.9], _half: [1, 0.65] };
/** Half tiles are shared out from so deep on, to the most blocks of which there are so many for each multiprocessor at most. */
const SPLIT_DEPTH = 2048;
const SPLIT_BLOCKS = 1.5;

export type ResultSizes = Omit<ProductSizes, "k">;
const tilesOf = ({ batch, m, n }: ResultSizes, { launch: { tile_rows, tile_cols } }: ProductPlan): number =>
  batch * Math.ceil(m / tile_rows) * Math.ceil(n / tile_cols);

/** The size of `rates` with which the last multiprocessor is done first. */
export function planBlocks<Size extends ProductSize>(
  sizes: ResultSizes,
  { unit, multiprocessors }: Target,
  rates: BlockRates<Size>,
): ProductPlan<Size> {
  const cost = (plan: ProductPlan<Size>): number => {
    const [fewest, rate] = rates[plan.size];
    const each = Math.ceil(tilesOf(sizes, plan) / multiprocessors);
    return (Math.max(each, fewest) * plan.launch.tile_rows * plan.launch.tile_cols) / rate;
  };
  const plans = (Object.keys(rates) as Size[]).map((size) => planBlock(size, unit));
  return plans.reduce((best, plan) => (cost(plan) < cost(best) ? plan : best));
}

/** The same by all sizes that the target has; of few and deep tiles several blocks make one together. */
export function planProduct(sizes: ProductSizes, target: Target): ProductPlan {
  if (!hasWarpgroups(target.arch)) return planBlocks(sizes, target, denseRates);
  const plan = planBlocks(sizes, target, groupedRates);
  if (plan.size !== "_half" || sizes.k < SPLIT_DEPTH) return plan;
  const room = (SPLIT_BLOCKS * target.multiprocessors) / tilesOf(sizes, plan);
  const shared = (["_split", "_pair"] as const).find((size) => blockSizes[size].blocks <= room);
  return shared ? planBlock(shared, target.unit) : plan;
}

/** Sizes that multiply by the same instructions, and go through k in the same order: for any number of rows one result. */
export const invariantProduct = (m: number, unit: Target["unit"]): ProductPlan =>
  planBlock(m > PRODUCT_TILE / 2 ? "" : "_small", unit);

export const productDefines = {
  ...unitDefines,
  ...{ PRODUCT_TILE, PRODUCT_ASYNC_SLICE, PRODUCT_ASYNC_STAGES, PRODUCT_SLICE, PRODUCT_SPLIT },
};

export const product = [
  family({
    file: "product",
    pattern: "product{size}_{A}{B}_{T}",
    over: {
      size: ["", "_small", "_wide", "_square", "_half", "_pair", "_split"],
      A: ["k", "m"],
      B: ["k", "n"],
      T: ["bf16", "f16"],
    },
    apart: ["size", "A", "B"],
    args: "a* b* out* batch m n k a_step b_step num_dims info*",
    plan: "tile_rows tile_cols tile_blocks threads shared_bytes",
    defines: productDefines,
    launch: (s) => ({
      ...blocks(s.batch * Math.ceil(s.m / s.tile_rows) * Math.ceil(s.n / s.tile_cols) * s.tile_blocks, 1, s.threads),
      shared: s.shared_bytes,
    }),
  }),
] as const;
