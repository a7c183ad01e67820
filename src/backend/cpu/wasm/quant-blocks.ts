/**
 * How each block type lays out its quants and scales. Every type reduces to the same two things: sixteen unsigned
 * bytes for sixteen neighbouring weights, and scales; all else is written once, over those.
 */
import {
  blockBytes,
  IQ4_NL,
  IQ4_XS,
  MXFP4,
  Q2_K,
  Q3_K,
  Q4_0,
  Q4_1,
  Q4_K,
  Q5_0,
  Q5_1,
  Q5_K,
  Q6_K,
  Q8_0,
  Q8_1,
  Q8_K,
} from "./abi";
import { f16ToF32x4 } from "./block";
import { BYTE_FIFTH, BYTE_FIFTH_SIXTH, BYTE_NIBBLE, BYTE_PAIR, BYTE_THIRD, constant } from "./quant-constants";
import { groupSize, hasMin, is, isSuper, offsetShift } from "./quant-types";

/** Bits `shift` … of sixteen bytes; the mask drops what 16-bit shifts bring in from the neighbour. */
// @inline
function bits(at: usize, shift: i32, mask: v128): v128 {
  const v = v128.load(at);
  return v128.and(shift ? i16x8.shr_u(v, shift) : v, mask);
}

/** The mask of the lowest bits of bytes that `quants` needs: ahead of a loop, see quant-constants.ts. */
// @inline
export function lowMask<T>(): v128 {
  return constant(is<T, Q2_K>() || is<T, Q3_K>() ? BYTE_PAIR : BYTE_NIBBLE);
}

/** The upper bits of quants, which lie apart: from bits `from` … to bits `to` …. */
// @inline
function bitsTo(at: usize, from: i32, to: i32, mask: v128): v128 {
  const v = v128.load(at);
  return v128.and(from < to ? i16x8.shl(v, to - from) : from > to ? i16x8.shr_u(v, from - to) : v, mask);
}

/** The mask of those. */
// @inline
export function highMask<T>(): v128 {
  return constant(is<T, Q3_K>() ? BYTE_THIRD : is<T, Q6_K>() ? BYTE_FIFTH_SIXTH : BYTE_FIFTH);
}

