/**
 * Products with a thin operand (at most THIN rows or columns): the other matrix is read once, where it lies, at memory
 * speed. Lines of the matrix that run along k are dotted with the thin rows; lines that run across are added up.
 * The element type of the matrix is a type argument: f32, f64, u16 for bf16 and i16 for f16.
 */
import { f16ToF32x4, f32ToBf16x4, f32ToF16x4, offsetOf, SCRATCH_FREE, widen } from "./block";
import { arg, BF16, F16, F32, F64, setArg, shiftOf } from "./memory";
import { packPanel } from "./pack";
import { parallel, scratch } from "./pool";
import { fma } from "./tile";

const THIN: usize = 8;
/** Columns summed at a time when lines run across: one kilobyte of f32 from each. */
const ACROSS: usize = 256;
/** Elements of the matrix that are worth a chunk. */
const CHUNK: usize = 65536;

/** Scratch for lines of f16 that serve several rows: widened once, as that takes many steps. */
const WIDE: usize = 2 << 20;

const DTYPE = 0;
const M = 1;
const N = 2;
const K = 3;
const INFO = 4;
const SIDE = 5; // which operand of the info is the matrix
const ROWS = 6; // the thin operand, contiguous and widened
const B = 7;
const B_ROW = 8;
const B_COL = 9;
const OUT = 10;
const OUT_ROW = 11;
const OUT_COL = 12;
const COLUMNS = 13; // per item

/** Whether one operand is thin and the other has contiguous lines. */
export function isThin(dtype: i32, m: usize, n: usize, aRow: i32, aCol: i32, bRow: i32, bCol: i32): bool {
  if (dtype != F32 && dtype != F64 && dtype != F16 && dtype != BF16) return false;
  if (m <= THIN && m <= n) return bRow == 1 || bCol == 1;
  return n <= THIN && n < m && (aRow == 1 || aCol == 1);
}

/** Bytes for the thin operand. */
export function thinTmp(dtype: i32, batch: usize, m: usize, n: usize, k: usize): usize {
  const rows = min(m, n);
  return rows <= THIN ? (batch * rows * k) << (dtype == F64 ? 3 : 2) : 0;
}

export function thin(
  dtype: i32, batch: usize, m: usize, n: usize, k: usize, info: usize,
  a: usize, aRow: i32, aCol: i32, b: usize, bRow: i32, bCol: i32, out: usize, tmp: usize,
): void {
  // A thin b: the transposed product, with the roles exchanged.
  const swap = !(m <= THIN && m <= n);
  const rows = swap ? n : m;
  const columns = swap ? m : n;
  const thinAt = swap ? b : a;
  const thinRow = <isize>(swap ? bCol : aRow);
  const thinCol = <isize>(swap ? bRow : aCol);
  const along = swap ? aCol : bRow;
  const shift = shiftOf(dtype);
  const bytes = (rows * k) << (dtype == F64 ? 3 : 2);
  for (let i: usize = 0; i < batch; i++) {
    const from = thinAt + (info ? offsetOf(info, swap ? 1 : 0, i) << shift : 0);
    for (let r: usize = 0; r < rows; r++) packPanel(dtype, from + ((<isize>r * thinRow) << shift), 0, thinCol, 1, 1, k, tmp + i * bytes + r * (bytes / rows));
  }
  setArg<i32>(DTYPE, dtype);
  setArg<usize>(M, rows);
  setArg<usize>(N, columns);
  setArg<usize>(K, k);
  setArg<usize>(INFO, info);
  setArg<i32>(SIDE, swap ? 0 : 1);
  setArg<usize>(ROWS, tmp);
  setArg<usize>(B, swap ? a : b);
  setArg<isize>(B_ROW, <isize>along << shift);
  setArg<isize>(B_COL, <isize>(swap ? aRow : bCol) << shift);
  setArg<usize>(OUT, out);
  setArg<usize>(OUT_ROW, swap ? 1 : n);
  setArg<usize>(OUT_COL, swap ? n : 1);
  const item = along == 1 ? min(columns, max<usize>(4, (CHUNK / k) & ~3)) : ACROSS;
  setArg<usize>(COLUMNS, item);
  const items = batch * ((columns - 1) / item + 1);
  const grain = max<usize>(1, CHUNK / (min(item, columns) * min(k, CHUNK)));
  if (along == 1) parallel(dotChunk, items, grain);
  else parallel(sumChunk, items, grain);
}

