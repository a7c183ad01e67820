/**
 * Products whose operands both lie along k, in the order of additions of lines.ts: each result is the sum of the lanes
 * of one vector, to which the products of a vector of k after the other were added. So a row's results are the same bit
 * by bit whether it came alone (matvec.ts) or with many, which go through the register tile here: 3 × 3 results, or
 * 4 × 2 without fused multiply-add, each a vector until all of k is summed.
 */
import { BF16, F16, F64, shiftOf } from "./abi";
import { narrow, native, RUN, slot } from "./block";
import { lanes, part, total } from "./lines";
import { packPanel } from "./pack";
import { scratch } from "./pool";
import { A_BLOCK, C_BLOCK, columnsOf, fma, MC, ROW } from "./tile";

/** Lines of a panel: of A, and of B. */
const HEIGHT: usize = RELAXED ? 3 : 4;
const WIDTH: usize = RELAXED ? 3 : 2;
/** Elements of k per block: of B as many panels as a packed panel of tile.ts has columns stay in the first cache. */
const DEPTH: usize = 256;
/** Columns at a time, so that the vectors of all results fit where tile.ts has its block of C. */
const COLUMNS: usize = 384;

/** k as whole vectors. */
// @inline
export function paddedDepth(dtype: i32, k: usize): usize {
  return dtype === F64 ? (k + 1) & ~1 : (k + 3) & ~3;
}

/** Lines of a panel, vector by vector in turn; `minor` is the stride from line to line and `major` along a line. */
function packLines(
  dtype: i32,
  src: usize,
  minor: isize,
  major: isize,
  valid: usize,
  width: usize,
  count: usize,
  dst: usize,
): void {
  const shift = shiftOf(dtype);
  const step = width * 16;
  const size: usize = dtype === F64 ? 8 : 4;
  for (let r: usize = 0; r < width; r++, dst += 16) {
    const line = src + ((<isize>r * minor) << shift);
    if (r >= valid) {
      for (let i: usize = 0; i < paddedDepth(dtype, count) * size; i += 16) v128.store(dst + i * width, i64x2.splat(0));
    } else if (major === 1 && (native(dtype) || dtype === BF16 || dtype === F16)) {
      if (dtype === F64) spread<f64, f64>(line, count, step, dst);
      else if (dtype === BF16) spread<u16, f32>(line, count, step, dst);
      else if (dtype === F16) spread<i16, f32>(line, count, step, dst);
      else spread<f32, f32>(line, count, step, dst);
    } else {
      for (let c: usize = 0; c < count; c += RUN) {
        const n = min(RUN, count - c);
        const wide = slot(0);
        packPanel(dtype, line + ((<isize>c * major) << shift), 0, major, 1, 1, n, wide);
        const to = dst + c * size * width;
        if (dtype === F64) spread<f64, f64>(wide, n, step, to);
        else spread<f32, f32>(wide, n, step, to);
      }
    }
  }
}

/** A line's vectors, `step` bytes apart. */
function spread<S, T>(src: usize, count: usize, step: usize, dst: usize): void {
  const wide = 16 / sizeof<T>();
  const rest = count & (wide - 1);
  const end = src + (count - rest) * sizeof<S>();
  for (; src < end; src += wide * sizeof<S>(), dst += step) v128.store(dst, lanes<S>(src));
  if (rest) v128.store(dst, part<S, T>(src, rest));
}

/** Columns of B (`first` … + cols − 1) as panels of WIDTH over all of k, in the memory of the panels of tile.ts. */
export function packDotColumns(
  dtype: i32,
  b: usize,
  bRow: isize,
  bCol: isize,
  first: usize,
  cols: usize,
  k: usize,
  dst: usize,
): void {
  const step = paddedDepth(dtype, k) << (dtype === F64 ? 3 : 2);
  const end = roundUp(cols, columnsOf(dtype));
  for (let j: usize = 0; j < end; j += WIDTH, dst += WIDTH * step) {
    const valid = j < cols ? min(WIDTH, cols - j) : 0;
    packLines(dtype, b + ((<isize>(first + j) * bCol) << shiftOf(dtype)), bCol, bRow, valid, WIDTH, k, dst);
  }
}

