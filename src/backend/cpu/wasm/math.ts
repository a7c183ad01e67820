/**
 * Four-lane and scalar functions in f32 and f64. Errors are a few units in the last place; NaN propagates.
 * The polynomials are Chebyshev fits of the stated quotient on the stated interval, rounded to f32.
 */

/** a · b + c: fused where the engine has relaxed SIMD, two roundings elsewhere. */
// @inline
export function madd(a: v128, b: v128, c: v128): v128 {
  return RELAXED ? f32x4.relaxed_madd(a, b, c) : f32x4.add(f32x4.mul(a, b), c);
}

// @inline
function abs4(x: v128): v128 {
  return v128.and(x, i32x4.splat(0x7fffffff));
}
// @inline
function copySign4(magnitude: v128, sign: v128): v128 {
  return v128.bitselect(sign, magnitude, i32x4.splat(0x80000000));
}

// ---- exponentials ----

/** 1.5 · 2^23: adding it rounds to an integer and leaves that integer in the low mantissa bits. */
const ROUNDER: f32 = 12582912.0;

/** x/ln 2 rounded to an integer, as the low bits of an f32. */
// @inline
function octaves4(x: v128): v128 {
  return madd(x, f32x4.splat(1.44269504), f32x4.splat(ROUNDER));
}
/** x − n·ln 2; the high part of ln 2 has 15 bits, so that its product with n is exact. */
// @inline
function reduced4(x: v128, n: v128): v128 {
  return madd(n, f32x4.splat(-1.42860682e-6), madd(n, f32x4.splat(-0.693145751953125), x));
}
/** P with e^r = 1 + r + r²·P(r) for |r| ≤ ln 2 / 2, in pairs: their chain is half as long as Horner's. */
// @inline
function expSeries4(r: v128, rr: v128): v128 {
  const low = madd(f32x4.splat(0.166665211), r, f32x4.splat(0.49999994));
  const high = madd(f32x4.splat(0.00836874545), r, f32x4.splat(0.041668389));
  return madd(madd(f32x4.splat(0.00138145406), rr, high), rr, low);
}
/** e^r − 1 and e^r. */
// @inline
function expm1Near0(r: v128): v128 {
  const rr = f32x4.mul(r, r);
  return madd(expSeries4(r, rr), rr, r);
}
// @inline
function expNear0(r: v128): v128 {
  const rr = f32x4.mul(r, r);
  return madd(expSeries4(r, rr), rr, f32x4.add(r, f32x4.splat(1.0)));
}

/** Outside these bounds e^x is 0 or infinite. */
// @inline
function clampExponent4(x: v128): v128 {
  return f32x4.pmin(f32x4.pmax(x, f32x4.splat(-104.5)), f32x4.splat(89.0));
}
/** e^r·2^n from n + ROUNDER; 2^n goes in as two factors, so that subnormal results round once. */
// @inline
function expScaled4(r: v128, shifted: v128): v128 {
  const p = expNear0(r);
  // n with the bias of both factors, which halving shares out.
  const i = i32x4.sub(shifted, i32x4.splat(0x4b400000 - 254));
  const half = i32x4.shr_s(i, 1);
  return f32x4.mul(f32x4.mul(p, i32x4.shl(half, 23)), i32x4.shl(i32x4.sub(i, half), 23));
}
// @inline
export function exp4(x: v128): v128 {
  const clamped = clampExponent4(x);
  const shifted = octaves4(clamped);
  return expScaled4(reduced4(clamped, f32x4.sub(shifted, f32x4.splat(ROUNDER))), shifted);
}
/** e^x for x ≤ 0 in fewer steps; results below the smallest normal number are 0. */
// @inline
export function expNegative4(x: v128): v128 {
  // At the bound n is −127, whose bits as an exponent are those of 0.
  const clamped = f32x4.pmax(x, f32x4.splat(-88.02969));
  const shifted = octaves4(clamped);
  const p = expNear0(reduced4(clamped, f32x4.sub(shifted, f32x4.splat(ROUNDER))));
  return f32x4.mul(p, i32x4.shl(i32x4.add(shifted, i32x4.splat(127)), 23));
}
/** Constants of `expShiftedPair`, in the order of their use. */
const PAIR: usize = memory.data<f32>([
  -88.02969,
  1.44269504,
  12582912.0 + 127,
  -0.693145751953125,
  -1.42860682e-6,
  0.00836874545,
  0.041668389,
  0.00138145406,
  0.166665211,
  0.49999994,
  1.0,
]);
// @inline
function pairConstant(i: usize): v128 {
  return v128.load_splat<f32>(PAIR + (i << 2));
}
/**
 * Stores e^(x − most) of two vectors with x ≤ most, as `expNegative4` computes it, and returns their sum. Both take each
 * step together, so that a constant is loaded once for the two: loads limit a loop over `expNegative4`.
 */
