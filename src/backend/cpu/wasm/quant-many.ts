/**
 * x · wᵀ for several rows of x, in the order of additions of quant-dot.ts. The quants of some rows of w become 16-bit
 * integers, a stretch of k at a time, and meet four packed rows of x at once: that takes no longer than decoding to
 * floats would, and the sums of a group are as exact as those of a single row.
 */
import { blockBytes } from "./abi";
import { SCRATCH_FREE } from "./block";
import { madd } from "./math";
import { scratch } from "./pool";
import { packedBytes, scalesAt, sumsAt } from "./quant-activations";
import {
  floats4,
  groupMinima,
  groupScales,
  highMask,
  lowMask,
  minimum,
  quants,
  scale,
  superScales,
} from "./quant-blocks";
import { constant, HALF_BITS, HALF_EXPONENT, HALF_SCALE, INFINITIES, WORD_BYTE } from "./quant-constants";
import { STRETCH } from "./quant-dot";
import { groupSize, hasMin, isBytes, isSuper, offsetShift } from "./quant-types";

/** Rows of w at a time, and weights of each: their quants stay in the first cache with those of four rows of x. */
export const COLUMNS: usize = 12;
const DEPTH: usize = 512;
/** Rows of x at a time. */
export const ROWS: usize = 96;

// Scratch: sums of each row of w with each row of x; quants and scales of a stretch.
export const SUMS: usize = SCRATCH_FREE;
const QUANTS: usize = SUMS + COLUMNS * ROWS * 16;
const SCALES: usize = QUANTS + COLUMNS * DEPTH * 2;
/** The minima of one row of w, of all groups. */
const MINIMA: usize = SCALES + COLUMNS * (DEPTH / 16) * 4;

/**
 * The sums of `cols` ≤ COLUMNS rows of w, `line` bytes apart, with m ≤ ROWS packed rows of x over k: vectors at SUMS,
 * those of one row of w after the other.
 */
export function dotMany<T>(w: usize, line: usize, cols: usize, x: usize, m: usize, k: usize): void {
  const bytes = packedBytes(k);
  const sums = scratch + SUMS;
  for (let p: usize = 0; p < k; p += DEPTH) {
    const n = min(DEPTH, k - p);
    const from = w + (isSuper<T>() ? p >> 8 : p >> 5) * blockBytes<T>();
    for (let j: usize = 0; j < cols; j++)
      unpack<T>(from + j * line, n, scratch + QUANTS + j * (DEPTH << 1), scratch + SCALES + j * (DEPTH >> 2));
    const own = x + (p << 1);
    const scales = x + scalesAt(k) + (p / groupSize<T>()) * 4;
    let i: usize = 0;
    for (; i + 4 <= m; i += 4) {
      const to = sums + i * 16;
      if (groupSize<T>() === 32) rows4x32(cols, n, own + i * bytes, scales + i * bytes, bytes, to, p > 0);
      else rows4x16(cols, n, own + i * bytes, scales + i * bytes, bytes, to, p > 0);
    }
    for (; i < m; i++) row<T>(cols, n, own + i * bytes, scales + i * bytes, sums + i * 16, p > 0);
  }
  if (!hasMin<T>()) return;
  for (let j: usize = 0; j < cols; j++) {
    const to = sums + j * ROWS * 16;
    const odd = unpackMinima<T>(w + j * line, k);
    if (isSuper<T>()) addMinima(m, x + sumsAt(k), bytes, (k / groupSize<T>()) * 4, to);
    else for (let i: usize = 0; i < m; i++) addBlockMinima(x + i * bytes + sumsAt(k), k, odd, to + i * 16);
  }
}

