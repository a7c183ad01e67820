/**
 * How the attention kernels are launched: the sizes that kernels/attention*.hip fix at compile time, by matrix unit, dtype
 * and head dimension. The two must agree; the tests compare them by running at exactly these sizes.
 */
import { type DType, sizeOf } from "../../core/dtype.ts";

/** The matrix unit that kernels/tile.h picks: mma.sync, WMMA of gfx11 or gfx12, MFMA, or multiply-adds. */
export type MatrixUnit = "fma" | "mma" | "wmma11" | "wmma12" | "mfma";

export const matrixUnits: readonly MatrixUnit[] = ["fma", "mma", "wmma11", "wmma12", "mfma"];

/** What a compiler for `arch` picks; the simulator's picks multiply-adds unless GPU_TILE names another. */
export function matrixUnit(arch: string, dtype: DType): MatrixUnit {
  if (dtype !== "bf16" && dtype !== "f16") return "fma";
  if (arch.startsWith("sm_")) return Number.parseInt(arch.slice(3), 10) >= 80 ? "mma" : "fma";
  if (/^gfx11/.test(arch)) return "wmma11";
  if (/^gfx12/.test(arch)) return "wmma12";
  return /^gfx(90a|942|950)/.test(arch) ? "mfma" : "fma";
}

/** The head dimensions that kernels are compiled for; smaller ones use the next. */
export const headDims = [64, 96, 128, 256] as const;
export type HeadDim = (typeof headDims)[number];

export const supportsHeadDim = (d: number): boolean => d >= 8 && d <= 256 && d % 8 === 0;
export const headDimFor = (d: number): HeadDim => headDims.find((dim) => d <= dim)!;

export interface PrefillPlan {
  /** Queries per block. */
  readonly rows: number;
  readonly shared: number;
}

export interface DecodePlan {
  readonly threads: number;
  readonly shared: number;
}

interface Sizes {
  readonly fma: boolean;
  readonly async: boolean;
  readonly lanes: number;
  readonly bytes: number;
  /** Elements of a row of queries or keys in shared memory. */
  readonly pitch: number;
  /** Elements that `keys` keys and values take. */
  tile(keys: number): number;
}

const BLOCK = 128;

function sizes(unit: MatrixUnit, dtype: DType, d: HeadDim): Sizes {
  const bytes = sizeOf(dtype);
  const pitchOf = (n: number) => (((n * bytes) / 16) | 1) * (16 / bytes);
  const pitch = pitchOf(d);
  const async = unit === "mma";
  const turned = unit !== "mma" && unit !== "fma";
  const tile = (keys: number) => (async ? 2 : 1) * (keys * pitch + (turned ? d * pitchOf(keys) : keys * pitch));
  return { fma: unit === "fma", async, lanes: unit === "mfma" ? 64 : 32, bytes, pitch, tile };
}

export function planPrefill(unit: MatrixUnit, dtype: DType, d: HeadDim): PrefillPlan {
  const { fma, async, lanes, bytes, pitch, tile } = sizes(unit, dtype, d);
  const width = d * bytes;
  const strips = unit === "mfma" || (unit === "mma" && d <= 128) ? 2 : 1;
  const waves = !fma ? BLOCK / lanes : width <= 512 ? 4 : width <= 768 ? 2 : 1;
  const keys = fma ? (width <= 384 ? 32 : 16) : (d <= 128 ? 32 : 16) * (async ? 2 : 1);
  const rows = waves * strips * 16;
  const keepsQueries = !fma && d <= (async ? 64 : 128);
  const shared = keepsQueries ? Math.max(rows * pitch, tile(keys)) : rows * pitch + tile(keys);
  return { rows, shared: shared * bytes };
}

export function planDecode(unit: MatrixUnit, dtype: DType, d: HeadDim): DecodePlan {
  const { async, lanes, bytes, pitch, tile } = sizes(unit, dtype, d);
  const most = BLOCK / lanes;
  const fit = Math.floor((((async ? 160 : 60) * 1024) / bytes - 16 * pitch) / tile(16));
  const waves = fit >= most ? most : fit >= 2 && most >= 2 ? 2 : 1;
  return { threads: waves * lanes, shared: (16 * pitch + waves * tile(16)) * bytes };
}

/**
 * Parts that a decode's keys are cut into: enough blocks to fill the device three times over, at least 256 keys each. For a
 * launch that is captured while a cache grows, `keys` is the cache's capacity.
 */
export function planSplits(multiprocessors: number, blocks: number, keys: number): number {
  return Math.max(1, Math.min(Math.ceil(keys / 256), Math.floor((3 * multiprocessors) / blocks)));
}
