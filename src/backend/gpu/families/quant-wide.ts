/** Products of many rows of halves with quantized weights by Hopper's warpgroups. */
import type { DType } from "../../../core/dtype.ts";
import { type QuantType, quantTypes } from "../../../core/quant-types.ts";
import { hasWarpgroups, sharedBudget } from "../attention-plan.ts";
import { family, gridFor, quants } from "./family.ts";
import { productDefines } from "./product.ts";
import { QUANT_FAR, QUANT_NEAR, streamDefines } from "./quantized.ts";

/** Rows of weights that a block multiplies. */
const LINES = 128;
/** Slices of 64 elements in shared memory: of weights and of x, where a block takes few rows of x and where it takes many. */
const QUANT_WIDE_FEW_STAGES = 2;
const QUANT_WIDE_FEW_X_STAGES = 4;
const QUANT_WIDE_STAGES = 3;
/** Chunks of each row of weights. */
const PLACES = 2;

/** Whether these kernels are for a dtype on a device; families/quantized.ts has the others. */
export const takesWide = (dtype: DType, arch: string): dtype is "bf16" | "f16" =>
  hasWarpgroups(arch) && (dtype === "bf16" || dtype === "f16");

/** By the rows of x that a block takes; `together`: blocks that share a multiprocessor, if its memory allows. */
const few = { threads: 256, stages: QUANT_WIDE_FEW_STAGES, xStages: QUANT_WIDE_FEW_X_STAGES, chunk: QUANT_NEAR };
const many = { threads: 384, stages: QUANT_WIDE_STAGES, xStages: QUANT_WIDE_STAGES, chunk: QUANT_FAR };
const sizes = {
  16: { ...few, rows: 16, together: 3 },
  64: { ...few, rows: 64, together: 2 },
  128: { ...many, rows: 128, together: 1 },
  256: { ...many, rows: 256, together: 1 },
} as const;
export type QuantWideSize = keyof typeof sizes;

export interface QuantWidePlan {
  readonly size: QuantWideSize;
  /** Floats of memory for what several blocks of a tile add up. */
  readonly scratch: number;
  readonly launch: {
    readonly splits: number;
    readonly blocks: number;
    readonly threads: number;
    readonly shared_bytes: number;
  };
}

/** x (rows, k) · wᵀ (n, k), as kernels/quant-wide.h goes about it. */
export function planQuantWide(
  shape: { readonly rows: number; readonly n: number; readonly k: number },
  type: QuantType,
  multiprocessors: number,
): QuantWidePlan {
  const size = shape.rows <= 16 ? 16 : shape.rows <= 64 ? 64 : shape.rows <= 128 ? 128 : 256;
  const { rows, threads, stages, xStages, chunk, together } = sizes[size];
  // Slices of x and of weights, then two chunks of each row of those.
  const { size: elements, bytes } = quantTypes[type];
  const align = [16, 4, 2, 1].find((unit) => bytes % unit === 0)!;
  const whole = Math.max(chunk, elements);
  const vectors = Math.floor(((whole / elements) * bytes + 31 - align) / 16) | 1;
  const shared_bytes = (xStages * rows + stages * LINES) * 128 + PLACES * LINES * vectors * 16;
  const tiles = Math.ceil(shape.n / LINES) * Math.ceil(shape.rows / rows);
  // A share has two chunks at least.
  const most = Math.max(1, Math.floor(shape.k / (2 * QUANT_FAR)));
  const fitting = Math.min(together, Math.floor(sharedBudget("sm_90a") / (shared_bytes + 2048)));
  const splits = Math.max(1, Math.min(most, Math.floor((fitting * multiprocessors) / tiles)));
  const scratch = splits === 1 ? 0 : tiles * splits * LINES * rows;
  return { size, scratch, launch: { splits, blocks: tiles * splits, threads, shared_bytes } };
}

export const quantWide = [
  family({
    file: "quant-wide",
    pattern: "quant_wide_{size}_{Q}_{T}",
    over: { size: ["16", "64", "128", "256"], Q: quants, T: ["bf16", "f16"] },
    apart: ["size", "T"],
    args: "x* w* out* parts* counters* rows n k splits:u32",
    plan: "blocks threads shared_bytes",
    defines: {
      ...{ ...streamDefines, ...productDefines, QUANT_WIDE_STAGES, QUANT_WIDE_FEW_STAGES, QUANT_WIDE_FEW_X_STAGES },
      ...{ QUANT_FAR, QUANT_NEAR },
    },
    launch: (s) => ({ grid: gridFor(s.blocks, s.threads), block: s.threads, shared: s.shared_bytes }),
  }),
] as const;
