/**
 * The best super-block for 256 floats, by weighted least squares: large weights count more, as errors there matter more.
 *
 * Each group is fitted alone: for a row of candidate scales its floats are rounded to levels, and for those levels the
 * best scale (and minimum) is known in closed form. Then the groups' scales become small integers: near the fitted
 * ones, those with the least error are taken; and last the scales of the super-block are fitted to all that is fixed.
 */
import { Q2_K, Q3_K, Q4_K, Q5_K, Q6_K } from "./abi";
import { SCRATCH_FREE } from "./block";
import { madd } from "./math";
import { scratch } from "./pool";
import { inverseOf, peakOf, storeHalf } from "./quant-scale";

// Scratch: importance of each float, its level, and per group the fitted scale and minimum and their integers.
const IMPORTANCE: usize = SCRATCH_FREE;
const LEVELS: usize = IMPORTANCE + 1024;
const SCALE: usize = LEVELS + 256;
const MINIMUM: usize = SCALE + 64;
const SCALE_INT: usize = MINIMUM + 64;
const MINIMUM_INT: usize = SCALE_INT + 64;
const SUMS: usize = MINIMUM_INT + 64; // three f64
const HALVES: usize = SUMS + 24; // the candidates' scales as f16

/** Candidates around the scale that just covers the floats, in tenths of a level, and rounds of fitting again. */
const REACH: i32 = 10;
const ROUNDS: i32 = 3;

export function encodeSuper(type: i32, x: usize, to: usize): void {
  if (type === Q2_K.ID) searchRange(16, 3, 15, x);
  else if (type === Q4_K.ID) searchRange(32, 15, 63, x);
  else if (type === Q5_K.ID) searchRange(32, 31, 63, x);
  else if (type === Q3_K.ID) searchSigned(4, 32, x);
  else searchSigned(32, 128, x);
  storeScales(type, to);
  storeLevels(type, to);
}

// @inline
function at(field: usize, group: usize): usize {
  return scratch + field + (group << 2);
}
// @inline
function importance(first: usize): usize {
  return scratch + IMPORTANCE + (first << 2);
}
// @inline
function sum4(x: v128): f64 {
  return (
    <f64>f32x4.extract_lane(x, 0) +
    <f64>f32x4.extract_lane(x, 1) +
    (<f64>f32x4.extract_lane(x, 2) + <f64>f32x4.extract_lane(x, 3))
  );
}
// @inline
function level4(x: usize, inverse: v128, base: v128, least: v128, most: v128): v128 {
  const q = f32x4.nearest(f32x4.mul(f32x4.add(v128.load(x), base), inverse));
  return f32x4.pmin(f32x4.pmax(q, least), most);
}

/** Root mean square of the group plus the magnitude. */
function weigh(x: usize, n: usize, to: usize): void {
  let squares = f32x4.splat(0);
  for (let i: usize = 0; i < n << 2; i += 16) squares = madd(v128.load(x + i), v128.load(x + i), squares);
  const rms = f32x4.splat(<f32>sqrt(sum4(squares) / <f64>n));
  for (let i: usize = 0; i < n << 2; i += 16) v128.store(to + i, f32x4.add(rms, f32x4.abs(v128.load(x + i))));
}

/** Σwq, Σwq² and Σwxq for the levels q that `inverse` and `base` give. */
function levelSums(x: usize, w: usize, n: usize, inverse: f32, base: f32, least: f32, most: f32): void {
  let wq = f32x4.splat(0);
  let wqq = wq;
  let wxq = wq;
  for (let i: usize = 0; i < n << 2; i += 16) {
    const q = level4(x + i, f32x4.splat(inverse), f32x4.splat(base), f32x4.splat(least), f32x4.splat(most));
    const product = f32x4.mul(v128.load(w + i), q);
    wq = f32x4.add(wq, product);
    wqq = madd(product, q, wqq);
    wxq = madd(product, v128.load(x + i), wxq);
  }
  store<f64>(scratch + SUMS, sum4(wq));
  store<f64>(scratch + SUMS, sum4(wqq), 8);
  store<f64>(scratch + SUMS, sum4(wxq), 16);
}

/** The weighted squared error of a group as scale · q − minimum. */
function errorOf(x: usize, w: usize, n: usize, scale: f32, minimum: f32, least: f32, most: f32): f64 {
  const inverse = f32x4.splat(inverseOf(scale));
  let error = f32x4.splat(0);
  for (let i: usize = 0; i < n << 2; i += 16) {
    const q = level4(x + i, inverse, f32x4.splat(minimum), f32x4.splat(least), f32x4.splat(most));
    const e = f32x4.add(f32x4.sub(v128.load(x + i), f32x4.mul(q, f32x4.splat(scale))), f32x4.splat(minimum));
    error = madd(f32x4.mul(e, e), v128.load(w + i), error);
  }
  return sum4(error);
}

