/** Maps by which Hopper's copy engine finds boxes of a matrix (cuTensorMapEncodeTiled). Drivers before CUDA 12 have none. */
import type { Boxes } from "../driver.ts";
import type { Library } from "../library.ts";
import type { Vendor } from "../vendor.ts";

const encode =
  "int cuTensorMapEncodeTiled(void *map, int type, unsigned int rank, void *address, void *sizes, void *strides, void *box, void *steps, int interleave, int swizzle, int promotion, int fill)";
// CU_TENSOR_MAP_DATA_TYPE_UINT32, …_INTERLEAVE_NONE, …_SWIZZLE_NONE, …_L2_PROMOTION_L2_128B, …_FLOAT_OOB_FILL_NONE
const words = 2;
const asItLies = 0;
const promotion = 2;
const zeros = 0;

/** A piece's words, rows of each half, halves, pieces: in this order they lie in shared memory, the first side by side. */
export function boxMaps(library: Library): Vendor["boxMap"] {
  if (!library.has("cuTensorMapEncodeTiled")) return null;
  const call = library.func(encode);
  return (to: bigint, b: Boxes) => {
    const row = b.pieces * b.pieceBytes;
    const sizes = [b.pieceBytes / 4, b.rows / b.halves, b.halves, b.pieces];
    const strides = [row, (b.rows / b.halves) * row, b.pieceBytes];
    const box = [b.pieceBytes / 4, b.boxRows, b.halves, b.boxPieces];
    const [long, far] = [sizes, strides].map((list) => BigUint64Array.from(list, BigInt));
    const steps = Uint32Array.from([1, 1, 1, 1]);
    return call(
      ...([to, words, 4, BigInt(b.at), long!, far!, Uint32Array.from(box), steps] as const),
      ...([asItLies, asItLies, promotion, zeros] as const),
    );
  };
}
