/** Mixtures of experts: routing, products by expert, and the sum of what experts make. */
import { type DType, sizeOf } from "../../../core/dtype.ts";
import { type QuantType, quantTypes } from "../../../core/quant-types.ts";
import { hasWarpgroups, type MatrixUnit, sharedBudget } from "../attention-plan.ts";
import { BLOCK, blocks, family, gridFor, perThread, quantFloats, quantName, quants, WIDE_BLOCK } from "./family.ts";
import {
  type Device,
  fines,
  type LinearShape,
  planLinear,
  planQuantizedLinear,
  TILE_WARPS,
  WHOLE_STEP,
  wholeDefines,
  wholeQuants,
} from "./linear.ts";
import { PRODUCT_SLICE, planBlock, productDefines } from "./product.ts";
import { lineBytes, planQuantBlock, type QuantProductSize, quantProductDefines, streamDefines } from "./quantized.ts";

/** The most scores that a warp chooses from, and the most that it chooses. */
export const TOPK_COLUMNS = 512;
export const TOPK_MOST = 32;

const slots = "per_slot:u32 share:u32 experts:u32 glu:u32 splits:u32 early:u32";
const summed = "ids* mix* residual* out* n k per_row:u32 slots:u32 experts:u32 splits:u32 early:u32";

/**
 * Whether the rows of so many slots are multiplied one by one: more are sorted by expert first. Sorted, an expert's weights are
 * read once, but with quantized ones it takes an H200 as long as three rows by themselves, or one and a half with others.
 */
export const areFew = (slots: number, experts: number, type: QuantType | null): boolean =>
  slots <= Math.max(8, (type ? 3 : 1.5) * experts);

/** Rows of weights that a multiprocessor has for one slot at most where two blocks share it. */
const CROWDED_ROWS = 128;

/**
 * The product of each slot's row with its expert: the blocks of all slots together are as many as those of one product. Where
 * quantized weights of each are few, half as many more are done sooner, two to a multiprocessor: of an expert's 1536 × 2048 in Q4_K,
 * eight slots, an H200's layer took 32.6 to 32.9 µs in place of 33.7 to 33.8.
 */
export function planSlots(shape: LinearShape, type: QuantType | null, dtype: DType, slots: number, device: Device) {
  const { arch, multiprocessors } = device;
  const own = { arch, multiprocessors: Math.max(1, Math.floor(multiprocessors / slots)) };
  if (!type) return planLinear(shape, dtype, own);
  if (hasWarpgroups(arch) && shape.n < CROWDED_ROWS * own.multiprocessors) {
    const more = { arch, multiprocessors: Math.max(1, Math.floor((1.5 * multiprocessors) / slots)) };
    const plan = planQuantizedLinear(shape, type, more, sharedBudget(arch) / 2);
    if (plan && plan.launch.segment === shape.k) return plan;
  }
  return planQuantizedLinear(shape, type, own);
}

/**
 * Warps of the two kernels, for the first more than it has, so that registers are left for blocks of the second beside its own;
 * experts that one row is given at most.
 */
const ROUTED_OPEN_WARPS = 20;
const ROUTED_DOWN_WARPS = 8;
const ROUTED_SLOTS = TOPK_MOST;
/** Experts that there may be: four to a lane of the warp that chooses. */
const ROUTED_EXPERTS = 128;
/** Warps that share eight columns of gates and of what they open, and how many such eights of a block are on their way at once. */
const ROUTED_SPLITS = 2;
const ROUTED_AHEAD = 4;

export interface RoutedShape {
  readonly hidden: number;
  readonly width: number;
  readonly experts: number;
  readonly slots: number;
}

