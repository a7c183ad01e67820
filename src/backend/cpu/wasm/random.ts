/**
 * Random numbers that every device draws alike, bit for bit: Philox 4×32-10 keyed by the seed, and arithmetic of f64
 * additions, subtractions, multiplications, divisions and square roots alone, each correctly rounded and none fused,
 * in the order that the functions below have.
 *
 *   words(i)      the four words of draw i: counter (i low, i high, 0, 0), key (seed low, seed high)
 *   uniform       u(p) = ((w[2p] >> 5) · 2^26 + (w[2p+1] >> 6)) · 2^−53 for p = 0, 1: exact
 *   element 2i+p  uniform on [a, b):  clamp(a + u(p) · (b − a)) with the clamp of `random`
 *                 normal:             (r · cos) · b + a for p = 0, (r · sin) · b + a for p = 1, where
 *                                     r = sqrt(−2 · ln(1 − u(0))), and cos, sin are those of 2π·u(1)
 *
 * The sum of every polynomial is Horner's, p = p · z + c. An f64 becomes bf16, f16 or f8e4m3 by way of f32.
 */
import { BF16, F16, F32, F64, Random, shiftOf } from "./abi";
import { f8ToF32, f16ToF32x4, f32ToBf16x4, f32ToF8, f32ToF16x4, narrow, RUN, slot } from "./block";
import { arg, setArg } from "./memory";
import { parallel } from "./pool";
import { Count, DTypeCode, OutAddress, RandomCode } from "./types";

/** Pairs of elements per chunk. */
const GRAIN: usize = 1 << 11;

const enum Arg {
  KIND,
  DTYPE,
  N,
  OUT,
  SEED,
  FIRST,
  A,
  B,
  LEAST,
  GREATEST,
}

/** Uniform on [a, b), or normal with mean a and deviation b, from the draw `first` on. Float dtypes. */
export function random(
  kind: RandomCode,
  dtype: DTypeCode,
  n: Count,
  out: OutAddress,
  seed: u64,
  first: u64,
  a: f64,
  b: f64,
): void {
  setArg<i32>(Arg.KIND, kind);
  setArg<i32>(Arg.DTYPE, dtype);
  setArg<usize>(Arg.N, n);
  setArg<usize>(Arg.OUT, out);
  setArg<u64>(Arg.SEED, seed);
  setArg<u64>(Arg.FIRST, first);
  setArg<f64>(Arg.A, a);
  setArg<f64>(Arg.B, b);
  setArg<f64>(Arg.LEAST, least(dtype, a));
  setArg<f64>(Arg.GREATEST, greatest(dtype, b));
  parallel(randomKernel, (n >> 1) + (n & 1), GRAIN);
}

function randomKernel(lo: usize, hi: usize): void {
  const dtype = arg<i32>(Arg.DTYPE);
  const n = arg<usize>(Arg.N);
  const shift = shiftOf(dtype);
  for (; lo < hi; lo += RUN >> 1) {
    const first = lo << 1;
    const count = min(RUN, min(hi << 1, n) - first);
    const values = slot(0);
    draw(lo, (count + 1) >> 1, values);
    const out = arg<usize>(Arg.OUT) + (first << shift);
    if (dtype === F64) {
      memory.copy(out, values, count << 3);
      continue;
    }
    const singles = dtype === F32 ? out : slot(1);
    for (let i: usize = 0; i < count; i++) store<f32>(singles + (i << 2), <f32>load<f64>(values + (i << 3)));
    if (dtype !== F32) narrow(dtype, singles, out, count);
  }
}

