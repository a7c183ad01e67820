/** Convolutions whose vectors are output channels: when, and in what pieces. */
import type { View } from "../../../backend.ts";
import type { ConvParams } from "../../../fused-ops.ts";
import type { CpuBackend } from "../../backend.ts";
import { addressInside } from "../bounds.ts";
import type { Isa } from "../isa.ts";
import {
  channelArguments,
  channelVectors,
  emitConvChannels,
  emitPackWeights,
  MOST_OUTPUTS,
  MOST_ROW_BYTES,
  tileOutputs,
  weightArguments,
} from "../kernels/conv-channels.ts";
import type { Native } from "../native.ts";
import { offsetsOf } from "./conv-offsets.ts";

/** Fewer taps do not pay for turning the results, and fewer outputs not for turning the weights. */
const LEAST_TAPS = 256;
const LEAST_OUTPUTS = 400;
/** Outputs of an item, in steps of which the best number is looked for. */
const RUN = 48;
/** What vectors may hold more than there are channels. */
const MOST_WASTE = 1.15;

interface Pieces {
  /** Outputs of an item. */
  readonly columns: number;
  /** Rows of an image that it reads. */
  readonly rows: number;
}

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
  const { lanes, bytes } = native.isa;
  const [batch, , height, width] = x.layout.shape as [number, number, number, number];
  const [outs, depth] = w.layout.shape as [number, number];
  const [top, left] = p.padding;
  const k = w.layout.numel / outs;
  const perGroup = outs / p.groups;
  const vectors = Math.ceil(perGroup / lanes);
  const outputs = p.size[0] * p.size[1];
  if (
    perGroup < lanes ||
    vectors * lanes > MOST_WASTE * perGroup ||
    k < LEAST_TAPS ||
    outputs < RUN ||
    batch * outputs < LEAST_OUTPUTS
  )
    return false;
  const copies = top > 0 || left > 0;
  const [imageBatch, imageChannel, imageRow] = x.layout.strides.map((stride) => 4 * stride) as [number, number, number];
  const rowBytes = copies ? 4 * (width + 2 * left) : imageRow;
  const pieces = cut(native.isa, p, w.layout.shape, batch, copies ? rowBytes : 0, engine.threads);
  if (!pieces) return false;
  const channel = copies ? pieces.rows * rowBytes : imageChannel;
  const weightsGroup = vectors * k * bytes;
  const at = engine.alloc(p.groups * weightsGroup + 64);
  try {
    const weights = Math.ceil((engine.base + at) / 64) * 64;
    const step = 4 * p.stride[1];
    const rowStep = p.stride[0] * rowBytes;
    const blocks = Math.ceil(outputs / pieces.columns);
    native.run(
      engine.threads,
      {
        kernel: native.kernel("conv weights", emitPackWeights),
        args: weightArguments.words({
          w: addressInside(w),
          wRow: 4 * k,
          outs: perGroup,
          k,
          vectors,
          weights,
          weightsGroup,
        }),
        total: p.groups * vectors,
        grain: 1,
      },
      {
        kernel: native.kernel("conv channels", emitConvChannels),
        args: channelArguments.words({
          image: addressInside(x),
          imageBatch,
          imageGroup: depth * imageChannel,
          imageChannel,
          imageRow,
          offsets:
            engine.base + offsetsOf(engine, w.layout.shape, p.dilation, [1, 1], { channel, row: rowBytes, image: 0 }),
          k,
          weights,
          weightsGroup,
          out,
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
      },
    );
  } finally {
    engine.release(at);
  }
  return true;
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
  const tile = tileOutputs(isa, Math.min(vectors, channelVectors(isa)));
  let best: Pieces | undefined;
  let least = Number.POSITIVE_INFINITY;
  for (let most = RUN; most <= MOST_OUTPUTS; most += RUN) {
    const blocks = Math.ceil(outputs / most);
    const columns = Math.max(RUN, Math.ceil(outputs / blocks));
    const outRows = Math.floor((columns + width - 2) / width) + 1;
    const rows = (outRows - 1) * stride[0] + (tall! - 1) * dilation[0] + 1;
    if (depth! * rows * copiedBytes > MOST_ROW_BYTES) break;
    // In steps of the processor: two products of vectors, or about a vector copied.
    const copying = copiedBytes === 0 ? 0 : depth! * rows * (copiedBytes / isa.bytes + 4);
    const cost = (Math.ceil(columns / tile) * tile * vectors * depth! * tall! * wide!) / 2 + copying;
    const rounds = Math.ceil((batch * groups * blocks) / threads);
    // Threads that do not run alike wait for one item at the end.
    const total = (rounds + (threads > 1 ? 0.5 : 0)) * cost;
    if (total >= least) continue;
    least = total;
    best = { columns, rows };
  }
  return best;
}
