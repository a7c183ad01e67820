/**
 * The block types as type arguments, so that a kernel is compiled for one type with nothing of the others in it. ID is
 * GGUF's number; weights and bytes per block come from TypeScript where the type is known only at run time.
 */
export class Q4_0 {
  static readonly ID: i32 = 2;
}
export class Q4_1 {
  static readonly ID: i32 = 3;
}
export class Q5_0 {
  static readonly ID: i32 = 6;
}
export class Q5_1 {
  static readonly ID: i32 = 7;
}
export class Q8_0 {
  static readonly ID: i32 = 8;
}
export class Q8_1 {
  static readonly ID: i32 = 9;
}
export class Q2_K {
  static readonly ID: i32 = 10;
}
export class Q3_K {
  static readonly ID: i32 = 11;
}
export class Q4_K {
  static readonly ID: i32 = 12;
}
export class Q5_K {
  static readonly ID: i32 = 13;
}
export class Q6_K {
  static readonly ID: i32 = 14;
}
export class Q8_K {
  static readonly ID: i32 = 15;
}
export class IQ4_NL {
  static readonly ID: i32 = 20;
}
export class IQ4_XS {
  static readonly ID: i32 = 23;
}
export class MXFP4 {
  static readonly ID: i32 = 39;
}

// @inline
export function is<T, U>(): bool {
  return idof<T>() === idof<U>();
}

/** Super-blocks hold 256 weights in groups with integer scales of their own; other blocks hold 32 with one scale. */
// @inline
export function isSuper<T>(): bool {
  return (
    is<T, Q2_K>() ||
    is<T, Q3_K>() ||
    is<T, Q4_K>() ||
    is<T, Q5_K>() ||
    is<T, Q6_K>() ||
    is<T, Q8_K>() ||
    is<T, IQ4_XS>()
  );
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

// @inline
export function blockBytes<T>(): usize {
  if (is<T, Q4_0>() || is<T, IQ4_NL>()) return 18;
  if (is<T, Q4_1>()) return 20;
  if (is<T, Q5_0>()) return 22;
  if (is<T, Q5_1>()) return 24;
  if (is<T, Q8_0>()) return 34;
  if (is<T, Q8_1>()) return 36;
  if (is<T, Q2_K>()) return 84;
  if (is<T, Q3_K>()) return 110;
  if (is<T, Q4_K>()) return 144;
  if (is<T, Q5_K>()) return 176;
  if (is<T, Q6_K>()) return 210;
  if (is<T, Q8_K>()) return 292;
  if (is<T, IQ4_XS>()) return 136;
  return 17; // MXFP4
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