// @inline
export function expShiftedPair(from: usize, to: usize, most: v128): v128 {
  let k = pairConstant(0);
  const x = f32x4.pmax(f32x4.sub(v128.load(from), most), k);
  const y = f32x4.pmax(f32x4.sub(v128.load(from, 16), most), k);
  k = pairConstant(1);
  // The bias of exponents is in the rounder: the low bits of the shifted values are those of 2^n already.
  let l = pairConstant(2);
  const p = madd(x, k, l);
  const q = madd(y, k, l);
  let r = f32x4.sub(p, l);
  let s = f32x4.sub(q, l);
  k = pairConstant(3);
  l = pairConstant(4);
  r = madd(r, l, madd(r, k, x));
  s = madd(s, l, madd(s, k, y));
  const rr = f32x4.mul(r, r);
  const ss = f32x4.mul(s, s);
  k = pairConstant(5);
  l = pairConstant(6);
  let a = madd(k, r, l);
  let b = madd(k, s, l);
  k = pairConstant(7);
  a = madd(k, rr, a);
  b = madd(k, ss, b);
  k = pairConstant(8);
  l = pairConstant(9);
  a = madd(a, rr, madd(k, r, l));
  b = madd(b, ss, madd(k, s, l));
  k = pairConstant(10);
  a = f32x4.mul(madd(a, rr, f32x4.add(r, k)), i32x4.shl(p, 23));
  b = f32x4.mul(madd(b, ss, f32x4.add(s, k)), i32x4.shl(q, 23));
  v128.store(to, a);
  v128.store(to, b, 16);
  return f32x4.add(a, b);
}
/** e^(x + low) for a tiny correction `low`. */
// @inline
function expSum4(x: v128, low: v128): v128 {
  const clamped = clampExponent4(x);
  const shifted = octaves4(clamped);
  const r = reduced4(clamped, f32x4.sub(shifted, f32x4.splat(ROUNDER)));
  return expScaled4(f32x4.add(r, low), shifted);
}

/** e^x − 1 for x ≤ 0, without cancellation: 2^n·(e^r − 1) + (2^n − 1). */
// @inline
function expm1Negative4(x: v128): v128 {
  const clamped = f32x4.pmax(x, f32x4.splat(-80.0));
  const shifted = octaves4(clamped);
  const n = f32x4.sub(shifted, f32x4.splat(ROUNDER));
  const q = expm1Near0(reduced4(clamped, n));
  const scale = i32x4.shl(i32x4.add(shifted, i32x4.splat(127)), 23);
  return madd(q, scale, f32x4.sub(scale, f32x4.splat(1.0)));
}

/** x for x > 0, alpha·(e^x − 1) elsewhere. */
// @inline
export function elu4(x: v128, alpha: v128): v128 {
  return v128.bitselect(x, f32x4.mul(alpha, expm1Negative4(x)), f32x4.gt(x, f32x4.splat(0)));
}