/** One row through its experts, as kernels/quant-routed.hip lays it out; null where its blocks have no room for all weights at once. */
export function planRouted({ hidden, width, experts, slots }: RoutedShape, type: QuantType, device: Device) {
  const quant = wholeQuants.find((name) => name === quantName(type));
  const isWhole = [hidden, width].every((k) => k % WHOLE_STEP === 0);
  if (!quant || !hasWarpgroups(device.arch) || !isWhole || slots > ROUTED_SLOTS) return null;
  if (slots > experts || experts > ROUTED_EXPERTS || experts % 4 !== 0) return null;
  const { size, bytes } = quantTypes[type];
  const rowBytes = (k: number): number => (k / size) * bytes;
  const words = (k: number): number => 2 * (k / 4 + 4) + 128;
  const budget = sharedBudget(device.arch) - 1024;
  const groups = width / 8;
  // Whole sixteens of columns to a block, and a block to a multiprocessor.
  let perSlot = Math.floor(device.multiprocessors / slots);
  while (perSlot > 0 && groups % (2 * perSlot) !== 0) perSlot--;
  const own = groups / perSlot;
  const warps = own * ROUTED_SPLITS;
  const open = 4 * (words(hidden) + hidden / 16 + 16 * warps + 8 * own + 4 * Math.ceil(warps / 4) + 2 * ROUTED_SLOTS);
  const openBytes = open + own * 16 * rowBytes(hidden);
  const down = 4 * (words(slots * width) + (slots * width) / 8 + 16 * ROUTED_DOWN_WARPS + 2 * ROUTED_SLOTS);
  const downBytes = down + slots * 16 * rowBytes(width);
  if (!(warps <= TILE_WARPS) || Math.max(openBytes, downBytes) > budget) return null;
  return {
    quant,
    open: { per_slot: perSlot, splits: ROUTED_SPLITS, threads: 32 * warps, shared_bytes: openBytes },
    down: { threads: 32 * ROUTED_DOWN_WARPS, shared_bytes: downBytes },
    /** Of what the first leaves to the second: two bytes of each element, a scale and a sum of sixteen. */
    between: 2 * slots * width + (slots * width) / 2,
  };
}

/** Columns that a block makes, and rows, or twice as many, of products by expert without a plan of their own. */
const EXPERT_TILE = 64;

interface Target {
  readonly unit: MatrixUnit;
  readonly arch: string;
}

export interface ExpertProductPlan<Size extends string> {
  readonly size: Size;
  /** Rows and columns that a block makes. */
  readonly rows: number;
  readonly columns: number;
  readonly threads: number;
  readonly shared_bytes: number;
}

/** Tiles of twice as many rows where experts have as many on average. */
export function planExpertDense(
  mean: number,
  dtype: DType,
  { unit, arch }: Target,
): ExpertProductPlan<"_small" | "" | "_wide"> {
  if (unit === "fma") {
    const row = (((PRODUCT_SLICE * sizeOf(dtype)) / 16) | 1) * 16;
    const [rows, columns] = [EXPERT_TILE, EXPERT_TILE];
    return { size: "_small", rows, columns, threads: 128, shared_bytes: (rows + columns) * row };
  }
  const large = hasWarpgroups(arch) ? "_wide" : "";
  const { size, launch } = planBlock(mean > 64 ? large : "_small", unit);
  const { tile_rows: rows, tile_cols: columns, threads, shared_bytes } = launch;
  return { size, rows, columns, threads, shared_bytes };
}

/** The same with quantized weights, as kernels/expert-quant.hip goes about it. */
export function planExpertQuant(
  mean: number,
  type: QuantType,
  dtype: DType,
  target: Target,
): ExpertProductPlan<QuantProductSize> & { readonly isSplit: boolean } {
  const { unit, arch } = target;
  const isAsync = unit === "mma";
  const { row, stored } = lineBytes(type, dtype, unit);
  const plan = (size: QuantProductSize) => {
    if (isAsync && size !== "") {
      const { isSplit, lines, rows, shared } = planQuantBlock(size, type, dtype, target);
      return { size, rows, columns: lines, threads: 2 * lines, shared_bytes: shared, isSplit };
    }
    const twice = size === "" && (isAsync || (unit === "mfma" && dtype !== "f32"));
    const rows = EXPERT_TILE * (twice ? 2 : 1);
    const shared_bytes = (isAsync ? 2 : 1) * ((rows + EXPERT_TILE) * row + EXPERT_TILE * stored);
    const isSplit = dtype === "f32" && unit !== "fma";
    return { size, rows, columns: EXPERT_TILE, threads: 2 * EXPERT_TILE, shared_bytes, isSplit };
  };
  const wanted = isAsync && mean <= 12 ? "_few" : mean <= 96 ? "_some" : "";
  const sizes: readonly QuantProductSize[] = isAsync ? [wanted, "", "_some", "_few"] : [wanted, "_some"];
  return sizes.map(plan).find(({ shared_bytes }) => shared_bytes <= sharedBudget(arch))!;
}

/** `per_slot` blocks for each slot. */
const launch = (s: {
  readonly per_slot: number;
  readonly slots: number;
  readonly threads: number;
  readonly shared_bytes: number;
}) => ({ grid: gridFor(s.per_slot * s.slots, s.threads), block: s.threads, shared: s.shared_bytes });

/** `per_row` blocks for each row of the result. */
const sumLaunch = (s: {
  readonly per_row: number;
  readonly rows: number;
  readonly threads: number;
  readonly shared_bytes: number;
}) => ({ grid: gridFor(s.per_row * s.rows, s.threads), block: s.threads, shared: s.shared_bytes });

