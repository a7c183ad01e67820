/**
 * Dots of one row of quantized weights, where it lies, with one packed row of activations or with four, so that each
 * decoded weight serves four times. Sums of products are exact integers within a block; blocks are added in f32.
 */
import { SCRATCH_FREE } from "./block";
import { madd } from "./math";
import { scratch } from "./pool";
import { BLOCK_CORRECTION, correctionsAt, scalesAt, SUPER_CORRECTION } from "./quant-activations";
import { groupScales, minima4, MINIMA, minimum, quants, scale, scales4 } from "./quant-blocks";
import {
  blockBytes, hasMin, IQ4_NL, IQ4_XS, isSuper, MXFP4, Q2_K, Q3_K, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0, Q8_1, Q8_K,
} from "./quant-types";

// @ts-ignore: decorator
@inline
function even(q: v128): v128 {
  return v128.and(q, i16x8.splat(255));
}
// @ts-ignore: decorator
@inline
function odd(q: v128): v128 {
  return i16x8.shr_u(q, 8);
}
// @ts-ignore: decorator
@inline
function addDot(sum: v128, q: v128, x: usize): v128 {
  return i32x4.add(sum, i32x4.dot_i16x8_s(q, v128.load(x)));
}

// @ts-ignore: decorator
@inline
function total(x: v128): f32 {
  return f32x4.extract_lane(x, 0) + f32x4.extract_lane(x, 1) + (f32x4.extract_lane(x, 2) + f32x4.extract_lane(x, 3));
}

// ---- blocks of 32 ----

/** The sums of one block with one row of activations; for types with an offset, corrected by `c`. */
// @ts-ignore: decorator
@inline
function blockSums(type: i32, w: usize, x: usize, c: usize): v128 {
  const a = quants(type, w, 0, 0);
  const b = quants(type, w, 0, 1);
  let sum = i32x4.dot_i16x8_s(even(a), v128.load(x));
  if (!hasMin(type)) sum = i32x4.add(sum, v128.load(c));
  sum = addDot(sum, odd(a), x + 16);
  sum = addDot(sum, even(b), x + 32);
  return f32x4.convert_i32x4_s(addDot(sum, odd(b), x + 48));
}

/** One block of a group of four, whose scales (times those of the activations) are the lanes of d. */
// @ts-ignore: decorator
@inline
function addBlock(type: i32, i: usize, w: usize, x: usize, c: usize, d: v128, m: v128, sum: v128): v128 {
  const at = c + i * BLOCK_CORRECTION;
  sum = madd(blockSums(type, w + i * blockBytes(type), x + (i << 6), at), d, sum);
  return hasMin(type) ? madd(m, v128.load(at), sum) : sum;
}
// @ts-ignore: decorator
@inline
function dotBlocks(type: i32, w: usize, x: usize, k: usize): f32 {
  let d = x + scalesAt(k);
  let c = x + correctionsAt(type, k);
  const end = x + (k << 1);
  let sum = f32x4.splat(0);
  for (const body = x + ((k & ~127) << 1); x < body; x += 256) {
    const scales = f32x4.mul(scales4(type, w), v128.load(d));
    const minima = hasMin(type) ? minima4(type, w) : scales;
    sum = addBlock(type, 0, w, x, c, v128.shuffle<u32>(scales, scales, 0, 0, 0, 0), v128.shuffle<u32>(minima, minima, 0, 0, 0, 0), sum);
    sum = addBlock(type, 1, w, x, c, v128.shuffle<u32>(scales, scales, 1, 1, 1, 1), v128.shuffle<u32>(minima, minima, 1, 1, 1, 1), sum);
    sum = addBlock(type, 2, w, x, c, v128.shuffle<u32>(scales, scales, 2, 2, 2, 2), v128.shuffle<u32>(minima, minima, 2, 2, 2, 2), sum);
    sum = addBlock(type, 3, w, x, c, v128.shuffle<u32>(scales, scales, 3, 3, 3, 3), v128.shuffle<u32>(minima, minima, 3, 3, 3, 3), sum);
    w += 4 * blockBytes(type);
    d += 16;
    c += 4 * BLOCK_CORRECTION;
  }
  for (; x < end; x += 64) {
    const scales = f32x4.mul(scale(type, w), v128.load_splat<f32>(d));
    sum = addBlock(type, 0, w, x, c, scales, hasMin(type) ? minimum(type, w) : scales, sum);
    w += blockBytes(type);
    d += 4;
    c += BLOCK_CORRECTION;
  }
  return total(sum);
}