/** factor / (1 + e^−z), from e^−|z| so that nothing overflows and small results stay exact. */
// @inline
function logistic4(factor: v128, z: v128): v128 {
  const e = exp4(f32x4.neg(abs4(z)));
  const top = v128.bitselect(f32x4.mul(factor, e), factor, f32x4.lt(z, f32x4.splat(0)));
  return f32x4.div(top, f32x4.add(e, f32x4.splat(1)));
}
// @inline
export function sigmoid4(x: v128): v128 {
  return logistic4(f32x4.splat(1), x);
}
// @inline
export function silu4(x: v128): v128 {
  return logistic4(x, x);
}
/** 0.5·x·(1 + tanh u) = x / (1 + e^−2u) with u = √(2/π)·(x + 0.044715·x³). */
// @inline
export function gelu4(x: v128): v128 {
  const slope = madd(f32x4.mul(x, x), f32x4.splat(0.0713548162726), f32x4.splat(1.59576912161));
  return logistic4(x, f32x4.mul(x, slope));
}

/** x + x³·P(x²) below 0.55, 1 − 2/(e^2x + 1) above. */
// @inline
export function tanh4(x: v128): v128 {
  const z = f32x4.mul(x, x);
  let p = f32x4.splat(0.0025263906);
  p = madd(p, z, f32x4.splat(-0.00852633268));
  p = madd(p, z, f32x4.splat(0.0218184497));
  p = madd(p, z, f32x4.splat(-0.0539647005));
  p = madd(p, z, f32x4.splat(0.133333236));
  p = madd(p, z, f32x4.splat(-0.333333343));
  const near = madd(f32x4.mul(p, z), x, x);
  const a = abs4(x);
  const e = exp4(f32x4.add(a, a));
  const far = f32x4.sub(f32x4.splat(1), f32x4.div(f32x4.splat(2), f32x4.add(e, f32x4.splat(1))));
  return v128.bitselect(near, copySign4(far, x), f32x4.lt(a, f32x4.splat(0.55)));
}

// ---- logarithm and powers ----

/** x = 2^k·(1 + f) with 1 + f in [√½, √2): k·ln 2 + f − f²/2 + f³·P(f). */
// @inline
export function log4(x: v128): v128 {
  const tiny = f32x4.lt(x, f32x4.splat(reinterpret<f32>(0x00800000)));
  const y = v128.bitselect(f32x4.mul(x, f32x4.splat(8388608.0)), x, tiny);
  // Counting from the bits of √½ puts the mantissa into the wanted interval.
  const bits = i32x4.sub(y, i32x4.splat(0x3f3504f3));
  const k = i32x4.sub(i32x4.shr_s(bits, 23), v128.and(tiny, i32x4.splat(23)));
  const m = i32x4.add(v128.and(bits, i32x4.splat(0x007fffff)), i32x4.splat(0x3f3504f3));
  const n = f32x4.convert_i32x4_s(k);
  const f = f32x4.sub(m, f32x4.splat(1));
  let p = f32x4.splat(0.0697162077);
  p = madd(p, f, f32x4.splat(-0.114797488));
  p = madd(p, f, f32x4.splat(0.116854236));
  p = madd(p, f, f32x4.splat(-0.124256857));
  p = madd(p, f, f32x4.splat(0.142490566));
  p = madd(p, f, f32x4.splat(-0.166678026));
  p = madd(p, f, f32x4.splat(0.200007156));
  p = madd(p, f, f32x4.splat(-0.24999997));
  p = madd(p, f, f32x4.splat(0.333333313));
  const ff = f32x4.mul(f, f);
  const low = madd(f32x4.mul(ff, f), p, f32x4.mul(n, f32x4.splat(1.42860682e-6)));
  const sum = f32x4.add(f, madd(ff, f32x4.splat(-0.5), low));
  let r = madd(n, f32x4.splat(0.693145751953125), sum);
  r = v128.bitselect(x, r, f32x4.eq(x, f32x4.splat(Infinity)));
  r = v128.bitselect(f32x4.splat(-Infinity), r, f32x4.eq(x, f32x4.splat(0)));
  // Not (x ≥ 0): negative or NaN.
  return v128.bitselect(r, f32x4.splat(NaN), f32x4.ge(x, f32x4.splat(0)));
}