function dotChunk(lo: usize, hi: usize): void {
  const dtype = arg<i32>(DTYPE);
  if (dtype == F32) dotItems<f32, f32>(lo, hi);
  else if (dtype == F64) dotItems<f64, f64>(lo, hi);
  else if (dtype == BF16) dotItems<u16, f32>(lo, hi);
  else dotItems<i16, f32>(lo, hi);
}

function sumChunk(lo: usize, hi: usize): void {
  const dtype = arg<i32>(DTYPE);
  if (dtype == F32) sumItems<f32, f32>(lo, hi);
  else if (dtype == F64) sumItems<f64, f64>(lo, hi);
  else if (dtype == BF16) sumItems<u16, f32>(lo, hi);
  else sumItems<i16, f32>(lo, hi);
}

/** A vector of the matrix, widened. */
// @ts-ignore: decorator
@inline
function lanes<T>(at: usize): v128 {
  if (isFloat<T>()) return v128.load(at);
  return isSigned<T>() ? f16Lanes(at) : i32x4.shl(v128.load_ext<u16>(at), 16);
}

/** f16ToF32x4 in fewer steps: the sign is extended and moves along with the exponent. */
// @ts-ignore: decorator
@inline
function f16Lanes(at: usize): v128 {
  const x = i32x4.shl(v128.load_ext<i16>(at), 13);
  const scaled = f32x4.mul(v128.and(x, i32x4.splat(0x8fffe000)), f32x4.splat(reinterpret<f32>(0x77800000)));
  const top = i32x4.splat(0x0f800000);
  const special = v128.and(i32x4.eq(v128.and(x, top), top), i32x4.splat(0x7f800000));
  return v128.or(scaled, special);
}

// @ts-ignore: decorator
@inline
function one<T, Acc>(at: usize): Acc {
  if (isFloat<T>()) return <Acc>load<T>(at);
  const bits = i32x4.splat(<i32>load<u16>(at));
  return <Acc>f32x4.extract_lane(isSigned<T>() ? f16ToF32x4(bits) : i32x4.shl(bits, 16), 0);
}

// @ts-ignore: decorator
@inline
function put<T, Acc>(at: usize, value: Acc): void {
  if (isFloat<T>()) return store<Acc>(at, value);
  const x = f32x4.splat(<f32>value);
  store<u16>(at, <u16>i32x4.extract_lane(isSigned<T>() ? f32ToF16x4(x) : f32ToBf16x4(x), 0));
}

// @ts-ignore: decorator
@inline
export function total<Acc>(x: v128): Acc {
  if (sizeof<Acc>() == 8) return <Acc>(f64x2.extract_lane(x, 0) + f64x2.extract_lane(x, 1));
  return <Acc>(f32x4.extract_lane(x, 0) + f32x4.extract_lane(x, 1) + (f32x4.extract_lane(x, 2) + f32x4.extract_lane(x, 3)));
}

/** Where item `index` begins: its matrix, and the first of its columns. */
// @ts-ignore: decorator
@inline
function matrixAt<T>(matrix: usize): usize {
  const info = arg<usize>(INFO);
  return arg<usize>(B) + (info ? offsetOf(info, arg<i32>(SIDE), matrix) * <isize>sizeof<T>() : 0);
}

