/**
 * How the attention kernels are launched: the sizes that kernels/attention*.hip find at compile time, by matrix unit, dtype and
 * head dimension, from the same constants. The tests run at exactly these sizes.
 */
import { type DType, sizeOf } from "../../core/dtype.ts";
import { PAGE_SIZE } from "../paged-attention.ts";

/** The matrix unit that kernels/gpu/matrix.h picks: mma.sync, WMMA of gfx11 or gfx12, MFMA, or multiply-adds. */
export type MatrixUnit = "fma" | "mma" | "wmma11" | "wmma12" | "mfma";

export const matrixUnits: readonly MatrixUnit[] = ["fma", "mma", "wmma11", "wmma12", "mfma"];
/** Their numbers, as kernels have them. */
export const unitDefines = Object.fromEntries(matrixUnits.map((unit, i) => [`TILE_${unit.toUpperCase()}`, i]));

/** Whether kernels for a dtype use a matrix unit where there is one. */
export const usesMatrixUnit = (dtype: DType): boolean => dtype === "bf16" || dtype === "f16";

/**
 * What `arch` has. NVIDIA's compilers go by it, and the simulator's is told; of AMD's the older ones and the newer parts
 * make a difference, so they are asked what they took (matrix-unit.ts).
 */
export function matrixUnit(arch: string, dtype: DType): MatrixUnit {
  if (!usesMatrixUnit(dtype)) return "fma";
  if (arch.startsWith("sm_")) return Number.parseInt(arch.slice(3), 10) >= 80 ? "mma" : "fma";
  if (/^gfx11/.test(arch)) return "wmma11";
  if (/^gfx120/.test(arch)) return "wmma12";
  return /^gfx(90a|94|950)/.test(arch) ? "mfma" : "fma";
}

/** Hopper's four warps side by side (kernels/gpu/warpgroup.h), beside mma.sync: their instructions exist on no other arch. */
export const hasWarpgroups = (arch: string): boolean => arch === "sm_90a";

/** The head dimensions that kernels are compiled for; smaller ones use the next. */
export const headDims = [32, 64, 96, 128, 256] as const;
export type HeadDim = (typeof headDims)[number];

export const supportsHeadDim = (d: number): boolean => d >= 8 && d <= 256 && d % 8 === 0;
export const headDimFor = (d: number): HeadDim => headDims.find((dim) => d <= dim)!;

export interface PrefillPlan {
  readonly threads: number;
  /** Queries per block. */
  readonly rows: number;
  readonly shared: number;
}

export interface DecodePlan {
  readonly threads: number;
  readonly shared: number;
  /** Blocks that a multiprocessor should have for memory to be read at full speed. */
  readonly crowd: number;
}

export interface StepPlan {
  /** A block for each kv head or part of its keys; for several kv heads, one after the other; or a cluster of blocks for each. */
  readonly kernel: "step" | "steps" | "cluster";
  readonly threads: number;
  readonly blocks: number;
  /** Parts that keys are cut into. */
  readonly splits: number;
  /** Keys that a cache has room for. */
  readonly capacity: number;
  readonly shared: number;
}

/** Shared memory that one block may have. */
export function sharedBudget(arch: string): number {
  const sm = arch.startsWith("sm_") ? Number.parseInt(arch.slice(3), 10) : 0;
  if (sm === 80 || sm === 87) return 163 * 1024;
  if (sm === 86 || sm === 89 || sm >= 120) return 99 * 1024;
  return (sm >= 90 ? 227 : 64) * 1024;
}

/** Threads per block of a prefill, and at most of a decode. */
export const ATTENTION_BLOCK = 128;
/** Keys per tile of a prefill, at most, and the largest heads whose queries stay in registers; then where copies run beside. */
const PREFILL_KEYS = 32;
const PREFILL_KEPT_DIM = 128;
const ASYNC_KEYS = 64;
const ASYNC_KEPT_DIM = 64;

/**
 * Of a prefill by warpgroups: how many there are, with 64 queries each; keys per tile; tiles each of keys and values in shared memory;
 * blocks that share a multiprocessor, so that one is at work while another begins or ends. With a mask they need more registers.
 */