/** A decoded block with one of four rows. */
// @ts-ignore: decorator
@inline
function addBlock4(type: i32, a: v128, b: v128, c: v128, d: v128, x: usize, weight: v128, m: v128, scales: usize, corrections: usize, sum: v128): v128 {
  let s = i32x4.dot_i16x8_s(a, v128.load(x));
  if (!hasMin(type)) s = i32x4.add(s, v128.load(corrections));
  s = addDot(s, b, x + 16);
  s = addDot(s, c, x + 32);
  s = f32x4.convert_i32x4_s(addDot(s, d, x + 48));
  sum = madd(s, f32x4.mul(weight, v128.load_splat<f32>(scales)), sum);
  return hasMin(type) ? madd(m, v128.load(corrections), sum) : sum;
}

// @ts-ignore: decorator
@inline
function dotBlocks4(type: i32, w: usize, x0: usize, x1: usize, x2: usize, x3: usize, k: usize, to: usize): void {
  let s0 = f32x4.splat(0);
  let s1 = s0;
  let s2 = s0;
  let s3 = s0;
  let scales = scalesAt(k);
  let corrections = correctionsAt(type, k);
  for (let at: usize = 0; at < k << 1; at += 64) {
    const low = quants(type, w, 0, 0);
    const high = quants(type, w, 0, 1);
    const a = even(low);
    const b = odd(low);
    const c = even(high);
    const d = odd(high);
    const weight = scale(type, w);
    const m = hasMin(type) ? minimum(type, w) : weight;
    s0 = addBlock4(type, a, b, c, d, x0 + at, weight, m, x0 + scales, x0 + corrections, s0);
    s1 = addBlock4(type, a, b, c, d, x1 + at, weight, m, x1 + scales, x1 + corrections, s1);
    s2 = addBlock4(type, a, b, c, d, x2 + at, weight, m, x2 + scales, x2 + corrections, s2);
    s3 = addBlock4(type, a, b, c, d, x3 + at, weight, m, x3 + scales, x3 + corrections, s3);
    w += blockBytes(type);
    scales += 4;
    corrections += BLOCK_CORRECTION;
  }
  store4(to, s0, s1, s2, s3);
}

// @ts-ignore: decorator
@inline
function store4(to: usize, s0: v128, s1: v128, s2: v128, s3: v128): void {
  store<f32>(to, total(s0));
  store<f32>(to, total(s1), 4);
  store<f32>(to, total(s2), 8);
  store<f32>(to, total(s3), 12);
}

// ---- super-blocks: the groups' integer scales are multiplied into the quants, which still fit 16 bits ----

// @ts-ignore: decorator
@inline
function addGroup(type: i32, w: usize, half: i32, part: i32, groups: usize, x: usize, sum: v128): v128 {
  const q = quants(type, w, half, part);
  const s = v128.load_splat<i16>(groups + (half << 4) + (<usize>part << 1));
  const at = x + (half << 8) + (<usize>part << 5);
  sum = addDot(sum, i16x8.mul(even(q), s), at);
  return addDot(sum, i16x8.mul(odd(q), s), at + 16);
}

/** Minima or offsets times the sums of the activations' groups. */
// @ts-ignore: decorator
@inline
function groupSums(groups: usize, corrections: usize): v128 {
  const low = i32x4.dot_i16x8_s(v128.load(groups, MINIMA), v128.load(corrections));
  return addDot(low, v128.load(groups, MINIMA + 16), corrections + 16);
}