function dotItems<T, Acc>(lo: usize, hi: usize): void {
  const m = arg<usize>(M);
  const n = arg<usize>(N);
  const k = arg<usize>(K);
  const item = arg<usize>(COLUMNS);
  const across = (n - 1) / item + 1;
  const step = arg<isize>(B_COL);
  const outRow = arg<usize>(OUT_ROW) * sizeof<T>();
  const outCol = arg<usize>(OUT_COL) * sizeof<T>();
  const line = k * sizeof<Acc>();
  const wide = scratch + SCRATCH_FREE;
  for (let index = lo; index < hi; index++) {
    const matrix = index / across;
    const first = (index % across) * item;
    const end = min(first + item, n);
    const b = matrixAt<T>(matrix);
    const a = arg<usize>(ROWS) + matrix * m * line;
    const out = arg<usize>(OUT) + matrix * m * n * sizeof<T>();
    for (let j = first; j < end; j += 4) {
      // Past the last column the last one is computed again; its value is stored once more.
      const j1 = min(j + 1, end - 1);
      const j2 = min(j + 2, end - 1);
      const j3 = min(j + 3, end - 1);
      const b0 = b + <isize>j * step;
      const b1 = b + <isize>j1 * step;
      const b2 = b + <isize>j2 * step;
      const b3 = b + <isize>j3 * step;
      const o0 = out + j * outCol;
      const o1 = out + j1 * outCol;
      const o2 = out + j2 * outCol;
      const o3 = out + j3 * outCol;
      if (isSigned<T>() && !isFloat<T>() && m > 1 && line <= WIDE / 4) {
        widen(arg<i32>(DTYPE), b0, wide, k);
        widen(arg<i32>(DTYPE), b1, wide + line, k);
        widen(arg<i32>(DTYPE), b2, wide + 2 * line, k);
        widen(arg<i32>(DTYPE), b3, wide + 3 * line, k);
        dots<f32, Acc, T>(m, k, a, wide, wide + line, wide + 2 * line, wide + 3 * line, o0, o1, o2, o3, outRow);
      } else dots<T, Acc, T>(m, k, a, b0, b1, b2, b3, o0, o1, o2, o3, outRow);
    }
  }
}

/** All thin rows with four lines of S; results are stored as T. */
export function dots<S, Acc, T>(
  m: usize, k: usize, a: usize, b0: usize, b1: usize, b2: usize, b3: usize, o0: usize, o1: usize, o2: usize, o3: usize, outRow: usize,
): void {
  const line = k * sizeof<Acc>();
  let i: usize = 0;
  for (; i + 4 <= m; i += 4, a += 4 * line) {
    dots4x2<S, Acc, T>(k, a, line, b0, b1, o0 + i * outRow, o1 + i * outRow, outRow);
    dots4x2<S, Acc, T>(k, a, line, b2, b3, o2 + i * outRow, o3 + i * outRow, outRow);
  }
  for (; i < m; i++, a += line) dots1x4<S, Acc, T>(k, a, b0, b1, b2, b3, o0 + i * outRow, o1 + i * outRow, o2 + i * outRow, o3 + i * outRow);
}

/** One thin row with four lines; two sums for each hide the latency of the addition. */
function dots1x4<S, Acc, T>(k: usize, a: usize, b0: usize, b1: usize, b2: usize, b3: usize, o0: usize, o1: usize, o2: usize, o3: usize): void {
  const wide = 16 / sizeof<Acc>();
  const step = wide * sizeof<S>();
  const zero = v128.splat<Acc>(0);
  let s0 = zero;
  let s1 = zero;
  let s2 = zero;
  let s3 = zero;
  let t0 = zero;
  let t1 = zero;
  let t2 = zero;
  let t3 = zero;
  const end = a + k * sizeof<Acc>();
  const body = a + (k & ~(2 * wide - 1)) * sizeof<Acc>();
  for (; a < body; a += 32) {
    const x = v128.load(a);
    s0 = fma<Acc>(x, lanes<S>(b0), s0);
    s1 = fma<Acc>(x, lanes<S>(b1), s1);
    s2 = fma<Acc>(x, lanes<S>(b2), s2);
    s3 = fma<Acc>(x, lanes<S>(b3), s3);
    const y = v128.load(a, 16);
    t0 = fma<Acc>(y, lanes<S>(b0 + step), t0);
    t1 = fma<Acc>(y, lanes<S>(b1 + step), t1);
    t2 = fma<Acc>(y, lanes<S>(b2 + step), t2);
    t3 = fma<Acc>(y, lanes<S>(b3 + step), t3);
    b0 += 2 * step;
    b1 += 2 * step;
    b2 += 2 * step;
    b3 += 2 * step;
  }
  let r0 = total<Acc>(v128.add<Acc>(s0, t0));
  let r1 = total<Acc>(v128.add<Acc>(s1, t1));
  let r2 = total<Acc>(v128.add<Acc>(s2, t2));
  let r3 = total<Acc>(v128.add<Acc>(s3, t3));
  for (; a < end; a += sizeof<Acc>()) {
    const x = load<Acc>(a);
    r0 += x * one<S, Acc>(b0);
    r1 += x * one<S, Acc>(b1);
    r2 += x * one<S, Acc>(b2);
    r3 += x * one<S, Acc>(b3);
    b0 += sizeof<S>();
    b1 += sizeof<S>();
    b2 += sizeof<S>();
    b3 += sizeof<S>();
  }
  put<T, Acc>(o0, r0);
  put<T, Acc>(o1, r1);
  put<T, Acc>(o2, r2);
  put<T, Acc>(o3, r3);
}