/** Two counters each, in shared memory. */
export const MOST_SORTED_EXPERTS = 4096;

const sorted = "x* w* bias* out* order* tiles* n k share:u32";

const shared = (s: { readonly blocks: number; readonly threads: number; readonly shared_bytes: number }) => ({
  grid: gridFor(s.blocks, s.threads),
  block: s.threads,
  shared: s.shared_bytes,
});

export const experts = [
  family({
    file: "experts",
    pattern: "topk_{T}",
    over: { T: quantFloats },
    args: "x* values* ids* rows cols k:u32 softmax:u32",
    defines: { ...streamDefines, TOPK_COLUMNS },
    launch: (s) => blocks(s.rows, BLOCK / 32),
  }),
  family({
    file: "experts",
    pattern: "mix_{T}",
    over: { T: quantFloats },
    args: "y* mix* residual* out* rows width k:u32 dtype:u32",
    launch: (s, b) => perThread(s.rows * s.width, 16 / sizeOf(b.T)),
  }),
  family({
    file: "experts",
    pattern: "expert_order",
    over: {},
    args: "ids* order* tiles* out* slots row_halves experts:u32 tile_rows:u32 error*",
    plan: "shared_bytes",
    launch: (s) => ({ grid: 1, block: WIDE_BLOCK, shared: s.shared_bytes }),
  }),
  family({
    file: "expert-dense",
    pattern: "expert_dense{size}_{T}",
    over: { size: ["_small", "", "_wide"], T: ["bf16", "f16"] },
    apart: ["size"],
    args: sorted,
    plan: "blocks threads shared_bytes",
    defines: { ...productDefines, EXPERT_TILE },
    launch: shared,
  }),
  family({
    file: "expert-dense",
    pattern: "expert_dense_small_{T}",
    over: { T: ["f32"] },
    args: sorted,
    plan: "blocks threads shared_bytes",
    launch: shared,
  }),
  family({
    file: "expert-quant",
    pattern: "expert_quant{size}_{Q}_{T}",
    over: { size: ["_few", "_some", ""], Q: quants, T: quantFloats },
    apart: ["size", "T"],
    args: sorted,
    plan: "blocks threads shared_bytes",
    defines: (arch) => ({ ...quantProductDefines(arch), EXPERT_TILE }),
    launch: shared,
  }),
  family({
    file: "linear",
    pattern: "expert_linear_{T}",
    over: { T: quantFloats },
    args: `x* w* ids* bias* out* n k ${slots} error*`,
    plan: "slots threads shared_bytes",
    launch,
  }),
  family({
    file: "quant-matvec",
    pattern: "expert_linear{fine}_{Q}",
    over: { fine: fines, Q: quants },
    apart: ["fine"],
    args: `x* w* alpha* ids* bias* out* n k eps:f64 ${slots} segment:u32 dtype:u32 error*`,
    plan: "slots threads shared_bytes",
    launch,
  }),
  family({
    file: "quant-routed",
    pattern: "routed_open_{Q}",
    over: { Q: wholeQuants },
    args: "x* w* alpha* scores* out* width k eps:f64 per_slot:u32 slots:u32 experts:u32 glu:u32 splits:u32 early:u32 dtype:u32",
    plan: "threads shared_bytes",
    defines: { ...wholeDefines, ROUTED_OPEN_WARPS, ROUTED_DOWN_WARPS, ROUTED_SLOTS, ROUTED_AHEAD },
    launch: (s) => ({ ...launch(s), crowds: true }),
  }),
  family({
    file: "quant-routed",
    pattern: "routed_down_{Q}",
    over: { Q: wholeQuants },
    args: "x* w* scores* residual* out* n k slots:u32 experts:u32 dtype:u32",
    plan: "threads shared_bytes",
    launch: (s) => ({ grid: gridFor(Math.ceil(s.n / 16), s.threads), block: s.threads, shared: s.shared_bytes }),
  }),
  family({
    file: "linear",
    pattern: "expert_sum_{T}",
    over: { T: quantFloats },
    args: `x* w* ${summed} mix_dtype:u32 error*`,
    plan: "rows threads shared_bytes",
    launch: sumLaunch,
  }),
  family({
    file: "quant-matvec",
    pattern: "expert_sum{fine}_{Q}",
    over: { fine: fines, Q: quants },
    apart: ["fine"],
    args: `x* w* ${summed} segment:u32 dtype:u32 mix_dtype:u32 error*`,
    plan: "rows threads shared_bytes",
    launch: sumLaunch,
  }),
] as const;
