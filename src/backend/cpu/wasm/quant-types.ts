/** The block types as kernels know them: GGUF's numbers, sizes and constants. All of it folds away for a known type. */
export const Q4_0: i32 = 2;
export const Q4_1: i32 = 3;
export const Q5_0: i32 = 6;
export const Q5_1: i32 = 7;
export const Q8_0: i32 = 8;
export const Q8_1: i32 = 9;
export const Q2_K: i32 = 10;
export const Q3_K: i32 = 11;
export const Q4_K: i32 = 12;
export const Q5_K: i32 = 13;
export const Q6_K: i32 = 14;
export const Q8_K: i32 = 15;
export const IQ4_NL: i32 = 20;
export const IQ4_XS: i32 = 23;
export const MXFP4: i32 = 39;

/** Super-blocks hold 256 weights in 16 groups with integer scales of their own; other blocks hold 32 with one scale. */
// @ts-ignore: decorator
@inline
export function isSuper(type: i32): bool {
  return (type >= Q2_K && type <= Q8_K) || type == IQ4_XS;
}

/** log2 of the weights per block. */
// @ts-ignore: decorator
@inline
export function blockShift(type: i32): usize {
  return isSuper(type) ? 8 : 5;
}

// @ts-ignore: decorator
@inline
export function blockBytes(type: i32): usize {
  if (type == Q4_0) return 18;
  if (type == Q4_1) return 20;
  if (type == Q5_0) return 22;
  if (type == Q5_1) return 24;
  if (type == Q8_0) return 34;
  if (type == Q8_1) return 36;
  if (type == Q2_K) return 84;
  if (type == Q3_K) return 110;
  if (type == Q4_K) return 144;
  if (type == Q5_K) return 176;
  if (type == Q6_K) return 210;
  if (type == Q8_K) return 292;
  if (type == IQ4_NL) return 18;
  if (type == IQ4_XS) return 136;
  return 17; // MXFP4
}

// @ts-ignore: decorator
@inline
export function rowBytes(type: i32, k: usize): usize {
  return (k >> blockShift(type)) * blockBytes(type);
}

/** Whether weights are scale · q + minimum (for super-blocks: − minimum); otherwise they are scale · (q − offset). */
// @ts-ignore: decorator
@inline
export function hasMin(type: i32): bool {
  return type == Q4_1 || type == Q5_1 || type == Q2_K || type == Q4_K || type == Q5_K;
}

/** What is taken from the unsigned quants. Signed bytes and tables are shifted to be unsigned, too. */
// @ts-ignore: decorator
@inline
export function offset(type: i32): i32 {
  if (type == Q4_0) return 8;
  if (type == Q5_0) return 16;
  if (type == Q3_K) return 4;
  if (type == Q6_K) return 32;
  if (type == MXFP4) return 12;
  if (type == Q8_0 || type == Q8_1 || type == Q8_K || type == IQ4_NL || type == IQ4_XS) return 128;
  return 0;
}
