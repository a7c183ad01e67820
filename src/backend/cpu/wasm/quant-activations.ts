/**
 * Activations as 16-bit integers for products with quantized weights: with a scale for each 32 of them they are within
 * 1/65534 of the largest, and the products of a group sum up exactly in 32 bits.
 *
 * A packed row: k quants as i16; then for each group of weights that share a scale (16 or 32) the scale as f32; then for
 * each group what the weights' minima or offset are multiplied with. Weights that are stored as bytes meet quants in
 * order; all others are taken apart by 16-bit operations, and meet of each sixteen first the even ones, then the odd.
 */
import { shiftOf } from "./abi";
import { native, SCRATCH_FREE, widen } from "./block";
import { arg, setArg } from "./memory";
import { parallel, scratch } from "./pool";
import { groupSize, hasMin, isBytes, offsetShift } from "./quant-types";

const LARGEST: f32 = 32767;
/** Below, the reciprocal of the scale would overflow; such blocks are zero. */
const SMALLEST: f32 = 1.2e-34;
/** Activations handled at a time: a multiple of every group. */
const STEP: usize = 256;
const CHUNK: usize = 16384;

/** Where the scales, and the sums, of a packed row begin. */
// @inline
export function scalesAt(k: usize): usize {
  return k << 1;
}
// @inline
export function sumsAt(k: usize): usize {
  return (k << 1) + (k >> 2);
}

/** Bytes of a packed row: with the most scales and sums that a type needs. */
export function packedBytes(k: usize): usize {
  return (sumsAt(k) + k + 63) & ~63;
}

/** What `packActivations` has to know of a type, as one number: what goes behind the scales, the group, the order. */
// @inline
export function packingOf<T>(): i32 {
  const sums = isBytes<T>() ? NOTHING : hasMin<T>() ? FLOATS : offsetShift<T>();
  return sums | (groupSize<T>() === 16 ? SMALL : 0) | (isBytes<T>() ? ORDERED : 0);
}
/** No sums; sums in floats; otherwise the sums of the four lanes of a dot, times the offset, of which this is log2. */
const NOTHING: i32 = 14;
const FLOATS: i32 = 15;
const SMALL: i32 = 16;
const ORDERED: i32 = 32;

const enum Arg {
  PACKING,
  DTYPE,
  K,
  X,
  OUT,
}

/** Packs m contiguous rows of f32, f16 or bf16. */
export function packActivations(packing: i32, dtype: i32, m: usize, k: usize, x: usize, out: usize): void {
  setArg<i32>(Arg.PACKING, packing);
  setArg<i32>(Arg.DTYPE, dtype);
  setArg<usize>(Arg.K, k);
  setArg<usize>(Arg.X, x);
  setArg<usize>(Arg.OUT, out);
  parallel(packChunk, m * ((k - 1) / STEP + 1), CHUNK / STEP);
}

function packChunk(lo: usize, hi: usize): void {
  const packing = arg<i32>(Arg.PACKING);
  const dtype = arg<i32>(Arg.DTYPE);
  const k = arg<usize>(Arg.K);
  const steps = (k - 1) / STEP + 1;
  const bytes = packedBytes(k);
  const wide = scratch + SCRATCH_FREE;
  for (let i = lo; i < hi; i++) {
    const first = (i % steps) * STEP;
    const n = min(STEP, k - first);
    const row = arg<usize>(Arg.OUT) + (i / steps) * bytes;
    let x = arg<usize>(Arg.X) + (((i / steps) * k + first) << shiftOf(dtype));
    if (!native(dtype)) {
      widen(dtype, x, wide, n);
      x = wide;
    }
    for (let p: usize = 0; p < n; p += 32) packBlock(packing, k, first + p, x + (p << 2), row);
  }
}

/** The largest magnitude of 32; NaN if there is one. */
function largest(x: usize): f32 {
  let m = f32x4.splat(0);
  for (const end = x + 128; x < end; x += 16) m = f32x4.max(m, f32x4.abs(v128.load(x)));
  m = f32x4.max(m, v128.shuffle<u64>(m, m, 1, 0));
  return max(f32x4.extract_lane(m, 0), f32x4.extract_lane(m, 1));
}

// @inline
function quant4(x: usize, inverse: v128): v128 {
  return i32x4.trunc_sat_f32x4_s(f32x4.nearest(f32x4.mul(v128.load(x), inverse)));
}

/** Quants of sixteen activations; returns their sums, lane by lane those that a dot of them has. */
// @inline
function pack16(x: usize, inverse: v128, ordered: bool, to: usize): v128 {
  let a = i16x8.narrow_i32x4_s(quant4(x, inverse), quant4(x + 16, inverse));
  let b = i16x8.narrow_i32x4_s(quant4(x + 32, inverse), quant4(x + 48, inverse));
  if (!ordered) {
    const even = v128.shuffle<u16>(a, b, 0, 2, 4, 6, 8, 10, 12, 14);
    b = v128.shuffle<u16>(a, b, 1, 3, 5, 7, 9, 11, 13, 15);
    a = even;
  }
  v128.store(to, a);
  v128.store(to, b, 16);
  const one = i16x8.splat(1);
  return i32x4.add(i32x4.dot_i16x8_s(a, one), i32x4.dot_i16x8_s(b, one));
}

/** NaN and infinity become the scale of their block: with quants of 0 they make every product NaN. */
function packBlock(packing: i32, k: usize, at: usize, x: usize, row: usize): void {
  const amax = largest(x);
  const inverse = f32x4.splat(amax < SMALLEST || !(amax < Infinity) ? 0 : LARGEST / amax);
  const scale: f32 = amax < SMALLEST ? 0 : amax / LARGEST;
  const to = row + (at << 1);
  const ordered = (packing & ORDERED) !== 0;
  const low = pack16(x, inverse, ordered, to);
  const high = pack16(x + 64, inverse, ordered, to + 32);
  if (packing & SMALL) {
    putGroup(packing, k, at >> 4, scale, low, row);
    putGroup(packing, k, (at >> 4) + 1, scale, high, row);
  } else putGroup(packing, k, at >> 5, scale, i32x4.add(low, high), row);
}

/** The scale and the sums of a group. */
function putGroup(packing: i32, k: usize, group: usize, scale: f32, lanes: v128, row: usize): void {
  store<f32>(row + scalesAt(k) + (group << 2), scale);
  const sums = packing & 15;
  if (sums === FLOATS) {
    const s = i32x4.add(lanes, v128.shuffle<u64>(lanes, lanes, 1, 0));
    store<f32>(row + sumsAt(k) + (group << 2), <f32>(i32x4.extract_lane(s, 0) + i32x4.extract_lane(s, 1)) * scale);
  } else if (sums !== NOTHING) v128.store(row + sumsAt(k) + (group << 4), i32x4.shl(lanes, sums));
}
