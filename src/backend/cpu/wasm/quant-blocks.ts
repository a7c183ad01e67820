/**
 * How each block type lays out its quants and scales. Every type reduces to the same two things: sixteen unsigned
 * bytes for sixteen neighbouring weights, and scales; all else is written once, over those.
 */
import { f16ToF32x4 } from "./block";
import {
  hasMin, IQ4_NL, IQ4_XS, is, isSuper, MXFP4, offsetShift, Q2_K, Q3_K, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0, Q8_1, Q8_K,
} from "./quant-types";

/** Bits `shift` … of sixteen bytes; the mask drops what 16-bit shifts bring in from the neighbour. */
// @ts-ignore: decorator
@inline
function bits(at: usize, shift: i32, mask: i32): v128 {
  const v = v128.load(at);
  return v128.and(shift ? i16x8.shr_u(v, shift) : v, i8x16.splat(<i8>mask));
}

/** Sixteen bits as sixteen bytes of 16 or 0: the fifth bit of quants. */
// @ts-ignore: decorator
@inline
function fifthBits(at: usize): v128 {
  const v = v128.load_splat<u16>(at);
  const spread = v128.shuffle<u8>(v, v, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
  const own = i8x16(1, 2, 4, 8, 16, 32, 64, -128, 1, 2, 4, 8, 16, 32, 64, -128);
  return v128.and(i8x16.eq(v128.and(spread, own), own), i8x16.splat(16));
}

/** The non-linear table of IQ4 types plus 128. */
// @ts-ignore: decorator
@inline
function curve(nibbles: v128): v128 {
  return i8x16.swizzle(i8x16(1, 24, 45, 63, 79, 93, 106, 118, -127, -115, -103, -90, -75, -59, -39, -15), nibbles);
}

/** Twice the values of FP4 (e2m1) plus 16. */
// @ts-ignore: decorator
@inline
function fp4(nibbles: v128): v128 {
  return i8x16.swizzle(i8x16(16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4), nibbles);
}

/**
 * The unsigned quants of weights half·128 + part·16 … + 15 of a block, in order. `part` (0 or 1 in blocks of 32, 0 … 7
 * in halves of super-blocks) is a constant.
 */
// @ts-ignore: decorator
@inline
export function quants<T>(w: usize, half: i32, part: i32): v128 {
  const odd = <usize>(part & 1) << 4;
  if (is<T, Q4_0>()) return bits(w + 2, part << 2, 15);
  if (is<T, Q4_1>()) return bits(w + 4, part << 2, 15);
  if (is<T, Q5_0>()) return v128.or(bits(w + 6, part << 2, 15), fifthBits(w + 2 + 2 * part));
  if (is<T, Q5_1>()) return v128.or(bits(w + 8, part << 2, 15), fifthBits(w + 4 + 2 * part));
  if (is<T, Q8_0>()) return v128.xor(v128.load(w + 2 + odd), i8x16.splat(-128));
  if (is<T, Q8_1>()) return v128.xor(v128.load(w + 4 + odd), i8x16.splat(-128));
  if (is<T, IQ4_NL>()) return curve(bits(w + 2, part << 2, 15));
  if (is<T, MXFP4>()) return fp4(bits(w + 1, part << 2, 15));
  if (is<T, Q2_K>()) return bits(w + 16 + (half << 5) + odd, part & 6, 3);
  if (is<T, Q3_K>()) {
    const high = v128.and(i16x8.shr_u(v128.load(w + odd), (half << 2) + (part >> 1)), i8x16.splat(1));
    return v128.or(bits(w + 32 + (half << 5) + odd, part & 6, 3), i16x8.shl(high, 2));
  }
  if (is<T, Q4_K>()) return bits(w + 16 + (half << 6) + (<usize>(part >> 2) << 5) + odd, (part & 2) << 1, 15);
  if (is<T, Q5_K>()) {
    const high = v128.and(i16x8.shr_u(v128.load(w + 16 + odd), (half << 2) + (part >> 1)), i8x16.splat(1));
    return v128.or(bits(w + 48 + (half << 6) + (<usize>(part >> 2) << 5) + odd, (part & 2) << 1, 15), i16x8.shl(high, 4));
  }
  if (is<T, Q6_K>()) {
    const high = bits(w + 128 + (half << 5) + odd, part & 6, 3);
    return v128.or(bits(w + (half << 6) + (<usize>(part & 2) << 4) + odd, part & 4, 15), i16x8.shl(high, 4));
  }
  if (is<T, Q8_K>()) return v128.xor(v128.load(w + 4 + (half << 7) + (<usize>part << 4)), i8x16.splat(-128));
  return curve(bits(w + 8 + (half << 6) + (<usize>(part >> 1) << 4), (part & 1) << 2, 15)); // IQ4_XS
}

/** An f16 in every lane. */
// @ts-ignore: decorator
@inline
function half4(at: usize): v128 {
  return f16ToF32x4(i32x4.splat(<i32>load<u16>(at)));
}

/** 2^(e − 128): half of the MX scale, as the table is doubled. */
// @ts-ignore: decorator
@inline
function exponent(at: usize): f32 {
  const e = <u32>load<u8>(at);
  return reinterpret<f32>(e < 2 ? 0x00200000 << e : (e - 1) << 23);
}

/** The block's scale in every lane. */
// @ts-ignore: decorator
@inline
export function scale<T>(w: usize): v128 {
  if (is<T, MXFP4>()) return f32x4.splat(exponent(w));
  if (is<T, Q8_K>()) return v128.load_splat<u32>(w);
  if (is<T, Q2_K>()) return half4(w + 80);
  if (is<T, Q3_K>()) return half4(w + 108);
  if (is<T, Q6_K>()) return half4(w + 208);
  return half4(w);
}

/** The block's minimum, or the scale of its groups' minima, in every lane; for types that have one. */
// @ts-ignore: decorator
@inline
export function minimum<T>(w: usize): v128 {
  return half4(is<T, Q2_K>() ? w + 82 : w + 2);
}

/** Four f16 as f32. The bits go to the upper halves of the lanes: shifted back, sign and exponent are nearly in place. */
// @ts-ignore: decorator
@inline
function halves4(a: usize, b: usize, c: usize, d: usize): v128 {
  let v = i32x4.splat(0);
  v = v128.load_lane<u16>(a, v, 1);
  v = v128.load_lane<u16>(b, v, 3);
  v = v128.load_lane<u16>(c, v, 5);
  v = i32x4.shr_s(v128.load_lane<u16>(d, v, 7), 3);
  const scaled = f32x4.mul(v128.and(v, i32x4.splat(0x8fffe000)), f32x4.splat(reinterpret<f32>(0x77800000)));
  const top = i32x4.splat(0x0f800000);
  return v128.or(scaled, v128.and(i32x4.eq(v128.and(v, top), top), i32x4.splat(0x7f800000)));
}

/** The scales of four blocks of 32. */
// @ts-ignore: decorator
@inline
export function scales4<T>(a: usize, b: usize, c: usize, d: usize): v128 {
  if (is<T, MXFP4>()) return f32x4(exponent(a), exponent(b), exponent(c), exponent(d));
  return halves4(a, b, c, d);
}

// @ts-ignore: decorator
@inline
export function minima4<T>(a: usize, b: usize, c: usize, d: usize): v128 {
  return halves4(a + 2, b + 2, c + 2, d + 2);
}

/** Where `groupScales` puts the groups' minima. */
export const MINIMA: usize = 32;
/** What `groupScales` writes. */
export const GROUP_BYTES: usize = 64;

/**
 * Writes the integer scales of a super-block's sixteen groups as i16 to `to`, and behind them what the sums of the
 * activations of each group are multiplied with: the groups' minima, or −offset · scale.
 */
// @ts-ignore: decorator
@inline
export function groupScales<T>(w: usize, to: usize): void {
  let low: v128;
  let high: v128;
  if (is<T, Q2_K>()) {
    const v = v128.load(w);
    const scales = v128.and(v, i8x16.splat(15));
    const minima = v128.and(i16x8.shr_u(v, 4), i8x16.splat(15));
    low = i16x8.extend_low_i8x16_u(scales);
    high = i16x8.extend_high_i8x16_u(scales);
    v128.store(to, i16x8.extend_low_i8x16_u(minima), MINIMA);
    v128.store(to, i16x8.extend_high_i8x16_u(minima), MINIMA + 16);
  } else if (is<T, Q4_K>() || is<T, Q5_K>()) {
    // Twelve bytes hold eight scales and eight minima of six bits: the last four of each lie in nibbles and spare bits.
    const a = load<u32>(w, 4);
    const b = load<u32>(w, 8);
    const c = load<u32>(w, 12);
    const scales = <u64>(a & 0x3f3f3f3f) | (<u64>((c & 0x0f0f0f0f) | ((a >> 2) & 0x30303030)) << 32);
    const minima = <u64>(b & 0x3f3f3f3f) | (<u64>(((c >> 4) & 0x0f0f0f0f) | ((b >> 2) & 0x30303030)) << 32);
    const both = i64x2.replace_lane(i64x2.splat(scales), 1, minima);
    // Each serves two groups of sixteen.
    const s = v128.shuffle<u8>(both, both, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const m = v128.shuffle<u8>(both, both, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15);
    low = i16x8.extend_low_i8x16_u(s);
    high = i16x8.extend_high_i8x16_u(s);
    v128.store(to, i16x8.extend_low_i8x16_u(m), MINIMA);
    v128.store(to, i16x8.extend_high_i8x16_u(m), MINIMA + 16);
  } else {
    if (is<T, Q3_K>()) {
      const a = load<u32>(w, 96);
      const b = load<u32>(w, 100);
      const c = load<u32>(w, 104);
      const s = i8x16.sub(
        i32x4(
          (a & 0x0f0f0f0f) | ((c << 4) & 0x30303030),
          (b & 0x0f0f0f0f) | ((c << 2) & 0x30303030),
          ((a >> 4) & 0x0f0f0f0f) | (c & 0x30303030),
          ((b >> 4) & 0x0f0f0f0f) | ((c >> 2) & 0x30303030),
        ),
        i8x16.splat(32),
      );
      low = i16x8.extend_low_i8x16_s(s);
      high = i16x8.extend_high_i8x16_s(s);
    } else if (is<T, Q6_K>()) {
      low = v128.load_ext<i8>(w, 192);
      high = v128.load_ext<i8>(w, 200);
    } else if (is<T, IQ4_XS>()) {
      // Nibbles in order, then two bits each of a 16-bit word; each scale serves two groups.
      const nibbles = i32x4.splat(load<u32>(w, 4));
      const pairs = v128.shuffle<u8>(v128.and(nibbles, i8x16.splat(15)), v128.and(i16x8.shr_u(nibbles, 4), i8x16.splat(15)), 0, 0, 16, 16, 1, 1, 17, 17, 2, 2, 18, 18, 3, 3, 19, 19);
      const word = i16x8.splat(load<u16>(w, 2));
      // Multiplying moves bits 2i, 2i+1 to the top; shifting brings them to bits 4 and 5.
      const lowTop = i16x8.shr_u(i16x8.mul(word, i16x8(16384, 16384, 4096, 4096, 1024, 1024, 256, 256)), 14);
      const highTop = i16x8.shr_u(i16x8.mul(word, i16x8(64, 64, 16, 16, 4, 4, 1, 1)), 14);
      low = i16x8.sub(v128.or(i16x8.extend_low_i8x16_u(pairs), i16x8.shl(lowTop, 4)), i16x8.splat(32));
      high = i16x8.sub(v128.or(i16x8.extend_high_i8x16_u(pairs), i16x8.shl(highTop, 4)), i16x8.splat(32));
    } else {
      low = i16x8.splat(1); // Q8_K
      high = low;
    }
    const minus = i16x8.shl(i16x8.splat(-1), offsetShift<T>());
    v128.store(to, i16x8.mul(low, minus), MINIMA);
    v128.store(to, i16x8.mul(high, minus), MINIMA + 16);
  }
  v128.store(to, low);
  v128.store(to, high, 16);
}

/** Sixteen weights q · a + b or, without minimum, (q − offset) · a. */
// @ts-ignore: decorator
@inline
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
// @ts-ignore: decorator
@inline
function storeLanes<T>(q: v128, a: v128, b: v128, to: usize): void {
  const product = f32x4.mul(f32x4.convert_i32x4_s(q), a);
  v128.store(to, hasMin<T>() ? f32x4.add(product, b) : product);
}

// @ts-ignore: decorator
@inline
function storeGroup<T>(w: usize, half: i32, part: i32, groups: usize, d: v128, m: v128, to: usize): void {
  const at = groups + (half << 4) + (<usize>part << 1);
  const a = f32x4.mul(d, f32x4.splat(<f32>load<i16>(at)));
  const b = hasMin<T>() ? f32x4.neg(f32x4.mul(m, f32x4.splat(<f32>load<i16>(at, MINIMA)))) : m;
  store16<T>(quants<T>(w, half, part), a, b, to + (half << 9) + (<usize>part << 6));
}

/** The weights of one block as f32; `groups` is room for GROUP_BYTES. */
// @ts-ignore: decorator
@inline
export function decode<T>(w: usize, groups: usize, to: usize): void {
  const d = scale<T>(w);
  const m = hasMin<T>() ? minimum<T>(w) : d;
  if (!isSuper<T>()) {
    store16<T>(quants<T>(w, 0, 0), d, m, to);
    store16<T>(quants<T>(w, 0, 1), d, m, to + 64);
    return;
  }
  groupScales<T>(w, groups);
  for (let half = 0; half < 2; half++) {
    storeGroup<T>(w, half, 0, groups, d, m, to);
    storeGroup<T>(w, half, 1, groups, d, m, to);
    storeGroup<T>(w, half, 2, groups, d, m, to);
    storeGroup<T>(w, half, 3, groups, d, m, to);
    storeGroup<T>(w, half, 4, groups, d, m, to);
    storeGroup<T>(w, half, 5, groups, d, m, to);
    storeGroup<T>(w, half, 6, groups, d, m, to);
    storeGroup<T>(w, half, 7, groups, d, m, to);
  }
}
