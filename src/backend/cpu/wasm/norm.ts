/**
 * rmsNorm and layerNorm of rows: the mean, then the centred squares. Rows of f32 are summed in short f32 runs, as
 * differences from their first element, so that a mean of 4096 costs no digits of the variance; where their squares
 * leave the range of f32, and for f64, everything is summed in f64.
 */
import { shiftOf } from "./abi";
import { CF64, classOf, commit, fetch, RUN, target } from "./block";
import { arg, setArg } from "./memory";
import { parallel } from "./pool";
import { adjacentRows, fetchRun, openRows, rowGrain, rowsAt } from "./reduce";
import { fma } from "./tile";
import { Address, Cols, DTypeCode, Layouts, OutAddress, Rows } from "./types";

const CHUNK: usize = 32768;

export function rmsNorm(
  dtype: DTypeCode,
  rows: Rows,
  cols: Cols,
  info: Layouts,
  x: Address,
  weight: Address,
  out: OutAddress,
  eps: f64,
): void {
  normalize(false, dtype, rows, cols, info, x, weight, 0, out, eps);
}

export function layerNorm(
  dtype: DTypeCode,
  rows: Rows,
  cols: Cols,
  info: Layouts,
  x: Address,
  weight: Address,
  bias: Address,
  out: OutAddress,
  eps: f64,
): void {
  normalize(true, dtype, rows, cols, info, x, weight, bias, out, eps);
}

const enum Arg {
  DTYPE,
  CENTRED,
  COLS,
  INFO,
  X,
  OUT,
  ADJACENT_ROWS,
  WEIGHT,
  BIAS,
  EPS,
}

function normalize(
  centred: bool,
  dtype: i32,
  rows: usize,
  cols: usize,
  info: usize,
  x: usize,
  weight: usize,
  bias: usize,
  out: usize,
  eps: f64,
): void {
  if (cols === 0) return;
  setArg<i32>(Arg.DTYPE, dtype);
  setArg<i32>(Arg.CENTRED, <i32>centred);
  setArg<usize>(Arg.COLS, cols);
  setArg<usize>(Arg.INFO, info);
  setArg<usize>(Arg.X, x);
  setArg<usize>(Arg.OUT, out);
  const side = adjacentRows(info, rows);
  setArg<usize>(Arg.ADJACENT_ROWS, side);
  setArg<usize>(Arg.WEIGHT, weight);
  setArg<usize>(Arg.BIAS, bias);
  setArg<f64>(Arg.EPS, eps);
  parallel(normRows, rows, rowGrain(CHUNK, cols, side));
}

function normRows(lo: usize, hi: usize): void {
  const dtype = arg<i32>(Arg.DTYPE);
  const cols = arg<usize>(Arg.COLS);
  const f64s = classOf(dtype) === CF64;
  const bytes = cols << (f64s ? 3 : 2);
  for (let r = lo; r < hi; ) {
    const count = openRows(
      dtype,
      cols,
      arg<usize>(Arg.INFO),
      arg<usize>(Arg.ADJACENT_ROWS),
      arg<usize>(Arg.X),
      arg<usize>(Arg.OUT),
      r,
      hi,
    );
    let row = rowsAt;
    for (let i: usize = 0; i < count; i++, r++) {
      if (f64s) normRow<f64>(dtype, r * cols, row);
      else normRow<f32>(dtype, r * cols, row);
      row += bytes;
    }
  }
}

let rowMean: f64;
let rowSquares: f64;

function normRow<T>(dtype: i32, start: usize, row: usize): void {
  const cols = arg<usize>(Arg.COLS);
  const weight = arg<usize>(Arg.WEIGHT);
  const bias = arg<usize>(Arg.BIAS);
  if (sizeof<T>() === 8 || !measureFast(dtype, start, row)) measure<T>(dtype, start, row);
  const mean = rowMean;
  const scale = <T>(1.0 / Math.sqrt(rowSquares / <f64>cols + arg<f64>(Arg.EPS)));
  for (let c: usize = 0; c < cols; c += RUN) {
    const n = min(RUN, cols - c);
    const place = arg<usize>(Arg.OUT) + ((start + c) << shiftOf(dtype));
    const to = target(dtype, place);
    const w = weight !== 0 ? fetch(dtype, weight, 0, 1, c, n) : 0;
    const b = bias !== 0 ? fetch(dtype, bias, 0, 2, c, n) : 0;
    apply<T>(run<T>(dtype, start, row, c, cols), to, n, mean, scale, w, b);
    commit(dtype, to, place, n);
  }
}