/** A super-block's sums in floats, times the scales. */
// @ts-ignore: decorator
@inline
function addSuper(type: i32, products: v128, sums: v128, d: v128, m: v128, scales: usize, sum: v128): v128 {
  let s: v128;
  if (hasMin(type)) {
    s = f32x4.sub(f32x4.mul(f32x4.convert_i32x4_s(products), d), f32x4.mul(f32x4.convert_i32x4_s(sums), m));
  } else s = f32x4.mul(f32x4.convert_i32x4_s(i32x4.add(products, sums)), d);
  return madd(s, v128.load_splat<f32>(scales), sum);
}

// @ts-ignore: decorator
@inline
function dotSupers(type: i32, w: usize, x: usize, k: usize): f32 {
  const groups = scratch + SCRATCH_FREE;
  let d = x + scalesAt(k);
  let c = x + correctionsAt(type, k);
  let sum = f32x4.splat(0);
  for (const end = x + (k << 1); x < end; x += 512) {
    groupScales(type, w, groups);
    let s = i32x4.splat(0);
    for (let half = 0; half < 2; half++) {
      s = addGroup(type, w, half, 0, groups, x, s);
      s = addGroup(type, w, half, 1, groups, x, s);
      s = addGroup(type, w, half, 2, groups, x, s);
      s = addGroup(type, w, half, 3, groups, x, s);
      s = addGroup(type, w, half, 4, groups, x, s);
      s = addGroup(type, w, half, 5, groups, x, s);
      s = addGroup(type, w, half, 6, groups, x, s);
      s = addGroup(type, w, half, 7, groups, x, s);
    }
    const weight = scale(type, w);
    sum = addSuper(type, s, groupSums(groups, c), weight, hasMin(type) ? minimum(type, w) : weight, d, sum);
    w += blockBytes(type);
    d += 4;
    c += SUPER_CORRECTION;
  }
  return total(sum);
}

/** Writes sixteen quants times their group's scale as i16. */
// @ts-ignore: decorator
@inline
function scaleGroup(type: i32, w: usize, half: i32, part: i32, groups: usize, to: usize): void {
  const q = quants(type, w, half, part);
  const s = v128.load_splat<i16>(groups + (half << 4) + (<usize>part << 1));
  const at = to + (half << 8) + (<usize>part << 5);
  v128.store(at, i16x8.mul(even(q), s));
  v128.store(at, i16x8.mul(odd(q), s), 16);
}

/** Four rows: the scaled quants pass through scratch memory, as registers are full of sums. */
// @ts-ignore: decorator
@inline
function dotSupers4(type: i32, w: usize, x0: usize, x1: usize, x2: usize, x3: usize, k: usize, to: usize): void {
  const groups = scratch + SCRATCH_FREE;
  const scaled = groups + 64;
  let s0 = f32x4.splat(0);
  let s1 = s0;
  let s2 = s0;
  let s3 = s0;
  let scales = scalesAt(k);
  let corrections = correctionsAt(type, k);
  for (let at: usize = 0; at < k << 1; at += 512) {
    groupScales(type, w, groups);
    for (let half = 0; half < 2; half++) {
      scaleGroup(type, w, half, 0, groups, scaled);
      scaleGroup(type, w, half, 1, groups, scaled);
      scaleGroup(type, w, half, 2, groups, scaled);
      scaleGroup(type, w, half, 3, groups, scaled);
      scaleGroup(type, w, half, 4, groups, scaled);
      scaleGroup(type, w, half, 5, groups, scaled);
      scaleGroup(type, w, half, 6, groups, scaled);
      scaleGroup(type, w, half, 7, groups, scaled);
    }
    let p0 = i32x4.splat(0);
    let p1 = p0;
    let p2 = p0;
    let p3 = p0;
    for (let i: usize = 0; i < 512; i += 16) {
      const q = v128.load(scaled + i);
      p0 = addDot(p0, q, x0 + at + i);
      p1 = addDot(p1, q, x1 + at + i);
      p2 = addDot(p2, q, x2 + at + i);
      p3 = addDot(p3, q, x3 + at + i);
    }
    const d = scale(type, w);
    const m = hasMin(type) ? minimum(type, w) : d;
    s0 = addSuper(type, p0, groupSums(groups, x0 + corrections), d, m, x0 + scales, s0);
    s1 = addSuper(type, p1, groupSums(groups, x1 + corrections), d, m, x1 + scales, s1);
    s2 = addSuper(type, p2, groupSums(groups, x2 + corrections), d, m, x2 + scales, s2);
    s3 = addSuper(type, p3, groupSums(groups, x3 + corrections), d, m, x3 + scales, s3);
    w += blockBytes(type);
    scales += 4;
    corrections += SUPER_CORRECTION;
  }
  store4(to, s0, s1, s2, s3);
}