/** Sixteen bits as sixteen bytes of 16 or 0: the fifth bit of quants. */
// @inline
function fifthBits(at: usize): v128 {
  const v = v128.load_splat<u16>(at);
  const spread = v128.shuffle<u8>(v, v, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
  const own = i8x16(1, 2, 4, 8, 16, 32, 64, -128, 1, 2, 4, 8, 16, 32, 64, -128);
  return v128.and(i8x16.eq(v128.and(spread, own), own), i8x16.splat(16));
}

/** The non-linear table of IQ4 types plus 128. */
// @inline
function curve(nibbles: v128): v128 {
  return i8x16.swizzle(i8x16(1, 24, 45, 63, 79, 93, 106, 118, -127, -115, -103, -90, -75, -59, -39, -15), nibbles);
}

/** Twice the values of FP4 (e2m1) plus 16. */
// @inline
function fp4(nibbles: v128): v128 {
  return i8x16.swizzle(i8x16(16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4), nibbles);
}

/**
 * The unsigned quants of weights half·128 + part·16 … + 15 of a block, in order. `part` (0 or 1 in blocks of 32, 0 … 7
 * in halves of super-blocks) is a constant, `low` and `high` are what `lowMask` and `highMask` give.
 */
// @inline
export function quants<T>(w: usize, half: i32, part: i32, low: v128, high: v128): v128 {
  const odd = (<usize>(part & 1)) << 4;
  if (is<T, Q4_0>()) return bits(w + 2, part << 2, low);
  if (is<T, Q4_1>()) return bits(w + 4, part << 2, low);
  if (is<T, Q5_0>()) return v128.or(bits(w + 6, part << 2, low), fifthBits(w + 2 + 2 * part));
  if (is<T, Q5_1>()) return v128.or(bits(w + 8, part << 2, low), fifthBits(w + 4 + 2 * part));
  if (is<T, Q8_0>()) return v128.xor(v128.load(w + 2 + odd), i8x16.splat(-128));
  if (is<T, Q8_1>()) return v128.xor(v128.load(w + 4 + odd), i8x16.splat(-128));
  if (is<T, IQ4_NL>()) return curve(bits(w + 2, part << 2, low));
  if (is<T, MXFP4>()) return fp4(bits(w + 1, part << 2, low));
  if (is<T, Q2_K>()) return bits(w + 16 + (half << 5) + odd, part & 6, low);
  if (is<T, Q3_K>())
    return v128.or(
      bits(w + 32 + (half << 5) + odd, part & 6, low),
      bitsTo(w + odd, (half << 2) + (part >> 1), 2, high),
    );
  if (is<T, Q4_K>()) return bits(w + 16 + (half << 6) + ((<usize>(part >> 2)) << 5) + odd, (part & 2) << 1, low);
  if (is<T, Q5_K>()) {
    const lower = bits(w + 48 + (half << 6) + ((<usize>(part >> 2)) << 5) + odd, (part & 2) << 1, low);
    return v128.or(lower, bitsTo(w + 16 + odd, (half << 2) + (part >> 1), 4, high));
  }
  if (is<T, Q6_K>()) {
    const lower = bits(w + (half << 6) + ((<usize>(part & 2)) << 4) + odd, part & 4, low);
    return v128.or(lower, bitsTo(w + 128 + (half << 5) + odd, part & 6, 4, high));
  }
  if (is<T, Q8_K>()) return v128.xor(v128.load(w + 4 + (half << 7) + ((<usize>part) << 4)), i8x16.splat(-128));
  return curve(bits(w + 8 + (half << 6) + ((<usize>(part >> 1)) << 4), (part & 1) << 2, low)); // IQ4_XS
}

/** An f16 in every lane. */
// @inline
function half4(at: usize): v128 {
  return f16ToF32x4(i32x4.splat(<i32>load<u16>(at)));
}

/** 2^(e − 128): half of the MX scale, as the table is doubled. */
// @inline
function exponent(at: usize): f32 {
  const e = <u32>load<u8>(at);
  return reinterpret<f32>(e < 2 ? 0x00200000 << e : (e - 1) << 23);
}

/** The block's scale in every lane. */
// @inline
export function scale<T>(w: usize): v128 {
  if (is<T, MXFP4>()) return f32x4.splat(exponent(w));
  if (is<T, Q8_K>()) return v128.load_splat<u32>(w);
  if (is<T, Q2_K>()) return half4(w + 80);
  if (is<T, Q3_K>()) return half4(w + 108);
  if (is<T, Q6_K>()) return half4(w + 208);
  return half4(w);
}

/** The block's minimum, or the scale of its groups' minima, in every lane; for types that have one. */
// @inline
export function minimum<T>(w: usize): v128 {
  return half4(is<T, Q2_K>() ? w + 82 : w + 2);
}

/** Four f16 in the upper halves of the lanes. */
// @inline
function upper4(a: usize, b: usize, c: usize, d: usize): v128 {
  let v = i32x4.splat(0);
  v = v128.load_lane<u16>(a, v, 1);
  v = v128.load_lane<u16>(b, v, 3);
  v = v128.load_lane<u16>(c, v, 5);
  return v128.load_lane<u16>(d, v, 7);
}

/** Those as f32: shifted, sign and exponent are nearly in place. Infinities and NaN become 2^16 and more. */
// @inline
function finite4(v: v128, bits: v128, factor: v128): v128 {
  return f32x4.mul(v128.and(i32x4.shr_s(v, 3), bits), factor);
}

/** The scales of four blocks of 32, or with `at` 2 their minima, as `finite4` has them; the last two are HALF_BITS and HALF_SCALE. */
// @inline
export function scales4<T>(w: usize, at: usize, bits: v128, factor: v128): v128 {
  if (is<T, MXFP4>()) return exponents4(w, w + 17, w + 34, w + 51);
  return finite4(
    upper4(w + at, w + at + blockBytes<T>(), w + at + 2 * blockBytes<T>(), w + at + 3 * blockBytes<T>()),
    bits,
    factor,
  );
}

/** As `exponent`. */
// @inline
function exponents4(a: usize, b: usize, c: usize, d: usize): v128 {
  let e = i32x4.splat(0);
  e = v128.load_lane<u8>(a, e, 0);
  e = v128.load_lane<u8>(b, e, 4);
  e = v128.load_lane<u8>(c, e, 8);
  e = v128.load_lane<u8>(d, e, 12);
  const one = i32x4.splat(1);
  return v128.bitselect(i32x4.shl(i32x4.sub(e, one), 23), i32x4.shl(i32x4.add(e, one), 21), i32x4.gt_s(e, one));
}

/** The scale of a super-block in the lower two lanes, and that of its groups' minima, if the type has one, in the upper. */
// @inline
export function superScales<T>(w: usize, bits: v128, factor: v128, exponent: v128, infinities: v128): v128 {
  if (is<T, Q8_K>()) return v128.load_splat<f32>(w);
  const at: usize = is<T, Q2_K>() ? 80 : is<T, Q3_K>() ? 108 : is<T, Q6_K>() ? 208 : 0;
  let v: v128;
  if (hasMin<T>()) {
    v = v128.load_splat<u32>(w + at);
    v = v128.shuffle<u64>(i32x4.shl(v, 16), v, 0, 2);
  } else v = i32x4.splat((<i32>load<u16>(w + at)) << 16);
  return v128.or(finite4(v, bits, factor), v128.and(i32x4.eq(v128.and(v, exponent), exponent), infinities));
}

/**
 * The integer scales of a super-block's groups as signed bytes: one for each sixteen weights or, where 32 share one,
 * eight, behind which the minima follow in types that have them.
 */
// @inline
export function groupScales<T>(w: usize): v128 {
  if (is<T, Q2_K>()) return v128.and(v128.load(w), i8x16.splat(15));
  if (is<T, Q3_K>()) {
    const a = load<u32>(w, 96);
    const b = load<u32>(w, 100);
    const c = load<u32>(w, 104);
    const s = i32x4(
      (a & 0x0f0f0f0f) | ((c << 4) & 0x30303030),
      (b & 0x0f0f0f0f) | ((c << 2) & 0x30303030),
      ((a >> 4) & 0x0f0f0f0f) | (c & 0x30303030),
      ((b >> 4) & 0x0f0f0f0f) | ((c >> 2) & 0x30303030),
    );
    return i8x16.sub(s, i8x16.splat(32));
  }
  if (is<T, Q6_K>()) return v128.load(w, 192);
  if (is<T, Q8_K>()) return i8x16.splat(1);
  if (is<T, IQ4_XS>()) {
    // Nibbles in order, then two bits each of a 16-bit word.
    const low = i32x4.splat(load<u32>(w, 4));
    const nibbles = v128.shuffle<u8>(
      v128.and(low, i8x16.splat(15)),
      v128.and(i16x8.shr_u(low, 4), i8x16.splat(15)),
      0,
      16,
      1,
      17,
      2,
      18,
      3,
      19,
      0,
      16,
      1,
      17,
      2,
      18,
      3,
      19,
    );
    // Multiplying moves bits 2i, 2i+1 to the top; shifting brings them to bits 0 and 1.
    const high = i16x8.shr_u(i16x8.mul(i16x8.splat(load<u16>(w, 2)), i16x8(16384, 4096, 1024, 256, 64, 16, 4, 1)), 14);
    return i8x16.sub(v128.or(nibbles, i16x8.shl(i8x16.narrow_i16x8_u(high, high), 4)), i8x16.splat(32));
  }
  // Q4_K, Q5_K: twelve bytes hold eight scales and eight minima of six bits; the last four of each lie in nibbles and spare bits.
  const ab = load<u64>(w, 4);
  const c = <u64>load<u32>(w, 12);
  const last = ((c | (c << 28)) & 0x0f0f0f0f0f0f0f0f) | ((ab >> 2) & 0x3030303030303030);
  const both = i64x2.replace_lane(i64x2.splat(ab & 0x3f3f3f3f3f3f3f3f), 1, last);
  return v128.shuffle<u32>(both, both, 0, 2, 1, 3);
}

/** The integer minima of the groups, from the front on; `scales` is what `groupScales` gave. */
// @inline
export function groupMinima<T>(w: usize, scales: v128): v128 {
  if (is<T, Q2_K>()) return v128.and(i16x8.shr_u(v128.load(w), 4), i8x16.splat(15));
  return v128.shuffle<u64>(scales, scales, 1, 1);
}

/** Signed bytes 4·part … + 3 as floats. */
// @inline
export function floats4(bytes: v128, part: i32): v128 {
  const half = part & 2 ? i16x8.extend_high_i8x16_s(bytes) : i16x8.extend_low_i8x16_s(bytes);
  return f32x4.convert_i32x4_s(part & 1 ? i32x4.extend_high_i16x8_s(half) : i32x4.extend_low_i16x8_s(half));
}

/** Sixteen weights q · a + b or, without minimum, (q − offset) · a. */
// @inline
function store16<T>(q: v128, a: v128, b: v128, to: usize): void {
  let low = i16x8.extend_low_i8x16_u(q);
  let high = i16x8.extend_high_i8x16_u(q);
  if (!hasMin<T>()) {
    const offset = i16x8.shl(i16x8.splat(1), offsetShift<T>());
    low = i16x8.sub(low, offset);
    high = i16x8.sub(high, offset);
  }
  storeLanes<T>(i32x4.extend_low_i16x8_s(low), a, b, to);
  storeLanes<T>(i32x4.extend_high_i16x8_s(low), a, b, to + 16);
  storeLanes<T>(i32x4.extend_low_i16x8_s(high), a, b, to + 32);
  storeLanes<T>(i32x4.extend_high_i16x8_s(high), a, b, to + 48);
}

/** Two roundings, as the reference has them: not fused. */
// @inline
function storeLanes<T>(q: v128, a: v128, b: v128, to: usize): void {
  const product = f32x4.mul(f32x4.convert_i32x4_s(q), a);
  v128.store(to, hasMin<T>() ? f32x4.add(product, b) : product);
}

/** A group's factor is the `group`-th float at `factors`, and MINIMA behind it the minimum. */
// @inline
function storeGroup<T>(w: usize, half: i32, part: i32, factors: usize, to: usize): void {
  const group = groupSize<T>() === 16 ? (half << 3) + part : (half << 2) + (part >> 1);
  const a = v128.load_splat<f32>(factors + ((<usize>group) << 2));
  const b = hasMin<T>() ? v128.load_splat<f32>(factors + ((<usize>group) << 2), MINIMA) : a;
  store16<T>(quants<T>(w, half, part, lowMask<T>(), highMask<T>()), a, b, to + (half << 9) + ((<usize>part) << 6));
}

// @inline
function storeHalf<T>(w: usize, half: i32, factors: usize, to: usize): void {
  storeGroup<T>(w, half, 0, factors, to);
  storeGroup<T>(w, half, 1, factors, to);
  storeGroup<T>(w, half, 2, factors, to);
  storeGroup<T>(w, half, 3, factors, to);
  storeGroup<T>(w, half, 4, factors, to);
  storeGroup<T>(w, half, 5, factors, to);
  storeGroup<T>(w, half, 6, factors, to);
  storeGroup<T>(w, half, 7, factors, to);
}

const MINIMA: usize = 64;
/** What `decode` needs room for. */
export const FACTOR_BYTES: usize = 128;

/** The weights of one block as f32; `factors` is room for FACTOR_BYTES. */
// @inline
export function decode<T>(w: usize, factors: usize, to: usize): void {
  const d = scale<T>(w);
  const m = hasMin<T>() ? minimum<T>(w) : d;
  if (!isSuper<T>()) {
    store16<T>(quants<T>(w, 0, 0, lowMask<T>(), highMask<T>()), d, m, to);
    store16<T>(quants<T>(w, 0, 1, lowMask<T>(), highMask<T>()), d, m, to + 64);
    return;
  }
  const scales = groupScales<T>(w);
  const minima = hasMin<T>() ? groupMinima<T>(w, scales) : scales;
  const parts = groupSize<T>() === 16 ? 4 : 2;
  for (let part = 0; part < parts; part++) {
    v128.store(factors + ((<usize>part) << 4), f32x4.mul(d, floats4(scales, part)));
    if (hasMin<T>()) v128.store(factors + ((<usize>part) << 4), f32x4.neg(f32x4.mul(m, floats4(minima, part))), MINIMA);
  }
  storeHalf<T>(w, 0, factors, to);
  storeHalf<T>(w, 1, factors, to);
}
