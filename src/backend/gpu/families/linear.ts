/** Linear layers of few rows, fused with what is around them, and how many warps and blocks each gets. */
import { type DType, sizeOf } from "../../../core/dtype.ts";
import { type QuantType, quantTypes } from "../../../core/quant-types.ts";
import { hasWarpgroups, matrixUnit, sharedBudget, usesMatrixUnit } from "../attention-plan.ts";
import { family, gridFor, type Launch, quantFloats, quantName, quants } from "./family.ts";
import { streamDefines } from "./quantized.ts";

/** The most rows of x that one pass over the weights serves. */
export const LINEAR_ROWS = 8;

export const fines = ["", "_fine"] as const satisfies readonly Fine[];

/**
 * The same of weights that are not quantized, where a library multiplies, too. Hopper's memory is so fast that multiply-adds of
 * more rows hold it up: its library took 19 µs for 8 rows times 16384 × 2048 in bf16, these kernels 21 for 4 rows and 32 for 8.
 * With many rows of weights, as of a vocabulary, it pays sooner: 132 µs for 3 rows times 128256 × 2048, and 148 here.
 */
export function plainRows(dtype: DType, n: number, arch: string, hasLibrary: boolean): number {
  if (!hasLibrary || !arch.startsWith("sm_90") || !usesMatrixUnit(dtype)) return LINEAR_ROWS;
  return n >= 65_536 ? 2 : 4;
}

/** Rows of x that kernels are made for. */
const batches = ["1", "2", "4", "8"] as const;
type Batch = 1 | 2 | 4 | 8;
const batchFor = (m: number): Batch => (2 ** Math.ceil(Math.log2(m))) as Batch;

export interface LinearShape {
  readonly m: number;
  readonly n: number;
  readonly k: number;
  readonly norm: boolean;
  /** Rows of W are pieces of k in as many matrices, those of experts whose results are summed. */
  readonly slots?: number;
  /** With quantized weights: x is f32, of which 24 bits count; else 16. */
  readonly fine?: boolean;
}

/** As kernels' names have it. */
export type Fine = "" | "_fine";
export const fineFor = (dtype: DType): Fine => (dtype === "f32" ? "_fine" : "");

export interface LinearPlan<Kernel extends string = string> {
  readonly kernel: Kernel;
  readonly launch: {
    readonly threads: number;
    /** Warps that share the rows of a group. */
    readonly splits: number;
    readonly blocks: number;
    readonly shared_bytes: number;
    /** Elements of each row of x that quantized weights meet at a time. */
    readonly segment: number;
  };
}

type PlainPlan = LinearPlan<`linear${"" | "_norm"}_${DType}_b${Batch}`>;
type QuantizedPlan = LinearPlan<`linear${Fine}_${Lowercase<QuantType>}_b${Batch}`>;

export interface Device {
  readonly arch: string;
  readonly multiprocessors: number;
}

/** Rows of w per warp, and threads of a block. */
const LINEAR_GROUP = 4;
const LINEAR_BLOCK = 128;

/** Warps per multiprocessor that keep its loads in flight; products of more rows of x keep it busy with fewer. */
const warpsFor = (batch: number): number => (batch > 2 ? 10 : 20);

/** Blocks for all groups of rows, `splits` warps each. */
const blocksFor = (n: number, threads: number, splits: number): number =>
  Math.ceil((Math.ceil(n / LINEAR_GROUP) * splits * 32) / threads);

