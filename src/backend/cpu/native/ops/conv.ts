/** Convolutions by machine code: of f32, and what is narrower is widened before and rounded after. */

import { Layout } from "../../../../core/layout.ts";
import type { View } from "../../../backend.ts";
import type { ConvParams } from "../../../fused-ops.ts";
import { Storage } from "../../../storage.ts";
import type { CpuBackend } from "../../backend.ts";
import { addressFor, addressInside } from "../bounds.ts";
import { kernels } from "../catalogue.ts";
import { CHANNELS, convArguments, MOST_PANELS, readsImage, spreadArguments } from "../kernels/conv.ts";
import { tileShape } from "../kernels/tile.ts";
import type { Native } from "../native.ts";
import type { Job } from "../pool.ts";
import { isFloatType } from "../simd.ts";
import { convByChannels } from "./conv-channels.ts";
import { offsetsOf, type TapStrides } from "./conv-offsets.ts";
import type { ConvCall } from "./conv-plans.ts";
import { convByWinograd, imageOf } from "./conv-winograd.ts";

/** Fewer output channels of a group are no rows for the tile. */
const FEW_OUTPUTS = 3;
/** Multiplications from which on machine code pays, and those of an item. */
const LEAST = 2 ** 18;
const CHUNK = 2 ** 20;

/** Where the inputs of a tap are: bytes from those of the first one. */
interface Images extends TapStrides {
  readonly address: number;
  readonly batch: number;
}

export function conv2d(backend: CpuBackend, x: View, w: View, p: ConvParams): Storage | undefined {
  const { dtype } = x.storage;
  if (dtype === "f32") return ofFloats(backend, x, w, p);
  if (!isFloatType(dtype) || !backend.native || !isWorthwhile(w, p, x.layout.shape[0]!)) return undefined;
  const widened = [x, w].map((view): View => {
    return { storage: backend.cast(view, "f32"), layout: Layout.contiguous(view.layout.shape) };
  }) as [View, View];
  const result = ofFloats(backend, ...widened, p)!;
  try {
    return backend.cast({ storage: result, layout: Layout.contiguous([result.length]) }, dtype);
  } finally {
    for (const storage of [result, ...widened.map((view) => view.storage)]) storage.discard();
  }
}

/** Whether there are enough output channels for the tile, and enough to do. */
function isWorthwhile(w: View, { size, groups }: ConvParams, batch: number): boolean {
  return w.layout.shape[0]! / groups >= FEW_OUTPUTS && batch * w.layout.numel * size[0] * size[1] >= LEAST;
}

function ofFloats(backend: CpuBackend, x: View, w: View, p: ConvParams): Storage | undefined {
  if (!isWorthwhile(w, p, x.layout.shape[0]!)) return undefined;
  const isRow = w.layout.isContiguous() && (x.layout.strides[3] === 1 || x.layout.shape[3] === 1);
  const { native } = backend;
  if (!native || !isRow) return undefined;

  const n = x.layout.shape[0]! * w.layout.shape[0]! * p.size[0] * p.size[1];
  const storage = Storage.alloc(backend, "f32", n);
  const call: ConvCall = { x, w, p, out: addressFor(storage, n) };
  const odd = convByWinograd(backend, native, call);
  if (odd === undefined) plainly(backend, native, call);
  else {
    const bytes = (4 * n) / x.layout.shape[0]!;
    for (const i of odd) plainly(backend, native, { ...call, x: imageOf(x, i), out: call.out + i * bytes });
  }
  return storage;
}

/** As the sums that a convolution is: each output a chain of fused multiply-adds in the order of its taps. */
function plainly(backend: CpuBackend, native: Native, call: ConvCall): void {
  if (convByChannels(backend, native, call)) return;
  const { x, w, p, out } = call;
  const [batch, channels, height, width] = x.layout.shape as [number, number, number, number];
  const [outs, depth] = w.layout.shape as [number, number];
  const [outHeight, outWidth] = p.size;
  const k = w.layout.numel / outs;
  const perGroup = outs / p.groups;
  const { engine } = backend;
  const [strideRows, strideColumns] = p.stride;
  const [top, left] = p.padding;
  const isSpread = strideRows > 1 || strideColumns > 1 || top > 0 || left > 0;
  const [rowsOfImage, columnsOfImage] = [
    Math.ceil((height + 2 * top) / strideRows),
    Math.ceil((width + 2 * left) / strideColumns),
  ];
  const image = 4 * rowsOfImage * columnsOfImage;
  const plane = Math.ceil((image * strideRows * strideColumns) / 64) * 64;
  const strides = x.layout.strides.map((stride) => 4 * stride) as [number, number, number, number];
  const spreadAt = isSpread ? engine.alloc(batch * channels * plane) : undefined;
  try {
    const from = addressInside(x);
    const images: Images =
      spreadAt === undefined
        ? { address: from, batch: strides[0], channel: strides[1], row: strides[2], image: 0 }
        : { address: engine.base + spreadAt, batch: channels * plane, channel: plane, row: 4 * columnsOfImage, image };
    const spread: Job = {
      kernel: native.kernel(kernels.spread),
      args: spreadArguments.words({
        x: from,
        xBatch: strides[0],
        xChannel: strides[1],
        xRow: strides[2],
        channels,
        height,
        width,
        to: images.address,
        plane,
        image,
        imageRow: images.row,
        top,
        left: 4 * Math.floor(left / strideColumns),
        leftImage: left % strideColumns,
        strideRows,
        strideColumns,
      }),
      total: batch * channels,
      grain: 1,
    };
    const { columns: panel } = tileShape(native.isa);
    const outputs = outHeight * outWidth;
    // Panels are used at once, but by many channels in turn.
    const isInPlace = readsImage(native.isa, outWidth);
    const columns = panel * (perGroup > CHANNELS && !isInPlace ? MOST_PANELS : 1);
    const blocks = Math.ceil(outputs / columns);
    const job: Job = {
      kernel: native.kernel(isInPlace ? kernels.convInPlace : kernels.conv),
      args: convArguments.words({
        tiles: native.kernel(isInPlace ? kernels.convTiles : kernels.tiles()),
        image: images.address,
        imageBatch: images.batch,
        imageGroup: depth * images.channel,
        imageRow: images.row,
        offsets: engine.base + offsetsOf(engine, w.layout.shape, p.dilation, p.stride, images),
        w: addressInside(w),
        wRow: 4 * k,
        out,
        outputs,
        width: outWidth,
        groups: p.groups,
        outs: perGroup,
        k,
        columns,
        blocks,
      }),
      total: batch * p.groups * blocks,
      grain: Math.max(1, Math.round(CHUNK / (perGroup * columns * k))),
    };
    native.run(engine.threads, ...(isSpread ? [spread] : []), job);
  } finally {
    if (spreadAt !== undefined) engine.release(spreadAt);
  }
}
