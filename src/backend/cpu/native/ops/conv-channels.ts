/** Convolutions whose vectors are output channels: when, and in what pieces. */

import type { Layout } from "../../../../core/layout.ts";
import type { View } from "../../../backend.ts";
import type { ConvParams } from "../../../fused-ops.ts";
import type { CpuBackend } from "../../backend.ts";
import type { Engine } from "../../engine.ts";
import { recording } from "../../recording.ts";
import { addressInside } from "../bounds.ts";
import { kernels } from "../catalogue.ts";
import type { Isa } from "../isa.ts";
import { channelArguments, MOST_OUTPUTS, MOST_ROW_BYTES, RUN } from "../kernels/conv-channels.ts";
import { weightArguments } from "../kernels/conv-weights.ts";
import { guarded } from "../memory.ts";
import type { Native } from "../native.ts";
import { hole, type Job, type JobList } from "../pool.ts";
import { newOffsets } from "./conv-offsets.ts";
import { copyOf } from "./copies.ts";

/** Fewer taps do not pay for turning the results, and fewer outputs not for turning the weights. */
const LEAST_TAPS = 256;
const LEAST_OUTPUTS = 400;
/** What vectors may hold more than there are channels. */
const MOST_WASTE = 1.15;

interface Pieces {
  /** Outputs of an item. */
  readonly columns: number;
  /** Rows of an image that it reads. */
  readonly rows: number;
}

/** All but the addresses of a call: they depend on shapes alone, and finding them out takes as long as a small convolution. */
interface Plan {
  readonly weightBytes: number;
  /** With holes for weights as they are, and turned. */
  readonly pack: JobList;
  /** With holes for the image, the turned weights and the results. */
  readonly product: JobList;
  /** Of the table of taps in the heap. */
  readonly offsets: number;
}
/** Plans by all that they depend on; null where the other tiles are better. */
const plans = new WeakMap<CpuBackend, Map<string, Plan | null>>();
const MOST_PLANS = 64;

/** What was found for weights at their last call, which mostly is what their next one asks for. */
interface Latest {
  /** Weights that came once may be others the next time; those that come again are worth a copy. */
  isAgain: boolean;
  readonly known: Map<string, Plan | null>;
  readonly key: string;
  readonly x: Layout;
  readonly p: ConvParams;
  readonly threads: number;
  readonly plan: Plan | null;
}
const latest = new WeakMap<Layout, Latest>();

/** Of each thread's part: the rest is taken item by item, so that none waits long for another. */
const HEAD = 0.9;
/** Turned weights of the call at hand, if they are no larger. */
const SHARED_BYTES = 4 * 2 ** 20;
let shared: number | undefined;

/** Whether it ran: f32 weights without gaps, rows of f32 without gaps, results at `out`. */
export function convByChannels(
  backend: CpuBackend,
  native: Native,
  x: View,
  w: View,
  p: ConvParams,
  out: number,
): boolean {
  const { engine } = backend;
  // Plans may go when there are many.
  recording()?.refuse("a convolution's offsets are looked up");
  const plan = planOf(backend, native, x.layout, w.layout, p);
  if (!plan) return false;
  const { threads } = engine;
  const pack = (weights: number): void => {
    plan.pack.fill(addressInside(w), weights);
    native.replay(threads, plan.pack);
  };
  const multiply = (weights: number): boolean => {
    plan.product.fill(addressInside(x), weights, out);
    native.replay(threads, plan.product);
    return true;
  };
  if (latest.get(w.layout)!.isAgain) {
    const { offset, shape, numel } = w.layout;
    const [n, { groups }, { lanes }] = [shape[0]!, p, native.isa];
    const of = { type: "conv", offset, n, groups, k: numel / n, lanes } as const;
    const copy = copyOf(w.storage.block, of, plan.weightBytes, pack);
    if (copy !== undefined) return multiply(copy);
  }
  if (plan.weightBytes <= SHARED_BYTES) {
    shared ??= guarded(SHARED_BYTES).address;
    pack(shared);
    return multiply(shared);
  }
  const at = engine.alloc(plan.weightBytes + 64);
  try {
    const weights = Math.ceil((engine.base + at) / 64) * 64;
    pack(weights);
    return multiply(weights);
  } finally {
    engine.release(at);
  }
}

const isSame = (a: readonly number[], b: readonly number[]): boolean =>
  a[0] === b[0] && a[1] === b[1] && a[2] === b[2] && a[3] === b[3];
const isSamePair = (a: readonly [number, number], b: readonly [number, number]): boolean =>
  a[0] === b[0] && a[1] === b[1];

function planOf(backend: CpuBackend, native: Native, x: Layout, w: Layout, p: ConvParams): Plan | null {
  const { engine } = backend;
  const { threads } = engine;
  let known = plans.get(backend);
  if (!known) {
    known = new Map();
    plans.set(backend, known);
  }
  const last = latest.get(w);
  if (
    last?.known === known &&
    last.threads === threads &&
    isSame(last.x.shape, x.shape) &&
    isSame(last.x.strides, x.strides) &&
    isSamePair(last.p.stride, p.stride) &&
    isSamePair(last.p.padding, p.padding) &&
    isSamePair(last.p.dilation, p.dilation) &&
    last.p.groups === p.groups &&
    known.get(last.key) === last.plan
  ) {
    last.isAgain = true;
    return last.plan;
  }
  const { stride, padding, dilation, groups } = p;
  const key = [...x.shape, ...x.strides, ...w.shape, ...stride, ...padding, ...dilation, groups, threads].join();
  let plan = known.get(key);
  if (plan === undefined) {
    if (known.size >= MOST_PLANS) {
      for (const old of known.values()) if (old) engine.release(old.offsets);
      known.clear();
    }
    plan = makePlan(engine, native, x, w.shape, p);
    known.set(key, plan);
  }
  latest.set(w, { isAgain: false, known, key, x, p, threads, plan });
  return plan;
}