/** n weights as 16-bit integers in the order of packed activations, and the scales of their groups. */
function unpack<T>(w: usize, n: usize, to: usize, scales: usize): void {
  if (!isSuper<T>()) {
    for (const end = to + (n << 1); to < end; to += 64, scales += 4, w += blockBytes<T>()) {
      if (isBytes<T>()) bytes32(w + blockBytes<T>() - 32, to);
      else {
        part16<T>(w, 0, 0, to);
        part16<T>(w, 0, 1, to + 32);
      }
      store<f32>(scales, f32x4.extract_lane(scale<T>(w), 0));
    }
    return;
  }
  const bits = constant(HALF_BITS);
  const factor = constant(HALF_SCALE);
  const exponent = constant(HALF_EXPONENT);
  const infinities = constant(INFINITIES);
  for (const end = to + (n << 1); to < end; to += 512, scales += 1024 / groupSize<T>(), w += blockBytes<T>()) {
    for (let half = 0; half < 2; half++) {
      const at = to + ((<usize>half) << 8);
      if (isBytes<T>())
        for (let i: usize = 0; i < 128; i += 32) bytes32(w + 4 + ((<usize>half) << 7) + i, at + (i << 1));
      else {
        part16<T>(w, half, 0, at);
        part16<T>(w, half, 1, at + 32);
        part16<T>(w, half, 2, at + 64);
        part16<T>(w, half, 3, at + 96);
        part16<T>(w, half, 4, at + 128);
        part16<T>(w, half, 5, at + 160);
        part16<T>(w, half, 6, at + 192);
        part16<T>(w, half, 7, at + 224);
      }
    }
    const both = superScales<T>(w, bits, factor, exponent, infinities);
    const d = hasMin<T>() ? v128.shuffle<u64>(both, both, 0, 0) : both;
    const own = groupScales<T>(w);
    v128.store(scales, f32x4.mul(d, floats4(own, 0)));
    v128.store(scales, f32x4.mul(d, floats4(own, 1)), 16);
    if (groupSize<T>() === 16) {
      v128.store(scales, f32x4.mul(d, floats4(own, 2)), 32);
      v128.store(scales, f32x4.mul(d, floats4(own, 3)), 48);
    }
  }
}

// @inline
function bytes32(w: usize, to: usize): void {
  v128.store(to, v128.load_ext<i8>(w));
  v128.store(to, v128.load_ext<i8>(w, 8), 16);
  v128.store(to, v128.load_ext<i8>(w, 16), 32);
  v128.store(to, v128.load_ext<i8>(w, 24), 48);
}

/** Sixteen weights without their offset: the even ones, then the odd. */
// @inline
function part16<T>(w: usize, half: i32, part: i32, to: usize): void {
  const q = quants<T>(w, half, part, lowMask<T>(), highMask<T>());
  const offset = i16x8.shl(i16x8.splat(hasMin<T>() ? 0 : 1), offsetShift<T>());
  v128.store(to, i16x8.sub(v128.and(q, constant(WORD_BYTE)), offset));
  v128.store(to, i16x8.sub(i16x8.shr_u(q, 8), offset), 16);
}

/** The sum plus a group of 32 weights a … d with activations at x. */
// @inline
function add32(sum: v128, a: v128, b: v128, c: v128, d: v128, x: usize, factor: v128): v128 {
  const first = i32x4.add(i32x4.dot_i16x8_s(a, v128.load(x)), i32x4.dot_i16x8_s(b, v128.load(x, 16)));
  const second = i32x4.add(i32x4.dot_i16x8_s(c, v128.load(x, 32)), i32x4.dot_i16x8_s(d, v128.load(x, 48)));
  return madd(f32x4.convert_i32x4_s(i32x4.add(first, second)), factor, sum);
}

/** The same for two groups of 16, whose activations have one scale. */
// @inline
function add16(sum: v128, a: v128, b: v128, c: v128, d: v128, x: usize, f: v128, g: v128, own: v128): v128 {
  const first = i32x4.add(i32x4.dot_i16x8_s(a, v128.load(x)), i32x4.dot_i16x8_s(b, v128.load(x, 16)));
  const second = i32x4.add(i32x4.dot_i16x8_s(c, v128.load(x, 32)), i32x4.dot_i16x8_s(d, v128.load(x, 48)));
  sum = madd(f32x4.convert_i32x4_s(first), f32x4.mul(f, own), sum);
  return madd(f32x4.convert_i32x4_s(second), f32x4.mul(g, own), sum);
}

