/**
 * MXFP4 as safetensors hold it, with blocks and scales in two tensors, in GGUF's order: a scale before the 16 bytes of its
 * block, of which byte j holds the weights j and j + 16 instead of 2j and 2j + 1.
 */
const BLOCK = 16;

/** `blocks` of 16 bytes and a scale for each, in rows of `perRow`; `rowAt` says which of them comes to a place. */
export function packMxfp4(
  blocks: Uint8Array,
  scales: Uint8Array,
  perRow: number,
  rowAt: (place: number) => number,
): Uint8Array {
  const out = new Uint8Array(scales.length * (BLOCK + 1));
  const rows = scales.length / Math.max(perRow, 1);
  let to = 0;
  for (let place = 0; place < rows; place++) {
    const first = rowAt(place) * perRow;
    for (let block = first; block < first + perRow; block++) {
      out[to++] = scales[block]!;
      const from = block * BLOCK;
      for (let i = from; i < from + BLOCK / 2; i++) {
        const low = blocks[i]!;
        const high = blocks[i + BLOCK / 2]!;
        out[to++] = (low & 15) | ((high & 15) << 4);
        out[to++] = (low >> 4) | (high & 0xf0);
      }
    }
  }
  return out;
}