export function planLinear({ m, n, k, norm, slots }: LinearShape, dtype: DType, device: Device): PlainPlan {
  const threads = LINEAR_BLOCK;
  // Of matrices that are summed, each is for one warp.
  const vectors = slots ? 32 * slots : (k * sizeOf(dtype)) / 16;
  // Fewer rows than warps that there should be: several share a row, as long as each lane has a vector of it.
  let splits = 1;
  while (
    splits < threads / 32 &&
    Math.ceil(n / LINEAR_GROUP) * splits < warpsFor(batchFor(m)) * device.multiprocessors &&
    vectors >= 64 * splits
  ) {
    splits *= 2;
  }
  const kernel = `linear${norm ? "_norm" : ""}_${dtype}_b${batchFor(m)}` as const;
  return { kernel, launch: { threads, splits, blocks: blocksFor(n, threads, splits), shared_bytes: 0, segment: k } };
}

/** Rows of W, at most, of which each has a block to itself. */
const THIN_ROWS = 256;

/** One row of x and few of W, as a router has: null for others, for gates, and where threads would have nothing to do. */
export function planThin({ m, n, k }: LinearShape, dtype: DType): LinearPlan<`linear_thin_${DType}`> | null {
  if (m !== 1 || n > THIN_ROWS || k * sizeOf(dtype) < 16 * LINEAR_BLOCK) return null;
  const launch = { threads: LINEAR_BLOCK, splits: 1, blocks: n, shared_bytes: 0, segment: k };
  return { kernel: `linear_thin_${dtype}`, launch };
}

/** Quantized weights of a row that a warp takes at a time, and warps of a block at most. */
const MATVEC_CHUNK = 1024;
const MATVEC_WARPS = 8;
/** Blocks that share a multiprocessor. */
const MATVEC_CROWD = 2;

/**
 * Rows of quantized weights per warp, and its places for chunks of them: NVIDIA copies to one place while the other is
 * multiplied, AMD goes through registers, of which four rows would take too many.
 */
const shapeFor = (arch: string): { readonly rows: number; readonly places: number } =>
  arch.startsWith("sm_") ? { rows: 4, places: 2 } : { rows: 2, places: 1 };

/** A row of x in shared memory: two or three bytes each, and for each 32 of them a scale and a sum in f32. */
const rowBytes = (segment: number, fine: boolean): number => segment * (fine ? 3 : 2) + segment / 4;

/** As the kernels lay it out: rows of x, weights of each warp, what warps tell each other. */
function sharedBytes(type: QuantType, x: number, batch: number, warps: number, arch: string): number {
  const { size, bytes } = quantTypes[type];
  const { rows, places } = shapeFor(arch);
  const stage = 16 * Math.floor(((MATVEC_CHUNK / size) * bytes + 30) / 16);
  return batch * x + warps * (places * rows * stage + 4 * batch * (rows + 1));
}

/** Into how many pieces x is cut, of whole rounds of chunks, where all of it does not fit beside the weights. */
const pieces = (norm: boolean): readonly number[] => (norm ? [1] : [1, 2, 4, 8, 16, 32]);

const segmentOf = (k: number, pieces: number, chunk: number): number => Math.ceil(k / pieces / chunk) * chunk;

/** Chunks of a row, and its elements with those that fill the last chunk of each piece. */
function chunksOf({ k, slots }: LinearShape, chunk: number): { readonly chunks: number; readonly width: number } {
  const own = Math.ceil(k / chunk);
  return slots === undefined ? { chunks: own, width: k } : { chunks: slots * own, width: slots * own * chunk };
}

/** One entry per shape of weights. */
const plans = new Map<string, QuantizedPlan | null>();

/** Null where x does not fit into shared memory: a norm needs all of it at once. */
export function planQuantizedLinear(
  shape: LinearShape,
  type: QuantType,
  device: Device,
  budget = sharedBudget(device.arch),
): QuantizedPlan | null {
  const { m, n, k, norm, slots, fine = false } = shape;
  const key = `${type} ${m} ${n} ${k} ${norm} ${slots} ${fine} ${device.arch} ${device.multiprocessors} ${budget}`;
  let plan = plans.get(key);
  if (plan === undefined) {
    plan = (usesTiles(device.arch) ? findTilePlan : findPlan)(shape, type, device, budget);
    plans.set(key, plan);
  }
  return plan;
}