/** C's pow: 1 to any power is 1, and so is −1 to an infinite one. */
export function pow64(x: f64, y: f64): f64 {
  if (x === 1 || (x === -1 && abs(y) === Infinity)) return 1;
  return NativeMath.pow(x, y);
}

/** In f64: an f32 logarithm would lose as many bits as the result's exponent has. */
export function powf4(x: v128, y: v128): v128 {
  return f32x4(
    <f32>pow64(f32x4.extract_lane(x, 0), f32x4.extract_lane(y, 0)),
    <f32>pow64(f32x4.extract_lane(x, 1), f32x4.extract_lane(y, 1)),
    <f32>pow64(f32x4.extract_lane(x, 2), f32x4.extract_lane(y, 2)),
    <f32>pow64(f32x4.extract_lane(x, 3), f32x4.extract_lane(y, 3)),
  );
}

// ---- sine and cosine ----

/** Up to here q = x·2/π has at most 20 bits, and q times the 33-bit head of π/2 is exact in f64. */
const TRIG_LIMIT: f32 = 1.6e6;
/** 1.5 · 2^52, the rounder of f64. */
const ROUNDER64: f64 = 6755399441055744.0;

// @inline
function quarters64(x: v128): v128 {
  return f64x2.add(f64x2.mul(x, f64x2.splat(0.6366197723675814)), f64x2.splat(ROUNDER64));
}
// @inline
function restOfQuarter64(x: v128, shifted: v128): v128 {
  const q = f64x2.sub(shifted, f64x2.splat(ROUNDER64));
  const r = f64x2.sub(x, f64x2.mul(q, f64x2.splat(1.5707963267341256)));
  return f64x2.sub(r, f64x2.mul(q, f64x2.splat(6.077100506506192e-11)));
}

/** sin(x + quarter·π/2). The reduction is in f64: near multiples of π it must keep the relative accuracy. */
// @inline
function sine4(x: v128, quarter: i32): v128 {
  if (v128.any_true(f32x4.gt(abs4(x), f32x4.splat(TRIG_LIMIT)))) return quarter ? farCos4(x) : farSin4(x);
  const lowX = f64x2.promote_low_f32x4(x);
  const highX = f64x2.promote_low_f32x4(v128.shuffle<u64>(x, x, 1, 1));
  const lowQ = quarters64(lowX);
  const highQ = quarters64(highX);
  const lowR = f32x4.demote_f64x2_zero(restOfQuarter64(lowX, lowQ));
  const highR = f32x4.demote_f64x2_zero(restOfQuarter64(highX, highQ));
  const r = v128.shuffle<u64>(lowR, highR, 0, 2);
  const q = i32x4.add(v128.shuffle<u32>(lowQ, highQ, 0, 2, 4, 6), i32x4.splat(quarter));
  const z = f32x4.mul(r, r);
  let s = f32x4.splat(2.72493139e-6);
  s = madd(s, z, f32x4.splat(-0.000198400827));
  s = madd(s, z, f32x4.splat(0.00833333191));
  s = madd(s, z, f32x4.splat(-0.166666672));
  s = madd(f32x4.mul(s, z), r, r);
  let c = f32x4.splat(2.45474366e-5);
  c = madd(c, z, f32x4.splat(-0.00138883002));
  c = madd(c, z, f32x4.splat(0.0416666642));
  c = madd(c, z, f32x4.splat(-0.5));
  c = madd(c, z, f32x4.splat(1));
  const odd = i32x4.shr_s(i32x4.shl(q, 31), 31);
  const flip = v128.and(i32x4.shl(q, 30), i32x4.splat(0x80000000));
  return v128.xor(v128.bitselect(c, s, odd), flip);
}
// @inline
export function sin4(x: v128): v128 {
  // The reduction loses the sign of −0 only.
  return v128.bitselect(x, sine4(x, 0), f32x4.eq(x, f32x4.splat(0)));
}
// @inline
export function cos4(x: v128): v128 {
  return sine4(x, 1);
}