const warpgroupSizes = {
  64: { plain: { groups: 2, keys: 64, stages: 3, blocks: 2 }, masked: { groups: 2, keys: 128, stages: 2 } },
  96: { plain: { groups: 2, keys: 128, stages: 3, blocks: 1 }, masked: { groups: 2, keys: 128, stages: 3 } },
  128: { plain: { groups: 2, keys: 128, stages: 3, blocks: 1 }, masked: { groups: 2, keys: 128, stages: 3 } },
  256: { plain: { groups: 2, keys: 64, stages: 2, blocks: 1 }, masked: { groups: 2, keys: 64, stages: 2 } },
} as const satisfies Readonly<Record<Exclude<HeadDim, 32>, object>>;
type WarpgroupDim = keyof typeof warpgroupSizes;
const warpgroupDefines = (kind: "plain" | "masked", dims: readonly WarpgroupDim[]) =>
  Object.fromEntries(
    dims.flatMap((d) =>
      Object.entries(warpgroupSizes[d][kind]).map(([name, size]) => [`${kind}_${name}_${d}`.toUpperCase(), size]),
    ),
  );
const warpgroupDims = [64, 96, 128, 256] as const;
/** Heads for which there is a kernel of batches side by side alone (kernels/attention_batch.hip). */
export const batchDims = [64, 96, 128] as const;
export type BatchDim = (typeof batchDims)[number];
export const isBatchDim = (d: number): d is BatchDim => batchDims.some((dim) => dim === d);

/**
 * Where few queries of prompts share the keys out: pages of a part for each tile of queries, and tiles of keys in shared memory
 * where copies run beside, one less for large heads.
 */
const SPLIT_PAGES = 2;
const SPLIT_STAGES = 4;
/** The largest heads whose queries stay in registers then, where copies do not run beside: there are addresses, too. */
const SPLIT_KEPT_DIM = 64;

/** Latent attention: elements of a key and of a value, at most, keys per tile, blocks that share a multiprocessor. */
export const LATENT_DIM = 576;
export const LATENT_RANK = 512;
const LATENT_KEYS = 16;
const LATENT_CROWD = 3;
/** Counters of each 16 rows: one of all parts, which are joined by eights, and one of each eight. */
const LATENT_COUNTERS = 9;

/**
 * One position of each text in one launch (kernels/attention_step.hip): waves of a block that has one kv head, or a part of its
 * keys; of those that have several, how many share a multiprocessor, and how many kv heads they have at most; heads that share keys
 * at most, and the head dimensions that it is compiled for.
 */
const STEP_WAVES = 12;
const STEPS_WAVES = 6;
const STEPS_CROWD = 2;
const STEPS_ITEMS = 32;
/** Bytes of the order in which each of 32 lanes brings results, of both halves of a piece. */
const STEP_TABLE = 256;
export const STEP_HEADS = 8;
/** Of clusters of blocks that share the keys of a kv head: blocks, waves of each, and keys of 16 to each wave, of which it may have twice as many. */
const STEP_CLUSTER = 8;
const CLUSTER_WAVES = 4;
const CLUSTER_KEYS = 16 * STEP_CLUSTER * CLUSTER_WAVES;
export const stepDims = [64, 128] as const;
export type StepDim = (typeof stepDims)[number];

/** Bytes of a block's queries, its new key and value, of each wave results and a pair for each head; of 16 keys and values of each wave. */
const stepItem = (d: StepDim, waves: number): number =>
  2 * (STEP_HEADS * (d + 32) + 2 * d) + waves * STEP_HEADS * 4 * (d + 2 + 2);
const stepStage = (d: StepDim, waves = STEP_WAVES): number => waves * 2 * 16 * d * 2;
/** The same of a block of a cluster, with its part of the results of each, and a signal. */
const clusterShared = (d: StepDim, capacity: number): number =>
  2 * (STEP_HEADS * (d + 32) + 2 * d) +
  4 * STEP_HEADS * (CLUSTER_WAVES * (d + 4 + 2) + d + 2 * STEP_CLUSTER) +
  16 +
  (capacity > CLUSTER_KEYS ? stepStage(d, CLUSTER_WAVES) : 0);