/** Where kernels/quant-tile.h knows the matrix unit. */
const usesTiles = (arch: string): boolean => matrixUnit(arch, "bf16") === "mma";

/** Rows per warp are those of the unit. Weights of each that it takes at a time, warps of a block at most, bytes for its chunks. */
const TILE_ROWS = 16;
const TILE_CHUNK = 512;
export const TILE_WARPS = 16;
const TILE_STAGES = 12800;

/** Bytes of a warp's chunk in shared memory: an odd number of vectors per row. */
function tileBytes(type: QuantType): number {
  const { size, bytes } = quantTypes[type];
  const align = [16, 4, 2, 1].find((a) => bytes % a === 0)!;
  return TILE_ROWS * 16 * (Math.floor(((TILE_CHUNK / size) * bytes + 31 - align) / 16) | 1);
}

function sharedTileBytes(type: QuantType, x: number, batch: Batch, warps: number): number {
  const bytes = tileBytes(type);
  const places = Math.min(4, Math.max(2, Math.floor(TILE_STAGES / bytes)));
  const sums = batch > 4 ? 4 : 2;
  // One row has zeros beside it, as many as a chunk, and a vector behind each plane.
  const beside = batch === 1 ? TILE_CHUNK + 64 : 0;
  return batch * x + beside + warps * (places * bytes + 4 * (32 * sums + LINEAR_ROWS));
}

/**
 * Bytes on their way that keep a multiprocessor's memory busy, of one row of x and of more, which take longer to multiply; as few
 * warps as this do where x would else come in pieces.
 */
const enoughBytes = (batch: Batch): number => (batch === 1 ? 36 : 72) * 1024;
const FEW_WARPS = 6;
/** What it costs warps that share rows to meet, and each to round a part of one row of x, in chunks of a multiprocessor. */
const MEETING_CHUNKS = 4;
const ROUNDING_CHUNKS = 5;
/** Elements of x that a warp rounds at a time. */
const ROUNDED = 256;

/**
 * A block per multiprocessor, which has x once. Of the numbers of warps and ways to have them share rows, that counts with
 * which the busiest multiprocessor is done first: chunks, of which fewer than enough warps take no more in the same time,
 * rounding, and meetings.
 */
function findTilePlan(
  shape: LinearShape,
  type: QuantType,
  { multiprocessors }: Device,
  budget: number,
): QuantizedPlan | null {
  const batch = batchFor(shape.m);
  const groups = Math.ceil(shape.n / TILE_ROWS);
  const { chunks, width } = chunksOf(shape, TILE_CHUNK);
  const { fine = false } = shape;
  const enough = Math.ceil(enoughBytes(batch) / tileBytes(type));
  const fewest = Math.min(FEW_WARPS, Math.ceil((groups * chunks) / multiprocessors));
  let best = null as LinearPlan["launch"] | null;
  for (const count of pieces(shape.norm)) {
    let least = Number.POSITIVE_INFINITY;
    for (let splits = 1; splits <= Math.min(chunks, TILE_WARPS); splits *= 2) {
      for (let together = 1; together * splits <= TILE_WARPS; together++) {
        const warps = together * splits;
        const segment = segmentOf(width, count, count > 1 ? splits * TILE_CHUNK : 32);
        const shared = sharedTileBytes(type, rowBytes(segment, fine), batch, warps);
        if (shared > budget - 1024) continue;
        const all = Math.ceil(groups / together);
        const rounds = Math.ceil(all / multiprocessors);
        const steps = rounds * Math.ceil(chunks / splits) * Math.max(warps, enough);
        const rounding = batch === 1 ? ROUNDING_CHUNKS * Math.ceil(width / ROUNDED / warps) : 0;
        const cost = steps + rounding + (splits > 1 ? MEETING_CHUNKS * rounds : 0);
        if (cost >= least) continue;
        least = cost;
        // More than half of it, so that blocks which begin while others end do not gather where there is room.
        const shared_bytes = Math.max(shared, budget / 2);
        best = { threads: 32 * warps, splits, blocks: Math.ceil(all / rounds), shared_bytes, segment };
      }
    }
    if (best && best.threads >= 32 * fewest) break;
  }
  return best && { kernel: `linear${fine ? "_fine" : ""}_${quantName(type)}_b${batch}`, launch: best };
}

