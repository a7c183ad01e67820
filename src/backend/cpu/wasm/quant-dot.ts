/**
 * Dots of rows of quantized weights, where they lie, with a packed row of activations. Sums of products are exact
 * integers within a group of weights that share a scale; groups are added in f32, times factors computed ahead, and at
 * the end what the minima give. quant-many.ts keeps to this order, so that a row has the same results among many.
 */
import { blockBytes, Q4_0, Q4_1, Q4_K } from "./abi";
import { SCRATCH_FREE } from "./block";
import { madd } from "./math";
import { scratch } from "./pool";
import { scalesAt, sumsAt } from "./quant-activations";
import { highMask, lowMask, quants } from "./quant-blocks";
import { constant, HALF_BITS, HALF_EXPONENT, HALF_SCALE, INFINITIES, WORD_BYTE, WORD_NIBBLE } from "./quant-constants";
import { rowFactors, superFactor } from "./quant-factors";
import { groupSize, hasMin, is, isBytes, isSuper } from "./quant-types";

/** The most weights of a row whose factors are computed ahead. */
export const STRETCH: usize = 4096;
/** Bytes of a row's factors in scratch memory. Behind those of four rows are their sums, and what their minima add. */
const FACTORS: usize = (STRETCH / 16) * 4;
const SUMS: usize = 4 * FACTORS;
const MINIMA: usize = SUMS + 64;
/** Four rows at once share loads of activations, if all that is read stays in the first cache: bytes of such rows. */
export const SHORT: usize = 2560;

// @inline
function dot(a: v128, b: v128): v128 {
  return i32x4.dot_i16x8_s(a, b);
}

/** Whether nibbles are taken from words at once, without making them bytes. */
// @inline
function isNibbles<T>(): bool {
  return is<T, Q4_0>() || is<T, Q4_1>() || is<T, Q4_K>();
}

/** What takes the lower part of words. */
// @inline
function maskOf<T>(): usize {
  return isNibbles<T>() ? WORD_NIBBLE : WORD_BYTE;
}

/** Sixteen unsigned bytes with activations a (even) and b (odd). */
// @inline
function dotBytes(q: v128, a: v128, b: v128, mask: v128): v128 {
  return i32x4.add(dot(v128.and(q, mask), a), dot(i16x8.shr_u(q, 8), b));
}

/** One nibble of each of eight words. */
// @inline
function nibbles(v: v128, shift: i32, mask: v128): v128 {
  const moved = shift ? i16x8.shr_u(v, shift) : v;
  return shift === 12 ? moved : v128.and(moved, mask);
}

/** 32 weights, the `index`-th such group of half a super-block or the only one of a block, with activations a … d. */
// @inline
function dot32<T>(
  w: usize,
  half: i32,
  index: i32,
  a: v128,
  b: v128,
  c: v128,
  d: v128,
  mask: v128,
  low: v128,
  high: v128,
): v128 {
  if (isBytes<T>()) {
    const at = w + (isSuper<T>() ? 4 + ((<usize>half) << 7) + ((<usize>index) << 5) : blockBytes<T>() - 32);
    const first = i32x4.add(dot(v128.load_ext<i8>(at), a), dot(v128.load_ext<i8>(at, 8), b));
    return i32x4.add(i32x4.add(first, dot(v128.load_ext<i8>(at, 16), c)), dot(v128.load_ext<i8>(at, 24), d));
  }
  if (isNibbles<T>()) {
    // In super-blocks two groups share 32 bytes; in blocks both halves share 16.
    const at = isSuper<T>() ? w + 16 + (half << 6) + ((<usize>(index >> 1)) << 5) : w + blockBytes<T>() - 16;
    const shift = isSuper<T>() ? (index & 1) << 2 : 0;
    const u = v128.load(at);
    const v = isSuper<T>() ? v128.load(at, 16) : i16x8.shr_u(u, 4);
    const first = i32x4.add(dot(nibbles(u, shift, mask), a), dot(nibbles(u, shift + 8, mask), b));
    return i32x4.add(
      i32x4.add(first, dot(nibbles(v, shift, mask), c)),
      dot(isSuper<T>() ? nibbles(v, shift + 8, mask) : i16x8.shr_u(u, 12), d),
    );
  }
  return i32x4.add(
    dotBytes(quants<T>(w, half, 2 * index, low, high), a, b, mask),
    dotBytes(quants<T>(w, half, 2 * index + 1, low, high), c, d, mask),
  );
}

