/** Linear layers of few rows, fused with what is around them, and how many warps and blocks each gets. */
import { type DType, sizeOf } from "../../../core/dtype.ts";
import { type QuantType, quantTypes } from "../../../core/quant-types.ts";
import { matrixUnit, sharedBudget } from "../attention-plan.ts";
import { family, gridFor, type Launch, quantFloats, quantName, quants } from "./family.ts";
import { streamDefines } from "./quantized.ts";

/** The most rows of x that one pass over the weights serves. */
export const LINEAR_ROWS = 8;

/** Rows of x that kernels are made for. */
const batches = ["1", "2", "4", "8"] as const;
type Batch = 1 | 2 | 4 | 8;
const batchFor = (m: number): Batch => (2 ** Math.ceil(Math.log2(m))) as Batch;

export interface LinearShape {
  readonly m: number;
  readonly n: number;
  readonly k: number;
  readonly norm: boolean;
}

export interface LinearPlan<Kernel extends string = string> {
  readonly kernel: Kernel;
  readonly launch: {
    readonly threads: number;
    /** Warps that share the rows of a group. */
    readonly splits: number;
    readonly blocks: number;
    readonly shared_bytes: number;
  };
}

type PlainPlan = LinearPlan<`linear${"" | "_norm"}_${DType}_b${Batch}`>;
type QuantizedPlan = LinearPlan<`linear_${Lowercase<QuantType>}_b${Batch}`>;

