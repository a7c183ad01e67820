/** Where the rows of a batch stand in their sequences. */
import type { Device } from "../backend/device.ts";
import { Tensor } from "../ops/index.ts";

/** One start for all, or each its own positions. */
export type Positions =
  | { readonly start: number; readonly length: number }
  | { readonly each: readonly (readonly number[])[] };

/** The same as ids (batch · length), sequence by sequence. */
export function positionIds(positions: Positions, batch: number, device: Device): Tensor {
  const rows =
    "start" in positions
      ? Array.from({ length: batch * positions.length }, (_, i) => positions.start + (i % positions.length))
      : positions.each.flat();
  return Tensor.from(Uint32Array.from(rows), { device });
}
