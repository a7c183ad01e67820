/** Products of halves on a matrix unit. */
import { hasWarpgroups, type MatrixUnit, unitDefines } from "../attention-plan.ts";
import { blocks, family } from "./family.ts";

/** Rows and columns of the result that a block makes. */
const PRODUCT_TILE = 128;
/** How much of k is in shared memory at once, and how many such slices: with copies beside arithmetic, and one without. */
const PRODUCT_ASYNC_SLICE = 64;
const PRODUCT_ASYNC_STAGES = 3;
export const PRODUCT_SLICE = 32;

/** Half as many rows and columns, or twice as many columns, by warpgroups. */
export type ProductSize = "_small" | "" | "_wide";

export interface ProductPlan {
  readonly size: ProductSize;
  readonly launch: {
    readonly tile_rows: number;
    readonly tile_cols: number;
    readonly threads: number;
    readonly shared_bytes: number;
  };
}

interface Target {
  readonly unit: Exclude<MatrixUnit, "fma">;
  readonly arch: string;
}

/** How a block of that size multiplies, as kernels/product.h does. */
export function planBlock(size: ProductSize, unit: Target["unit"]): ProductPlan {
  const isAsync = unit === "mma";
  const tile_rows = PRODUCT_TILE / (size === "_small" ? 2 : 1);
  const tile_cols = tile_rows * (size === "_wide" ? 2 : 1);
  // Four waves, or twice as many where each makes half as many columns.
  const waves = unit.startsWith("wmma") && size !== "_small" ? 8 : 4;
  const threads = size === "_wide" ? 2 * tile_rows : waves * (unit === "mfma" ? 64 : 32);
  const stages = isAsync ? PRODUCT_ASYNC_STAGES + Number(size !== "") : 1;
  // Rows of an odd number of 16-byte pieces, or mixed ones.
  const row = isAsync ? 2 * PRODUCT_ASYNC_SLICE : (((2 * PRODUCT_SLICE) / 16) | 1) * 16;
  return { size, launch: { tile_rows, tile_cols, threads, shared_bytes: stages * (tile_rows + tile_cols) * row } };
}

/** By size: how many blocks keep a multiprocessor half busy, and the rate of a busy one beside the others. */
export type BlockRates = Partial<Readonly<Record<ProductSize, readonly [fewest: number, rate: number]>>>;
/** Measured on an H200; between wide tiles by warpgroups and small ones none is ever the best. */
const denseRates: BlockRates = { "": [1, 0.6], _small: [2, 0.4] };
const wideRates: BlockRates = { _wide: [1, 1], _small: [2, 0.4] };

/** The size with which the last multiprocessor is done first. */
export function planProduct(
  sizes: { readonly batch: number; readonly m: number; readonly n: number },
  target: Target & { readonly multiprocessors: number },
  rates: BlockRates = hasWarpgroups(target.arch) ? wideRates : denseRates,
): ProductPlan {
  const cost = ({ size, launch: { tile_rows, tile_cols } }: ProductPlan): number => {
    const [fewest, rate] = rates[size]!;
    const tiles = sizes.batch * Math.ceil(sizes.m / tile_rows) * Math.ceil(sizes.n / tile_cols);
    const each = Math.ceil(tiles / target.multiprocessors);
    return (Math.max(each, fewest) * tile_rows * tile_cols) / rate;
  };
  const exists = (size: ProductSize): boolean => size !== "_wide" || hasWarpgroups(target.arch);
  const plans = (Object.keys(rates) as ProductSize[]).filter(exists).map((size) => planBlock(size, target.unit));
  return plans.reduce((best, plan) => (cost(plan) < cost(best) ? plan : best));
}

/** Sizes that multiply by the same instructions, and go through k in the same order: for any number of rows one result. */
export const invariantProduct = (m: number, unit: Target["unit"]): ProductPlan =>
  planBlock(m > PRODUCT_TILE / 2 ? "" : "_small", unit);

export const productDefines = {
  ...unitDefines,
  ...{ PRODUCT_TILE, PRODUCT_ASYNC_SLICE, PRODUCT_ASYNC_STAGES, PRODUCT_SLICE },
};

export const product = [
  family({
    file: "product",
    pattern: "product{size}_{A}{B}_{T}",
    over: { size: ["", "_small", "_wide"], A: ["k", "m"], B: ["k", "n"], T: ["bf16", "f16"] },
    apart: ["size", "A", "B"],
    args: "a* b* out* batch m n k a_step b_step num_dims info*",
    plan: "tile_rows tile_cols threads shared_bytes",
    defines: productDefines,
    launch: (s) => ({
      ...blocks(s.batch * Math.ceil(s.m / s.tile_rows) * Math.ceil(s.n / s.tile_cols), 1, s.threads),
      shared: s.shared_bytes,
    }),
  }),
] as const;
