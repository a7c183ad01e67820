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
/** The weights of a row that come at once; x comes in slices of 64, of which as many are in shared memory. */
const QUANT_WIDE_CHUNK = 256;
const PLACES = 2;
/** Chunks that could be multiplied while blocks write what they share and one of them adds it up, as measured. */
const JOINING = 5;

/** Whether these kernels are for a dtype on a device; families/quantized.ts has the others. */
export const takesWide = (dtype: DType, arch: string): dtype is "bf16" | "f16" =>
  hasWarpgroups(arch) && (dtype === "bf16" || dtype === "f16");

/** By the rows of x that a block takes. */
const sizes = { _64: 64, "": QUANT_WIDE_ROWS } as const;
export type QuantWideSize = keyof typeof sizes;

export interface QuantWidePlan {
  readonly size: QuantWideSize;
  /** x in order: its bytes, and the rows that lie together. */
  readonly order: { readonly bytes: number; readonly tile_rows: number };
  /** Floats of memory for what blocks that share tiles add up. */
  readonly scratch: number;
  readonly launch: {
    readonly alone: number;
    readonly sharers: number;
    readonly blocks: number;
    readonly shared_bytes: number;
  };
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
  const chunks = Math.ceil(shape.k / QUANT_WIDE_CHUNK);
  // Two blocks to a multiprocessor where registers allow it. The tiles of the last round are shared where that pays; a share has two
  // chunks at least, or is a tile.
  const wanted = (size === "" ? 1 : 2) * multiprocessors;
  const shares = Math.ceil(tiles / wanted) * chunks > (tiles * chunks) / wanted + JOINING;
  const left = shares ? tiles % wanted : 0;
  const alone = tiles - left;
  const sharers = Math.min(wanted, Math.max(left, Math.floor((left * chunks) / 2)));
  // Slices of x, 80 bytes of signals, then two chunks of each row of weights.
  const { size: elements, bytes } = quantTypes[type];
  const align = [16, 4, 2, 1].find((unit) => bytes % unit === 0)!;
  const vectors = Math.floor(((QUANT_WIDE_CHUNK / elements) * bytes + 31 - align) / 16) | 1;
  const shared_bytes = 2 * rows * QUANT_WIDE_CHUNK + 80 + PLACES * LINES * vectors * 16;
  return {
    size,
    order: { bytes: 2 * Math.ceil(shape.rows / 8) * 8 * chunks * QUANT_WIDE_CHUNK, tile_rows: rows },
    scratch: sharers === left ? 0 : (sharers + left) * LINES * rows,
    launch: { alone, sharers, blocks: alone > 0 ? Math.min(wanted, tiles) : sharers, shared_bytes },
  };
}

export const quantWide = [
  family({
    file: "quant-wide",
    pattern: "quant_wide{size}_{Q}_{T}",
    over: { size: ["_64", ""], Q: quants, T: ["bf16", "f16"] },
    apart: ["size", "T"],
    args: "x* w* out* parts* counters* rows n k alone:u32 sharers:u32",
    plan: "blocks shared_bytes",
    defines: { ...streamDefines, ...productDefines, QUANT_WIDE_ROWS, QUANT_WIDE_CHUNK },
    launch: (s) => ({ grid: gridFor(s.blocks, BLOCK), block: BLOCK, shared: s.shared_bytes }),
  }),
  family({
    file: "quant-wide",
    pattern: "quant_order_{T}",
    over: { T: ["bf16", "f16"] },
    args: "x* out* rows:u32 k:u32 tile_rows:u32",
    plan: "bytes",
    defines: { ...streamDefines, ...productDefines, QUANT_WIDE_ROWS, QUANT_WIDE_CHUNK },
    launch: (s) => perThread(s.bytes / 2, 8),
  }),
] as const;
