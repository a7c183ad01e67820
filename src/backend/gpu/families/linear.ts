/** Linear layers of few rows, fused with what is around them, and how many warps and blocks each gets. */
import { type DType, sizeOf } from "../../../core/dtype.ts";
import { type QuantType, quantTypes } from "../../../core/quant-types.ts";
import { sharedBudget } from "../attention-plan.ts";
import { type Family, type Launch, MAX_GRID, quantFloats, quants, type Sizes } from "./family.ts";

/** The most rows of x that one pass over the weights serves. */
export const LINEAR_ROWS = 8;

/** Rows of x that kernels are made for. */
const batches = ["1", "2", "4", "8"] as const;
const batchFor = (m: number): number => 2 ** Math.ceil(Math.log2(m));

export interface LinearShape {
  readonly m: number;
  readonly n: number;
  readonly k: number;
  readonly norm: boolean;
}

export interface LinearPlan {
  readonly kernel: string;
  readonly launch: {
    readonly threads: number;
    /** Warps that share the rows of a group. */
    readonly splits: number;
    readonly blocks: number;
    readonly shared_bytes: number;
  };
}

interface Device {
  readonly arch: string;
  readonly multiprocessors: number;
}

/** Rows of w per warp, in both kinds of kernels. */
const ROWS = 4;

/** Warps that keep a multiprocessor's loads in flight. */
const WARPS = 24;

/** Blocks for all groups of rows, `splits` warps each. */
const blocksFor = (n: number, threads: number, splits: number): number =>
  Math.ceil((Math.ceil(n / ROWS) * splits * 32) / threads);

export function planLinear({ m, n, k, norm }: LinearShape, dtype: DType, device: Device): LinearPlan {
  const threads = 256;
  const vectors = (k * sizeOf(dtype)) / 16;
  // Fewer rows than warps that there should be: several share a row, as long as each lane has a vector of it.
  let splits = 1;
  while (
    splits < threads / 32 &&
    Math.ceil(n / ROWS) * splits < WARPS * device.multiprocessors &&
    vectors >= 64 * splits
  ) {
    splits *= 2;
  }
  const kernel = `linear_${norm ? "norm_" : ""}${dtype}_b${batchFor(m)}`;
  return { kernel, launch: { threads, splits, blocks: blocksFor(n, threads, splits), shared_bytes: 0 } };
}

/** Quantized weights of a row that a warp takes at a time. */
const CHUNK = 1024;

/** Places of each warp for chunks: NVIDIA copies to one while the other is multiplied, AMD goes through registers. */
const placesFor = (arch: string): number => (arch.startsWith("sm_") ? 2 : 1);

/** As the kernels lay it out: x as bytes with scales and sums, weights of each warp, what warps tell each other. */
function sharedBytes(type: QuantType, batch: number, k: number, warps: number, places: number): number {
  const { size, bytes } = quantTypes[type];
  const padded = Math.ceil(k / CHUNK) * CHUNK;
  const stage = 16 * Math.floor(((CHUNK / size) * bytes + 30) / 16);
  return batch * (padded + padded / 4) + warps * places * ROWS * stage + 4 * (warps * batch * (ROWS + 1) + batch);
}

/** Null where x does not fit into shared memory. */
export function planQuantizedLinear({ m, n, k }: LinearShape, type: QuantType, device: Device): LinearPlan | null {
  const batch = batchFor(m);
  const places = placesFor(device.arch);
  // The table of non-linear types is beside it.
  const budget = sharedBudget(device.arch) - 512;
  const threads = [256, 128, 64].find((t) => sharedBytes(type, batch, k, t / 32, places) <= budget);
  if (threads === undefined) return null;
  const splits = Math.min(threads / 32, k <= 2 * CHUNK ? 2 : 4);
  const perMultiprocessor = batch === 1 ? 3 : 2;
  const blocks = Math.min(blocksFor(n, threads, splits), (perMultiprocessor * device.multiprocessors * 256) / threads);
  const shared_bytes = sharedBytes(type, batch, k, threads / 32, places);
  return { kernel: `linear_${type.toLowerCase()}_b${batch}`, launch: { threads, splits, blocks, shared_bytes } };
}

const launch = (s: Sizes): Launch => ({
  grid: Math.max(1, Math.min(MAX_GRID, s.blocks!)),
  block: s.threads!,
  shared: s.shared_bytes!,
});

export const linear: readonly Family[] = [
  {
    file: "linear",
    pattern: "linear{norm}_{T}_b{columns}",
    over: { norm: ["", "_norm"], T: quantFloats, columns: batches },
    args: "n k w* x* alpha* eps:f64 bias* residual* y* batch:u32 glu:u32 splits:u32",
    launch,
  },
  {
    file: "quant-matvec",
    pattern: "linear_{Q}_b{columns}",
    over: { Q: quants, columns: batches },
    args: "n k w* x* xs* alpha* eps:f64 bias* residual* y* batch:u32 glu:u32 splits:u32 dtype:u32",
    launch,
  },
];