/** Writes the levels of a group as unsigned bytes. */
function storeGroup(x: usize, first: usize, n: usize, scale: f32, minimum: f32, least: f32, most: f32): void {
  const inverse = inverseOf(scale);
  for (let i = first; i < first + n; i++) {
    const q = <i32>nearest((load<f32>(x + (i << 2)) + minimum) * inverse);
    store<u8>(scratch + LEVELS + i, <u8>(max(<i32>least, min(<i32>most, q)) - <i32>least));
  }
}

// ---- scale · q − minimum with q from 0 to `top` ----

function searchRange(n: usize, top: f32, most: f32, x: usize): void {
  const groups: usize = 256 / n;
  let largestScale: f32 = 0;
  let largestMinimum: f32 = 0;
  for (let g: usize = 0; g < groups; g++) {
    const first = g * n;
    weigh(x + (first << 2), n, importance(first));
    fitRange(x + (first << 2), importance(first), n, top, g);
    largestScale = max(largestScale, load<f32>(at(SCALE, g)));
    largestMinimum = max(largestMinimum, load<f32>(at(MINIMUM, g)));
  }
  let d = storeHalf(scratch + HALVES, largestScale / most);
  let m = storeHalf(scratch + HALVES + 2, largestMinimum / most);
  let error: f64 = 0;
  for (let g: usize = 0; g < groups; g++) error += roundRange(x, n, top, most, g, d, m);
  if (refitRange(x, n, top, d, m, error)) {
    d = storeHalf(scratch + HALVES, load<f32>(scratch + SUMS));
    m = storeHalf(scratch + HALVES + 2, load<f32>(scratch + SUMS, 4));
  }
  for (let g: usize = 0; g < groups; g++)
    storeGroup(x, g * n, n, d * <f32>load<i32>(at(SCALE_INT, g)), m * <f32>load<i32>(at(MINIMUM_INT, g)), 0, top);
}

/** The best scale and minimum ≥ 0 of one group. */
function fitRange(x: usize, w: usize, n: usize, top: f32, group: usize): void {
  let least: f32 = 0;
  let most: f32 = load<f32>(x);
  let sw: f64 = 0;
  let swx: f64 = 0;
  let swxx: f64 = 0;
  for (let i: usize = 0; i < n << 2; i += 4) {
    const v = load<f32>(x + i);
    least = min(least, v);
    most = max(most, v);
    sw += <f64>load<f32>(w + i);
    swx += <f64>load<f32>(w + i) * v;
    swxx += <f64>load<f32>(w + i) * v * v;
  }
  let scale = (most - least) / top;
  let base = -least;
  let best: f64 = Infinity;
  for (let step = -REACH; step <= REACH + ROUNDS; step++) {
    const again = step > REACH;
    const inverse = again ? inverseOf(scale) : (top + <f32>0.1 * <f32>step) * inverseOf(most - least);
    levelSums(x, w, n, inverse, again ? base : -least, 0, top);
    const wq = load<f64>(scratch + SUMS);
    const wqq = load<f64>(scratch + SUMS, 8);
    const wxq = load<f64>(scratch + SUMS, 16);
    const determinant = sw * wqq - wq * wq;
    if (!(determinant > 0)) continue;
    let s = (sw * wxq - swx * wq) / determinant;
    let b = (wqq * swx - wq * wxq) / determinant;
    if (b > 0) {
      b = 0;
      s = wxq / wqq;
    }
    const error = s * s * wqq + b * b * sw + swxx + 2 * (s * b * wq - s * wxq - b * swx);
    if (s > 0 && error < best) {
      best = error;
      scale = <f32>s;
      base = -(<f32>b);
    }
  }
  store<f32>(at(SCALE, group), scale);
  store<f32>(at(MINIMUM, group), base);
}

/** The integers near the fitted scale and minimum with the least error, which is returned. */
function roundRange(x: usize, n: usize, top: f32, most: f32, group: usize, d: f32, m: f32): f64 {
  const first = group * n;
  // A scale that f16 rounded down would lead beyond the largest integer.
  const s = min(most, nearest(load<f32>(at(SCALE, group)) * inverseOf(d)));
  const b = min(most, nearest(load<f32>(at(MINIMUM, group)) * inverseOf(m)));
  let best: f64 = Infinity;
  store<i32>(at(SCALE_INT, group), 0);
  store<i32>(at(MINIMUM_INT, group), 0);
  for (let i = max<f32>(0, s - 1); i <= min<f32>(most, s + 1); i++) {
    for (let j = max<f32>(0, b - 1); j <= min<f32>(most, b + 1); j++) {
      const error = errorOf(x + (first << 2), importance(first), n, d * i, m * j, 0, top);
      if (!(error < best)) continue;
      best = error;
      store<i32>(at(SCALE_INT, group), <i32>i);
      store<i32>(at(MINIMUM_INT, group), <i32>j);
    }
  }
  return best;
}