interface Device {
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

export function planLinear({ m, n, k, norm }: LinearShape, dtype: DType, device: Device): PlainPlan {
  const threads = LINEAR_BLOCK;
  const vectors = (k * sizeOf(dtype)) / 16;
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
  return { kernel, launch: { threads, splits, blocks: blocksFor(n, threads, splits), shared_bytes: 0 } };
}

/** Quantized weights of a row that a warp takes at a time, and warps of a block at most. */
const MATVEC_CHUNK = 1024;
const MATVEC_WARPS = 8;
/** Blocks that share a multiprocessor, with one row of x and with more. */
const MATVEC_CROWD_OF_ONE = 3;
const MATVEC_CROWD = 2;

/**
 * Rows of quantized weights per warp, and its places for chunks of them: NVIDIA copies to one place while the other is
 * multiplied, AMD goes through registers, of which four rows would take too many.
 */
const shapeFor = (arch: string): { readonly rows: number; readonly places: number } =>
  arch.startsWith("sm_") ? { rows: 4, places: 2 } : { rows: 2, places: 1 };

/** Rounded rows that make up a row of x: weights of eight bits are worth two, while there are few rows. */
export function planesOf(type: QuantType, m: number): number {
  const { size, bytes } = quantTypes[type];
  return bytes >= size && batchFor(m) <= 4 ? 2 : 1;
}

/** As the kernels lay it out: x as bytes with scales and sums, weights of each warp, what warps tell each other. */
function sharedBytes(type: QuantType, batch: number, k: number, warps: number, arch: string): number {
  const { size, bytes } = quantTypes[type];
  const { rows, places } = shapeFor(arch);
  const padded = Math.ceil(k / MATVEC_CHUNK) * MATVEC_CHUNK;
  const stage = 16 * Math.floor(((MATVEC_CHUNK / size) * bytes + 30) / 16);
  const columns = batch * planesOf(type, batch);
  return columns * (padded + padded / 4) + warps * (places * rows * stage + 4 * batch * (rows + 1));
}

/** One entry per shape of weights. */
const plans = new Map<string, QuantizedPlan | null>();

/** Null where x does not fit into shared memory. */
export function planQuantizedLinear(
  shape: LinearShape,
  type: QuantType,
  device: Device,
  budget = sharedBudget(device.arch),
): QuantizedPlan | null {
  const { m, n, k } = shape;
  const key = `${type} ${m} ${n} ${k} ${device.arch} ${device.multiprocessors} ${budget}`;
  let plan = plans.get(key);
  if (plan === undefined) {
    plan = (usesTiles(device.arch, m) ? findTilePlan : findPlan)(shape, type, device, budget);
    plans.set(key, plan);
  }
  return plan;
}

/** Five rows of x and more are multiplied on a matrix unit, where kernels/quant-tile.h knows it. */
const usesTiles = (arch: string, m: number): boolean => m > 4 && matrixUnit(arch, "bf16") === "mma";

/**
 * Whether x is better rounded to bytes once, by a kernel of its own, than by every block: where it has many elements. Blocks
 * on a matrix unit are fewer and fetch weights meanwhile.
 */
export const roundsFirst = (type: QuantType, m: number, k: number, arch: string): boolean =>
  planesOf(type, m) === 1 && m * k >= (usesTiles(arch, m) ? 2 ** 16 : 2 ** 15);

/** Rows per warp are those of the unit. Weights of each that it takes at a time, warps of a block at most, bytes for its chunks. */
const TILE_ROWS = 16;
const TILE_CHUNK = 256;
const TILE_WARPS = 16;
const TILE_STAGES = 12800;

/** Bytes of a warp's chunk in shared memory: an odd number of vectors per row. */
function tileBytes(type: QuantType): number {
  const { size, bytes } = quantTypes[type];
  const align = [16, 4, 2, 1].find((a) => bytes % a === 0)!;
  return TILE_ROWS * 16 * (Math.floor(((TILE_CHUNK / size) * bytes + 31 - align) / 16) | 1);
}

function sharedTileBytes(type: QuantType, k: number, warps: number): number {
  const bytes = tileBytes(type);
  const places = Math.min(4, Math.max(2, Math.floor(TILE_STAGES / bytes)));
  return LINEAR_ROWS * (k + k / 4) + warps * (places * bytes + 4 * LINEAR_ROWS * (TILE_ROWS + 1));
}

/**
 * A block per multiprocessor, which has x once and as many warps as it takes to keep the memory busy. Of the ways to have
 * warps share rows, those count with which no multiprocessor gets more chunks than another, then those with enough warps,
 * then those that go through the fewest rounds of rows.
 */
function findTilePlan(
  { n, k }: LinearShape,
  type: QuantType,
  { multiprocessors }: Device,
  budget: number,
): QuantizedPlan | null {
  const groups = Math.ceil(n / TILE_ROWS);
  const chunks = Math.ceil(k / TILE_CHUNK);
  let best: LinearPlan["launch"] | null = null;
  let least = [Number.POSITIVE_INFINITY, 0, 0];
  for (let splits = 1; splits <= Math.min(chunks, TILE_WARPS); splits *= 2) {
    for (let together = 1; together * splits <= TILE_WARPS; together++) {
      const warps = together * splits;
      const shared_bytes = sharedTileBytes(type, k, warps);
      if (shared_bytes > budget - 512) continue;
      const all = Math.ceil(groups / together);
      const rounds = Math.ceil(all / multiprocessors);
      const cost = [rounds * together * splits * Math.ceil(chunks / splits), -Math.min(warps, 12), rounds];
      const first = cost.findIndex((c, i) => c !== least[i]);
      if (first < 0 || cost[first]! > least[first]!) continue;
      least = cost;
      best = { threads: 32 * warps, splits, blocks: Math.ceil(all / rounds), shared_bytes };
    }
  }
  return best && { kernel: `linear_${quantName(type)}_b8`, launch: best };
}

/**
 * Warps per block and splits: those with which the busiest multiprocessor has the fewest chunks to go through. Each block
 * rounds x by itself, so there are no more blocks than run at once.
 */
function findPlan(
  { m, n, k }: LinearShape,
  type: QuantType,
  { arch, multiprocessors }: Device,
  budget: number,
): QuantizedPlan | null {
  const batch = batchFor(m);
  const groups = Math.ceil(n / shapeFor(arch).rows);
  const chunks = Math.ceil(k / MATVEC_CHUNK);
  const most = (batch === 1 ? MATVEC_CROWD_OF_ONE : MATVEC_CROWD) * multiprocessors;
  // The table of non-linear types is beside it.
  const fits = (warps: number): boolean => sharedBytes(type, batch, k, warps, arch) <= budget - 512;
  const widths = fits(6) ? [MATVEC_WARPS, 7, 6].filter(fits) : [4, 2].filter(fits).slice(0, 1);
  let best: LinearPlan["launch"] | null = null;
  let [fewest, fewestBlocks] = [Number.POSITIVE_INFINITY, 0];
  for (const warps of widths) {
    // Splits need barriers: only where there are too few rows.
    for (const splits of groups < 12 * multiprocessors ? [1, 2, 4] : [1]) {
      if (warps % splits !== 0 || splits > chunks) continue;
      const all = Math.ceil((groups * splits) / warps);
      const rounds = Math.ceil(all / most);
      const blocks = Math.ceil(all / rounds);
      const perMultiprocessor = Math.ceil(blocks / multiprocessors);
      const steps = perMultiprocessor * rounds * warps * Math.ceil(chunks / splits);
      if (steps > fewest || (steps === fewest && perMultiprocessor >= fewestBlocks)) continue;
      [fewest, fewestBlocks] = [steps, perMultiprocessor];
      best = { threads: 32 * warps, splits, blocks, shared_bytes: sharedBytes(type, batch, k, warps, arch) };
    }
  }
  return best && { kernel: `linear_${quantName(type)}_b${batch}`, launch: best };
}

const launch = (s: { readonly blocks: number; readonly threads: number; readonly shared_bytes: number }): Launch => ({
  grid: gridFor(s.blocks, s.threads),
  block: s.threads,
  shared: s.shared_bytes,
});

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
    file: "quant-matvec",
    pattern: "linear_{Q}_b{columns}",
    over: { Q: quants, columns: batches },
    apart: ["columns"],
    args: `x* xs* w* ${epilogue} dtype:u32`,
    plan: "blocks threads shared_bytes",
    defines: (arch) => ({
      ...streamDefines,
      ...{ MATVEC_CHUNK, MATVEC_WARPS, MATVEC_CROWD_OF_ONE, MATVEC_CROWD },
      ...{ MATVEC_ROWS: shapeFor(arch).rows, MATVEC_PLACES: shapeFor(arch).places },
      ...{ TILE_CHUNK, TILE_WARPS, TILE_STAGES },
    }),
    launch,
  }),
] as const;
