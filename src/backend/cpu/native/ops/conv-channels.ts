/** Convolutions whose vectors are output channels: when, and in what pieces. */

import type { Layout } from "../../../../core/layout.ts";
import type { ConvParams } from "../../../fused-ops.ts";
import type { CpuBackend } from "../../backend.ts";
import type { Engine } from "../../engine.ts";
import { kernels } from "../catalogue.ts";
import type { Isa } from "../isa.ts";
import { channelArguments, MOST_OUTPUTS, MOST_ROW_BYTES, RUN } from "../kernels/conv-channels.ts";
import { weightArguments } from "../kernels/conv-weights.ts";
import type { Native } from "../native.ts";
import { hole, type Job } from "../pool.ts";
import { newOffsets } from "./conv-offsets.ts";
import { type ConvCall, convByPlan, type Plan } from "./conv-plans.ts";

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

/** Of each thread's part: the rest is taken item by item, so that none waits long for another. */
const HEAD = 0.9;
/** Whether it ran: f32 weights without gaps, rows of f32 without gaps, results at `out`. */
export const convByChannels = (backend: CpuBackend, native: Native, call: ConvCall): boolean =>
  convByPlan(backend, native, call, "conv", makePlan) !== null;

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
    memory: offsets,
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
