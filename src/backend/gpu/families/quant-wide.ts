/** Products of many rows of halves with quantized weights by Hopper's warpgroups. */
import type { DType } from "../../../core/dtype.ts";
import { type QuantType, quantTypes } from "../../../core/quant-types.ts";
import { hasWarpgroups } from "../attention-plan.ts";
import { BLOCK, family, gridFor, quants } from "./family.ts";
import { productDefines } from "./product.ts";
import { streamDefines } from "./quantized.ts";

/** Rows of x, and of weights, that a block multiplies. */
export const QUANT_WIDE_ROWS = 256;
const LINES = 128;
/** The weights of a row that come at once; x comes in slices of 64, of which as many are in shared memory. */
export const QUANT_WIDE_CHUNK = 256;
const PLACES = 2;
/** Shared memory of a block of which two fit on a multiprocessor. */
const QUANT_WIDE_SHARED = 111 * 1024;
/** Threads that bring a row of x into order, at most. */
export const QUANT_ORDER_BLOCK = 1024;
/** Chunks that could be multiplied while blocks write what they share and one of them adds it up; the same of tiles cut evenly, of few rows and of many. */
const JOINING = 3;
const CUT_FEW = 0.5;
const CUT_MANY = 2;
/** What two blocks on a multiprocessor lose. */
const CROWDED = 1.17;

/** Whether these kernels are for a dtype on a device; families/quantized.ts has the others. */
export const takesWide = (dtype: DType, arch: string): dtype is "bf16" | "f16" =>
  hasWarpgroups(arch) && (dtype === "bf16" || dtype === "f16");

/** By the rows of x that a block takes. */
const sizes = { _24: 24, _32: 32, _40: 40, _48: 48, _56: 56, _64: 64, "": QUANT_WIDE_ROWS } as const;
export type QuantWideSize = keyof typeof sizes;
const sizeNames = Object.keys(sizes) as QuantWideSize[];
/** Rows that are few: two blocks to a multiprocessor, tiles cut evenly. */
export const QUANT_WIDE_FEW = sizes._64;

/** The order of x that goes with weights of a type, by number (kernels/quant-slices.h); those of some types are taken as words, in rows of whole chunks. */
const orders = { any: 0, Q8_0: 1, Q4_0: 2 } as const;
/** What kernels/x-order.h tells orders apart by, and what weights are taken by. */
export const xOrders = { QUANT_ORDER_ANY: orders.any, QUANT_ORDER_q4_0: orders.Q4_0 };
export const quantOrders = { ...xOrders, QUANT_ORDER_q8_0: orders.Q8_0 };
const byWords = (type: QuantType): type is "Q8_0" | "Q4_0" => type in orders;
export const orderOf = (type: QuantType): number => (byWords(type) ? orders[type] : orders.any);
/** Whether rows of weights of a type have a length for these kernels. */
export const isWideDepth = (type: QuantType, k: number): boolean => !byWords(type) || k % QUANT_WIDE_CHUNK === 0;

/** x in order: its bytes, the rows that lie together, and the threads that bring a row there. */
export interface QuantOrderPlan {
  readonly bytes: number;
  readonly tile_rows: number;
  readonly order: number;
  readonly threads: number;
}
export function planOrder(
  shape: { readonly rows: number; readonly k: number },
  type: QuantType,
  tile_rows: number,
): QuantOrderPlan {
  const chunks = Math.ceil(shape.k / QUANT_WIDE_CHUNK);
  return {
    bytes: Math.ceil(shape.rows / 8) * 8 * (2 * chunks * QUANT_WIDE_CHUNK + 4),
    tile_rows,
    order: orderOf(type),
    threads: orderThreads(shape.k, shape.rows > QUANT_WIDE_FEW),
  };
}

