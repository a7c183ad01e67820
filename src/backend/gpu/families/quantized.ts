/** Quantized weights: dequantizing, row lookup, products of many rows (linear.ts has those of few), and how these are cut. */
import type { DType } from "../../../core/dtype.ts";
import { type QuantType, quantTypes } from "../../../core/quant-types.ts";
import { hasWarpgroups, MAX_COUNTERS, type MatrixUnit, sharedBudget } from "../attention-plan.ts";
import { BLOCK, blocks, type Defines, family, gridFor, perThread, quantFloats, quants } from "./family.ts";
import { productDefines } from "./product.ts";

/** Weights that a warp dequantizes at a time. */
const QUANT_CHUNK = 1024;
const WARPS = BLOCK / 32;
/** Gates by number; 0 is none. */
export const gluNumbers = { silu: 1, gelu: 2, clampedSwiglu: 3 } as const;

/** How kernels that take a dtype as a number know it. */
const numbers = { f32: 0, f16: 1, bf16: 2 } as const;
export const quantOutput: Readonly<Partial<Record<DType, number>>> = numbers;
/** As kernels/stream.h has them. */
export const streamDefines: Defines = {
  DTYPE_f32: numbers.f32,
  DTYPE_f16: numbers.f16,
  DTYPE_bf16: numbers.bf16,
  GLU_silu: gluNumbers.silu,
  GLU_gelu: gluNumbers.gelu,
  GLU_clampedSwiglu: gluNumbers.clampedSwiglu,
};

/** The types that there are kernels to quantize to. */
const quantizers = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"] as const;
export const isQuantizer = (name: string): name is (typeof quantizers)[number] =>
  quantizers.some((quantizer) => quantizer === name);

/** Weights of a row that a block is given at once: with copies beside arithmetic and of the types of 256, and else. */
const QUANT_FAR = 256;
const QUANT_NEAR = 128;
/** How much of k a slice of a product has, in elements: with copies beside arithmetic, and else. */
const QUANT_ASYNC_SLICE = 64;
const QUANT_SLICE = 32;
/** Rows of weights of a product's tile, and rows of x: few or some, and some times as many. */
const QUANT_LINES = 64;
const QUANT_FEW = 16;
const QUANT_SOME = 64;

/** By rows of x: few, some, or many. */
export type QuantProductSize = "_few" | "_some" | "";

export interface QuantProductPlan {
  readonly size: QuantProductSize;
  /** Whether x is split in two halves per element. */
  readonly isSplit: boolean;
  /** Bytes of memory for tiles that several blocks share. */
  readonly scratch: number;
  readonly launch: {
    /** Tiles that a block makes by itself; those behind them are shared by all. */
    readonly alone: number;
    readonly blocks: number;
    readonly threads: number;
    readonly shared_bytes: number;
  };
}

interface QuantTarget {
  /** What halves are multiplied on. */
  readonly unit: MatrixUnit;
  readonly arch: string;
}

/** Bytes of shared memory for a line of weights as they are stored, and for one of a slice of either operand. */
export function lineBytes(
  type: QuantType,
  dtype: DType,
  unit: MatrixUnit,
): { readonly chunk: number; readonly stored: number; readonly row: number } {
  const isAsync = unit === "mma";
  const isSplit = dtype === "f32" && unit !== "fma";
  const block = quantTypes[type];
  const chunk = block.size < QUANT_NEAR && (!isAsync || block.bytes >= block.size) ? QUANT_NEAR : QUANT_FAR;
  const align = [16, 4, 2, 1].find((unit) => block.bytes % unit === 0)!;
  // An odd number of vectors for each line.
  const stored = (Math.floor(((chunk / block.size) * block.bytes + 31 - align) / 16) | 1) * 16;
  const slice = isAsync ? QUANT_ASYNC_SLICE : isSplit ? 2 * QUANT_SLICE : QUANT_SLICE;
  const bytes = slice * (dtype === "f32" && !isSplit ? 4 : 2);
  // Mixed rows, or rows of an odd number of 16-byte pieces.
  return { chunk, stored, row: isAsync ? bytes : ((bytes / 16) | 1) * 16 };
}