/** The f64 elements of `pairs` draws, from `first` of those asked for on. */
function draw(first: usize, pairs: usize, out: usize): void {
  const kind = arg<i32>(Arg.KIND);
  const seed = arg<u64>(Arg.SEED);
  const before = arg<u64>(Arg.FIRST);
  const a = arg<f64>(Arg.A);
  const b = arg<f64>(Arg.B);
  const low = arg<f64>(Arg.LEAST);
  const high = arg<f64>(Arg.GREATEST);
  const words = slot(2);
  for (let i: usize = 0; i < pairs; i++) {
    philox(before + <u64>(first + i), seed, words);
    const u0 = uniform(load<u32>(words), load<u32>(words, 4));
    const u1 = uniform(load<u32>(words, 8), load<u32>(words, 12));
    if (kind === Random.NORMAL) {
      const r = sqrt(-2.0 * ln(1.0 - u0));
      store<f64>(out, r * cosTurn(u1) * b + a);
      store<f64>(out, r * sinTurn(u1) * b + a, 8);
    } else {
      store<f64>(out, clamp(a + u0 * (b - a), low, high));
      store<f64>(out, clamp(a + u1 * (b - a), low, high), 8);
    }
    out += 16;
  }
}

/** Ten rounds; between them the key grows by its Weyl constants. */
function philox(counter: u64, key: u64, out: usize): void {
  let c0 = <u32>counter;
  let c1 = <u32>(counter >> 32);
  let c2: u32 = 0;
  let c3: u32 = 0;
  let k0 = <u32>key;
  let k1 = <u32>(key >> 32);
  for (let round = 0; round < 10; round++) {
    const p0 = <u64>c0 * 0xd2511f53;
    const p1 = <u64>c2 * 0xcd9e8d57;
    c0 = <u32>(p1 >> 32) ^ c1 ^ k0;
    c1 = <u32>p1;
    c2 = <u32>(p0 >> 32) ^ c3 ^ k1;
    c3 = <u32>p0;
    k0 += 0x9e3779b9;
    k1 += 0xbb67ae85;
  }
  store<u32>(out, c0);
  store<u32>(out, c1, 4);
  store<u32>(out, c2, 8);
  store<u32>(out, c3, 12);
}

/** A multiple of 2^−53 in [0, 1). */
// @inline
function uniform(high: u32, low: u32): f64 {
  return (<f64>(high >> 5) * 67108864.0 + <f64>(low >> 6)) * 1.1102230246251565e-16;
}

/**
 * For y in [2^−53, 1]: y = m · 2^e with m in [√½, √2) (an m above √2 is halved, e grows by one),
 * s = (m − 1)/(m + 1), z = s · s, and ln y = e · ln 2 + (s + s) · (1 + z/3 + z²/5 + … + z⁹/19).
 */
function ln(y: f64): f64 {
  const bits = reinterpret<u64>(y);
  let e = <f64>(<i32>(bits >> 52) - 1023);
  let m = reinterpret<f64>((bits & 0x000fffffffffffff) | 0x3ff0000000000000);
  if (m > 1.4142135623730951) {
    m = m * 0.5;
    e = e + 1.0;
  }
  const s = (m - 1.0) / (m + 1.0);
  const z = s * s;
  let p: f64 = 1.0 / 19.0;
  p = p * z + 1.0 / 17.0;
  p = p * z + 1.0 / 15.0;
  p = p * z + 1.0 / 13.0;
  p = p * z + 1.0 / 11.0;
  p = p * z + 1.0 / 9.0;
  p = p * z + 1.0 / 7.0;
  p = p * z + 1.0 / 5.0;
  p = p * z + 1.0 / 3.0;
  p = p * z + 1.0;
  return e * 0.6931471805599453 + (s + s) * p;
}

/** 2πu in eighths of a turn: k = ⌊8u⌋, and how far into it, counted from its nearer axis, in radians. All but · π/4 exact. */
// @inline
function octant(u: f64): i32 {
  return <i32>(u * 8.0);
}
// @inline
function fromAxis(u: f64, k: i32): f64 {
  const f = u * 8.0 - <f64>k;
  return (k & 1 ? 1.0 - f : f) * 0.7853981633974483;
}
/** Octants 1, 2, 5 and 6 lie beside the vertical axis: sine and cosine change places. */
// @inline
function besideVertical(k: i32): bool {
  return (((k + 1) >> 1) & 1) !== 0;
}