/** Sets rowMean and rowSquares. */
function measure<T>(dtype: i32, start: usize, row: usize): void {
  const cols = arg<usize>(Arg.COLS);
  let mean: f64 = 0;
  if (arg<i32>(Arg.CENTRED)) {
    // An f64 mean is corrected once by the mean of what it leaves; for f32, f64 has digits to spare.
    for (let pass = 0; pass < (sizeof<T>() === 8 ? 2 : 1); pass++) {
      let sum: f64 = 0;
      for (let c: usize = 0; c < cols; c += RUN) {
        sum += total<T>(run<T>(dtype, start, row, c, cols), min(RUN, cols - c), mean);
      }
      mean += sum / <f64>cols;
    }
  }
  let squares: f64 = 0;
  for (let c: usize = 0; c < cols; c += RUN) {
    squares += centredSquares<T>(run<T>(dtype, start, row, c, cols), min(RUN, cols - c), mean);
  }
  rowMean = mean;
  rowSquares = squares;
}

/** As `measure`, in f32; false where its range is left. */
function measureFast(dtype: i32, start: usize, row: usize): bool {
  const cols = arg<usize>(Arg.COLS);
  let mean: f64 = 0;
  if (arg<i32>(Arg.CENTRED)) {
    const first = load<f32>(run<f32>(dtype, start, row, 0, cols));
    let sum: f64 = 0;
    for (let c: usize = 0; c < cols; c += RUN) {
      sum += fastTotal(run<f32>(dtype, start, row, c, cols), min(RUN, cols - c), first);
    }
    mean = <f64>first + sum / <f64>cols;
  }
  let squares: f64 = 0;
  for (let c: usize = 0; c < cols; c += RUN) {
    squares += fastSquares(run<f32>(dtype, start, row, c, cols), min(RUN, cols - c), mean);
  }
  rowMean = mean;
  rowSquares = squares;
  // Below, single squares may have vanished; a NaN is in neither range.
  return squares > 1e-24 * <f64>cols && squares < Infinity;
}

// @inline
function run<T>(dtype: i32, start: usize, row: usize, c: usize, cols: usize): usize {
  if (row !== 0) return row + c * sizeof<T>();
  return fetchRun(dtype, arg<usize>(Arg.X), arg<usize>(Arg.INFO), start + c, min(RUN, cols - c));
}

/** The two low lanes, or the two high ones, as f64. */
// @inline
function low(x: v128): v128 {
  return f64x2.promote_low_f32x4(x);
}
// @inline
function high(x: v128): v128 {
  return f64x2.promote_low_f32x4(v128.shuffle<i64>(x, x, 1, 1));
}

/** The sum of x − mean; an f32 row has no first estimate, its mean is 0 here. */
function total<T>(p: usize, n: usize, mean: f64): f64 {
  const end = p + n * sizeof<T>();
  const m = f64x2.splat(mean);
  let a = f64x2.splat(0);
  let b = f64x2.splat(0);
  for (; p + 32 <= end; p += 32) {
    const x = v128.load(p);
    const y = v128.load(p, 16);
    if (sizeof<T>() === 8) {
      a = f64x2.add(a, f64x2.sub(x, m));
      b = f64x2.add(b, f64x2.sub(y, m));
    } else {
      a = f64x2.add(a, f64x2.add(low(x), low(y)));
      b = f64x2.add(b, f64x2.add(high(x), high(y)));
    }
  }
  a = f64x2.add(a, b);
  let sum = f64x2.extract_lane(a, 0) + f64x2.extract_lane(a, 1);
  for (; p < end; p += sizeof<T>()) sum += <f64>load<T>(p) - mean;
  return sum;
}