/**
 * Warps per block and splits: those with which the busiest multiprocessor has the fewest chunks to go through. Each block
 * rounds x by itself, so there are no more blocks than run at once.
 */
function findPlan(
  shape: LinearShape,
  type: QuantType,
  { arch, multiprocessors }: Device,
  budget: number,
): QuantizedPlan | null {
  const batch = batchFor(shape.m);
  const groups = Math.ceil(shape.n / shapeFor(arch).rows);
  const { chunks, width } = chunksOf(shape, MATVEC_CHUNK);
  const { fine = false } = shape;
  const most = MATVEC_CROWD * multiprocessors;
  let best: LinearPlan["launch"] | null = null;
  for (const count of pieces(shape.norm)) {
    // Signals are beside it.
    const bytes = (warps: number, splits: number): number =>
      sharedBytes(type, rowBytes(segmentOf(width, count, splits * MATVEC_CHUNK), fine), batch, warps, arch);
    const fits = (warps: number, splits = 1): boolean => bytes(warps, splits) <= budget - 1024;
    const widths = fits(6) ? [MATVEC_WARPS, 7, 6].filter((w) => fits(w)) : [4, 2].filter((w) => fits(w)).slice(0, 1);
    let [fewest, fewestBlocks] = [Number.POSITIVE_INFINITY, 0];
    for (const warps of widths) {
      // Splits need barriers: only where there are too few rows.
      for (const splits of groups < 12 * multiprocessors ? [1, 2, 4] : [1]) {
        if (warps % splits !== 0 || splits > chunks || !fits(warps, splits)) continue;
        const all = Math.ceil((groups * splits) / warps);
        const rounds = Math.ceil(all / most);
        const blocks = Math.ceil(all / rounds);
        const perMultiprocessor = Math.ceil(blocks / multiprocessors);
        const steps = perMultiprocessor * rounds * warps * Math.ceil(chunks / splits);
        if (steps > fewest || (steps === fewest && perMultiprocessor >= fewestBlocks)) continue;
        [fewest, fewestBlocks] = [steps, perMultiprocessor];
        const segment = segmentOf(width, count, splits * MATVEC_CHUNK);
        best = { threads: 32 * warps, splits, blocks, shared_bytes: bytes(warps, splits), segment };
      }
    }
    if (best) break;
  }
  return best && { kernel: `linear${fine ? "_fine" : ""}_${quantName(type)}_b${batch}`, launch: best };
}

/** Types of which kernels take whole rows, all on their way at once; weights of a row that a warp takes, and its warps at most. */
export const wholeQuants = ["q4_k", "q5_k"] as const;
export const WHOLE_STEP = 256;
/** More than there are, so that registers are left for blocks of other kernels; steps of a warp behind a norm. */
const ONCE_WARPS = 20;
const ONCE_STEPS = 2;
/** Sums of a row of weights, one of each warp, and one more, so that rows begin in different banks. */
const ONCE_PITCH = TILE_WARPS + 1;
/** Warps of a block with which that is faster, without a norm and with it. */
const ONCE_FEWEST = [16, 12] as const;

/**
 * One row times weights that all multiprocessors have room for at once, as kernels/quant-once.hip lays it out; null for others, and where
 * it is no faster: with fewer warps to a block (3072 × 2048 and 2048 × 2048 in Q4_K). An H200's layer takes 1.3 µs less of 29.7 with
 * 2048 × 4096, and 1.1 less of 27.5 with 5120 × 2048 behind a norm.
 */