/** Four thin rows with two lines, so that a widened vector serves four times. */
function dots4x2<S, Acc, T>(k: usize, a: usize, line: usize, b0: usize, b1: usize, o0: usize, o1: usize, outRow: usize): void {
  const wide = 16 / sizeof<Acc>();
  const step = wide * sizeof<S>();
  const zero = v128.splat<Acc>(0);
  let s0 = zero;
  let s1 = zero;
  let s2 = zero;
  let s3 = zero;
  let t0 = zero;
  let t1 = zero;
  let t2 = zero;
  let t3 = zero;
  let a1 = a + line;
  let a2 = a1 + line;
  let a3 = a2 + line;
  const end = a + k * sizeof<Acc>();
  const body = a + (k & ~(wide - 1)) * sizeof<Acc>();
  for (; a < body; a += 16) {
    const x = lanes<S>(b0);
    const y = lanes<S>(b1);
    let z = v128.load(a);
    s0 = fma<Acc>(z, x, s0);
    t0 = fma<Acc>(z, y, t0);
    z = v128.load(a1);
    s1 = fma<Acc>(z, x, s1);
    t1 = fma<Acc>(z, y, t1);
    z = v128.load(a2);
    s2 = fma<Acc>(z, x, s2);
    t2 = fma<Acc>(z, y, t2);
    z = v128.load(a3);
    s3 = fma<Acc>(z, x, s3);
    t3 = fma<Acc>(z, y, t3);
    a1 += 16;
    a2 += 16;
    a3 += 16;
    b0 += step;
    b1 += step;
  }
  let r0 = total<Acc>(s0);
  let r1 = total<Acc>(s1);
  let r2 = total<Acc>(s2);
  let r3 = total<Acc>(s3);
  let q0 = total<Acc>(t0);
  let q1 = total<Acc>(t1);
  let q2 = total<Acc>(t2);
  let q3 = total<Acc>(t3);
  for (; a < end; a += sizeof<Acc>()) {
    const x = one<S, Acc>(b0);
    const y = one<S, Acc>(b1);
    r0 += x * load<Acc>(a);
    q0 += y * load<Acc>(a);
    r1 += x * load<Acc>(a1);
    q1 += y * load<Acc>(a1);
    r2 += x * load<Acc>(a2);
    q2 += y * load<Acc>(a2);
    r3 += x * load<Acc>(a3);
    q3 += y * load<Acc>(a3);
    a1 += sizeof<Acc>();
    a2 += sizeof<Acc>();
    a3 += sizeof<Acc>();
    b0 += sizeof<S>();
    b1 += sizeof<S>();
  }
  put<T, Acc>(o0, r0);
  put<T, Acc>(o0 + outRow, r1);
  put<T, Acc>(o0 + 2 * outRow, r2);
  put<T, Acc>(o0 + 3 * outRow, r3);
  put<T, Acc>(o1, q0);
  put<T, Acc>(o1 + outRow, q1);
  put<T, Acc>(o1 + 2 * outRow, q2);
  put<T, Acc>(o1 + 3 * outRow, q3);
}

