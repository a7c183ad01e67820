/** Products of many rows of halves with quantized weights by Hopper's warpgroups. */
import type { DType } from "../../../core/dtype.ts";
import { type QuantType, quantTypes } from "../../../core/quant-types.ts";
import { hasWarpgroups } from "../attention-plan.ts";
import { BLOCK, family, gridFor, perThread, quants } from "./family.ts";
import { productDefines } from "./product.ts";
import { streamDefines } from "./quantized.ts";

/** Rows of x, and of weights, that a block multiplies. */
const QUANT_WIDE_ROWS = 256;
const LINES = 128;
/** Slices of x in shared memory, of 64 elements each, and the weights of a row that come at once. */
const QUANT_WIDE_STAGES = 4;
const QUANT_WIDE_CHUNK = 256;
const PLACES = 2;

/** Whether these kernels are for a dtype on a device; families/quantized.ts has the others. */
export const takesWide = (dtype: DType, arch: string): dtype is "bf16" | "f16" =>
  hasWarpgroups(arch) && (dtype === "bf16" || dtype === "f16");

/** By the rows of x that a block takes. */
const sizes = { _64: 64, "": QUANT_WIDE_ROWS } as const;
export type QuantWideSize = keyof typeof sizes;

export interface QuantWidePlan {
  readonly size: QuantWideSize;
  /** Floats of memory for what several blocks of a tile add up. */
  readonly scratch: number;
  readonly launch: { readonly splits: number; readonly blocks: number; readonly shared_bytes: number };
}

/** x (rows, k) · wᵀ (n, k), as kernels/quant-wide.h goes about it. */
export function planQuantWide(
  shape: { readonly rows: number; readonly n: number; readonly k: number },
  type: QuantType,
  multiprocessors: number,
): QuantWidePlan {
  const size = shape.rows <= sizes._64 ? "_64" : "";
  const rows = sizes[size];
  const tiles = Math.ceil(shape.n / LINES) * Math.ceil(shape.rows / rows);
  // Two blocks to a multiprocessor where registers allow it; a share has two chunks at least.
  const wanted = (size === "" ? 1 : 2) * multiprocessors;
  const most = Math.max(1, Math.floor(shape.k / (2 * QUANT_WIDE_CHUNK)));
  const splits = Math.max(1, Math.min(most, Math.floor(wanted / tiles)));
  // Slices of x, then two chunks of each row of weights.
  const { size: elements, bytes } = quantTypes[type];
  const align = [16, 4, 2, 1].find((unit) => bytes % unit === 0)!;
  const vectors = Math.floor(((QUANT_WIDE_CHUNK / elements) * bytes + 31 - align) / 16) | 1;
  const shared_bytes = QUANT_WIDE_STAGES * rows * 128 + PLACES * LINES * vectors * 16;
  const scratch = splits === 1 ? 0 : tiles * splits * LINES * rows;
  return { size, scratch, launch: { splits, blocks: tiles * splits, shared_bytes } };
}

export const quantWide = [
  family({
    file: "quant-wide",
    pattern: "quant_wide{size}_{Q}_{T}",
    over: { size: ["_64", ""], Q: quants, T: ["bf16", "f16"] },
    apart: ["size", "T"],
    args: "x* w* out* parts* counters* rows n k splits:u32",
    plan: "blocks shared_bytes",
    defines: { ...streamDefines, ...productDefines, QUANT_WIDE_ROWS, QUANT_WIDE_STAGES, QUANT_WIDE_CHUNK },
    launch: (s) => ({ grid: gridFor(s.blocks, BLOCK), block: BLOCK, shared: s.shared_bytes }),
  }),
  family({
    file: "quant-wide",
    pattern: "quant_order_{T}",
    over: { T: ["bf16", "f16"] },
    args: "x* out* numel",
    launch: (s) => perThread(s.numel, 16),
  }),
] as const;
