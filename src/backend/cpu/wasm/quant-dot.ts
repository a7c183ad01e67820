/**
 * Dots of one row of quantized weights, where it lies, with one packed row of activations or with four, so that each
 * decoded weight serves four times. Sums of products are exact integers within a block; blocks are added in f32.
 */
import { SCRATCH_FREE } from "./block";
import { madd } from "./math";
import { scratch } from "./pool";
import { BLOCK_SUMS, scalesAt, SUPER_SUMS, sumsAt } from "./quant-activations";
import { groupScales, minima4, MINIMA, minimum, quants, scale, scales4 } from "./quant-blocks";
import { blockBytes, hasMin, isSuper, offsetShift } from "./quant-types";

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

/**
 * Adds a block: a … d are its quants as i16, `scale` and `min` those of the weights times that of the activations x,
 * whose lanes are summed at `sums`.
 */
// @ts-ignore: decorator
@inline
function addProducts<T>(a: v128, b: v128, c: v128, d: v128, x: usize, sums: usize, scale: v128, min: v128, sum: v128): v128 {
  let s = i32x4.dot_i16x8_s(a, v128.load(x));
  s = addDot(s, b, x + 16);
  s = addDot(s, c, x + 32);
  s = addDot(s, d, x + 48);
  if (hasMin<T>()) sum = madd(f32x4.convert_i32x4_s(v128.load(sums)), min, sum);
  else s = i32x4.sub(s, i32x4.shl(v128.load(sums), offsetShift<T>()));
  return madd(f32x4.convert_i32x4_s(s), scale, sum);
}

// @ts-ignore: decorator
@inline
function addBlock<T>(w: usize, x: usize, sums: usize, scale: v128, min: v128, sum: v128): v128 {
  const low = quants<T>(w, 0, 0);
  const high = quants<T>(w, 0, 1);
  return addProducts<T>(even(low), odd(low), even(high), odd(high), x, sums, scale, min, sum);
}

function dotBlocks<T>(w: usize, x: usize, k: usize): f32 {
  const bytes = blockBytes<T>();
  let d = x + scalesAt(k);
  let c = x + sumsAt(isSuper<T>() ? 256 : 32, k);
  const end = x + (k << 1);
  let sum = f32x4.splat(0);
  // Four blocks at a time share the conversion of their scales.
  for (const body = x + ((k & ~127) << 1); x < body; x += 256) {
    const own = v128.load(d);
    const s = f32x4.mul(scales4<T>(w), own);
    const m = hasMin<T>() ? f32x4.mul(minima4<T>(w), own) : s;
    sum = addBlock<T>(w, x, c, v128.shuffle<u32>(s, s, 0, 0, 0, 0), v128.shuffle<u32>(m, m, 0, 0, 0, 0), sum);
    sum = addBlock<T>(w + bytes, x + 64, c + 16, v128.shuffle<u32>(s, s, 1, 1, 1, 1), v128.shuffle<u32>(m, m, 1, 1, 1, 1), sum);
    sum = addBlock<T>(w + 2 * bytes, x + 128, c + 32, v128.shuffle<u32>(s, s, 2, 2, 2, 2), v128.shuffle<u32>(m, m, 2, 2, 2, 2), sum);
    sum = addBlock<T>(w + 3 * bytes, x + 192, c + 48, v128.shuffle<u32>(s, s, 3, 3, 3, 3), v128.shuffle<u32>(m, m, 3, 3, 3, 3), sum);
    w += 4 * bytes;
    d += 16;
    c += 4 * BLOCK_SUMS;
  }
  for (; x < end; x += 64) {
    const own = v128.load_splat<f32>(d);
    const s = f32x4.mul(scale<T>(w), own);
    sum = addBlock<T>(w, x, c, s, hasMin<T>() ? f32x4.mul(minimum<T>(w), own) : s, sum);
    w += bytes;
    d += 4;
    c += BLOCK_SUMS;
  }
  return total(sum);
}