function farSin4(x: v128): v128 {
  return f32x4(
    <f32>NativeMath.sin(f32x4.extract_lane(x, 0)),
    <f32>NativeMath.sin(f32x4.extract_lane(x, 1)),
    <f32>NativeMath.sin(f32x4.extract_lane(x, 2)),
    <f32>NativeMath.sin(f32x4.extract_lane(x, 3)),
  );
}
function farCos4(x: v128): v128 {
  return f32x4(
    <f32>NativeMath.cos(f32x4.extract_lane(x, 0)),
    <f32>NativeMath.cos(f32x4.extract_lane(x, 1)),
    <f32>NativeMath.cos(f32x4.extract_lane(x, 2)),
    <f32>NativeMath.cos(f32x4.extract_lane(x, 3)),
  );
}

// ---- the normal distribution ----

/**
 * The upper tail 1 − Φ(a) as e^(−a²/2)·P(s)/(a + 2.5) with s = (a − 2.5)/(a + 2.5), fitted for a ≥ 0.65: accurate
 * relative to the tail itself. a² would round: a is split so that the square of its head is exact, and the rest
 * corrects the exponent.
 */
// @inline
function normalTail4(a: v128): v128 {
  const bounded = f32x4.pmin(a, f32x4.splat(15));
  const t = f32x4.div(f32x4.splat(1), f32x4.add(bounded, f32x4.splat(2.5)));
  const s = f32x4.mul(f32x4.sub(bounded, f32x4.splat(2.5)), t);
  let p = f32x4.splat(-0.000188456805);
  p = madd(p, s, f32x4.splat(-0.000324156805));
  p = madd(p, s, f32x4.splat(0.000723707082));
  p = madd(p, s, f32x4.splat(0.00253533316));
  p = madd(p, s, f32x4.splat(-0.00161765295));
  p = madd(p, s, f32x4.splat(-0.0163892861));
  p = madd(p, s, f32x4.splat(0.00923856255));
  p = madd(p, s, f32x4.splat(0.131987229));
  p = madd(p, s, f32x4.splat(-0.433692127));
  p = madd(p, s, f32x4.splat(0.706656635));
  const head = v128.and(bounded, i32x4.splat(0xfffff000));
  const square = f32x4.mul(f32x4.mul(head, head), f32x4.splat(-0.5));
  const rest = f32x4.mul(f32x4.mul(f32x4.sub(bounded, head), f32x4.add(bounded, head)), f32x4.splat(-0.5));
  return f32x4.mul(expSum4(square, rest), f32x4.mul(p, t));
}
/** erf x = x + x·P(x²) for |x| ≤ 0.9. */
// @inline
function erfNear0(x: v128): v128 {
  const z = f32x4.mul(x, x);
  let p = f32x4.splat(8.52940138e-5);
  p = madd(p, z, f32x4.splat(-0.000817963213));
  p = madd(p, z, f32x4.splat(0.00520422682));
  p = madd(p, z, f32x4.splat(-0.0268606655));
  p = madd(p, z, f32x4.splat(0.11283718));
  p = madd(p, z, f32x4.splat(-0.376126349));
  p = madd(p, z, f32x4.splat(0.128379167));
  return madd(p, x, x);
}
/** ½ + ½·erf(x/√2) near 0; the tail or its complement beyond. */
// @inline
export function normcdf4(x: v128): v128 {
  const near = madd(erfNear0(f32x4.mul(x, f32x4.splat(0.707106781))), f32x4.splat(0.5), f32x4.splat(0.5));
  const a = abs4(x);
  const tail = normalTail4(a);
  const far = v128.bitselect(tail, f32x4.sub(f32x4.splat(1), tail), f32x4.lt(x, f32x4.splat(0)));
  return v128.bitselect(near, far, f32x4.lt(a, f32x4.splat(0.7)));
}
// @inline
export function geluErf4(x: v128): v128 {
  return f32x4.mul(x, normcdf4(x));
}
/** 1 − 2·tail(√2·x) beyond 0.9. */
// @inline
export function erf4(x: v128): v128 {
  const a = abs4(x);
  const tail = normalTail4(f32x4.mul(a, f32x4.splat(1.41421356)));
  const far = f32x4.sub(f32x4.splat(1), f32x4.add(tail, tail));
  return v128.bitselect(erfNear0(x), copySign4(far, x), f32x4.lt(a, f32x4.splat(0.9)));
}

