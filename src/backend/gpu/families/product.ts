/** Products of halves on a matrix unit. */
import { type MatrixUnit, unitDefines } from "../attention-plan.ts";
import { blocks, family } from "./family.ts";

/** Rows and columns of the result that a block makes, and half as many of a small product. */
const PRODUCT_TILE = 128;
/** How much of k is in shared memory at once, and how many such slices: with copies beside arithmetic, and without. */
const PRODUCT_ASYNC_SLICE = 64;
const PRODUCT_ASYNC_STAGES = 3;
const PRODUCT_SLICE = 32;
const PRODUCT_STAGES = 2;

export interface ProductPlan {
  readonly tile: number;
  readonly threads: number;
  readonly shared: number;
}

/** How a unit multiplies, as kernels/product.h does: four waves, or twice as many where each makes half as many columns. */
export function planProduct(unit: Exclude<MatrixUnit, "fma">, small: boolean): ProductPlan {
  const tile = small ? PRODUCT_TILE / 2 : PRODUCT_TILE;
  const waves = unit.startsWith("wmma") && !small ? 8 : 4;
  const isAsync = unit === "mma";
  const stages = isAsync ? PRODUCT_ASYNC_STAGES + Number(small) : PRODUCT_STAGES;
  // Rows of an odd number of 16-byte pieces, or mixed ones.
  const row = isAsync ? 2 * PRODUCT_ASYNC_SLICE : (((2 * PRODUCT_SLICE) / 16) | 1) * 16;
  return { tile, threads: waves * (unit === "mfma" ? 64 : 32), shared: stages * 2 * tile * row };
}

export const product = [
  family({
    file: "product",
    pattern: "product{small}_{A}{B}_{T}",
    over: { small: ["", "_small"], A: ["k", "m"], B: ["k", "n"], T: ["bf16", "f16"] },
    apart: ["small", "A", "B"],
    args: "a* b* out* batch m n k a_row_stride a_col_stride b_row_stride b_col_stride num_dims info*",
    plan: "tile threads shared_bytes",
    defines: {
      ...unitDefines,
      ...{ PRODUCT_TILE, PRODUCT_ASYNC_SLICE, PRODUCT_ASYNC_STAGES, PRODUCT_SLICE, PRODUCT_STAGES },
    },
    launch: (s) => ({
      ...blocks(s.batch * Math.ceil(s.m / s.tile) * Math.ceil(s.n / s.tile), 1, s.threads),
      shared: s.shared_bytes,
    }),
  }),
] as const;