function dotBlocks4<T>(w: usize, x0: usize, x1: usize, x2: usize, x3: usize, k: usize, to: usize): void {
  let s0 = f32x4.splat(0);
  let s1 = s0;
  let s2 = s0;
  let s3 = s0;
  let scales = scalesAt(k);
  let sums = sumsAt(isSuper<T>() ? 256 : 32, k);
  for (let at: usize = 0; at < k << 1; at += 64) {
    const low = quants<T>(w, 0, 0);
    const high = quants<T>(w, 0, 1);
    const a = even(low);
    const b = odd(low);
    const c = even(high);
    const d = odd(high);
    const s = scale<T>(w);
    const m = hasMin<T>() ? minimum<T>(w) : s;
    let own = v128.load_splat<f32>(x0 + scales);
    s0 = addProducts<T>(a, b, c, d, x0 + at, x0 + sums, f32x4.mul(s, own), f32x4.mul(m, own), s0);
    own = v128.load_splat<f32>(x1 + scales);
    s1 = addProducts<T>(a, b, c, d, x1 + at, x1 + sums, f32x4.mul(s, own), f32x4.mul(m, own), s1);
    own = v128.load_splat<f32>(x2 + scales);
    s2 = addProducts<T>(a, b, c, d, x2 + at, x2 + sums, f32x4.mul(s, own), f32x4.mul(m, own), s2);
    own = v128.load_splat<f32>(x3 + scales);
    s3 = addProducts<T>(a, b, c, d, x3 + at, x3 + sums, f32x4.mul(s, own), f32x4.mul(m, own), s3);
    w += blockBytes<T>();
    scales += 4;
    sums += BLOCK_SUMS;
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
function addGroup<T>(w: usize, half: i32, part: i32, groups: usize, x: usize, sum: v128): v128 {
  const q = quants<T>(w, half, part);
  const s = v128.load_splat<i16>(groups + (half << 4) + (<usize>part << 1));
  const at = x + (half << 8) + (<usize>part << 5);
  sum = addDot(sum, i16x8.mul(even(q), s), at);
  return addDot(sum, i16x8.mul(odd(q), s), at + 16);
}

/** Minima or offsets times the sums of the activations' groups. */
// @ts-ignore: decorator
@inline
function groupSums(groups: usize, sums: usize): v128 {
  const low = i32x4.dot_i16x8_s(v128.load(groups, MINIMA), v128.load(sums));
  return addDot(low, v128.load(groups, MINIMA + 16), sums + 16);
}

/** A super-block's sums in floats, times the scales. */
// @ts-ignore: decorator
@inline
function addSuper<T>(products: v128, sums: v128, d: v128, m: v128, scales: usize, sum: v128): v128 {
  let s: v128;
  if (hasMin<T>()) {
    s = f32x4.sub(f32x4.mul(f32x4.convert_i32x4_s(products), d), f32x4.mul(f32x4.convert_i32x4_s(sums), m));
  } else s = f32x4.mul(f32x4.convert_i32x4_s(i32x4.add(products, sums)), d);
  return madd(s, v128.load_splat<f32>(scales), sum);
}

function dotSupers<T>(w: usize, x: usize, k: usize): f32 {
  const groups = scratch + SCRATCH_FREE;
  let d = x + scalesAt(k);
  let c = x + sumsAt(isSuper<T>() ? 256 : 32, k);
  let sum = f32x4.splat(0);
  for (const end = x + (k << 1); x < end; x += 512) {
    groupScales<T>(w, groups);
    let s = i32x4.splat(0);
    for (let half = 0; half < 2; half++) {
      s = addGroup<T>(w, half, 0, groups, x, s);
      s = addGroup<T>(w, half, 1, groups, x, s);
      s = addGroup<T>(w, half, 2, groups, x, s);
      s = addGroup<T>(w, half, 3, groups, x, s);
      s = addGroup<T>(w, half, 4, groups, x, s);
      s = addGroup<T>(w, half, 5, groups, x, s);
      s = addGroup<T>(w, half, 6, groups, x, s);
      s = addGroup<T>(w, half, 7, groups, x, s);
    }
    const weight = scale<T>(w);
    sum = addSuper<T>(s, groupSums(groups, c), weight, hasMin<T>() ? minimum<T>(w) : weight, d, sum);
    w += blockBytes<T>();
    d += 4;
    c += SUPER_SUMS;
  }
  return total(sum);
}

/** Writes sixteen quants times their group's scale as i16. */
// @ts-ignore: decorator
@inline
function scaleGroup<T>(w: usize, half: i32, part: i32, groups: usize, to: usize): void {
  const q = quants<T>(w, half, part);
  const s = v128.load_splat<i16>(groups + (half << 4) + (<usize>part << 1));
  const at = to + (half << 8) + (<usize>part << 5);
  v128.store(at, i16x8.mul(even(q), s));
  v128.store(at, i16x8.mul(odd(q), s), 16);
}

/** Four rows: the scaled quants pass through scratch memory, as registers are full of sums. */
function dotSupers4<T>(w: usize, x0: usize, x1: usize, x2: usize, x3: usize, k: usize, to: usize): void {
  const groups = scratch + SCRATCH_FREE;
  const scaled = groups + 64;
  let s0 = f32x4.splat(0);
  let s1 = s0;
  let s2 = s0;
  let s3 = s0;
  let scales = scalesAt(k);
  let sums = sumsAt(isSuper<T>() ? 256 : 32, k);
  for (let at: usize = 0; at < k << 1; at += 512) {
    groupScales<T>(w, groups);
    for (let half = 0; half < 2; half++) {
      scaleGroup<T>(w, half, 0, groups, scaled);
      scaleGroup<T>(w, half, 1, groups, scaled);
      scaleGroup<T>(w, half, 2, groups, scaled);
      scaleGroup<T>(w, half, 3, groups, scaled);
      scaleGroup<T>(w, half, 4, groups, scaled);
      scaleGroup<T>(w, half, 5, groups, scaled);
      scaleGroup<T>(w, half, 6, groups, scaled);
      scaleGroup<T>(w, half, 7, groups, scaled);
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
    const d = scale<T>(w);
    const m = hasMin<T>() ? minimum<T>(w) : d;
    s0 = addSuper<T>(p0, groupSums(groups, x0 + sums), d, m, x0 + scales, s0);
    s1 = addSuper<T>(p1, groupSums(groups, x1 + sums), d, m, x1 + scales, s1);
    s2 = addSuper<T>(p2, groupSums(groups, x2 + sums), d, m, x2 + scales, s2);
    s3 = addSuper<T>(p3, groupSums(groups, x3 + sums), d, m, x3 + scales, s3);
    w += blockBytes<T>();
    scales += 4;
    sums += SUPER_SUMS;
  }
  store4(to, s0, s1, s2, s3);
}

/** A row of k weights with a packed row of activations. */
// @ts-ignore: decorator
@inline
export function dot<T>(w: usize, x: usize, k: usize): f32 {
  return isSuper<T>() ? dotSupers<T>(w, x, k) : dotBlocks<T>(w, x, k);
}

/** A row of k weights with four packed rows of activations; the results go to `to` as four f32. */
// @ts-ignore: decorator
@inline
export function dot4<T>(w: usize, x0: usize, x1: usize, x2: usize, x3: usize, k: usize, to: usize): void {
  if (isSuper<T>()) dotSupers4<T>(w, x0, x1, x2, x3, k, to);
  else dotBlocks4<T>(w, x0, x1, x2, x3, k, to);
}