export function planOnce(
  { m, n, k, norm }: LinearShape,
  type: QuantType,
  { arch, multiprocessors }: Device,
): LinearPlan<`linear_once${"" | "_norm"}_${(typeof wholeQuants)[number]}`> | null {
  const quant = wholeQuants.find((name) => name === quantName(type));
  const width = WHOLE_STEP * (norm ? ONCE_STEPS : 1);
  if (!quant || !hasWarpgroups(arch) || m !== 1 || n % TILE_ROWS !== 0 || k % width !== 0) return null;
  const splits = k / width;
  const together = Math.ceil(n / TILE_ROWS / multiprocessors);
  const warps = together * splits;
  const { size, bytes } = quantTypes[type];
  const x = 2 * (k + 16) + k / 4 + TILE_CHUNK;
  const shared_bytes = x + together * TILE_ROWS * ((k / size) * bytes + 4 * ONCE_PITCH) + 4 * warps;
  const isTaken = warps >= ONCE_FEWEST[norm ? 1 : 0] && warps <= TILE_WARPS;
  if (!isTaken || shared_bytes > sharedBudget(arch) - 1024) return null;
  const blocks = Math.ceil(n / TILE_ROWS / together);
  const kernel = `linear_once${norm ? "_norm" : ""}_${quant}` as const;
  return { kernel, launch: { threads: 32 * warps, splits, blocks, shared_bytes, segment: k } };
}

const launch = (s: { readonly blocks: number; readonly threads: number; readonly shared_bytes: number }): Launch => ({
  grid: gridFor(s.blocks, s.threads),
  block: s.threads,
  shared: s.shared_bytes,
});

/** What kernels of whole rows agree on with their launches. */
export const wholeDefines = { ...streamDefines, TILE_CHUNK, TILE_STAGES };

const epilogue = "alpha* bias* residual* out* n k eps:f64 batch:u32 glu:u32 splits:u32";

export const linear = [
  family({
    file: "linear",
    pattern: "linear{norm}_{T}_b{columns}",
    over: { norm: ["", "_norm"], T: quantFloats, columns: batches },
    apart: ["norm", "columns"],
    args: `x* w* ${epilogue}`,
    plan: "blocks threads shared_bytes",
    defines: { ...streamDefines, LINEAR_GROUP, LINEAR_BLOCK },
    launch,
  }),
  family({
    file: "linear",
    pattern: "linear_thin_{T}",
    over: { T: quantFloats },
    args: `x* w* ${epilogue}`,
    plan: "blocks threads shared_bytes",
    launch,
  }),
  family({
    file: "quant-matvec",
    pattern: "linear{fine}_{Q}_b{columns}",
    over: { fine: fines, Q: quants, columns: batches },
    apart: ["fine", "columns"],
    args: `x* w* ${epilogue} segment:u32 dtype:u32`,
    plan: "blocks threads shared_bytes",
    defines: (arch) => ({
      ...streamDefines,
      ...{ MATVEC_CHUNK, MATVEC_WARPS, MATVEC_CROWD },
      ...{ MATVEC_ROWS: shapeFor(arch).rows, MATVEC_PLACES: shapeFor(arch).places },
      ...{ TILE_CHUNK, TILE_WARPS, TILE_STAGES },
    }),
    launch,
  }),
  family({
    file: "quant-once",
    pattern: "linear_once{norm}_{Q}",
    over: { norm: ["", "_norm"], Q: wholeQuants },
    apart: ["norm"],
    args: "x* w* alpha* bias* residual* out* n k eps:f64 splits:u32 dtype:u32",
    plan: "blocks threads shared_bytes",
    defines: { ...wholeDefines, ONCE_WARPS, ONCE_STEPS, ONCE_PITCH },
    launch: (s) => ({ ...launch(s), crowds: true }),
  }),
] as const;