/** A group's integers to the floats; `lanes` are the activations' sums times the offset, `factor` is its address. */
// @inline
function addGroup<T>(products: v128, lanes: v128, factor: usize, sum: v128): v128 {
  const s = hasMin<T>() || isBytes<T>() ? products : i32x4.sub(products, lanes);
  return madd(f32x4.convert_i32x4_s(s), v128.load_splat<f32>(factor), sum);
}

/** The lanes of a group, for types that have an offset. */
// @inline
function lanesAt<T>(sums: usize): v128 {
  return hasMin<T>() || isBytes<T>() ? i32x4.splat(0) : v128.load(sums);
}

/** Bytes of activations' sums per group. */
// @inline
function sumBytes<T>(): usize {
  return isBytes<T>() ? 0 : hasMin<T>() ? 4 : 16;
}

/** Brings a row of super-blocks into the cache in order: their scales, which are read ahead, are far apart. */
// @inline
function touch<T>(w: usize, k: usize): void {
  if (isSuper<T>()) for (const end = w + (k >> 8) * blockBytes<T>(); w < end; w += 64) load<u8>(w);
}

// ---- four short rows at once ----

/** Four rows of weights, one after the other, with a packed row of activations. */
// @inline
export function dotRows<T>(w: usize, line: usize, x: usize, k: usize): v128 {
  return isSuper<T>()
    ? dotSupers4<T>(w, w + line, w + 2 * line, w + 3 * line, x, k)
    : dotBlocks4<T>(w, w + line, w + 2 * line, w + 3 * line, x, k);
}

/** The factors of four short rows; what their minima add is stored at MINIMA. */
// @inline
function planRows<T>(w0: usize, w1: usize, w2: usize, w3: usize, x: usize, k: usize, plan: usize): void {
  const scales = x + scalesAt(k);
  const sums = x + sumsAt(k);
  v128.store(plan, rowFactors<T>(w0, k, scales, sums, plan), MINIMA);
  touch<T>(w0, k);
  v128.store(plan, rowFactors<T>(w1, k, scales, sums, plan + FACTORS), MINIMA + 16);
  touch<T>(w1, k);
  v128.store(plan, rowFactors<T>(w2, k, scales, sums, plan + 2 * FACTORS), MINIMA + 32);
  touch<T>(w2, k);
  v128.store(plan, rowFactors<T>(w3, k, scales, sums, plan + 3 * FACTORS), MINIMA + 48);
  touch<T>(w3, k);
}

function dotBlocks4<T>(w0: usize, w1: usize, w2: usize, w3: usize, x: usize, k: usize): v128 {
  const plan = scratch + SCRATCH_FREE;
  const mask = constant(maskOf<T>());
  const low = lowMask<T>();
  const high = highMask<T>();
  planRows<T>(w0, w1, w2, w3, x, k, plan);
  let s0 = f32x4.splat(0);
  let s1 = s0;
  let s2 = s0;
  let s3 = s0;
  let sums = x + sumsAt(k);
  let f = plan;
  for (const end = x + (k << 1); x < end; x += 64) {
    const a = v128.load(x);
    const b = v128.load(x, 16);
    const c = v128.load(x, 32);
    const d = v128.load(x, 48);
    const lanes = lanesAt<T>(sums);
    s0 = addGroup<T>(dot32<T>(w0, 0, 0, a, b, c, d, mask, low, high), lanes, f, s0);
    s1 = addGroup<T>(dot32<T>(w1, 0, 0, a, b, c, d, mask, low, high), lanes, f + FACTORS, s1);
    s2 = addGroup<T>(dot32<T>(w2, 0, 0, a, b, c, d, mask, low, high), lanes, f + 2 * FACTORS, s2);
    s3 = addGroup<T>(dot32<T>(w3, 0, 0, a, b, c, d, mask, low, high), lanes, f + 3 * FACTORS, s3);
    w0 += blockBytes<T>();
    w1 += blockBytes<T>();
    w2 += blockBytes<T>();
    w3 += blockBytes<T>();
    f += 4;
    sums += sumBytes<T>();
  }
  return finish4<T>(s0, s1, s2, s3, plan);
}

/** The results of four rows: their sums and what their minima add. */
// @inline
function finish4<T>(s0: v128, s1: v128, s2: v128, s3: v128, plan: usize): v128 {
  if (!hasMin<T>()) return totals(s0, s1, s2, s3);
  return totals(
    f32x4.add(s0, v128.load(plan, MINIMA)),
    f32x4.add(s1, v128.load(plan, MINIMA + 16)),
    f32x4.add(s2, v128.load(plan, MINIMA + 32)),
    f32x4.add(s3, v128.load(plan, MINIMA + 48)),
  );
}

