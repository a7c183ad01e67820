/**
 * Dots of rows of quantized weights, where they lie, with packed rows of activations: four of one with one of the other,
 * so that what is loaded or decoded serves four times. Sums of products are exact integers within a block; blocks are
 * added in f32.
 */
import { SCRATCH_FREE } from "./block";
import { madd } from "./math";
import { scratch } from "./pool";
import { BLOCK_SUMS, scalesAt, SUPER_SUMS, sumsAt } from "./quant-activations";
import { groupScales, minima4, MINIMA, minimum, quants, scale, scales4 } from "./quant-blocks";
import { blockBytes, hasMin, offsetShift } from "./quant-types";

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

// @ts-ignore: decorator
@inline
function store4(to: usize, s0: v128, s1: v128, s2: v128, s3: v128): void {
  store<f32>(to, total(s0));
  store<f32>(to, total(s1), 4);
  store<f32>(to, total(s2), 8);
  store<f32>(to, total(s3), 12);
}

// ---- blocks of 32: four rows of weights share one row of activations ----

/**
 * Adds a block: a … d are the activations, `sums` those of their lanes times the offset (or as floats, for minima), and
 * `scale` and `min` the weights' own times that of the activations.
 */
// @ts-ignore: decorator
@inline
function addBlock<T>(w: usize, a: v128, b: v128, c: v128, d: v128, sums: v128, scale: v128, min: v128, sum: v128): v128 {
  const low = quants<T>(w, 0, 0);
  const high = quants<T>(w, 0, 1);
  const s = i32x4.add(i32x4.dot_i16x8_s(even(low), a), i32x4.dot_i16x8_s(odd(low), b));
  const t = i32x4.add(i32x4.dot_i16x8_s(even(high), c), i32x4.dot_i16x8_s(odd(high), d));
  if (hasMin<T>()) return madd(f32x4.convert_i32x4_s(i32x4.add(s, t)), scale, madd(sums, min, sum));
  return madd(f32x4.convert_i32x4_s(i32x4.add(i32x4.sub(s, sums), t)), scale, sum);
}

/** Four rows of weights with one packed row of activations; the results go to `to` as four f32. */
export function dotBlocks4<T>(w0: usize, w1: usize, w2: usize, w3: usize, x: usize, k: usize, to: usize): void {
  let s0 = f32x4.splat(0);
  let s1 = s0;
  let s2 = s0;
  let s3 = s0;
  let scales = x + scalesAt(k);
  let sums = x + sumsAt(32, k);
  for (const end = x + (k << 1); x < end; x += 64) {
    const a = v128.load(x);
    const b = v128.load(x, 16);
    const c = v128.load(x, 32);
    const d = v128.load(x, 48);
    const own = v128.load_splat<f32>(scales);
    const s = f32x4.mul(scales4<T>(w0, w1, w2, w3), own);
    const m = hasMin<T>() ? f32x4.mul(minima4<T>(w0, w1, w2, w3), own) : s;
    const lanes = v128.load(sums);
    const by = hasMin<T>() ? f32x4.convert_i32x4_s(lanes) : i32x4.shl(lanes, offsetShift<T>());
    s0 = addBlock<T>(w0, a, b, c, d, by, v128.shuffle<u32>(s, s, 0, 0, 0, 0), v128.shuffle<u32>(m, m, 0, 0, 0, 0), s0);
    s1 = addBlock<T>(w1, a, b, c, d, by, v128.shuffle<u32>(s, s, 1, 1, 1, 1), v128.shuffle<u32>(m, m, 1, 1, 1, 1), s1);
    s2 = addBlock<T>(w2, a, b, c, d, by, v128.shuffle<u32>(s, s, 2, 2, 2, 2), v128.shuffle<u32>(m, m, 2, 2, 2, 2), s2);
    s3 = addBlock<T>(w3, a, b, c, d, by, v128.shuffle<u32>(s, s, 3, 3, 3, 3), v128.shuffle<u32>(m, m, 3, 3, 3, 3), s3);
    w0 += blockBytes<T>();
    w1 += blockBytes<T>();
    w2 += blockBytes<T>();
    w3 += blockBytes<T>();
    scales += 4;
    sums += BLOCK_SUMS;
  }
  store4(to, s0, s1, s2, s3);
}

// ---- super-blocks: the groups' integer scales are multiplied into the quants, which still fit 16 bits ----

// @ts-ignore: decorator
@inline
function addGroup<T>(w: usize, half: i32, part: i32, groups: usize, x: usize, sum: v128): v128 {
  const q = quants<T>(w, half, part);
  const s = v128.load_splat<i16>(groups + (half << 4) + (<usize>part << 1));
  const at = x + (half << 8) + (<usize>part << 5);
  sum = i32x4.add(sum, i32x4.dot_i16x8_s(i16x8.mul(even(q), s), v128.load(at)));
  return i32x4.add(sum, i32x4.dot_i16x8_s(i16x8.mul(odd(q), s), v128.load(at, 16)));
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

/** One row of weights with one packed row of activations. */
export function dotSupers<T>(w: usize, x: usize, k: usize): f32 {
  const groups = scratch + SCRATCH_FREE;
  let d = x + scalesAt(k);
  let c = x + sumsAt(256, k);
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

/** One row of weights with four packed rows, as `dotBlocks4`: the scaled quants pass through scratch memory, as registers are full of sums. */
export function dotSupers4<T>(w: usize, x0: usize, x1: usize, x2: usize, x3: usize, k: usize, to: usize): void {
  const groups = scratch + SCRATCH_FREE;
  const scaled = groups + 64;
  let s0 = f32x4.splat(0);
  let s1 = s0;
  let s2 = s0;
  let s3 = s0;
  let scales = scalesAt(k);
  let sums = sumsAt(256, k);
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