/** x ≈ d · (scale · q) − m · minimum over the whole block, for fixed integers. True if the result at SUMS is better. */
function refitRange(x: usize, n: usize, top: f32, d: f32, m: f32, error: f64): bool {
  let aa: f64 = 0;
  let ab: f64 = 0;
  let bb: f64 = 0;
  let ax: f64 = 0;
  let bx: f64 = 0;
  for (let g: usize = 0; g < 256 / n; g++) {
    const s = <f64>load<i32>(at(SCALE_INT, g));
    const b = <f64>load<i32>(at(MINIMUM_INT, g));
    const from = x + ((g * n) << 2);
    const w = importance(g * n);
    levelSums(from, w, n, inverseOf(d * <f32>s), m * <f32>b, 0, top);
    let sw: f64 = 0;
    let swx: f64 = 0;
    for (let i: usize = 0; i < n << 2; i += 4) {
      sw += <f64>load<f32>(w + i);
      swx += <f64>load<f32>(w + i) * load<f32>(from + i);
    }
    aa += s * s * load<f64>(scratch + SUMS, 8);
    ab -= s * b * load<f64>(scratch + SUMS);
    bb += b * b * sw;
    ax += s * load<f64>(scratch + SUMS, 16);
    bx -= b * swx;
  }
  const determinant = aa * bb - ab * ab;
  const dNew = determinant > 0 ? (ax * bb - bx * ab) / determinant : ax / aa;
  const mNew = determinant > 0 ? (bx * aa - ax * ab) / determinant : 0;
  if (!(dNew > 0 && mNew >= 0)) return false;
  const dHalf = storeHalf(scratch + HALVES + 4, <f32>dNew);
  const mHalf = storeHalf(scratch + HALVES + 4, <f32>mNew);
  let after: f64 = 0;
  for (let g: usize = 0; g < 256 / n; g++) {
    const first = g * n;
    after += errorOf(
      x + (first << 2),
      importance(first),
      n,
      dHalf * <f32>load<i32>(at(SCALE_INT, g)),
      mHalf * <f32>load<i32>(at(MINIMUM_INT, g)),
      0,
      top,
    );
  }
  store<f32>(scratch + SUMS, dHalf);
  store<f32>(scratch + SUMS, mHalf, 4);
  return after < error;
}

// ---- scale · q with q from −levels to levels − 1 and signed scales from −most to most − 1 ----

function searchSigned(levels: f32, most: f32, x: usize): void {
  for (let g: usize = 0; g < 16; g++) {
    weigh(x + (g << 6), 16, importance(g << 4));
    fitSigned(x + (g << 6), importance(g << 4), levels, g);
  }
  let d = storeHalf(scratch + HALVES, peakOf(scratch + SCALE, 16) / -most);
  let error: f64 = 0;
  let xq: f64 = 0;
  let qq: f64 = 0;
  for (let g: usize = 0; g < 16; g++) {
    error += roundSigned(x, levels, most, g, d);
    const s = <f64>load<i32>(at(SCALE_INT, g));
    levelSums(x + (g << 6), importance(g << 4), 16, inverseOf(d * <f32>s), 0, -levels, levels - 1);
    qq += s * s * load<f64>(scratch + SUMS, 8);
    xq += s * load<f64>(scratch + SUMS, 16);
  }
  if (qq > 0) {
    const fitted = storeHalf(scratch + HALVES + 4, <f32>(xq / qq));
    let after: f64 = 0;
    for (let g: usize = 0; g < 16; g++)
      after += errorOf(
        x + (g << 6),
        importance(g << 4),
        16,
        fitted * <f32>load<i32>(at(SCALE_INT, g)),
        0,
        -levels,
        levels - 1,
      );
    if (after < error) d = storeHalf(scratch + HALVES, fitted);
  }
  for (let g: usize = 0; g < 16; g++)
    storeGroup(x, g << 4, 16, d * <f32>load<i32>(at(SCALE_INT, g)), 0, -levels, levels - 1);
}

/** The best scale of one group of sixteen. */
function fitSigned(x: usize, w: usize, levels: f32, group: usize): void {
  const peak = peakOf(x, 16);
  let scale = peak / -levels;
  let best: f64 = 0;
  for (let step = -REACH; step <= REACH + ROUNDS; step++) {
    const inverse = step > REACH ? inverseOf(scale) : -(levels + <f32>0.1 * <f32>step) * inverseOf(peak);
    levelSums(x, w, 16, inverse, 0, -levels, levels - 1);
    const wqq = load<f64>(scratch + SUMS, 8);
    const wxq = load<f64>(scratch + SUMS, 16);
    if (!(wqq > 0 && wxq * wxq > best * wqq)) continue;
    best = (wxq * wxq) / wqq;
    scale = <f32>(wxq / wqq);
  }
  store<f32>(at(SCALE, group), scale);
}

