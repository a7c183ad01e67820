/** NumPy's npy files: one array each. */
import { sizeOf } from "../../core/dtype.ts";
import { fail } from "../../core/errors.ts";
import { formatShape } from "../../core/layout.ts";
import { Tensor } from "../../ops/index.ts";
import { writeAtomically } from "../atomic-file.ts";
import { BinaryFile } from "../binary-file.ts";
import { checkedSize } from "../checked-size.ts";
import type { ReadOptions } from "../read-options.ts";
import { formatNpyHeader, parseNpyHeader } from "./header.ts";

export interface ParseNpyOptions {
  readonly device?: ReadOptions["device"];
  /** What error messages call the bytes. */
  readonly source?: string | undefined;
}

/** The array in the bytes of an npy file. Booleans become u8; big-endian and Fortran-order arrays are converted. */
export function parseNpy(bytes: Uint8Array, { device, source = "npy data" }: ParseNpyOptions = {}): Tensor {
  const file = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const { dtype, bigEndian, fortranOrder, shape, dataStart } = parseNpyHeader(file, source);
  const need = checkedSize(shape, sizeOf(dtype));
  const found = file.length - dataStart;
  if (need !== found) {
    const claim = Number.isNaN(need) ? "is too large" : `needs ${need}`;
    fail(
      "InvalidFile",
      `${source}: ${found} bytes follow the npy header, but shape ${formatShape(shape)} of ${dtype} ${claim}`,
    );
  }
  const data = file.subarray(dataStart);
  const elements = bigEndian ? swapBytes(data, sizeOf(dtype)) : data;
  if (!fortranOrder || shape.length < 2) return Tensor.fromBytes(elements, shape, dtype, device);
  // The same bytes are the transposed array in row-major order.
  using transposed = Tensor.fromBytes(elements, shape.toReversed(), dtype, device);
  using view = transposed.permute(shape.map((_, i) => i).reverse());
  return view.contiguous();
}

/** A copy with the bytes of each element reversed. */
function swapBytes(data: Buffer, size: number): Buffer {
  const copy = Buffer.from(data);
  if (size === 2) return copy.swap16();
  if (size === 4) return copy.swap32();
  return size === 8 ? copy.swap64() : copy;
}

export async function loadNpy(path: string, { device, signal }: ReadOptions = {}): Promise<Tensor> {
  await using file = await BinaryFile.open(path);
  return parseNpy(await file.read(0, file.size, signal), { device, source: path });
}

export async function formatNpy(tensor: Tensor): Promise<Uint8Array> {
  return Buffer.concat([formatNpyHeader(tensor.dtype, tensor.shape), await tensor.bytes()]);
}

export async function saveNpy(path: string, tensor: Tensor): Promise<void> {
  const header = formatNpyHeader(tensor.dtype, tensor.shape);
  await writeAtomically(path, async (handle) => {
    await handle.writeFile(header);
    await handle.writeFile(await tensor.bytes());
  });
}