/** Whether there is room for the second keys and values of each wave beside those in registers: it then goes through both at once. */
const isStaged = (arch: string): boolean => stepItem(128, STEP_WAVES) + stepStage(128) <= sharedBudget(arch);

/** What the kernels have of this file. */
export const decodeDefines = (arch: string) => ({
  ...unitDefines,
  ATTENTION_BLOCK,
  PAGE_SIZE,
  GPU_SHARED_KB: sharedBudget(arch) / 1024,
});
export const prefillDefines = (arch: string) => ({
  ...decodeDefines(arch),
  ...warpgroupDefines("plain", warpgroupDims),
  ...warpgroupDefines("masked", warpgroupDims),
  ...{ PREFILL_KEYS, PREFILL_KEPT_DIM, ASYNC_KEYS, ASYNC_KEPT_DIM },
});

export const stepDefines = (arch: string) => ({
  ...{ ...unitDefines, PAGE_SIZE, STEP_WAVES, STEPS_WAVES, STEPS_CROWD },
  STEP_STAGED: Number(isStaged(arch)),
});
export const clusterDefines = { ...unitDefines, PAGE_SIZE, STEP_CLUSTER, CLUSTER_WAVES };

/** Of kernels that only warpgroups have, and those without a mask. */
const groupedDefines = (dims: readonly WarpgroupDim[]) => (arch: string) => ({
  ...unitDefines,
  PAGE_SIZE,
  GPU_SHARED_KB: sharedBudget(arch) / 1024,
  ...warpgroupDefines("plain", dims),
});
export const cappedDefines = groupedDefines(warpgroupDims);
export const batchDefines = groupedDefines(batchDims);

export const splitDefines = (arch: string) => ({
  ...decodeDefines(arch),
  ...{ PREFILL_KEYS, PREFILL_KEPT_DIM, ASYNC_KEYS, SPLIT_PAGES, SPLIT_STAGES, SPLIT_KEPT_DIM },
});

export const latentDefines = {
  ...unitDefines,
  ATTENTION_BLOCK,
  PAGE_SIZE,
  LATENT_DIM,
  LATENT_RANK,
  LATENT_KEYS,
  LATENT_CROWD,
  LATENT_COUNTERS,
};

interface Layout {
  readonly lanes: number;
  /** Bytes of a row of queries or keys in shared memory. */
  readonly row: number;
  /** Bytes that `keys` keys and values take, with those on their way. */
  stages(keys: number): number;
}

/** An odd number of 16-byte pieces. */
const oddRow = (elements: number, dtype: DType): number => (((elements * sizeOf(dtype)) / 16) | 1) * 16;
/** For mma.sync a power of two. */
const swizzledRow = (unit: MatrixUnit, d: HeadDim, dtype: DType): number =>
  unit === "mma" ? (d === 96 ? 128 : Math.max(d, 64)) * sizeOf(dtype) : oddRow(d, dtype);

function layout(unit: MatrixUnit, dtype: DType, d: HeadDim, row: number): Layout {
  const turned = unit !== "mma" && unit !== "fma";
  const stages = (keys: number) =>
    (unit === "mma" ? 2 : 1) * (keys * row + (turned ? d * oddRow(keys, dtype) : keys * row));
  return { lanes: unit === "mfma" ? 64 : 32, row, stages };
}

export function planPrefill(unit: MatrixUnit, dtype: DType, d: HeadDim, budget: number): PrefillPlan {
  const { lanes, row, stages } = layout(unit, dtype, d, oddRow(d, dtype));
  const strips = unit === "mfma" || (unit === "mma" && d <= 128) ? 2 : 1;
  const keepsQueries = unit !== "fma" && d <= (unit === "mma" ? ASYNC_KEPT_DIM : PREFILL_KEPT_DIM);
  const bytes = (waves: number, keys: number) => {
    const queries = waves * strips * 16 * row;
    return keepsQueries ? Math.max(queries, stages(keys)) : queries + stages(keys);
  };
  let waves = ATTENTION_BLOCK / lanes;
  let keys = unit === "mma" && d > 32 && d <= 128 ? ASYNC_KEYS : PREFILL_KEYS;
  while (keys > 16 && bytes(waves, keys) > budget) keys /= 2;
  while (waves > 1 && bytes(waves, keys) > budget) waves /= 2;
  return { threads: ATTENTION_BLOCK, rows: waves * strips * 16, shared: bytes(waves, keys) };
}

