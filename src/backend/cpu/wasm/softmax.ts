/**
 * softmax and log-softmax of rows: subtract the maximum, exponentiate, divide by the sum. Small floats stay f32 until
 * the store. A maximum of ±inf or NaN makes x − max NaN where the result must be NaN, without a special case.
 */
import { shiftOf } from "./abi";
import { CF64, classOf, narrow, native, RESULT, RUN, slot } from "./block";
import { expNegative4, expShiftedPair } from "./math";
import { arg, setArg } from "./memory";
import { parallel } from "./pool";
import { adjacentRows, fetchRun, openRows, rowGrain, rowsAt } from "./reduce";
import { Address, Cols, DTypeCode, Flag, Layouts, OutAddress, Rows } from "./types";

const CHUNK: usize = 16384;

const enum Arg {
  DTYPE,
  LOG,
  COLS,
  INFO,
  X,
  OUT,
  ADJACENT_ROWS,
}

export function softmax(
  dtype: DTypeCode,
  log: Flag,
  rows: Rows,
  cols: Cols,
  info: Layouts,
  x: Address,
  out: OutAddress,
): void {
  if (cols === 0) return;
  setArg<i32>(Arg.DTYPE, dtype);
  setArg<i32>(Arg.LOG, log);
  setArg<usize>(Arg.COLS, cols);
  setArg<usize>(Arg.INFO, info);
  setArg<usize>(Arg.X, x);
  setArg<usize>(Arg.OUT, out);
  const side = adjacentRows(info, rows);
  setArg<usize>(Arg.ADJACENT_ROWS, side);
  parallel(softmaxRows, rows, rowGrain(CHUNK, cols, side));
}

function softmaxRows(lo: usize, hi: usize): void {
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
      if (f64s) softmaxRow<f64>(dtype, r * cols, row);
      else softmaxRow<f32>(dtype, r * cols, row);
      row += bytes;
    }
  }
}

/** `row`: its class elements, or 0 if it is too wide to hold; then exponentials are computed twice. */
function softmaxRow<T>(dtype: i32, start: usize, row: usize): void {
  const log = arg<i32>(Arg.LOG) !== 0;
  const cols = arg<usize>(Arg.COLS);
  const out = arg<usize>(Arg.OUT) + (start << shiftOf(dtype));
  const direct = native(dtype);
  const keep = direct ? out : row; // where exponentials wait for their sum
  let most = <T>-Infinity;
  for (let c: usize = 0; c < cols; c += RUN) {
    const n = min(RUN, cols - c);
    most = largest<T>(run<T>(dtype, start, row, c, n), n, most);
  }
  let sum: f64 = 0;
  for (let c: usize = 0; c < cols; c += RUN) {
    const n = min(RUN, cols - c);
    const to = log || keep === 0 ? slot(RESULT) : keep + c * sizeof<T>();
    sum += exponentials<T>(run<T>(dtype, start, row, c, n), to, n, most);
  }
  const scale = <T>(1.0 / sum);
  const logSum = <T>(log ? NativeMath.log(sum) : 0);
  for (let c: usize = 0; c < cols; c += RUN) {
    const n = min(RUN, cols - c);
    let from = keep + c * sizeof<T>();
    const to = direct ? from : slot(RESULT);
    if (log) shiftRun<T>(run<T>(dtype, start, row, c, n), to, n, most, logSum);
    else {
      if (keep === 0) {
        from = to;
        exponentials<T>(run<T>(dtype, start, row, c, n), to, n, most);
      }
      scaleRun<T>(from, to, n, scale);
    }
    if (!direct) narrow(dtype, to, out + (c << shiftOf(dtype)), n);
  }
}

// @inline
function run<T>(dtype: i32, start: usize, row: usize, c: usize, n: usize): usize {
  return row !== 0 ? row + c * sizeof<T>() : fetchRun(dtype, arg<usize>(Arg.X), arg<usize>(Arg.INFO), start + c, n);
}

/** The largest of `most` and n elements, NaN apart: one makes the sum NaN, and with it the row. */
function largest<T>(p: usize, n: usize, most: T): T {
  const end = p + n * sizeof<T>();
  let a = v128.splat<T>(most);
  let b = a;
  let c = a;
  let d = a;
  for (; p + 64 <= end; p += 64) {
    a = v128.pmax<T>(a, v128.load(p));
    b = v128.pmax<T>(b, v128.load(p, 16));
    c = v128.pmax<T>(c, v128.load(p, 32));
    d = v128.pmax<T>(d, v128.load(p, 48));
  }
  a = v128.pmax<T>(v128.pmax<T>(a, b), v128.pmax<T>(c, d));
  a = v128.pmax<T>(a, v128.shuffle<i64>(a, a, 1, 0));
  if (sizeof<T>() === 4) a = v128.pmax<T>(a, v128.shuffle<i32>(a, a, 1, 0, 3, 2));
  most = v128.extract_lane<T>(a, 0);
  for (; p < end; p += sizeof<T>()) most = load<T>(p) > most ? load<T>(p) : most;
  return most;
}

/** to = e^(from − most); returns the sum. */
function exponentials<T>(from: usize, to: usize, n: usize, most: T): f64 {
  const end = to + n * sizeof<T>();
  let sum: f64 = 0;
  if (sizeof<T>() === 8) {
    for (; to < end; to += 8, from += 8) {
      const e = NativeMath.exp(load<f64>(from) - <f64>most);
      store<f64>(to, e);
      sum += e;
    }
    return sum;
  }
  const m = f32x4.splat(<f32>most);
  let a = f32x4.splat(0);
  for (; to + 32 <= end; to += 32, from += 32) a = f32x4.add(a, expShiftedPair(from, to, m));
  sum = <f64>f32x4.extract_lane(a, 0) + <f64>f32x4.extract_lane(a, 1);
  sum += <f64>f32x4.extract_lane(a, 2) + <f64>f32x4.extract_lane(a, 3);
  for (; to < end; to += 4, from += 4) {
    const e = f32x4.extract_lane(expNegative4(f32x4.sub(f32x4.splat(load<f32>(from)), m)), 0);
    store<f32>(to, e);
    sum += <f64>e;
  }
  return sum;
}

function scaleRun<T>(from: usize, to: usize, n: usize, scale: T): void {
  const end = to + n * sizeof<T>();
  const s = v128.splat<T>(scale);
  for (; to + 16 <= end; to += 16, from += 16) v128.store(to, v128.mul<T>(v128.load(from), s));
  for (; to < end; to += sizeof<T>(), from += sizeof<T>()) store<T>(to, load<T>(from) * scale);
}

/** to = (from − most) − logSum, in this order: most may be much larger than both. */
function shiftRun<T>(from: usize, to: usize, n: usize, most: T, logSum: T): void {
  const end = to + n * sizeof<T>();
  const m = v128.splat<T>(most);
  const l = v128.splat<T>(logSum);
  for (; to + 16 <= end; to += 16, from += 16) v128.store(to, v128.sub<T>(v128.sub<T>(v128.load(from), m), l));
  for (; to < end; to += sizeof<T>(), from += sizeof<T>()) store<T>(to, load<T>(from) - most - logSum);
}