// ---- by type ----

// @ts-ignore: decorator
@inline
function dot1(type: i32, w: usize, x: usize, k: usize): f32 {
  return isSuper(type) ? dotSupers(type, w, x, k) : dotBlocks(type, w, x, k);
}
// @ts-ignore: decorator
@inline
function dot4(type: i32, w: usize, x0: usize, x1: usize, x2: usize, x3: usize, k: usize, to: usize): void {
  if (isSuper(type)) dotSupers4(type, w, x0, x1, x2, x3, k, to);
  else dotBlocks4(type, w, x0, x1, x2, x3, k, to);
}

/** A row of k weights with a packed row of activations. */
export function dotRow(type: i32, w: usize, x: usize, k: usize): f32 {
  switch (type) {
    case Q4_0: return dot1(Q4_0, w, x, k);
    case Q4_1: return dot1(Q4_1, w, x, k);
    case Q5_0: return dot1(Q5_0, w, x, k);
    case Q5_1: return dot1(Q5_1, w, x, k);
    case Q8_0: return dot1(Q8_0, w, x, k);
    case Q8_1: return dot1(Q8_1, w, x, k);
    case Q2_K: return dot1(Q2_K, w, x, k);
    case Q3_K: return dot1(Q3_K, w, x, k);
    case Q4_K: return dot1(Q4_K, w, x, k);
    case Q5_K: return dot1(Q5_K, w, x, k);
    case Q6_K: return dot1(Q6_K, w, x, k);
    case Q8_K: return dot1(Q8_K, w, x, k);
    case IQ4_NL: return dot1(IQ4_NL, w, x, k);
    case IQ4_XS: return dot1(IQ4_XS, w, x, k);
    default: return dot1(MXFP4, w, x, k);
  }
}

/** A row of k weights with four packed rows; the results go to `to` as four f32. */
export function dotRow4(type: i32, w: usize, x0: usize, x1: usize, x2: usize, x3: usize, k: usize, to: usize): void {
  switch (type) {
    case Q4_0: return dot4(Q4_0, w, x0, x1, x2, x3, k, to);
    case Q4_1: return dot4(Q4_1, w, x0, x1, x2, x3, k, to);
    case Q5_0: return dot4(Q5_0, w, x0, x1, x2, x3, k, to);
    case Q5_1: return dot4(Q5_1, w, x0, x1, x2, x3, k, to);
    case Q8_0: return dot4(Q8_0, w, x0, x1, x2, x3, k, to);
    case Q8_1: return dot4(Q8_1, w, x0, x1, x2, x3, k, to);
    case Q2_K: return dot4(Q2_K, w, x0, x1, x2, x3, k, to);
    case Q3_K: return dot4(Q3_K, w, x0, x1, x2, x3, k, to);
    case Q4_K: return dot4(Q4_K, w, x0, x1, x2, x3, k, to);
    case Q5_K: return dot4(Q5_K, w, x0, x1, x2, x3, k, to);
    case Q6_K: return dot4(Q6_K, w, x0, x1, x2, x3, k, to);
    case Q8_K: return dot4(Q8_K, w, x0, x1, x2, x3, k, to);
    case IQ4_NL: return dot4(IQ4_NL, w, x0, x1, x2, x3, k, to);
    case IQ4_XS: return dot4(IQ4_XS, w, x0, x1, x2, x3, k, to);
    default: return dot4(MXFP4, w, x0, x1, x2, x3, k, to);
  }
}