/** Bytes of what a block of warpgroups keeps beside its tiles: the words of two meetings and the place of its queries. */
const WARPGROUP_WORDS = 40;

/** A prefill of halves by warpgroups: queries, tiles of keys and values in rows of 64 halves, and what is kept beside them. */
export function planWarpgroups(d: WarpgroupDim, masked: boolean): PrefillPlan {
  const { groups, keys, stages } = warpgroupSizes[d][masked ? "masked" : "plain"];
  const rows = groups * 64;
  return {
    threads: groups * 128,
    rows,
    shared: (rows + 2 * stages * keys) * Math.ceil(d / 64) * 128 + WARPGROUP_WORDS,
  };
}

/** `inBytes`: keys and values are rows in 8 bits, which pass through registers on their way. */
export function planDecode(
  unit: MatrixUnit,
  dtype: DType,
  d: HeadDim,
  budget: number,
  inBytes: boolean = false,
): DecodePlan {
  const { lanes, row, stages } = layout(unit, dtype, d, swizzledRow(unit, d, dtype));
  const most = ATTENTION_BLOCK / lanes;
  // Results take the place of keys and values: 16 rows of f32, then a pair for each.
  const own = Math.max(stages(16) / (inBytes && unit === "mma" ? 2 : 1), 4 * (16 * (d + 4) + 32));
  const fit = Math.floor((budget - 16 * row) / own);
  const waves = fit >= most ? most : fit >= 2 && most >= 2 ? 2 : 1;
  const shared = 16 * row + waves * own;
  // With copies beside arithmetic 64 KiB under way are enough, and every block more only has to begin and to end.
  const beside = Math.floor(Math.min(256 / d, budget / shared, 4));
  const crowd = unit === "mma" ? (inBytes ? Math.max(2, 4 - Math.floor(d / 85)) : beside) : 3;
  return { threads: waves * lanes, shared, crowd };
}

/** `batch` sequences with `kvHeads`, which have up to `capacity` keys each. */
export function planStep(
  d: StepDim,
  multiprocessors: number,
  batch: number,
  kvHeads: number,
  capacity: number,
  arch: string,
): StepPlan {
  const items = batch * kvHeads;
  const blocks = items * STEP_CLUSTER;
  if (hasWarpgroups(arch) && blocks <= multiprocessors && capacity <= 2 * CLUSTER_KEYS) {
    const shared = clusterShared(d, capacity);
    return { kernel: "cluster", threads: 32 * CLUSTER_WAVES, blocks, splits: 1, capacity, shared };
  }
  const budget = sharedBudget(arch);
  // Of each wave a head with its angles, and keys; and two items.
  const own = STEPS_WAVES * (4 * d + 16) + STEP_TABLE + stepStage(d, STEPS_WAVES) + 2 * stepItem(d, STEPS_WAVES);
  if (items > multiprocessors && own <= budget) {
    const crowd = Math.min(STEPS_CROWD, Math.floor(budget / own));
    // All that a block has are of one kv head.
    const together = Math.max(Math.floor((multiprocessors * crowd) / kvHeads), Math.ceil(batch / STEPS_ITEMS), 1);
    const blocks = Math.min(items, kvHeads * together);
    return { kernel: "steps", threads: 32 * STEPS_WAVES, blocks, splits: 1, capacity, shared: own };
  }
  // Parts of each item's keys: a block to a multiprocessor, which has keys for all its waves.
  const splits = Math.max(1, Math.min(Math.ceil(capacity / (16 * STEP_WAVES)), Math.floor(multiprocessors / items)));
  const shared = stepItem(d, STEP_WAVES) + (capacity > 16 * STEP_WAVES && isStaged(arch) ? stepStage(d) : 0);
  return { kernel: "step", threads: 32 * STEP_WAVES, blocks: items * splits, splits, capacity, shared };
}

