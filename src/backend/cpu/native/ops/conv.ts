/** Convolutions of f32 by machine code. */
import type { View } from "../../../backend.ts";
import type { ConvParams } from "../../../fused-ops.ts";
import { Storage } from "../../../storage.ts";
import type { CpuBackend } from "../../backend.ts";
import { addressFor, addressInside } from "../bounds.ts";
import { convArguments, emitConv, emitSpread, spreadArguments } from "../kernels/conv.ts";
import { emitTiles } from "../kernels/tile.ts";
import type { Job } from "../pool.ts";

/** Fewer output channels of a group are no rows for the tile. */
const FEW_OUTPUTS = 3;
/** Multiplications from which on machine code pays, and those of an item. */
const LEAST = 2 ** 18;
const CHUNK = 2 ** 20;

/** Where the inputs of a tap are: bytes from those of the first one. */
interface Images {
  readonly address: number;
  readonly batch: number;
  readonly channel: number;
  readonly row: number;
  /** Bytes from one of the stride's images to the next. */
  readonly image: number;
}

export function conv2d(backend: CpuBackend, x: View, w: View, p: ConvParams): Storage | undefined {
  const [batch, channels, height, width] = x.layout.shape as [number, number, number, number];
  const [outs, depth, kernelHeight, kernelWidth] = w.layout.shape as [number, number, number, number];
  const [outHeight, outWidth] = p.size;
  const n = batch * outs * outHeight * outWidth;
  const k = depth * kernelHeight * kernelWidth;
  const perGroup = outs / p.groups;
  if (x.storage.dtype !== "f32" || perGroup < FEW_OUTPUTS || n * k < LEAST) return undefined;
  const isRow = w.layout.isContiguous() && (x.layout.strides[3] === 1 || width === 1);
  const native = isRow ? backend.native?.narrow : undefined;
  if (!native) return undefined;

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
  const storage = Storage.alloc(backend, "f32", n);
  const spreadAt = isSpread ? engine.alloc(batch * channels * plane) : undefined;
  const tableAt = engine.alloc(4 * k);
  try {
    const from = addressInside(x);
    const images: Images =
      spreadAt === undefined
        ? { address: from, batch: strides[0], channel: strides[1], row: strides[2], image: 0 }
        : { address: engine.base + spreadAt, batch: channels * plane, channel: plane, row: 4 * columnsOfImage, image };
    const table = new Uint32Array(engine.memory.buffer, tableAt, k);
    let at = 0;
    for (let c = 0; c < depth; c++) {
      for (let i = 0; i < kernelHeight; i++) {
        for (let j = 0; j < kernelWidth; j++) {
          const [y, z] = [i * p.dilation[0], j * p.dilation[1]];
          const which = (y % strideRows) * strideColumns + (z % strideColumns);
          const inside = Math.floor(y / strideRows) * images.row + 4 * Math.floor(z / strideColumns);
          table[at++] = c * images.channel + which * images.image + inside;
        }
      }
    }
    const spread: Job = {
      kernel: native.kernel("spread", emitSpread),
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
        left,
        strideRows,
        strideColumns,
      }),
      total: batch * channels,
      grain: 1,
    };
    const rows = Math.max(1, Math.min(outHeight, Math.round(CHUNK / (perGroup * outWidth * k))));
    const blocks = Math.ceil(outHeight / rows);
    const job: Job = {
      kernel: native.kernel("conv", emitConv),
      args: convArguments.words({
        tiles: native.kernel("tiles", emitTiles),
        image: images.address,
        imageBatch: images.batch,
        imageGroup: depth * images.channel,
        imageRow: images.row,
        offsets: engine.base + tableAt,
        w: addressInside(w),
        wRow: 4 * k,
        out: addressFor(storage, n),
        channel: 4 * outHeight * outWidth,
        groups: p.groups,
        outs: perGroup,
        k,
        height: outHeight,
        width: outWidth,
        rows,
        blocks,
      }),
      total: batch * p.groups * blocks,
      grain: 1,
    };
    native.run(engine.threads, ...(isSpread ? [spread] : []), job);
  } finally {
    engine.release(tableAt);
    if (spreadAt !== undefined) engine.release(spreadAt);
  }
  return storage;
}