function dotSupers4<T>(w0: usize, w1: usize, w2: usize, w3: usize, x: usize, k: usize): v128 {
  const plan = scratch + SCRATCH_FREE;
  const mask = constant(maskOf<T>());
  const low = lowMask<T>();
  const high = highMask<T>();
  planRows<T>(w0, w1, w2, w3, x, k, plan);
  let sums = x + sumsAt(k);
  let f = plan;
  const to = plan + SUMS;
  for (let i: usize = 0; i < 64; i += 16) v128.store(to + i, f32x4.splat(0));
  for (const end = x + (k << 1); x < end; x += 512) {
    add32<T>(w0, w1, w2, w3, 0, 0, x, sums, f, to, mask, low, high);
    add32<T>(w0, w1, w2, w3, 0, 1, x, sums, f, to, mask, low, high);
    add32<T>(w0, w1, w2, w3, 0, 2, x, sums, f, to, mask, low, high);
    add32<T>(w0, w1, w2, w3, 0, 3, x, sums, f, to, mask, low, high);
    add32<T>(w0, w1, w2, w3, 1, 0, x, sums, f, to, mask, low, high);
    add32<T>(w0, w1, w2, w3, 1, 1, x, sums, f, to, mask, low, high);
    add32<T>(w0, w1, w2, w3, 1, 2, x, sums, f, to, mask, low, high);
    add32<T>(w0, w1, w2, w3, 1, 3, x, sums, f, to, mask, low, high);
    w0 += blockBytes<T>();
    w1 += blockBytes<T>();
    w2 += blockBytes<T>();
    w3 += blockBytes<T>();
    f += <usize>1024 / groupSize<T>();
    sums += (256 / groupSize<T>()) * sumBytes<T>();
  }
  return finish4<T>(v128.load(to), v128.load(to, 16), v128.load(to, 32), v128.load(to, 48), plan);
}

/** 32 weights of four rows; x, sums and factors are those of the super-block. */
// @inline
function add32<T>(
  w0: usize,
  w1: usize,
  w2: usize,
  w3: usize,
  half: i32,
  index: i32,
  x: usize,
  sums: usize,
  factors: usize,
  to: usize,
  mask: v128,
  low: v128,
  high: v128,
): void {
  const group = (<usize>((half << 2) + index)) << (groupSize<T>() === 16 ? 1 : 0);
  const at = x + (half << 8) + ((<usize>index) << 6);
  const f = factors + (group << 2);
  const a = v128.load(at);
  const b = v128.load(at, 16);
  const c = v128.load(at, 32);
  const d = v128.load(at, 48);
  const lanes = lanesAt<T>(sums + (group << 4));
  const next = groupSize<T>() === 16 ? lanesAt<T>(sums + (group << 4) + 16) : lanes;
  addRow<T>(w0, half, index, a, b, c, d, lanes, next, f, to, mask, low, high);
  addRow<T>(w1, half, index, a, b, c, d, lanes, next, f + FACTORS, to + 16, mask, low, high);
  addRow<T>(w2, half, index, a, b, c, d, lanes, next, f + 2 * FACTORS, to + 32, mask, low, high);
  addRow<T>(w3, half, index, a, b, c, d, lanes, next, f + 3 * FACTORS, to + 48, mask, low, high);
}

/** 32 weights of one row. Its sum is in memory: the store ends the expression, which would become too large for the registers. */
// @inline
function addRow<T>(
  w: usize,
  half: i32,
  index: i32,
  a: v128,
  b: v128,
  c: v128,
  d: v128,
  lanes: v128,
  next: v128,
  factor: usize,
  to: usize,
  mask: v128,
  low: v128,
  high: v128,
): void {
  v128.store(to, addTo<T>(v128.load(to), w, half, index, a, b, c, d, lanes, next, factor, mask, low, high));
}

// @inline
function addTo<T>(
  sum: v128,
  w: usize,
  half: i32,
  index: i32,
  a: v128,
  b: v128,
  c: v128,
  d: v128,
  lanes: v128,
  next: v128,
  factor: usize,
  mask: v128,
  low: v128,
  high: v128,
): v128 {
  if (groupSize<T>() === 32)
    return addGroup<T>(dot32<T>(w, half, index, a, b, c, d, mask, low, high), lanes, factor, sum);
  sum = addGroup<T>(dotBytes(quants<T>(w, half, 2 * index, low, high), a, b, mask), lanes, factor, sum);
  return addGroup<T>(dotBytes(quants<T>(w, half, 2 * index + 1, low, high), c, d, mask), next, factor + 4, sum);
}

// ---- one long row ----