function centredSquares<T>(p: usize, n: usize, mean: f64): f64 {
  const end = p + n * sizeof<T>();
  const m = f64x2.splat(mean);
  let a = f64x2.splat(0);
  let b = f64x2.splat(0);
  for (; p + 16 <= end; p += 16) {
    const x = v128.load(p);
    if (sizeof<T>() === 8) {
      const d = f64x2.sub(x, m);
      a = f64x2.add(a, f64x2.mul(d, d));
    } else {
      const d = f64x2.sub(low(x), m);
      const e = f64x2.sub(high(x), m);
      a = f64x2.add(a, f64x2.mul(d, d));
      b = f64x2.add(b, f64x2.mul(e, e));
    }
  }
  a = f64x2.add(a, b);
  let sum = f64x2.extract_lane(a, 0) + f64x2.extract_lane(a, 1);
  for (; p < end; p += sizeof<T>()) {
    const d = <f64>load<T>(p) - mean;
    sum += d * d;
  }
  return sum;
}

// @inline
function lanes4(a: v128, b: v128, c: v128, d: v128): f64 {
  const x = f32x4.add(f32x4.add(a, b), f32x4.add(c, d));
  const y = f64x2.add(low(x), high(x));
  return f64x2.extract_lane(y, 0) + f64x2.extract_lane(y, 1);
}

/** The sum of x − first over a run. */
function fastTotal(p: usize, n: usize, first: f32): f64 {
  const end = p + (n << 2);
  const m = f32x4.splat(first);
  let a = f32x4.splat(0);
  let b = a;
  let c = a;
  let d = a;
  for (; p + 64 <= end; p += 64) {
    a = f32x4.add(a, f32x4.sub(v128.load(p), m));
    b = f32x4.add(b, f32x4.sub(v128.load(p, 16), m));
    c = f32x4.add(c, f32x4.sub(v128.load(p, 32), m));
    d = f32x4.add(d, f32x4.sub(v128.load(p, 48), m));
  }
  let sum = lanes4(a, b, c, d);
  for (; p < end; p += 4) sum += <f64>(load<f32>(p) - first);
  return sum;
}

/** The sum of (x − mean)² over a run. */
function fastSquares(p: usize, n: usize, mean: f64): f64 {
  const end = p + (n << 2);
  const head = <f32>mean;
  const rest = <f32>(mean - <f64>head);
  const m = f32x4.splat(head);
  const l = f32x4.splat(rest);
  let a = f32x4.splat(0);
  let b = a;
  let c = a;
  let d = a;
  for (; p + 64 <= end; p += 64) {
    const w = f32x4.sub(f32x4.sub(v128.load(p), m), l);
    const x = f32x4.sub(f32x4.sub(v128.load(p, 16), m), l);
    const y = f32x4.sub(f32x4.sub(v128.load(p, 32), m), l);
    const z = f32x4.sub(f32x4.sub(v128.load(p, 48), m), l);
    a = fma<f32>(w, w, a);
    b = fma<f32>(x, x, b);
    c = fma<f32>(y, y, c);
    d = fma<f32>(z, z, d);
  }
  let sum = lanes4(a, b, c, d);
  for (; p < end; p += 4) {
    const x = load<f32>(p) - head - rest;
    sum += <f64>x * <f64>x;
  }
  return sum;
}

/** to = (from − mean) · scale · w + b. The mean comes off in two parts: one f32 would lose digits of a large mean. */
function apply<T>(from: usize, to: usize, n: usize, mean: f64, scale: T, w: usize, b: usize): void {
  const head = <T>mean;
  const rest = <T>(mean - <f64>head);
  const m = v128.splat<T>(head);
  const l = v128.splat<T>(rest);
  const s = v128.splat<T>(scale);
  const body = (n * sizeof<T>()) & ~15;
  if (w !== 0 && b !== 0) {
    for (let i: usize = 0; i < body; i += 16) {
      const y = v128.mul<T>(v128.sub<T>(v128.sub<T>(v128.load(from + i), m), l), s);
      v128.store(to + i, fma<T>(y, v128.load(w + i), v128.load(b + i)));
    }
  } else {
    for (let i: usize = 0; i < body; i += 16) {
      let y = v128.mul<T>(v128.sub<T>(v128.sub<T>(v128.load(from + i), m), l), s);
      if (w !== 0) y = v128.mul<T>(y, v128.load(w + i));
      if (b !== 0) y = v128.add<T>(y, v128.load(b + i));
      v128.store(to + i, y);
    }
  }
  for (let i = body; i < n * sizeof<T>(); i += sizeof<T>()) {
    let y: T = (load<T>(from + i) - head - rest) * scale;
    if (w !== 0) y *= load<T>(w + i);
    if (b !== 0) y += load<T>(b + i);
    store<T>(to + i, y);
  }
}
