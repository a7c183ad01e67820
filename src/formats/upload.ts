/** The way of bytes from a file to a device: in pieces, so that only there is a tensor ever whole. */
import type { Device } from "../backend/device.ts";
import type { DType } from "../core/dtype.ts";
import type { Shape } from "../core/layout.ts";
import { Tensor } from "../ops/index.ts";
import type { ByteRange } from "./read-options.ts";

/** How much of a tensor is in JavaScript's memory at once. */
const CHUNK_BYTES = 16 * 2 ** 20;

/** What `read` gives for a range of bytes, in pieces of whole units. */
export async function* readChunks(
  read: (range: ByteRange) => Promise<Uint8Array>,
  { start, end }: ByteRange,
  unit = 1,
): AsyncGenerator<Uint8Array> {
  const step = Math.max(Math.floor(CHUNK_BYTES / unit), 1) * unit;
  for (let at = start; at < end; at += step) yield await read({ start: at, end: Math.min(at + step, end) });
}

/** Puts pieces one behind the other into a contiguous tensor, from byte `at` on; says where the last one ends. */
export async function upload(target: Tensor, pieces: AsyncIterable<Uint8Array>, at = 0): Promise<number> {
  let to = at;
  for await (const piece of pieces) {
    target.storage.write(to, piece);
    to += piece.byteLength;
  }
  return to;
}

/** A tensor of such pieces; where one fails, it is freed. */
export async function uploaded(
  pieces: AsyncIterable<Uint8Array>,
  shape: Shape,
  dtype: DType,
  device: Device | string | undefined,
): Promise<Tensor> {
  const tensor = Tensor.empty(shape, { dtype, device: device ?? "cpu" });
  try {
    await upload(tensor, pieces);
  } catch (error) {
    tensor.dispose();
    throw error;
  }
  return tensor;
}
