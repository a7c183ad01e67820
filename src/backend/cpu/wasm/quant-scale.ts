/** Scales of blocks that are being encoded. */
import { f16ToF32x4, f32ToF16x4 } from "./block";

/** A scale that f16 can hold: beyond its largest value scales saturate, so that no weight becomes infinite. */
// @inline
export function asHalf(value: f32): f32 {
  return max<f32>(-65504, min<f32>(65504, value));
}

/** Stores an f16 and returns what it holds. */
export function storeHalf(to: usize, value: f32): f32 {
  const bits = f32ToF16x4(f32x4.splat(asHalf(value)));
  store<u16>(to, <u16>i32x4.extract_lane(bits, 0));
  return f32x4.extract_lane(f16ToF32x4(bits), 0);
}

// @inline
export function inverseOf(d: f32): f32 {
  return d !== 0 ? 1 / d : 0;
}

/** The element of the largest magnitude, the first of several. */
export function peakOf(x: usize, n: usize): f32 {
  let peak: f32 = 0;
  for (const end = x + (n << 2); x < end; x += 4) if (abs(load<f32>(x)) > abs(peak)) peak = load<f32>(x);
  return peak;
}
