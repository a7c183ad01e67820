/** Pooling and resizing of the last two dims; a chunk is a range of output rows. */
import { Pool, Pooling, shiftOf, Upsampling } from "./abi";
import { CF32, CF64, CI32, CI64, classOf, narrow, native, SCRATCH_FREE } from "./block";
import { element } from "./element";
import { arg, setArg } from "./memory";
import { parallel, SCRATCH_BYTES, scratch } from "./pool";
import { Address, DTypeCode, Flag, OutAddress, Params, PoolCode } from "./types";
import { word } from "./window";

const DTYPE = 0;
const P = 1;
const X = 2;
const OUT = 3;
const KIND = 4;
const ALIGN = 4;
const SCALE_H = 5;
const SCALE_W = 6;

/** Outputs that are worth a chunk. */
const CHUNK: usize = 16384;
/** Outputs of a row that are computed at a time, in the private memory. */
const PIECE: usize = (SCRATCH_BYTES - SCRATCH_FREE) / 8;

// @inline
function setCommon(dtype: i32, p: usize, x: usize, out: usize): void {
  setArg<i32>(DTYPE, dtype);
  setArg<usize>(P, p);
  setArg<usize>(X, x);
  setArg<usize>(OUT, out);
}

/** Stores `count` results of class T. */
// @inline
function finish<T>(dtype: i32, from: usize, to: usize, count: usize): void {
  if (native(dtype)) memory.copy(to, from, count * sizeof<T>());
  else narrow(dtype, from, to, count);
}

export function pool2d(kind: PoolCode, dtype: DTypeCode, p: Params, x: Address, out: OutAddress): void {
  setCommon(dtype, p, x, out);
  setArg<i32>(KIND, kind);
  const outW = <usize>word(p, Pooling.OUTPUT_W);
  if (outW === 0) return;
  const work = outW * <usize>word(p, Pooling.KERNEL_H) * <usize>word(p, Pooling.KERNEL_W);
  parallel(
    poolChunk,
    <usize>word(p, Pooling.BATCH) * <usize>word(p, Pooling.CHANNELS) * <usize>word(p, Pooling.OUTPUT_H),
    CHUNK / min(CHUNK, max<usize>(work, 1)),
  );
}

function poolChunk(lo: usize, hi: usize): void {
  const kind = classOf(arg<i32>(DTYPE));
  if (kind === CF32) poolRows<f32>(lo, hi);
  else if (kind === CF64) poolRows<f64>(lo, hi);
  else if (kind === CI64) poolRows<i64>(lo, hi);
  else if (kind === CI32) poolRows<i32>(lo, hi);
  else poolRows<u32>(lo, hi);
}

/** Output rows (batch element, channel, oy): the window's elements are folded into a whole row, one after the other. */
function poolRows<T>(lo: usize, hi: usize): void {
  const dtype = arg<i32>(DTYPE);
  const shift = shiftOf(dtype);
  const p = arg<usize>(P);
  const kh = word(p, Pooling.KERNEL_H);
  const kw = word(p, Pooling.KERNEL_W);
  const outH = <usize>word(p, Pooling.OUTPUT_H);
  const outW = <usize>word(p, Pooling.OUTPUT_W);
  const channels = <usize>word(p, Pooling.CHANNELS);
  const sums = scratch + SCRATCH_FREE;
  const step = (<isize>word(p, Pooling.X_STRIDES + 3)) << shift;
  const largest = arg<i32>(KIND) === Pool.MAX;
  for (let row = lo; row < hi; row++) {
    const oy = <i32>(row % outH);
    const plane = row / outH;
    const at =
      <isize>(plane / channels) * word(p, Pooling.X_STRIDES) +
      <isize>(plane % channels) * word(p, Pooling.X_STRIDES + 1);
    for (let first: usize = 0; first < outW; first += PIECE) {
      const count = min(PIECE, outW - first);
      const end = sums + count * sizeof<T>();
      for (let i = 0; i < kh; i++) {
        const line =
          arg<usize>(X) +
          ((at + <isize>(oy * word(p, Pooling.STRIDE_H) + i) * word(p, Pooling.X_STRIDES + 2)) << shift);
        for (let j = 0; j < kw; j++) {
          let from = line + (<isize>first * word(p, Pooling.STRIDE_W) + j) * step;
          const next = step * word(p, Pooling.STRIDE_W);
          if (i === 0 && j === 0) {
            for (let to = sums; to < end; to += sizeof<T>(), from += next) store<T>(to, element<T>(dtype, from));
          } else if (largest) {
            for (let to = sums; to < end; to += sizeof<T>(), from += next)
              store<T>(to, max<T>(load<T>(to), element<T>(dtype, from)));
          } else {
            for (let to = sums; to < end; to += sizeof<T>(), from += next)
              store<T>(to, load<T>(to) + element<T>(dtype, from));
          }
        }
      }
      if (!largest) for (let to = sums; to < end; to += sizeof<T>()) store<T>(to, load<T>(to) / <T>(kh * kw));
      finish<T>(dtype, sums, arg<usize>(OUT) + ((row * outW + first) << shift), count);
    }
  }
}

/** Nearest: output i takes input floor(i · in / out). */
export function upsampleNearest2d(dtype: DTypeCode, p: Params, x: Address, out: OutAddress): void {
  setCommon(dtype, p, x, out);
  const outW = <usize>word(p, Upsampling.OUTPUT_W);
  if (outW === 0) return;
  parallel(
    nearestChunk,
    <usize>word(p, Upsampling.BATCH) * <usize>word(p, Upsampling.CHANNELS) * <usize>word(p, Upsampling.OUTPUT_H),
    CHUNK / min(CHUNK, outW),
  );
}

