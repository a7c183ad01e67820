/**
 * Rotary position embedding: each pair (x1, x2) of a row turns by its position's angle,
 * (x1·cos − x2·sin, x1·sin + x2·cos). Small floats compute in f32.
 */
import { Rope, shiftOf } from "./abi";
import { CF64, classOf, commit, native, RESULT, RUN, slot, widen } from "./block";
import { arg, setArg } from "./memory";
import { parallel } from "./pool";
import { Address, DTypeCode, Layouts, OutAddress, RopeCode, Size, Stride } from "./types";

const CHUNK: usize = 32768;
/** Pairs per run: both halves of a result share one slot. */
const PAIRS: usize = RUN >> 1;

const enum Arg {
  KIND,
  DTYPE,
  MIDDLE, // the dims before d
  INNER,
  D,
  INFO,
  X,
  COS,
  SIN,
  TABLE_BATCH_STRIDE,
  OUT,
}

export function rope(
  kind: RopeCode,
  dtype: DTypeCode,
  b: Size,
  h: Size,
  t: Size,
  d: Size,
  info: Layouts,
  x: Address,
  cos: Address,
  sin: Address,
  tableBatchStride: Stride,
  out: OutAddress,
): void {
  if (d === 0) return;
  setArg<i32>(Arg.KIND, kind);
  setArg<i32>(Arg.DTYPE, dtype);
  setArg<usize>(Arg.MIDDLE, kind === Rope.ROPE_THD ? t : h);
  setArg<usize>(Arg.INNER, kind === Rope.ROPE_THD ? h : t);
  setArg<usize>(Arg.D, d);
  setArg<usize>(Arg.INFO, info);
  setArg<usize>(Arg.X, x);
  setArg<usize>(Arg.COS, cos);
  setArg<usize>(Arg.SIN, sin);
  setArg<usize>(Arg.TABLE_BATCH_STRIDE, tableBatchStride);
  setArg<usize>(Arg.OUT, out);
  parallel(ropeRows, b * h * t, max<usize>(1, CHUNK / d));
}

function ropeRows(lo: usize, hi: usize): void {
  const kind = arg<i32>(Arg.KIND);
  const dtype = arg<i32>(Arg.DTYPE);
  const shift = shiftOf(dtype);
  const mid = arg<usize>(Arg.MIDDLE);
  const inner = arg<usize>(Arg.INNER);
  const d = arg<usize>(Arg.D);
  const info = arg<usize>(Arg.INFO);
  const strides = info + 20;
  const step: usize = info === 0 ? 1 : load<i32>(strides, 12);
  const pairs = d >> 1;
  for (let r = lo; r < hi; r++) {
    const i = r / inner;
    const k = r - i * inner;
    const batch = i / mid;
    const j = i - batch * mid;
    let at = r * d;
    if (info !== 0) at = batch * load<i32>(strides) + j * load<i32>(strides, 4) + k * load<i32>(strides, 8);
    const table = batch * arg<usize>(Arg.TABLE_BATCH_STRIDE) + (kind === Rope.ROPE_THD ? j : k) * pairs;
    const x = arg<usize>(Arg.X) + (at << shift);
    const cos = arg<usize>(Arg.COS) + (table << shift);
    const sin = arg<usize>(Arg.SIN) + (table << shift);
    turnRow(kind === Rope.ROPE_I, dtype, x, step, cos, sin, pairs, arg<usize>(Arg.OUT) + ((r * d) << shift));
  }
}

