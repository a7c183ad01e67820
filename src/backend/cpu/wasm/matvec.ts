/**
 * Products with a thin operand (at most THIN rows or columns): the other matrix is read once, where it lies, at memory
 * speed. Lines of the matrix that run along k are dotted with the thin rows; lines that run across are added up.
 */
import { offsetOf, SCRATCH_FREE, widen } from "./block";
import { addLines4, dots, one, put } from "./lines";
import { arg, BF16, F16, F32, F64, setArg, shiftOf } from "./memory";
import { packPanel } from "./pack";
import { parallel, scratch } from "./pool";

const THIN: usize = 8;
/**
 * Columns summed at a time when lines run across. Whole lines where they are not too long: jumping from piece to piece
 * of a line halves the rate at which memory is read.
 */
const ACROSS: usize = 8192;
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
  dtype: i32,
  batch: usize,
  m: usize,
  n: usize,
  k: usize,
  info: usize,
  a: usize,
  aRow: i32,
  aCol: i32,
  b: usize,
  bRow: i32,
  bCol: i32,
  out: usize,
  tmp: usize,
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
    for (let r: usize = 0; r < rows; r++)
      packPanel(
        dtype,
        from + ((<isize>r * thinRow) << shift),
        0,
        thinCol,
        1,
        1,
        k,
        tmp + i * bytes + r * (bytes / rows),
      );
  }
  setArg<i32>(DTYPE, dtype);
  setArg<usize>(M, rows);
  setArg<usize>(N, columns);
  setArg<usize>(K, k);
  setArg<usize>(INFO, info);
  setArg<i32>(SIDE, swap ? 0 : 1);
  setArg<usize>(ROWS, tmp);
  setArg<usize>(B, swap ? a : b);
  setArg<isize>(B_ROW, (<isize>along) << shift);
  setArg<isize>(B_COL, (<isize>(swap ? aRow : bCol)) << shift);
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

/** The matrix of one element of the batch. */
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
        for (let i: usize = 0; i < m; i++, x += line)
          addLines4<f32, Acc>(
            x,
            wide,
            wide + 4 * ACROSS,
            wide + 8 * ACROSS,
            wide + 12 * ACROSS,
            cols,
            sums + i * bytes,
          );
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
      for (let j: usize = 0; j < cols; j++)
        put<T, Acc>(out + i * outRow + j * outCol, load<Acc>(sums + (i * ACROSS + j) * sizeof<Acc>()));
    }
  }
}