// @inline
function roundUp(n: usize, to: usize): usize {
  return ((n + to - 1) / to) * to;
}

/** As `multiply` of tile.ts, for B as `packDotColumns` leaves it. */
export function multiplyDots(
  dtype: i32,
  rows: usize,
  cols: usize,
  k: usize,
  a: usize,
  aRow: isize,
  aCol: isize,
  b: usize,
  out: usize,
  ldo: usize,
): void {
  const shift = shiftOf(dtype);
  const size: usize = dtype === F64 ? 8 : 4;
  const line = paddedDepth(dtype, k) * size;
  const packed = scratch + A_BLOCK;
  const sums = scratch + C_BLOCK;
  for (let i: usize = 0; i < rows; i += MC) {
    const mc = min(MC, rows - i);
    const from = a + ((<isize>i * aRow) << shift);
    for (let j: usize = 0; j < cols; j += COLUMNS) {
      const nc = min(COLUMNS, cols - j);
      const ldc = roundUp(nc, columnsOf(dtype)) * 16;
      for (let p: usize = 0; p < k; p += DEPTH) {
        const kc = min(DEPTH, k - p);
        const bytes = paddedDepth(dtype, kc) * size;
        for (let r: usize = 0; r < mc; r += HEIGHT) {
          const src = from + ((<isize>r * aRow + <isize>p * aCol) << shift);
          packLines(dtype, src, aRow, aCol, min(HEIGHT, mc - r), HEIGHT, kc, packed + r * bytes);
        }
        const panels = b + j * line + p * size * WIDTH;
        if (dtype === F64) blocks<f64>(mc, nc, bytes, packed, panels, WIDTH * line, sums, ldc, p > 0);
        else blocks<f32>(mc, nc, bytes, packed, panels, WIDTH * line, sums, ldc, p > 0);
      }
      for (let r: usize = 0; r < mc; r++) finish(dtype, sums + r * ldc, nc, out + (((i + r) * ldo + j) << shift));
    }
  }
}

/** All tiles of a block of k: a panel of A meets the panels of some columns before the next does. */
function blocks<T>(
  rows: usize,
  cols: usize,
  bytes: usize,
  a: usize,
  b: usize,
  bStep: usize,
  sums: usize,
  ldc: usize,
  more: bool,
): void {
  const nr = ROW / sizeof<T>();
  for (let j: usize = 0; j < cols; j += nr, sums += nr * 16, b += (nr / WIDTH) * bStep) {
    let panel = a;
    let to = sums;
    for (let i: usize = 0; i < rows; i += HEIGHT, panel += HEIGHT * bytes, to += HEIGHT * ldc) {
      for (let s: usize = 0; s < nr / WIDTH; s++) {
        if (RELAXED) tile3x3<T>(panel, panel + 3 * bytes, b + s * bStep, to + s * 48, ldc, more);
        else tile4x2<T>(panel, panel + 4 * bytes, b + s * bStep, to + s * 32, ldc, more);
      }
    }
  }
}

/** Results of a row: the sums of the lanes. */
function finish(dtype: i32, sums: usize, cols: usize, out: usize): void {
  for (let c: usize = 0; c < cols; c += RUN, sums += 16 * RUN) {
    const n = min(RUN, cols - c);
    const place = out + (c << shiftOf(dtype));
    const to = native(dtype) ? place : slot(0);
    if (dtype === F64) {
      for (let i: usize = 0; i < n; i++) store<f64>(to + (i << 3), total<f64>(v128.load(sums + (i << 4))));
      continue;
    }
    let i: usize = 0;
    for (; i + 4 <= n; i += 4) {
      const at = sums + (i << 4);
      v128.store(to + (i << 2), totals(v128.load(at), v128.load(at, 16), v128.load(at, 32), v128.load(at, 48)));
    }
    for (; i < n; i++) store<f32>(to + (i << 2), total<f32>(v128.load(sums + (i << 4))));
    if (!native(dtype)) narrow(dtype, to, place, n);
  }
}