/** One row of 2 · pairs elements, `step` apart; `out` and the tables are contiguous. */
export function turnRow(
  interleaved: bool,
  dtype: i32,
  x: usize,
  step: usize,
  cosAt: usize,
  sinAt: usize,
  pairs: usize,
  out: usize,
): void {
  const shift = shiftOf(dtype);
  for (let p: usize = 0; p < pairs; p += PAIRS) {
    const n = min(PAIRS, pairs - p);
    const cos = elements(dtype, cosAt + (p << shift), 1, n, 4);
    const sin = elements(dtype, sinAt + (p << shift), 1, n, 5);
    if (interleaved) {
      const from = elements(dtype, x + ((2 * p * step) << shift), step, 2 * n, 0);
      const place = out + ((2 * p) << shift);
      const to = native(dtype) ? place : slot(RESULT);
      if (classOf(dtype) === CF64) turnNeighbours<f64>(from, cos, sin, to, n);
      else turnNeighbours<f32>(from, cos, sin, to, n);
      commit(dtype, to, place, 2 * n);
    } else {
      const x1 = elements(dtype, x + ((p * step) << shift), step, n, 0);
      const x2 = elements(dtype, x + (((p + pairs) * step) << shift), step, n, 2);
      const place1 = out + (p << shift);
      const place2 = place1 + (pairs << shift);
      const to1 = native(dtype) ? place1 : slot(RESULT);
      const to2 = native(dtype) ? place2 : slot(RESULT) + (PAIRS << 2);
      if (classOf(dtype) === CF64) turnHalves<f64>(x1, x2, cos, sin, to1, to2, n);
      else turnHalves<f32>(x1, x2, cos, sin, to1, to2, n);
      commit(dtype, to1, place1, n);
      commit(dtype, to2, place2, n);
    }
  }
}

/** n elements `step` apart as contiguous class elements: in place, or by way of slots s and s + 1. */
function elements(dtype: i32, p: usize, step: usize, n: usize, s: i32): usize {
  if (step !== 1) {
    const shift = shiftOf(dtype);
    const raw = slot(s);
    for (let i: usize = 0; i < n; i++) {
      const from = p + ((i * step) << shift);
      if (shift === 1) store<u16>(raw + (i << 1), load<u16>(from));
      else if (shift === 2) store<u32>(raw + (i << 2), load<u32>(from));
      else if (shift === 3) store<u64>(raw + (i << 3), load<u64>(from));
      else store<u8>(raw + i, load<u8>(from));
    }
    p = raw;
  }
  if (native(dtype)) return p;
  const wide = slot(s) + (PAIRS << 3);
  widen(dtype, p, wide, n);
  return wide;
}

function turnHalves<T>(x1: usize, x2: usize, cos: usize, sin: usize, to1: usize, to2: usize, n: usize): void {
  const bytes = n * sizeof<T>();
  const body = bytes & ~15;
  for (let i: usize = 0; i < body; i += 16) {
    const a = v128.load(x1 + i);
    const b = v128.load(x2 + i);
    const c = v128.load(cos + i);
    const s = v128.load(sin + i);
    v128.store(to1 + i, v128.sub<T>(v128.mul<T>(a, c), v128.mul<T>(b, s)));
    v128.store(to2 + i, v128.add<T>(v128.mul<T>(a, s), v128.mul<T>(b, c)));
  }
  for (let i = body; i < bytes; i += sizeof<T>()) {
    const a = load<T>(x1 + i);
    const b = load<T>(x2 + i);
    const c = load<T>(cos + i);
    const s = load<T>(sin + i);
    store<T>(to1 + i, a * c - b * s);
    store<T>(to2 + i, a * s + b * c);
  }
}

function turnNeighbours<T>(from: usize, cos: usize, sin: usize, to: usize, n: usize): void {
  let i: usize = 0;
  if (sizeof<T>() === 4) {
    const signs = f32x4(-1, 1, -1, 1);
    for (; i + 2 <= n; i += 2) {
      const x = v128.load(from + (i << 3));
      const c = v128.load64_zero(cos + (i << 2));
      const s = v128.load64_zero(sin + (i << 2));
      const swapped = f32x4.mul(v128.shuffle<i32>(x, x, 1, 0, 3, 2), signs);
      const turned = f32x4.mul(swapped, v128.shuffle<i32>(s, s, 0, 0, 1, 1));
      v128.store(to + (i << 3), f32x4.add(f32x4.mul(x, v128.shuffle<i32>(c, c, 0, 0, 1, 1)), turned));
    }
  }
  for (; i < n; i++) {
    const at = from + 2 * i * sizeof<T>();
    const a = load<T>(at);
    const b = load<T>(at + sizeof<T>());
    const c = load<T>(cos + i * sizeof<T>());
    const s = load<T>(sin + i * sizeof<T>());
    store<T>(to + 2 * i * sizeof<T>(), a * c - b * s);
    store<T>(to + (2 * i + 1) * sizeof<T>(), a * s + b * c);
  }
}