/** One row with a packed row of activations; the result is in every lane. */
// @inline
export function dotRow<T>(w: usize, x: usize, k: usize): v128 {
  const sum = isSuper<T>() ? dotSupers<T>(w, x, k) : dotBlocks<T>(w, x, k);
  return totals(sum, sum, sum, sum);
}

function dotBlocks<T>(w: usize, x: usize, k: usize): v128 {
  const factors = scratch + SCRATCH_FREE;
  const mask = constant(maskOf<T>());
  const low = lowMask<T>();
  const high = highMask<T>();
  let scales = x + scalesAt(k);
  let sums = x + sumsAt(k);
  let sum = f32x4.splat(0);
  let minima = sum;
  for (const last = x + (k << 1); x < last; ) {
    const n = min(STRETCH, (last - x) >> 1);
    minima = f32x4.add(minima, rowFactors<T>(w, n, scales, sums, factors));
    let f = factors;
    for (const end = x + (n << 1); x < end; x += 64) {
      sum = add1<T>(sum, w, 0, 0, x, sums, f, mask, low, high);
      w += blockBytes<T>();
      f += 4;
      sums += sumBytes<T>();
    }
    scales += f - factors;
  }
  return hasMin<T>() ? f32x4.add(sum, minima) : sum;
}

function dotSupers<T>(w: usize, x: usize, k: usize): v128 {
  const factors = scratch + SCRATCH_FREE;
  const mask = constant(maskOf<T>());
  const low = lowMask<T>();
  const high = highMask<T>();
  const bits = constant(HALF_BITS);
  const factor = constant(HALF_SCALE);
  const exponent = constant(HALF_EXPONENT);
  const infinities = constant(INFINITIES);
  const groups = <usize>256 / groupSize<T>();
  let scales = x + scalesAt(k);
  let sums = x + sumsAt(k);
  let sum = f32x4.splat(0);
  let minima = sum;
  for (const end = x + (k << 1); x < end; x += 512) {
    minima = superFactor<T>(w, scales, sums, factors, bits, factor, exponent, infinities, minima);
    sum = add1<T>(sum, w, 0, 0, x, sums, factors, mask, low, high);
    sum = add1<T>(sum, w, 0, 1, x, sums, factors, mask, low, high);
    sum = add1<T>(sum, w, 0, 2, x, sums, factors, mask, low, high);
    sum = add1<T>(sum, w, 0, 3, x, sums, factors, mask, low, high);
    sum = add1<T>(sum, w, 1, 0, x, sums, factors, mask, low, high);
    sum = add1<T>(sum, w, 1, 1, x, sums, factors, mask, low, high);
    sum = add1<T>(sum, w, 1, 2, x, sums, factors, mask, low, high);
    sum = add1<T>(sum, w, 1, 3, x, sums, factors, mask, low, high);
    w += blockBytes<T>();
    scales += groups << 2;
    sums += groups * sumBytes<T>();
  }
  return hasMin<T>() ? f32x4.add(sum, minima) : sum;
}

/** 32 weights; x, sums and factors are those of the block. */
// @inline
function add1<T>(
  sum: v128,
  w: usize,
  half: i32,
  index: i32,
  x: usize,
  sums: usize,
  factors: usize,
  mask: v128,
  low: v128,
  high: v128,
): v128 {
  const group = (<usize>((half << 2) + index)) << (groupSize<T>() === 16 ? 1 : 0);
  const at = x + (half << 8) + ((<usize>index) << 6);
  const lanes = lanesAt<T>(sums + (group << 4));
  const next = groupSize<T>() === 16 ? lanesAt<T>(sums + (group << 4) + 16) : lanes;
  sum = addTo<T>(
    sum,
    w,
    half,
    index,
    v128.load(at),
    v128.load(at, 16),
    v128.load(at, 32),
    v128.load(at, 48),
    lanes,
    next,
    factors + (group << 2),
    mask,
    low,
    high,
  );
  if (isSuper<T>()) v128.store(scratch, sum, SCRATCH_FREE + SUMS); // as in `addRow`
  return sum;
}

/** The sums of the lanes of each. */
export function totals(a: v128, b: v128, c: v128, d: v128): v128 {
  const ab = f32x4.add(v128.shuffle<u32>(a, b, 0, 4, 1, 5), v128.shuffle<u32>(a, b, 2, 6, 3, 7));
  const cd = f32x4.add(v128.shuffle<u32>(c, d, 0, 4, 1, 5), v128.shuffle<u32>(c, d, 2, 6, 3, 7));
  return f32x4.add(v128.shuffle<u64>(ab, cd, 0, 2), v128.shuffle<u64>(ab, cd, 1, 3));
}