function sumItems<T, Acc>(lo: usize, hi: usize): void {
  const m = arg<usize>(M);
  const n = arg<usize>(N);
  const k = arg<usize>(K);
  const across = (n - 1) / ACROSS + 1;
  const step = arg<isize>(B_ROW);
  const outRow = arg<usize>(OUT_ROW) * sizeof<T>();
  const outCol = arg<usize>(OUT_COL) * sizeof<T>();
  const line = k * sizeof<Acc>();
  const sums = scratch + SCRATCH_FREE;
  const bytes = ACROSS * sizeof<Acc>();
  const wide = sums + THIN * bytes;
  for (let index = lo; index < hi; index++) {
    const matrix = index / across;
    const first = (index % across) * ACROSS;
    const cols = min(ACROSS, n - first);
    const a = arg<usize>(ROWS) + matrix * m * line;
    let b = matrixAt<T>(matrix) + first * sizeof<T>();
    memory.fill(sums, 0, m * bytes);
    let p: usize = 0;
    for (; p + 4 <= k; p += 4, b += 4 * step) {
      const b1 = b + step;
      const b2 = b1 + step;
      const b3 = b2 + step;
      let x = a + p * sizeof<Acc>();
      if (isSigned<T>() && !isFloat<T>() && m > 1) {
        widen(arg<i32>(DTYPE), b, wide, cols);
        widen(arg<i32>(DTYPE), b1, wide + 4 * ACROSS, cols);
        widen(arg<i32>(DTYPE), b2, wide + 8 * ACROSS, cols);
        widen(arg<i32>(DTYPE), b3, wide + 12 * ACROSS, cols);
        for (let i: usize = 0; i < m; i++, x += line) addLines4<f32, Acc>(x, wide, wide + 4 * ACROSS, wide + 8 * ACROSS, wide + 12 * ACROSS, cols, sums + i * bytes);
      } else for (let i: usize = 0; i < m; i++, x += line) addLines4<T, Acc>(x, b, b1, b2, b3, cols, sums + i * bytes);
    }
    for (; p < k; p++, b += step) {
      for (let i: usize = 0; i < m; i++) {
        const x = load<Acc>(a + i * line + p * sizeof<Acc>());
        const to = sums + i * bytes;
        for (let j: usize = 0; j < cols; j++) {
          const at = to + j * sizeof<Acc>();
          store<Acc>(at, load<Acc>(at) + x * one<T, Acc>(b + j * sizeof<T>()));
        }
      }
    }
    const out = arg<usize>(OUT) + matrix * m * n * sizeof<T>() + first * outCol;
    for (let i: usize = 0; i < m; i++) {
      for (let j: usize = 0; j < cols; j++) put<T, Acc>(out + i * outRow + j * outCol, load<Acc>(sums + (i * ACROSS + j) * sizeof<Acc>()));
    }
  }
}

/** sums += four coefficients at `a` times four lines. */
export function addLines4<T, Acc>(a: usize, b0: usize, b1: usize, b2: usize, b3: usize, cols: usize, sums: usize): void {
  const wide = 16 / sizeof<Acc>();
  const step = wide * sizeof<T>();
  const x0 = v128.load_splat<Acc>(a);
  const x1 = v128.load_splat<Acc>(a, sizeof<Acc>());
  const x2 = v128.load_splat<Acc>(a, 2 * sizeof<Acc>());
  const x3 = v128.load_splat<Acc>(a, 3 * sizeof<Acc>());
  const end = sums + cols * sizeof<Acc>();
  const body = sums + (cols & ~(wide - 1)) * sizeof<Acc>();
  for (; sums < body; sums += 16) {
    let s = fma<Acc>(x0, lanes<T>(b0), v128.load(sums));
    s = fma<Acc>(x1, lanes<T>(b1), s);
    s = fma<Acc>(x2, lanes<T>(b2), s);
    v128.store(sums, fma<Acc>(x3, lanes<T>(b3), s));
    b0 += step;
    b1 += step;
    b2 += step;
    b3 += step;
  }
  for (; sums < end; sums += sizeof<Acc>()) {
    const s = load<Acc>(sums) + load<Acc>(a) * one<T, Acc>(b0) + load<Acc>(a, sizeof<Acc>()) * one<T, Acc>(b1);
    store<Acc>(sums, s + load<Acc>(a, 2 * sizeof<Acc>()) * one<T, Acc>(b2) + load<Acc>(a, 3 * sizeof<Acc>()) * one<T, Acc>(b3));
    b0 += sizeof<T>();
    b1 += sizeof<T>();
    b2 += sizeof<T>();
    b3 += sizeof<T>();
  }
}