function cosTurn(u: f64): f64 {
  const k = octant(u);
  const x = fromAxis(u, k);
  const c = besideVertical(k) ? sinEighth(x) : cosEighth(x);
  return k >= 2 && k <= 5 ? -c : c;
}
function sinTurn(u: f64): f64 {
  const k = octant(u);
  const x = fromAxis(u, k);
  const s = besideVertical(k) ? cosEighth(x) : sinEighth(x);
  return k >= 4 ? -s : s;
}

/** x · (1 − z/3! + z²/5! − … − z⁷/15!), z = x · x. */
function sinEighth(x: f64): f64 {
  const z = x * x;
  let p: f64 = -1.0 / 1307674368000.0;
  p = p * z + 1.0 / 6227020800.0;
  p = p * z - 1.0 / 39916800.0;
  p = p * z + 1.0 / 362880.0;
  p = p * z - 1.0 / 5040.0;
  p = p * z + 1.0 / 120.0;
  p = p * z - 1.0 / 6.0;
  p = p * z + 1.0;
  return x * p;
}
/** 1 − z/2! + z²/4! − … + z⁸/16!, z = x · x. */
function cosEighth(x: f64): f64 {
  const z = x * x;
  let p: f64 = 1.0 / 20922789888000.0;
  p = p * z - 1.0 / 87178291200.0;
  p = p * z + 1.0 / 479001600.0;
  p = p * z - 1.0 / 3628800.0;
  p = p * z + 1.0 / 40320.0;
  p = p * z - 1.0 / 720.0;
  p = p * z + 1.0 / 24.0;
  p = p * z - 0.5;
  p = p * z + 1.0;
  return p;
}

// ---- the bounds of uniform elements ----

/**
 * Elements must lie in [a, b) after rounding to the dtype. Rounding is monotonic, so clamping the f64 value between
 * the least dtype value ≥ a and the greatest < b does that; where there is none between them, the former wins.
 */
// @inline
function clamp(x: f64, low: f64, high: f64): f64 {
  const bounded = x > high ? high : x;
  return bounded < low ? low : bounded;
}
function least(dtype: i32, a: f64): f64 {
  const bits = encode(dtype, a);
  const x = decode(dtype, bits);
  return x >= a ? x : decode(dtype, neighbour(dtype, bits, true));
}
function greatest(dtype: i32, b: f64): f64 {
  const bits = encode(dtype, b);
  const x = decode(dtype, bits);
  return x < b ? x : decode(dtype, neighbour(dtype, bits, false));
}

/** The next value up or down; from infinity, or f8's only NaN, back to the greatest finite one. */
function neighbour(dtype: i32, bits: u64, up: bool): u64 {
  const sign: u64 = 1 << (((<u64>8) << (<u64>shiftOf(dtype))) - 1);
  if ((bits & ~sign) === 0) return up ? 1 : sign | 1;
  return ((bits & sign) === 0) === up ? bits + 1 : bits - 1;
}

function encode(dtype: i32, x: f64): u64 {
  if (dtype === F64) return reinterpret<u64>(x);
  const single = <f32>x;
  if (dtype === F32) return <u64>reinterpret<u32>(single);
  if (dtype === BF16) return <u64>(<u32>i32x4.extract_lane(f32ToBf16x4(f32x4.splat(single)), 0));
  if (dtype === F16) return <u64>(<u32>i32x4.extract_lane(f32ToF16x4(f32x4.splat(single)), 0));
  return <u64>f32ToF8(single);
}
function decode(dtype: i32, bits: u64): f64 {
  if (dtype === F64) return reinterpret<f64>(bits);
  if (dtype === F32) return <f64>reinterpret<f32>(<u32>bits);
  if (dtype === BF16) return <f64>reinterpret<f32>((<u32>bits) << 16);
  if (dtype === F16) return <f64>f32x4.extract_lane(f16ToF32x4(i32x4.splat(<i32>bits)), 0);
  return <f64>f8ToF32(<u8>bits);
}