export interface QuantWidePlan {
  readonly size: QuantWideSize;
  readonly order: QuantOrderPlan;
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
  isGated = false,
): QuantWidePlan {
  const size = sizeNames.find((name) => shape.rows <= sizes[name]) ?? "";
  const rows = sizes[size];
  // A warp has 16 lines or, with a gate, eight and eight.
  const groups = isGated ? Math.ceil(shape.n / 2 / 8) : Math.ceil(shape.n / 16);
  const tiles = Math.ceil(groups / (LINES / 16)) * Math.ceil(shape.rows / rows);
  const chunks = Math.ceil(shape.k / QUANT_WIDE_CHUNK);
  const { alone, sharers, blocks } = planShares(tiles, chunks, multiprocessors, size !== "");
  const left = tiles - alone;
  // Slices of one or two chunks of x with their signals, those of weights and a word, then two chunks of each row of them.
  const { size: elements, bytes } = quantTypes[type];
  const align = byWords(type) ? 16 : [16, 4, 2, 1].find((unit) => bytes % unit === 0)!;
  const vectors = Math.floor(((QUANT_WIDE_CHUNK / elements) * bytes + 31 - align) / 16) | 1;
  const weights = PLACES * LINES * vectors * 16;
  const x = 2 * rows * QUANT_WIDE_CHUNK;
  const places = 2 * x + weights <= QUANT_WIDE_SHARED ? 2 : 1;
  // Of few rows their factors, too.
  const shared_bytes = places * (x + 64) + 144 + weights + (size === "" ? 0 : 4 * 64);
  return {
    size,
    order: planOrder(shape, type, rows),
    scratch: sharers === left ? 0 : (sharers + left) * LINES * rows,
    launch: { alone, sharers, blocks, shared_bytes },
  };
}

/** Threads for rows of `k`, which take eight elements at a time, all as often: of few rows as many threads as may be, of many so few that several blocks share a multiprocessor. */
function orderThreads(k: number, areMany: boolean): number {
  const times = areMany ? Math.max(4, Math.ceil(k / 8 / 256)) : Math.ceil(k / 8 / QUANT_ORDER_BLOCK);
  return Math.max(128, Math.ceil(k / 8 / times / 32) * 32);
}

/**
 * Whether tiles are made each by a block, or each by as many; or those of the last round by all blocks, in shares of two chunks at least.
 * Costs are in chunks that a block alone on its multiprocessor multiplies, as measured.
 */
export function planShares(
  tiles: number,
  chunks: number,
  multiprocessors: number,
  arePairs: boolean,
): { readonly alone: number; readonly sharers: number; readonly blocks: number } {
  // Two blocks to a multiprocessor where registers allow it.
  const wanted = (arePairs ? 2 : 1) * multiprocessors;
  const cost = (blocks: number, depth: number): number =>
    Math.ceil(blocks / wanted) * depth * (blocks > multiprocessors && arePairs ? CROWDED : 1);
  let best = { alone: tiles, sharers: 0, blocks: Math.min(wanted, tiles) };
  let least = cost(tiles, chunks);
  for (const cuts of [2, 4, 8]) {
    const blocks = cuts * tiles;
    if (blocks > wanted || 2 * cuts > chunks) break;
    const joined =
      cost(blocks, Math.ceil(chunks / cuts)) + (arePairs ? CUT_FEW : CUT_MANY) + (blocks > multiprocessors ? 1 : 0);
    if (joined >= least) continue;
    least = joined;
    best = { alone: 0, sharers: blocks, blocks };
  }
  const left = tiles % wanted;
  if ((tiles * chunks * (arePairs ? CROWDED : 1)) / wanted + JOINING < least) {
    const sharers = Math.min(wanted, Math.max(left, Math.floor((left * chunks) / 2)));
    best = { alone: tiles - left, sharers, blocks: tiles > left ? wanted : sharers };
  }
  return best;
}

export const wideDefines = {
  ...{ ...streamDefines, ...productDefines, ...quantOrders, QUANT_WIDE_ROWS, QUANT_WIDE_CHUNK, QUANT_WIDE_SHARED },
};
const defines = { ...wideDefines, QUANT_ORDER_BLOCK };

export const quantWide = [
  family({
    file: "quant-wide",
    pattern: "quant_wide{size}_{Q}",
    over: { size: sizeNames, Q: quants },
    apart: ["size"],
    args: "x* w* bias* residual* out* parts* counters* n k batch:u32 glu:u32 alone:u32 sharers:u32 dtype:u32 told:u32 raise:f64 eps:f64",
    plan: "blocks shared_bytes",
    defines,
    launch: (s) => ({ grid: gridFor(s.blocks, BLOCK), block: BLOCK, shared: s.shared_bytes }),
  }),
  family({
    file: "quant-wide",
    pattern: "quant_order_{T}",
    over: { T: ["bf16", "f16"] },
    args: "x* alpha* out* rows:u32 k:u32 tile_rows:u32 order:u32 eps:f64",
    plan: "threads",
    defines,
    launch: (s) => ({ grid: gridFor(Math.ceil(s.rows / 8) * 8, s.threads), block: s.threads, shared: 0 }),
  }),
] as const;