/** `total` of four vectors. */
// @inline
function totals(a: v128, b: v128, c: v128, d: v128): v128 {
  const ab = f32x4.add(v128.shuffle<u32>(a, b, 0, 2, 4, 6), v128.shuffle<u32>(a, b, 1, 3, 5, 7));
  const cd = f32x4.add(v128.shuffle<u32>(c, d, 0, 2, 4, 6), v128.shuffle<u32>(c, d, 1, 3, 5, 7));
  return f32x4.add(v128.shuffle<u32>(ab, cd, 0, 2, 4, 6), v128.shuffle<u32>(ab, cd, 1, 3, 5, 7));
}

/** Adds the products of two panels to nine vectors of sums, or begins these. */
function tile3x3<T>(a: usize, end: usize, b: usize, c: usize, ldc: usize, more: bool): void {
  const d = c + ldc;
  const e = d + ldc;
  let c00 = v128.splat<T>(0);
  let c01 = c00;
  let c02 = c00;
  let c10 = c00;
  let c11 = c00;
  let c12 = c00;
  let c20 = c00;
  let c21 = c00;
  let c22 = c00;
  if (more) {
    c00 = v128.load(c);
    c01 = v128.load(c, 16);
    c02 = v128.load(c, 32);
    c10 = v128.load(d);
    c11 = v128.load(d, 16);
    c12 = v128.load(d, 32);
    c20 = v128.load(e);
    c21 = v128.load(e, 16);
    c22 = v128.load(e, 32);
  }
  do {
    const b0 = v128.load(b);
    const b1 = v128.load(b, 16);
    const b2 = v128.load(b, 32);
    let x = v128.load(a);
    c00 = fma<T>(x, b0, c00);
    c01 = fma<T>(x, b1, c01);
    c02 = fma<T>(x, b2, c02);
    x = v128.load(a, 16);
    c10 = fma<T>(x, b0, c10);
    c11 = fma<T>(x, b1, c11);
    c12 = fma<T>(x, b2, c12);
    x = v128.load(a, 32);
    c20 = fma<T>(x, b0, c20);
    c21 = fma<T>(x, b1, c21);
    c22 = fma<T>(x, b2, c22);
    a += 48;
    b += 48;
  } while (a < end);
  v128.store(c, c00);
  v128.store(c, c01, 16);
  v128.store(c, c02, 32);
  v128.store(d, c10);
  v128.store(d, c11, 16);
  v128.store(d, c12, 32);
  v128.store(e, c20);
  v128.store(e, c21, 16);
  v128.store(e, c22, 32);
}

/** The same with eight, for products that need registers of their own. */
function tile4x2<T>(a: usize, end: usize, b: usize, c: usize, ldc: usize, more: bool): void {
  const d = c + ldc;
  const e = d + ldc;
  const f = e + ldc;
  let c00 = v128.splat<T>(0);
  let c01 = c00;
  let c10 = c00;
  let c11 = c00;
  let c20 = c00;
  let c21 = c00;
  let c30 = c00;
  let c31 = c00;
  if (more) {
    c00 = v128.load(c);
    c01 = v128.load(c, 16);
    c10 = v128.load(d);
    c11 = v128.load(d, 16);
    c20 = v128.load(e);
    c21 = v128.load(e, 16);
    c30 = v128.load(f);
    c31 = v128.load(f, 16);
  }
  do {
    const b0 = v128.load(b);
    const b1 = v128.load(b, 16);
    let x = v128.load(a);
    c00 = fma<T>(x, b0, c00);
    c01 = fma<T>(x, b1, c01);
    x = v128.load(a, 16);
    c10 = fma<T>(x, b0, c10);
    c11 = fma<T>(x, b1, c11);
    x = v128.load(a, 32);
    c20 = fma<T>(x, b0, c20);
    c21 = fma<T>(x, b1, c21);
    x = v128.load(a, 48);
    c30 = fma<T>(x, b0, c30);
    c31 = fma<T>(x, b1, c31);
    a += 64;
    b += 32;
  } while (a < end);
  v128.store(c, c00);
  v128.store(c, c01, 16);
  v128.store(d, c10);
  v128.store(d, c11, 16);
  v128.store(e, c20);
  v128.store(e, c21, 16);
  v128.store(f, c30);
  v128.store(f, c31, 16);
}
