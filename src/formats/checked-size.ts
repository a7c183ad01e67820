import type { Shape } from "../core/layout.ts";

/**
 * `each` per element, times the elements of a shape that a file claims; NaN where that is no safe integer. Dims beside
 * a 0 count, too: a shape such as [2^52, 2^52, 0] is empty, but its strides cannot be computed.
 */
export function checkedSize(shape: Shape, each: number): number {
  const size = shape.reduce((product, d) => product * (d || 1), each);
  if (!Number.isSafeInteger(size)) return Number.NaN;
  return shape.includes(0) ? 0 : size;
}