function nearestChunk(lo: usize, hi: usize): void {
  const shift = shiftOf(arg<i32>(DTYPE));
  if (shift === 2) nearestRows<u32>(lo, hi);
  else if (shift === 1) nearestRows<u16>(lo, hi);
  else if (shift === 3) nearestRows<u64>(lo, hi);
  else nearestRows<u8>(lo, hi);
}

/** The step is rounded to f32 before it is multiplied, as PyTorch does. */
// @inline
function nearest(i: usize, step: f32, size: i32): isize {
  return min(<isize>Mathf.floor(<f32>i * step), size - 1);
}

function nearestRows<T>(lo: usize, hi: usize): void {
  const p = arg<usize>(P);
  const h = word(p, Upsampling.INPUT_H);
  const w = word(p, Upsampling.INPUT_W);
  const outH = <usize>word(p, Upsampling.OUTPUT_H);
  const outW = <usize>word(p, Upsampling.OUTPUT_W);
  const channels = <usize>word(p, Upsampling.CHANNELS);
  const stepH = <f32>h / <f32>outH;
  const stepW = <f32>w / <f32>outW;
  for (let row = lo; row < hi; row++) {
    const plane = row / outH;
    const at =
      <isize>(plane / channels) * word(p, Upsampling.X_STRIDES) +
      <isize>(plane % channels) * word(p, Upsampling.X_STRIDES + 1) +
      nearest(row % outH, stepH, h) * word(p, Upsampling.X_STRIDES + 2);
    const line = arg<usize>(X) + at * sizeof<T>();
    const out = arg<usize>(OUT) + row * outW * sizeof<T>();
    for (let ox: usize = 0; ox < outW; ox++) {
      store<T>(
        out + ox * sizeof<T>(),
        load<T>(line + nearest(ox, stepW, w) * word(p, Upsampling.X_STRIDES + 3) * sizeof<T>()),
      );
    }
  }
}

/**
 * Bilinear: output i reads at i · scale with aligned corners, else at max(0, (i + ½) · scale − ½).
 * f64 computes in f64, all other floats in f32.
 */
export function upsampleBilinear2d(
  dtype: DTypeCode,
  p: Params,
  x: Address,
  out: OutAddress,
  alignCorners: Flag,
  scaleH: f64,
  scaleW: f64,
): void {
  setCommon(dtype, p, x, out);
  setArg<i32>(ALIGN, alignCorners);
  setArg<f64>(SCALE_H, scaleH);
  setArg<f64>(SCALE_W, scaleW);
  const outW = <usize>word(p, Upsampling.OUTPUT_W);
  if (outW === 0) return;
  parallel(
    bilinearChunk,
    <usize>word(p, Upsampling.BATCH) * <usize>word(p, Upsampling.CHANNELS) * <usize>word(p, Upsampling.OUTPUT_H),
    CHUNK / min(CHUNK, 4 * outW),
  );
}

function bilinearChunk(lo: usize, hi: usize): void {
  if (classOf(arg<i32>(DTYPE)) === CF64) bilinearRows<f64>(lo, hi);
  else bilinearRows<f32>(lo, hi);
}

// @inline
function position<T>(i: usize, scale: T, size: i32): T {
  const at: T = arg<i32>(ALIGN) ? scale * <T>i : max<T>(<T>0, scale * (<T>i + <T>0.5) - <T>0.5);
  return min<T>(at, <T>(size - 1));
}

function bilinearRows<T>(lo: usize, hi: usize): void {
  const dtype = arg<i32>(DTYPE);
  const shift = shiftOf(dtype);
  const p = arg<usize>(P);
  const h = word(p, Upsampling.INPUT_H);
  const w = word(p, Upsampling.INPUT_W);
  const outH = <usize>word(p, Upsampling.OUTPUT_H);
  const outW = <usize>word(p, Upsampling.OUTPUT_W);
  const channels = <usize>word(p, Upsampling.CHANNELS);
  const step = (<isize>word(p, Upsampling.X_STRIDES + 3)) << shift;
  const sums = scratch + SCRATCH_FREE;
  for (let row = lo; row < hi; row++) {
    const plane = row / outH;
    const y = position<T>(row % outH, <T>arg<f64>(SCALE_H), h);
    const top = <isize>y;
    const below = y - <T>top;
    const at =
      <isize>(plane / channels) * word(p, Upsampling.X_STRIDES) +
      <isize>(plane % channels) * word(p, Upsampling.X_STRIDES + 1);
    const upper = arg<usize>(X) + ((at + top * word(p, Upsampling.X_STRIDES + 2)) << shift);
    const lower = arg<usize>(X) + ((at + min(top + 1, <isize>h - 1) * word(p, Upsampling.X_STRIDES + 2)) << shift);
    for (let first: usize = 0; first < outW; first += PIECE) {
      const count = min(PIECE, outW - first);
      for (let i: usize = 0; i < count; i++) {
        const z = position<T>(first + i, <T>arg<f64>(SCALE_W), w);
        const left = <isize>z;
        const after = z - <T>left;
        const a = left * step;
        const b = min(left + 1, <isize>w - 1) * step;
        const above = (<T>1 - after) * element<T>(dtype, upper + a) + after * element<T>(dtype, upper + b);
        const under = (<T>1 - after) * element<T>(dtype, lower + a) + after * element<T>(dtype, lower + b);
        store<T>(sums + i * sizeof<T>(), (<T>1 - below) * above + below * under);
      }
      finish<T>(dtype, sums, arg<usize>(OUT) + ((row * outW + first) << shift), count);
    }
  }
}