function makePlan(engine: Engine, native: Native, x: Layout, w: readonly number[], p: ConvParams): Plan | null {
  const { lanes, bytes } = native.isa;
  const [batch, , height, width] = x.shape as [number, number, number, number];
  const [outs, depth, tall, wide] = w as [number, number, number, number];
  const [top, left] = p.padding;
  const k = depth * tall * wide;
  const perGroup = outs / p.groups;
  const vectors = Math.ceil(perGroup / lanes);
  const outputs = p.size[0] * p.size[1];
  // Where a channel has one tap, the other tiles' vectors lie as well.
  const isWorthwhile = k >= LEAST_TAPS && tall * wide > 1 && outputs >= RUN && batch * outputs >= LEAST_OUTPUTS;
  if (!isWorthwhile || perGroup < lanes || vectors * lanes > MOST_WASTE * perGroup) return null;
  const copies = top > 0 || left > 0;
  const [imageBatch, imageChannel, imageRow] = x.strides.map((stride) => 4 * stride) as [number, number, number];
  const rowBytes = copies ? 4 * (width + 2 * left) : imageRow;
  const pieces = cut(native.isa, p, w, batch, copies ? rowBytes : 0, engine.threads);
  if (!pieces) return null;
  const offsets = newOffsets(engine, w, p.dilation, [1, 1], {
    channel: copies ? pieces.rows * rowBytes : imageChannel,
    row: rowBytes,
    image: 0,
  });
  const weightsGroup = vectors * k * bytes;
  const step = 4 * p.stride[1];
  const rowStep = p.stride[0] * rowBytes;
  const blocks = Math.ceil(outputs / pieces.columns);
  const pack: Job = {
    kernel: native.kernel(kernels.convWeights),
    args: weightArguments.words({
      w: hole(0),
      wRow: 4 * k,
      outs: perGroup,
      k,
      vectors,
      weights: hole(1),
      weightsGroup,
    }),
    total: p.groups * vectors,
    grain: 1,
  };
  const product: Job = {
    kernel: native.kernel(kernels.convChannels),
    args: channelArguments.words({
      image: hole(0),
      imageBatch,
      imageGroup: depth * imageChannel,
      imageChannel,
      imageRow,
      offsets: engine.base + offsets,
      k,
      weights: hole(1),
      weightsGroup,
      out: hole(2),
      outputs,
      width: p.size[1],
      groups: p.groups,
      outs: perGroup,
      columns: pieces.columns,
      blocks,
      step,
      turnOfRow: rowStep - p.size[1] * step,
      rowStep,
      rows: copies ? pieces.rows : 0,
      rowBytes,
      channels: depth,
      height,
      columnsOfImage: width,
      stride: p.stride[0],
      top,
      left: 4 * left,
    }),
    total: batch * p.groups * blocks,
    grain: 1,
    // Most of its part each thread takes at once: what it reads and writes is in its own caches from the call before.
    head: Math.floor((HEAD * batch * p.groups * blocks) / engine.threads),
  };
  return {
    weightBytes: p.groups * weightsGroup,
    offsets,
    pack: native.list(engine.threads, [pack]),
    product: native.list(engine.threads, [product]),
  };
}

/**
 * How many outputs an item has: rows that several items read are copied for each, and the more items there are, the sooner
 * the last thread is done.
 */
function cut(
  isa: Isa,
  { size, stride, dilation, groups }: ConvParams,
  [outs, depth, tall, wide]: readonly number[],
  batch: number,
  copiedBytes: number,
  threads: number,
): Pieces | undefined {
  const [outHeight, width] = size;
  const outputs = outHeight * width;
  const vectors = Math.ceil(outs! / groups / isa.lanes);
  let best: Pieces | undefined;
  let least = Number.POSITIVE_INFINITY;
  for (const columns of candidates(isa, outputs, width)) {
    const blocks = Math.ceil(outputs / columns);
    // Items of whole rows begin where a row does.
    const outRows = columns % width === 0 ? columns / width : Math.floor((columns + width - 2) / width) + 1;
    const rows = (outRows - 1) * stride[0] + (tall! - 1) * dilation[0] + 1;
    if (depth! * rows * copiedBytes > MOST_ROW_BYTES) continue;
    // In steps of the processor: one is two products of vectors, and a line of the cache takes forty to be copied.
    const cost = (columns * vectors * depth! * tall! * wide!) / 2 + (40 * depth! * rows * copiedBytes) / 64;
    const rounds = Math.ceil((batch * groups * blocks) / threads);
    // Threads that do not run alike wait for one item at the end.
    const total = (rounds + (threads > 1 ? 0.5 : 0)) * cost;
    if (total >= least) continue;
    least = total;
    best = { columns, rows };
  }
  return best;
}

/** Numbers of outputs that an item may have: whole rows, or even parts of all. What is left for its last run fills a vector. */
function candidates({ lanes }: Isa, outputs: number, width: number): number[] {
  const found: number[] = [];
  const add = (columns: number) => {
    const rest = columns % RUN;
    if (columns <= outputs && (rest === 0 || rest >= lanes)) found.push(columns);
  };
  for (let columns = width; columns <= MOST_OUTPUTS; columns += width) if (columns >= RUN) add(columns);
  for (let most = RUN; most <= MOST_OUTPUTS; most += RUN) {
    const even = Math.ceil(outputs / Math.ceil(outputs / most));
    add(even);
    add(Math.ceil(even / lanes) * lanes);
    add(most);
  }
  return found;
}