// ---- rounding and signs ----

/** Half away from zero. The fraction is exact, so 0.49999997 stays below ½. */
// @inline
export function round4(x: v128): v128 {
  const a = abs4(x);
  const whole = f32x4.trunc(a);
  const up = f32x4.ge(f32x4.sub(a, whole), f32x4.splat(0.5));
  return copySign4(f32x4.add(whole, v128.and(up, f32x4.splat(1))), x);
}
// @inline
export function sign4(x: v128): v128 {
  const one = v128.and(f32x4.gt(x, f32x4.splat(0)), f32x4.splat(1));
  const minusOne = v128.and(f32x4.lt(x, f32x4.splat(0)), f32x4.splat(-1));
  return v128.or(v128.or(one, minusOne), v128.and(f32x4.ne(x, x), x));
}
/** pmax keeps its first operand when the comparison fails, so NaN stays. */
// @inline
export function relu4(x: v128): v128 {
  return f32x4.pmax(x, f32x4.splat(0));
}

// ---- f64, one at a time ----

const INV_SQRT_2PI: f64 = 0.3989422804014327;
/** Below: the series of Φ − ½; above: the continued fraction of the tail. */
const SERIES_LIMIT: f64 = 2.0;

/** The density e^(−a²/2)/√2π, with a split as in `normalTail4`. */
function density64(a: f64): f64 {
  const head = reinterpret<f64>(reinterpret<u64>(a) & 0xfffffffff8000000);
  const rest = (a - head) * (a + head);
  return NativeMath.exp(-0.5 * head * head) * NativeMath.exp(-0.5 * rest) * INV_SQRT_2PI;
}
/** Φ(a) − ½ = φ(a)·Σ a^(2n+1) / (1·3·…·(2n+1)): positive terms, no cancellation. */
function normalSeries64(a: f64): f64 {
  const square = a * a;
  let term = a;
  let sum = a;
  for (let n: f64 = 3; term > sum * 1e-17; n += 2) {
    term *= square / n;
    sum += term;
  }
  return density64(a) * sum;
}
/** Laplace's fraction 1 − Φ(a) = φ(a)/(a + 1/(a + 2/(a + …))), as deep as 1e-15 needs. */
function normalTail64(a: f64): f64 {
  if (a > 40) return 0;
  let fraction = a;
  for (let k = Math.ceil(10 + 330 / (a * a)); k > 0; k -= 1) fraction = a + k / fraction;
  return density64(a) / fraction;
}

export function normcdf64(x: f64): f64 {
  const a = abs(x);
  if (a < SERIES_LIMIT) {
    const part = normalSeries64(a);
    return x < 0 ? 0.5 - part : 0.5 + part;
  }
  const tail = normalTail64(a);
  return x < 0 ? tail : 1 - tail;
}
export function erf64(x: f64): f64 {
  const a = abs(x) * 1.4142135623730951;
  const magnitude = a < SERIES_LIMIT ? 2 * normalSeries64(a) : 1 - 2 * normalTail64(a);
  return copysign(magnitude, x);
}
/** factor / (1 + e^−z), as `logistic4`. */
export function logistic64(factor: f64, z: f64): f64 {
  const e = NativeMath.exp(-abs(z));
  return (z < 0 ? factor * e : factor) / (1 + e);
}
export function gelu64(x: f64): f64 {
  return logistic64(x, x * (1.5957691216057308 + 0.07135481627260025 * (x * x)));
}
export function round64(x: f64): f64 {
  const a = abs(x);
  const whole = trunc(a);
  return copysign(a - whole >= 0.5 ? whole + 1 : whole, x);
}
export function sign64(x: f64): f64 {
  return x > 0 ? 1 : x < 0 ? -1 : x === 0 ? 0 : x;
}
