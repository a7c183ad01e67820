/**
 * What the block types have in common, by type: a kernel is compiled for one type with nothing of the others in it. Weights
 * and bytes per block come from TypeScript where the type is known only at run time.
 */
import { blockSize, MXFP4, Q2_K, Q3_K, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0, Q8_1, Q8_K } from "./abi";

// @inline
export function is<T, U>(): bool {
  return idof<T>() === idof<U>();
}

/** Super-blocks hold 256 weights in groups with integer scales of their own; other blocks hold 32 with one scale. */
// @inline
export function isSuper<T>(): bool {
  return blockSize<T>() === 256;
}

/** How many neighbouring weights share a scale, at least: 16 or 32. */
// @inline
export function groupSize<T>(): usize {
  return is<T, Q2_K>() || is<T, Q3_K>() || is<T, Q6_K>() ? 16 : 32;
}

/** Whether quants are stored as signed bytes. */
// @inline
export function isBytes<T>(): bool {
  return is<T, Q8_0>() || is<T, Q8_1>() || is<T, Q8_K>();
}

/** Whether weights are scale · q + minimum (for super-blocks: − minimum); otherwise they are scale · (q − offset). */
// @inline
export function hasMin<T>(): bool {
  return is<T, Q4_1>() || is<T, Q5_1>() || is<T, Q2_K>() || is<T, Q4_K>() || is<T, Q5_K>();
}

/** log2 of what is taken from the unsigned quants. Signed bytes and tables are shifted to be unsigned, too. */
// @inline
export function offsetShift<T>(): i32 {
  if (is<T, Q3_K>()) return 2;
  if (is<T, Q4_0>()) return 3;
  if (is<T, Q5_0>() || is<T, MXFP4>()) return 4;
  if (is<T, Q6_K>()) return 5;
  return 7; // Q8_0, Q8_1, Q8_K, IQ4_NL, IQ4_XS
}

/** The bytes of n weights in blocks of `size` weights and `bytes` bytes. */
// @inline
export function bytesOf(size: usize, bytes: usize, n: usize): usize {
  return (n / size) * bytes;
}
