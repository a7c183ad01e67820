/**
 * Activations as integers for products with quantized weights. Dots multiply 16-bit lanes in any case, so activations
 * keep eleven bits: |q| ≤ 1023 is the most for which no sum over a super-block can leave 32 bits.
 *
 * A packed row: k quants as i16, of each sixteen first the even ones and then the odd ones (as 16-bit operations split
 * bytes); then for each block of the weights' size its scale as f32; then sums of the quants, which the weights' offsets
 * and minima are multiplied with: per block of 32 those of the four lanes of a dot, in super-blocks one per group.
 */
import { native, SCRATCH_FREE, widen } from "./block";
import { arg, setArg, shiftOf } from "./memory";
import { parallel, scratch } from "./pool";

const LARGEST: f32 = 1023;
/** Below, the reciprocal of the scale would overflow; such blocks are zero. */
const SMALLEST: f32 = 1.2e-35;
/** Activations handled at a time; a multiple of every block. */
const STEP: usize = 256;
const CHUNK: usize = 16384;

/** Where the scales, and the sums, of a packed row begin. `size` is that of the weights' blocks: 32 or 256. */
// @ts-ignore: decorator
@inline
export function scalesAt(k: usize): usize {
  return k << 1;
}
// @ts-ignore: decorator
@inline
export function sumsAt(size: usize, k: usize): usize {
  return (k << 1) + ((k / size) << 2);
}
/** Bytes of sums per block. */
export const BLOCK_SUMS: usize = 16;
export const SUPER_SUMS: usize = 32;

/** Bytes of a packed row. */
export function packedBytes(size: usize, k: usize): usize {
  return (sumsAt(size, k) + (k / size) * (size == 256 ? SUPER_SUMS : BLOCK_SUMS) + 63) & ~63;
}

// Arguments: 0 size, 1 dtype, 2 k, 3 x, 4 out

/** Packs m contiguous rows of f32, f16 or bf16. */
export function packActivations(size: usize, dtype: i32, m: usize, k: usize, x: usize, out: usize): void {
  setArg<usize>(0, size);
  setArg<i32>(1, dtype);
  setArg<usize>(2, k);
  setArg<usize>(3, x);
  setArg<usize>(4, out);
  parallel(packChunk, m * ((k - 1) / STEP + 1), CHUNK / STEP);
}

function packChunk(lo: usize, hi: usize): void {
  const size = arg<usize>(0);
  const dtype = arg<i32>(1);
  const k = arg<usize>(2);
  const steps = (k - 1) / STEP + 1;
  const bytes = packedBytes(size, k);
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
    if (size == 256) packSuper(k, first, x, row);
    else for (let p: usize = 0; p < n; p += 32) packBlock(k, first + p, x + (p << 2), row);
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

function packBlock(k: usize, at: usize, x: usize, row: usize): void {
  const amax = largest(x, 32);
  const inverse = inverseOf(amax);
  const to = row + (at << 1);
  const sums = i32x4.add(pack16(x, inverse, to), pack16(x + 64, inverse, to + 32));
  store<f32>(row + scalesAt(k) + (at >> 5 << 2), scaleOf(amax));
  v128.store(row + sumsAt(32, k) + (at >> 5) * BLOCK_SUMS, sums);
}

function packSuper(k: usize, at: usize, x: usize, row: usize): void {
  const amax = largest(x, 256);
  const inverse = inverseOf(amax);
  store<f32>(row + scalesAt(k) + (at >> 8 << 2), scaleOf(amax));
  const sums = row + sumsAt(256, k) + (at >> 8) * SUPER_SUMS;
  for (let group: usize = 0; group < 16; group++) {
    let s = pack16(x + (group << 6), inverse, row + (at << 1) + (group << 5));
    s = i32x4.add(s, v128.shuffle<u64>(s, s, 1, 0));
    store<i16>(sums + (group << 1), <i16>(i32x4.extract_lane(s, 0) + i32x4.extract_lane(s, 1)));
  }
}