/** As `roundRange`. */
function roundSigned(x: usize, levels: f32, most: f32, group: usize, d: f32): f64 {
  const s = max(-most, min(most - 1, nearest(load<f32>(at(SCALE, group)) * inverseOf(d))));
  let best: f64 = Infinity;
  store<i32>(at(SCALE_INT, group), 0);
  for (let i = max(-most, s - 1); i <= min(most - 1, s + 1); i++) {
    const error = errorOf(x + (group << 6), importance(group << 4), 16, d * i, 0, -levels, levels - 1);
    if (!(error < best)) continue;
    best = error;
    store<i32>(at(SCALE_INT, group), <i32>i);
  }
  return best;
}

// ---- layouts: the inverse of quant-blocks.ts ----

function storeScales(type: i32, to: usize): void {
  const d = load<u16>(scratch + HALVES);
  const m = load<u16>(scratch + HALVES, 2);
  if (type === Q2_K.ID) {
    for (let g: usize = 0; g < 16; g++)
      store<u8>(to + g, <u8>(load<i32>(at(SCALE_INT, g)) | (load<i32>(at(MINIMUM_INT, g)) << 4)));
    store<u16>(to, d, 80);
    store<u16>(to, m, 82);
  } else if (type === Q3_K.ID) {
    memory.fill(to + 96, 0, 12);
    for (let g: usize = 0; g < 16; g++) {
      const s = load<i32>(at(SCALE_INT, g)) + 32;
      orByte(to + 96 + (g & 7), (s & 15) << (g < 8 ? 0 : 4));
      orByte(to + 104 + (g & 3), (s >> 4) << (<i32>((g >> 2) << 1)));
    }
    store<u16>(to, d, 108);
  } else if (type === Q6_K.ID) {
    for (let g: usize = 0; g < 16; g++) store<i8>(to + 192 + g, <i8>load<i32>(at(SCALE_INT, g)));
    store<u16>(to, d, 208);
  } else {
    for (let g: usize = 0; g < 4; g++) {
      const s = load<i32>(at(SCALE_INT, g + 4));
      const b = load<i32>(at(MINIMUM_INT, g + 4));
      store<u8>(to + 4 + g, <u8>(load<i32>(at(SCALE_INT, g)) | ((s >> 4) << 6)));
      store<u8>(to + 8 + g, <u8>(load<i32>(at(MINIMUM_INT, g)) | ((b >> 4) << 6)));
      store<u8>(to + 12 + g, <u8>((s & 15) | ((b & 15) << 4)));
    }
    store<u16>(to, d);
    store<u16>(to, m, 2);
  }
}

// @inline
function orByte(to: usize, bits: i32): void {
  store<u8>(to, load<u8>(to) | <u8>bits);
}

function storeLevels(type: i32, to: usize): void {
  // Low bits first, then what does not fit into them: where each begins, and how many bytes both take.
  const low: usize = type === Q6_K.ID ? 0 : type === Q3_K.ID ? 32 : type === Q5_K.ID ? 48 : 16;
  const two = type === Q2_K.ID || type === Q3_K.ID;
  memory.fill(to + low, 0, two ? 64 : 128);
  if (type === Q3_K.ID) memory.fill(to, 0, 32);
  if (type === Q5_K.ID) memory.fill(to + 16, 0, 32);
  if (type === Q6_K.ID) memory.fill(to + 128, 0, 64);
  for (let i: usize = 0; i < 256; i++) {
    const q = <i32>load<u8>(scratch + LEVELS + i);
    const half = i >> 7;
    const part = <i32>(i >> 4) & 7;
    const byte = i & 31; // the groups of a pair lie side by side
    const bit = ((<i32>half) << 2) + (part >> 1);
    if (two) orByte(to + low + (half << 5) + byte, (q & 3) << (part & 6));
    else if (type === Q6_K.ID) orByte(to + (half << 6) + ((<usize>(part & 2)) << 4) + byte, (q & 15) << (part & 4));
    else orByte(to + low + (half << 6) + ((<usize>(part >> 2)) << 5) + byte, (q & 15) << ((part & 2) << 1));
    if (type === Q3_K.ID) orByte(to + byte, (q >> 2) << bit);
    else if (type === Q5_K.ID) orByte(to + 16 + byte, (q >> 4) << bit);
    else if (type === Q6_K.ID) orByte(to + 128 + (half << 5) + byte, (q >> 4) << (part & 6));
  }
}