/** A block of kernels/quant-product.h: its tile, and its shared memory. */
export function planQuantBlock(
  size: QuantProductSize,
  type: QuantType,
  dtype: DType,
  { unit, arch }: QuantTarget,
): { readonly isSplit: boolean; readonly lines: number; readonly rows: number; readonly shared: number } {
  const isAsync = unit === "mma";
  const isSplit = dtype === "f32" && unit !== "fma";
  const { chunk, stored, row } = lineBytes(type, dtype, unit);
  if (isAsync && size !== "") {
    // Chunks of x beside those of the weights.
    const [lines, rows] = [2 * QUANT_LINES, size === "_few" ? QUANT_FEW : QUANT_SOME];
    const stage = rows * ((isSplit ? 4 : 2) * chunk + 32) + lines * stored;
    const stages = 3 * stage <= sharedBudget(arch) ? 3 : 2;
    return { isSplit, lines, rows, shared: stages * stage };
  }
  const byGroups = isAsync && hasWarpgroups(arch);
  const lines = byGroups ? 2 * QUANT_LINES : QUANT_LINES;
  const many = byGroups ? 4 : isAsync || (unit === "mfma" && dtype !== "f32") ? 2 : 1;
  const rows = size === "_few" ? QUANT_FEW : size === "_some" ? QUANT_SOME : many * QUANT_SOME;
  const shared = (byGroups ? 3 : isAsync ? 2 : 1) * (lines + rows) * row + (isAsync ? 2 : 1) * lines * stored;
  return { isSplit, lines, rows, shared };
}

/** x (rows, k) · wᵀ (n, k). An invariant plan has one size for any number of rows, and tiles that nobody shares. */
export function planQuantProduct(
  sizes: { readonly rows: number; readonly n: number; readonly k: number },
  type: QuantType,
  dtype: DType,
  target: QuantTarget & { readonly multiprocessors: number },
  isInvariant = false,
): QuantProductPlan {
  const budget = sharedBudget(target.arch);
  const fits = (size: QuantProductSize): boolean => planQuantBlock(size, type, dtype, target).shared <= budget;
  const byRows = sizes.rows <= QUANT_FEW ? "_few" : sizes.rows <= 2 * QUANT_SOME ? "_some" : "";
  const wanted = isInvariant ? "_some" : byRows;
  const size = fits(wanted) ? wanted : "";
  const { isSplit, lines, rows, shared } = planQuantBlock(size, type, dtype, target);
  const tiles = Math.ceil(sizes.n / lines) * Math.ceil(sizes.rows / rows);
  const units = Math.ceil(sizes.k / QUANT_FAR);
  const { multiprocessors } = target;
  // Each alone, or all shared: then no multiprocessor is idle, but what a block leaves unfinished goes through memory.
  const alone =
    isInvariant || Math.ceil(tiles / multiprocessors) * units <= (tiles * units) / multiprocessors + shareCost[size]
      ? tiles
      : 0;
  const together = Math.max(1, Math.min(2, Math.floor(budget / shared)));
  const most = Math.min(MAX_COUNTERS, multiprocessors * together, alone === 0 ? tiles * units : tiles);
  const launch = { alone, blocks: most, threads: 2 * lines, shared_bytes: shared };
  return { size, isSplit, scratch: alone === 0 ? 2 * most * lines * rows * 4 : 0, launch };
}

/** What shares cost in units of work, a tile's lines by QUANT_FAR weights: measured. */
const shareCost: Readonly<Record<QuantProductSize, number>> = { _few: 2, _some: 6, "": 8 };

/** As kernels/quant-product.h has them. */
export const quantProductDefines = (arch: string): Defines => ({
  ...{ ...streamDefines, ...productDefines, QUANT_FAR, QUANT_NEAR, QUANT_ASYNC_SLICE, QUANT_SLICE },
  ...{ QUANT_LINES, QUANT_FEW, QUANT_SOME, GPU_SHARED_KB: sharedBudget(arch) / 1024 },
});

export const quantized = [
  family({
    file: "quant-blocks",
    pattern: "dequantize_block_{Q}_{T}",
    over: { Q: quants, T: quantFloats },
    args: "w* out* numel",
    defines: { ...streamDefines, QUANT_CHUNK },
    launch: (s) => blocks(s.numel, QUANT_CHUNK * WARPS),
  }),
  family({
    file: "quant-blocks",
    pattern: "get_rows_{Q}_{T}",
    over: { Q: quants, T: quantFloats },
    args: "w* ids* out* count rows k id_bytes:u32 error*",
    launch: (s) => blocks(s.count * Math.ceil(s.k / QUANT_CHUNK), WARPS),
  }),
  family({
    file: "quant-quantize",
    pattern: "quantize_{blocks}",
    over: { blocks: quantizers, T: ["f32"] },
    args: "x* out* numel",
    defines: streamDefines,
    launch: (s) => perThread(s.numel, 32),
  }),
  family({
    file: "quant-quantize",
    pattern: "split_{T}",
    over: { T: ["f32"] },
    args: "x* out* numel",
    launch: (s) => perThread(s.numel, 8),
  }),
  family({
    file: "quant-product",
    pattern: "quant_product{size}_{Q}_{T}",
    over: { size: ["_few", "_some", ""], Q: quants, T: quantFloats },
    apart: ["size", "T"],
    args: "x* w* out* parts* counters* rows n k alone:u32",
    plan: "blocks threads shared_bytes",
    defines: quantProductDefines,
    launch: (s) => ({ grid: gridFor(s.blocks, s.threads), block: s.threads, shared: s.shared_bytes }),
  }),
] as const;