/** Four rows of x, `step` bytes apart, with n weights of each column; their sums begin, or go on with `more`. */
function rows4x32(cols: usize, n: usize, x: usize, own: usize, step: usize, sums: usize, more: bool): void {
  const x0 = x;
  const own0 = own;
  for (let j: usize = 0; j < cols; j++, sums += ROWS * 16) {
    let w = scratch + QUANTS + j * (DEPTH << 1);
    let scales = scratch + SCALES + j * (DEPTH >> 2);
    const end = w + (n << 1);
    x = x0;
    own = own0;
    let x1 = x + step;
    let x2 = x1 + step;
    let x3 = x2 + step;
    let s0 = f32x4.splat(0);
    let s1 = s0;
    let s2 = s0;
    let s3 = s0;
    if (more) {
      s0 = v128.load(sums);
      s1 = v128.load(sums, 16);
      s2 = v128.load(sums, 32);
      s3 = v128.load(sums, 48);
    }
    for (; w < end; w += 64) {
      const a = v128.load(w);
      const b = v128.load(w, 16);
      const c = v128.load(w, 32);
      const d = v128.load(w, 48);
      const f = v128.load_splat<f32>(scales);
      s0 = add32(s0, a, b, c, d, x, f32x4.mul(f, v128.load_splat<f32>(own)));
      s1 = add32(s1, a, b, c, d, x1, f32x4.mul(f, v128.load_splat<f32>(own + step)));
      s2 = add32(s2, a, b, c, d, x2, f32x4.mul(f, v128.load_splat<f32>(own + 2 * step)));
      s3 = add32(s3, a, b, c, d, x3, f32x4.mul(f, v128.load_splat<f32>(own + 3 * step)));
      x += 64;
      x1 += 64;
      x2 += 64;
      x3 += 64;
      scales += 4;
      own += 4;
    }
    v128.store(sums, s0);
    v128.store(sums, s1, 16);
    v128.store(sums, s2, 32);
    v128.store(sums, s3, 48);
  }
}

function rows4x16(cols: usize, n: usize, x: usize, own: usize, step: usize, sums: usize, more: bool): void {
  const x0 = x;
  const own0 = own;
  for (let j: usize = 0; j < cols; j++, sums += ROWS * 16) {
    let w = scratch + QUANTS + j * (DEPTH << 1);
    let scales = scratch + SCALES + j * (DEPTH >> 2);
    const end = w + (n << 1);
    x = x0;
    own = own0;
    let x1 = x + step;
    let x2 = x1 + step;
    let x3 = x2 + step;
    let s0 = f32x4.splat(0);
    let s1 = s0;
    let s2 = s0;
    let s3 = s0;
    if (more) {
      s0 = v128.load(sums);
      s1 = v128.load(sums, 16);
      s2 = v128.load(sums, 32);
      s3 = v128.load(sums, 48);
    }
    for (; w < end; w += 64) {
      const a = v128.load(w);
      const b = v128.load(w, 16);
      const c = v128.load(w, 32);
      const d = v128.load(w, 48);
      const f = v128.load_splat<f32>(scales);
      const g = v128.load_splat<f32>(scales, 4);
      s0 = add16(s0, a, b, c, d, x, f, g, v128.load_splat<f32>(own));
      s1 = add16(s1, a, b, c, d, x1, f, g, v128.load_splat<f32>(own + step));
      s2 = add16(s2, a, b, c, d, x2, f, g, v128.load_splat<f32>(own + 2 * step));
      s3 = add16(s3, a, b, c, d, x3, f, g, v128.load_splat<f32>(own + 3 * step));
      x += 64;
      x1 += 64;
      x2 += 64;
      x3 += 64;
      scales += 8;
      own += 8;
    }
    v128.store(sums, s0);
    v128.store(sums, s1, 16);
    v128.store(sums, s2, 32);
    v128.store(sums, s3, 48);
  }
}

/** One row of x. */
function row<T>(cols: usize, n: usize, x: usize, own: usize, sums: usize, more: bool): void {
  for (let j: usize = 0; j < cols; j++, sums += ROWS * 16) {
    let w = scratch + QUANTS + j * (DEPTH << 1);
    const scales = scratch + SCALES + j * (DEPTH >> 2);
    let s = more ? v128.load(sums) : f32x4.splat(0);
    let at = x;
    const bytes = (n / groupSize<T>()) << 2;
    for (let g: usize = 0; g < bytes; w += 64, at += 64) {
      const a = v128.load(w);
      const b = v128.load(w, 16);
      const c = v128.load(w, 32);
      const d = v128.load(w, 48);
      const f = v128.load_splat<f32>(scales + g);
      const factor = v128.load_splat<f32>(own + g);
      if (groupSize<T>() === 32) s = add32(s, a, b, c, d, at, f32x4.mul(f, factor));
      else s = add16(s, a, b, c, d, at, f, v128.load_splat<f32>(scales + g, 4), factor);
      g += 128 / groupSize<T>();
    }
    v128.store(sums, s);
  }
}

