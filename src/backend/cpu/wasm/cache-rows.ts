/**
 * Rows of caches in 8 bits: `cols` elements of f8e4m3, whose count is made whole eights, then the power of two that they count
 * in, as f32, and four bytes of nothing. The greatest element is between 224 and 448 of that; where one is not finite the
 * power is NaN, and so is the row; what is beyond 448 · 2⁶⁰ ends there.
 */
import { shiftOf } from "./abi";
import { commit, f32ToF8, native, RUN, slot, target, widen } from "./block";
import { arg, setArg } from "./memory";
import { parallel } from "./pool";
import { Address, Bytes, Cols, Count, DTypeCode, OutAddress, Rows } from "./types";

const CHUNK: usize = 16384;

const enum Arg {
  DTYPE,
  COLS,
  X,
  OUT,
  ROWS,
  STRIDE,
}

// @inline
function scaleAt(cols: usize): usize {
  return (cols + 7) & ~7;
}

/** x: (rows, cols), contiguous. */
export function encodeCacheRows(dtype: DTypeCode, rows: Rows, cols: Cols, x: Address, out: OutAddress): void {
  setArg<i32>(Arg.DTYPE, dtype);
  setArg<usize>(Arg.COLS, cols);
  setArg<usize>(Arg.X, x);
  setArg<usize>(Arg.OUT, out);
  parallel(encode, rows, max<usize>(1, CHUNK / max<usize>(cols, 1)));
}

/** `rows` rows of each of `groups`, which are `stride` bytes apart, as elements (groups, rows, cols). */
export function decodeCacheRows(
  dtype: DTypeCode,
  groups: Count,
  stride: Bytes,
  rows: Rows,
  cols: Cols,
  x: Address,
  out: OutAddress,
): void {
  setArg<i32>(Arg.DTYPE, dtype);
  setArg<usize>(Arg.COLS, cols);
  setArg<usize>(Arg.X, x);
  setArg<usize>(Arg.OUT, out);
  setArg<usize>(Arg.ROWS, rows);
  setArg<usize>(Arg.STRIDE, stride);
  parallel(decode, groups * rows, max<usize>(1, CHUNK / max<usize>(cols, 1)));
}

/** Elements from `c` on as f32. */
// @inline
function fetchRow(dtype: i32, row: usize, c: usize, n: usize): usize {
  const from = row + (c << shiftOf(dtype));
  if (native(dtype)) return from;
  widen(dtype, from, slot(0), n);
  return slot(0);
}

function encode(lo: usize, hi: usize): void {
  const dtype = arg<i32>(Arg.DTYPE);
  const cols = arg<usize>(Arg.COLS);
  const line = scaleAt(cols) + 8;
  for (let r = lo; r < hi; r++) {
    const row = arg<usize>(Arg.X) + ((r * cols) << shiftOf(dtype));
    const out = arg<usize>(Arg.OUT) + r * line;
    // As bits, which are ordered as sizes are, and NaN above all.
    let most: u32 = 0;
    for (let c: usize = 0; c < cols; c += RUN) {
      const n = min(RUN, cols - c);
      const from = fetchRow(dtype, row, c, n);
      for (let i: usize = 0; i < n; i++) most = max(most, load<u32>(from + (i << 2)) & 0x7fffffff);
    }
    const exponent = (most + 0x1fffff) >> 23;
    const biased: u32 = exponent < 10 ? 1 : exponent > 195 ? 187 : exponent - 8;
    const broken = most >= 0x7f800000;
    const inverse = broken ? <f32>NaN : reinterpret<f32>((254 - biased) << 23);
    for (let c: usize = 0; c < cols; c += RUN) {
      const n = min(RUN, cols - c);
      const from = fetchRow(dtype, row, c, n);
      for (let i: usize = 0; i < n; i++) {
        const y = load<f32>(from + (i << 2)) * inverse;
        store<u8>(out + c + i, f32ToF8(y > 448 ? <f32>448 : y < -448 ? <f32>-448 : y));
      }
    }
    memory.fill(out + cols, 0, line - cols);
    store<f32>(out + scaleAt(cols), broken ? <f32>NaN : reinterpret<f32>(biased << 23));
  }
}

function decode(lo: usize, hi: usize): void {
  const dtype = arg<i32>(Arg.DTYPE);
  const cols = arg<usize>(Arg.COLS);
  const rows = arg<usize>(Arg.ROWS);
  const line = scaleAt(cols) + 8;
  for (let r = lo; r < hi; r++) {
    const group = r / rows;
    const row = arg<usize>(Arg.X) + group * arg<usize>(Arg.STRIDE) + (r - group * rows) * line;
    const out = arg<usize>(Arg.OUT) + ((r * cols) << shiftOf(dtype));
    // An f8's bits in an f32's place are 2⁻¹²⁰ of it.
    const half = reinterpret<f32>(187 << 23);
    const scale = f32x4.splat(load<f32>(row + scaleAt(cols)) * half);
    for (let c: usize = 0; c < cols; c += RUN) {
      const n = min(RUN, cols - c);
      const to = out + (c << shiftOf(dtype));
      const at = target(dtype, to);
      // Rows end behind whole eights, results do not.
      for (let i: usize = 0; i < n; i += 4) {
        const bits = i32x4.extend_low_i16x8_u(i16x8.extend_low_i8x16_u(v128.load32_zero(row + c + i)));
        const sign = i32x4.shl(v128.and(bits, i32x4.splat(0x80)), 24);
        const size = i32x4.shl(v128.and(bits, i32x4.splat(0x7f)), 20);
        const y = f32x4.mul(f32x4.mul(v128.or(sign, size), f32x4.splat(half)), scale);
        if (i + 4 <= n) v128.store(at + (i << 2), y);
        else {
          store<f32>(at + (i << 2), f32x4.extract_lane(y, 0));
          if (i + 1 < n) store<f32>(at + (i << 2), f32x4.extract_lane(y, 1), 4);
          if (i + 2 < n) store<f32>(at + (i << 2), f32x4.extract_lane(y, 2), 8);
        }
      }
      commit(dtype, at, to, n);
    }
  }
}
