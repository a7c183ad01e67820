/**
 * Activations as integers for products with quantized weights. Dots multiply 16-bit lanes in any case, so activations
 * keep eleven bits: |q| ≤ 1023 is the most for which no sum over a super-block can leave 32 bits.
 *
 * A packed row: k quants as i16, of each sixteen first the even ones and then the odd ones (as 16-bit operations split
 * bytes); then for each block of the weights' size its scale as f32; then what corrects for offsets and minima.
 */
import { native, SCRATCH_FREE, widen } from "./block";
import { arg, setArg, shiftOf } from "./memory";
import { parallel, scratch } from "./pool";
import { blockShift, hasMin, isSuper, offset } from "./quant-types";

const LARGEST: f32 = 1023;
/** Below, the reciprocal of the scale would overflow; such blocks are zero. */
const SMALLEST: f32 = 1.2e-35;
/** Activations handled at a time; a multiple of every block. */
const STEP: usize = 256;
const CHUNK: usize = 16384;

/** Where the scales, and the corrections, of a packed row begin. */
// @ts-ignore: decorator
@inline
export function scalesAt(k: usize): usize {
  return k << 1;
}
// @ts-ignore: decorator
@inline
export function correctionsAt(type: i32, k: usize): usize {
  return (k << 1) + ((k >> blockShift(type)) << 2);
}
/** Bytes of corrections per block: four lanes for blocks of 32, sixteen i16 sums for super-blocks. */
export const BLOCK_CORRECTION: usize = 16;
export const SUPER_CORRECTION: usize = 32;

/** Bytes of a packed row. */
export function packedBytes(type: i32, k: usize): usize {
  const blocks = k >> blockShift(type);
  return (correctionsAt(type, k) + blocks * (isSuper(type) ? SUPER_CORRECTION : BLOCK_CORRECTION) + 63) & ~63;
}

// Arguments: 0 type, 1 dtype, 2 k, 3 x, 4 out

/** Packs m contiguous rows of f32, f16 or bf16. */
export function packActivations(type: i32, dtype: i32, m: usize, k: usize, x: usize, out: usize): void {
  setArg<i32>(0, type);
  setArg<i32>(1, dtype);
  setArg<usize>(2, k);
  setArg<usize>(3, x);
  setArg<usize>(4, out);
  parallel(packChunk, m * ((k - 1) / STEP + 1), CHUNK / STEP);
}

function packChunk(lo: usize, hi: usize): void {
  const type = arg<i32>(0);
  const dtype = arg<i32>(1);
  const k = arg<usize>(2);
  const steps = (k - 1) / STEP + 1;
  const bytes = packedBytes(type, k);
  const wide = scratch + SCRATCH_FREE;
  for (let i = lo; i < hi; i++) {
    const first = (i % steps) * STEP;
    const n = min(STEP, k - first);
    const row = arg<usize>(4) + (i / steps) * bytes;
    let x = arg<usize>(3) + (((i / steps) * k + first) << shiftOf(dtype));
    if (!native(dtype)) {
      widen(dtype, x, wide, n);
      x = wide;
    }
    if (isSuper(type)) packSuper(type, k, first, x, row);
    else for (let p: usize = 0; p < n; p += 32) packBlock(type, k, first + p, x + (p << 2), row);
  }
}

/** The largest magnitude; NaN if there is one. */
function largest(x: usize, n: usize): f32 {
  let m = f32x4.splat(0);
  for (const end = x + (n << 2); x < end; x += 16) m = f32x4.max(m, f32x4.abs(v128.load(x)));
  m = f32x4.max(m, v128.shuffle<u64>(m, m, 1, 0));
  return max(f32x4.extract_lane(m, 0), f32x4.extract_lane(m, 1));
}

/** Quants of sixteen activations; returns the sums of their pairs. */
// @ts-ignore: decorator
@inline
function pack16(x: usize, inverse: v128, to: usize): v128 {
  const a = i16x8.narrow_i32x4_s(quant4(x, inverse), quant4(x + 16, inverse));
  const b = i16x8.narrow_i32x4_s(quant4(x + 32, inverse), quant4(x + 48, inverse));
  const even = v128.shuffle<u16>(a, b, 0, 2, 4, 6, 8, 10, 12, 14);
  const odd = v128.shuffle<u16>(a, b, 1, 3, 5, 7, 9, 11, 13, 15);
  v128.store(to, even);
  v128.store(to, odd, 16);
  const one = i16x8.splat(1);
  return i32x4.add(i32x4.dot_i16x8_s(even, one), i32x4.dot_i16x8_s(odd, one));
}
// @ts-ignore: decorator
@inline
function quant4(x: usize, inverse: v128): v128 {
  return i32x4.trunc_sat_f32x4_s(f32x4.nearest(f32x4.mul(v128.load(x), inverse)));
}

/** The scale of a block. NaN and infinity stay: with quants of 0 they make every product NaN. */
// @ts-ignore: decorator
@inline
function scaleOf(amax: f32): f32 {
  return amax < SMALLEST ? 0 : amax / LARGEST;
}
// @ts-ignore: decorator
@inline
function inverseOf(amax: f32): v128 {
  return f32x4.splat(amax < SMALLEST || !(amax < Infinity) ? 0 : LARGEST / amax);
}

function packBlock(type: i32, k: usize, at: usize, x: usize, row: usize): void {
  const amax = largest(x, 32);
  const inverse = inverseOf(amax);
  const d = scaleOf(amax);
  const to = row + (at << 1);
  const sums = i32x4.add(pack16(x, inverse, to), pack16(x + 64, inverse, to + 32));
  store<f32>(row + scalesAt(k) + (at >> 5 << 2), d);
  const correction = hasMin(type)
    ? f32x4.mul(f32x4.convert_i32x4_s(sums), f32x4.splat(d))
    : i32x4.mul(sums, i32x4.splat(-offset(type)));
  v128.store(row + correctionsAt(type, k) + (at >> 5) * BLOCK_CORRECTION, correction);
}

function packSuper(type: i32, k: usize, at: usize, x: usize, row: usize): void {
  const amax = largest(x, 256);
  const inverse = inverseOf(amax);
  store<f32>(row + scalesAt(k) + (at >> 8 << 2), scaleOf(amax));
  const sums = row + correctionsAt(type, k) + (at >> 8) * SUPER_CORRECTION;
  for (let group: usize = 0; group < 16; group++) {
    let s = pack16(x + (group << 6), inverse, row + (at << 1) + (group << 5));
    s = i32x4.add(s, v128.shuffle<u64>(s, s, 1, 0));
    store<i16>(sums + (group << 1), <i16>(i32x4.extract_lane(s, 0) + i32x4.extract_lane(s, 1)));
  }
}