/** `rows` are those of all heads that share keys. */
export function planSplit(
  unit: MatrixUnit,
  dtype: DType,
  d: HeadDim,
  masked: boolean,
  budget: number,
): PrefillPlan & { readonly keys: number } {
  const { lanes, row, stages } = layout(unit, dtype, d, swizzledRow(unit, d, dtype));
  const strips = unit === "mfma" ? 2 : 1;
  // Of two stages, where copies run beside.
  const deeper = unit === "mma" ? (d <= 64 ? SPLIT_STAGES : SPLIT_STAGES - 1) / 2 : 1;
  const bytes = (waves: number, keys: number) => waves * strips * 16 * row + deeper * stages(keys);
  let waves = ATTENTION_BLOCK / lanes;
  let keys = unit === "mma" && d <= 128 && !masked ? ASYNC_KEYS : PREFILL_KEYS;
  while (keys > 16 && bytes(waves, keys) > budget) keys /= 2;
  while (waves > 1 && bytes(waves, keys) > budget) waves /= 2;
  return { threads: ATTENTION_BLOCK, rows: waves * strips * 16, shared: bytes(waves, keys), keys };
}

/** Blocks of such a launch on a multiprocessor: one waits for nothing but itself. */
const SPLIT_CROWD = 2;

/** Blocks of such a launch, and parts that keys are cut into at most, with which one tile of queries has them all. */
export function planSplitBlocks(multiprocessors: number, kvHeads: number, pages: number) {
  const blocks = SPLIT_CROWD * multiprocessors;
  return { blocks, splits: Math.min(64, pages, Math.max(4, Math.ceil(blocks / kvHeads))) };
}

/** Queries lie in rows of `pitch` elements. */
export function planLatent(unit: MatrixUnit, dtype: DType): DecodePlan & { readonly pitch: number } {
  const size = sizeOf(dtype);
  const row = unit === "mma" ? LATENT_DIM * size : oddRow(LATENT_DIM, dtype);
  const turned = unit === "mma" || unit === "fma" ? 0 : LATENT_RANK * oddRow(LATENT_KEYS, dtype);
  const waves = ATTENTION_BLOCK / (unit === "mfma" ? 64 : 32);
  const tiles = (unit === "mma" ? 2 : 1) * (LATENT_KEYS * row + turned);
  const shared = tiles + waves * 16 * (LATENT_KEYS + 4) * 4 + 16 * oddRow(LATENT_KEYS, dtype) + 128;
  return { threads: ATTENTION_BLOCK, shared, crowd: LATENT_CROWD, pitch: row / size };
}

/**
 * Blocks of a prefill: `rows` queries of a head each, of a batch side by side, or of `batch` sequences one behind the other
 * that have tq queries together, each of which begins a new block.
 */
export const prefillBlocks = (batch: number, heads: number, tq: number, rows: number, inRows: boolean): number =>
  heads * (inRows ? Math.floor(tq / rows) + batch : batch * Math.ceil(tq / rows));

/** Blocks of a decode whose keys are not cut: one for each 16 queries of the heads that share a kv head. */
export const decodeBlocks = (batch: number, heads: number, kvHeads: number, tq: number): number =>
  batch * kvHeads * Math.ceil(((heads / kvHeads) * tq) / 16);

/** Floats of scratch memory that a decode in several parts needs: results, greatest score and sum of each part. */
export const scratchFloats = (rows: number, splits: number, d: number): number =>
  splits === 1 ? 0 : rows * splits * (d + 2);

/** Decodes in parts have at most so many blocks before they are cut: each has a counter in device memory. */
export const MAX_COUNTERS = 4096;

/**
 * Parts that a decode's keys are cut into so that there are about `wanted` blocks, at least 64 keys each. For a launch that
 * is captured while a cache grows, `keys` is the cache's capacity; the kernel takes fewer parts while it is short.
 */
export function planSplits(wanted: number, blocks: number, keys: number): number {
  if (blocks > MAX_COUNTERS) return 1;
  return Math.max(1, Math.min(Math.ceil(keys / 64), Math.round(wanted / blocks)));
}

/** The same of latent attention, whose parts are joined by eights. */
export const planLatentSplits = (wanted: number, blocks: number, keys: number): number =>
  blocks * LATENT_COUNTERS > MAX_COUNTERS ? 1 : Math.min(8 * (LATENT_COUNTERS - 1), planSplits(wanted, blocks, keys));
