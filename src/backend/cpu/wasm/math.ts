/** Four-lane and scalar functions in f32 and f64. Errors are a few units in the last place; NaN propagates. */

/** a · b + c: fused where the engine has relaxed SIMD, two roundings elsewhere. */
// @ts-ignore: decorator
@inline
export function madd(a: v128, b: v128, c: v128): v128 {
  // @ts-ignore: RELAXED is a build constant
  return RELAXED ? f32x4.relaxed_madd(a, b, c) : f32x4.add(f32x4.mul(a, b), c);
}

/** e^x: x = n·ln 2 + r with |r| ≤ ln 2 / 2, a Taylor polynomial for e^r, then 2^n in two factors for subnormal results. */
// @ts-ignore: decorator
@inline
export function exp4(x: v128): v128 {
  const clamped = f32x4.min(f32x4.max(x, f32x4.splat(-104.5)), f32x4.splat(89.0));
  const n = f32x4.nearest(f32x4.mul(clamped, f32x4.splat(1.44269504)));
  let r = madd(n, f32x4.splat(-0.693359375), clamped);
  r = madd(n, f32x4.splat(2.12194440e-4), r);
  let p = f32x4.splat(1.0 / 5040.0);
  p = madd(p, r, f32x4.splat(1.0 / 720.0));
  p = madd(p, r, f32x4.splat(1.0 / 120.0));
  p = madd(p, r, f32x4.splat(1.0 / 24.0));
  p = madd(p, r, f32x4.splat(1.0 / 6.0));
  p = madd(p, r, f32x4.splat(0.5));
  p = madd(p, r, f32x4.splat(1.0));
  p = madd(p, r, f32x4.splat(1.0));
  const i = i32x4.trunc_sat_f32x4_s(n);
  const half = i32x4.shr_s(i, 1);
  const a = i32x4.shl(i32x4.add(half, i32x4.splat(127)), 23);
  const b = i32x4.shl(i32x4.add(i32x4.sub(i, half), i32x4.splat(127)), 23);
  return f32x4.mul(f32x4.mul(p, a), b);
}