// ---- what minima add, as quant-factors.ts computes it ----

/** Minima as floats at MINIMA, those of super-blocks times their scale and negative; whether blocks have infinite ones. */
function unpackMinima<T>(w: usize, k: usize): bool {
  const to = scratch + MINIMA;
  const blocks = isSuper<T>() ? k >> 8 : k >> 5;
  let odd = false;
  for (let i: usize = 0; i < blocks; i++, w += blockBytes<T>()) {
    if (!isSuper<T>()) {
      const m = f32x4.extract_lane(minimum<T>(w), 0);
      store<f32>(to + (i << 2), m);
      if (!(abs(m) < Infinity)) odd = true;
      continue;
    }
    const at = to + i * (1024 / groupSize<T>());
    const both = superScales<T>(
      w,
      constant(HALF_BITS),
      constant(HALF_SCALE),
      constant(HALF_EXPONENT),
      constant(INFINITIES),
    );
    const minima = groupMinima<T>(w, groupScales<T>(w));
    const m = f32x4.neg(v128.shuffle<u64>(both, both, 1, 1));
    v128.store(at, f32x4.mul(m, floats4(minima, 0)));
    v128.store(at, f32x4.mul(m, floats4(minima, 1)), 16);
    if (groupSize<T>() === 16) {
      v128.store(at, f32x4.mul(m, floats4(minima, 2)), 32);
      v128.store(at, f32x4.mul(m, floats4(minima, 3)), 48);
    }
  }
  return odd;
}

/** What `length` bytes of minima add to m rows, whose activations' sums are at `from`, `step` bytes apart. */
function addMinima(m: usize, from: usize, step: usize, length: usize, to: usize): void {
  const first = scratch + MINIMA;
  const end = first + length;
  let i: usize = 0;
  for (; i + 4 <= m; i += 4, from += 4 * step, to += 64) {
    let a = f32x4.splat(0);
    let b = a;
    let c = a;
    let d = a;
    for (let p = first, s = from; p < end; p += 16, s += 16) {
      const minima = v128.load(p);
      a = madd(minima, v128.load(s), a);
      b = madd(minima, v128.load(s + step), b);
      c = madd(minima, v128.load(s + 2 * step), c);
      d = madd(minima, v128.load(s + 3 * step), d);
    }
    v128.store(to, f32x4.add(v128.load(to), a));
    v128.store(to, f32x4.add(v128.load(to, 16), b), 16);
    v128.store(to, f32x4.add(v128.load(to, 32), c), 32);
    v128.store(to, f32x4.add(v128.load(to, 48), d), 48);
  }
  for (; i < m; i++, from += step, to += 16) {
    let a = f32x4.splat(0);
    for (let p = first, s = from; p < end; p += 16, s += 16) a = madd(v128.load(p), v128.load(s), a);
    v128.store(to, f32x4.add(v128.load(to), a));
  }
}

/** The same of blocks: eight at a time and the rest one by one, as all are where one has an infinity. */
function addBlockMinima(sums: usize, k: usize, odd: bool, to: usize): void {
  const minima = scratch + MINIMA;
  let total = f32x4.splat(0);
  for (let p: usize = 0; p < k; p += STRETCH) {
    const end = (min(k, p + STRETCH) >> 5) << 2;
    let at = (p >> 5) << 2;
    let t = f32x4.splat(0);
    if (!odd) {
      for (; at + 32 <= end; at += 32) {
        const second = madd(v128.load(minima + at, 16), v128.load(sums + at, 16), t);
        t = madd(v128.load(minima + at), v128.load(sums + at), second);
      }
    }
    for (; at < end; at += 4) t = madd(v128.load_splat<f32>(minima + at), v128.load_zero<f32>(sums + at), t);
    total = f32x4.add(total, t);
  }
  v128.store(to, f32x4.add(v128.load(to), total));
}
