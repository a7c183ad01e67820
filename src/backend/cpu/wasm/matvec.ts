/**
 * Products with a thin operand (at most THIN rows or columns): the other matrix is read once, where it lies, at memory
 * speed. Lines of the matrix that run along k are dotted with the thin rows; lines that run across are added up. Both
 * keep to the order of additions of products with more rows: that of dot-tile.ts, and that of tile.ts.
 */
import { BF16, F16, F32, F64, shiftOf } from "./abi";
import { offsetOf, SCRATCH_FREE, widen } from "./block";
import { addLine, addLines4, dots, put } from "./lines";
import { arg, setArg } from "./memory";
import { packPanel } from "./pack";
import { parallel, scratch } from "./pool";
import { addStreams, dotStreams, STREAMS } from "./streams";
import { KC } from "./tile";

const THIN: usize = 8;
/**
 * Columns summed at a time when lines run across. Whole lines where they are not too long: jumping from piece to piece
 * of a line halves the rate at which memory is read.
 */
const ACROSS: usize = 8192;
/** Elements of the matrix that are worth a chunk. */
const CHUNK: usize = 65536;
/** Items that a large matrix with lines along k is cut into, about. */
const ITEMS: usize = 64;

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
const PARTS = 14; // per matrix: blocks of KC lines
const PARTIAL = 15; // sums of each part: rows of n, as whole vectors

/**
 * Whether products are summed as dots (dot-tile.ts) or line by line (tile.ts): how the operands lie decides, and never
 * the number of rows. Few columns go by the rows, which are then what is long.
 */
// @inline
export function areDots(n: usize, aRow: i32, aCol: i32, bRow: i32): bool {
  return n <= THIN ? aCol === 1 || aRow !== 1 : bRow === 1;
}

/** Which operand is thin while the other has lines of the right kind: 0 none, 1 the rows of a, 2 the columns of b. */
export function thinSide(dtype: i32, m: usize, n: usize, aRow: i32, aCol: i32, bRow: i32, bCol: i32): i32 {
  if (dtype !== F32 && dtype !== F64 && dtype !== F16 && dtype !== BF16) return 0;
  const dots = areDots(n, aRow, aCol, bRow);
  if (m <= THIN && m <= n && (dots ? bRow : bCol) === 1) return 1;
  return n <= THIN && (dots ? aCol : aRow) === 1 ? 2 : 0;
}

/** Bytes for the thin operand, up to the sums of the parts. */
function rowBytes(dtype: i32, batch: usize, rows: usize, k: usize): usize {
  return (((batch * rows * k) << (dtype === F64 ? 3 : 2)) + 63) & ~63;
}

/** Bytes for the thin operand and for the sums of the parts, also where a batch becomes one matrix. */
export function thinTmp(dtype: i32, batch: usize, m: usize, n: usize, k: usize): usize {
  const each = max(sideTmp(dtype, batch, m, n, k), sideTmp(dtype, batch, n, m, k));
  return max(each, max(sideTmp(dtype, 1, batch * m, n, k), sideTmp(dtype, 1, n, batch * m, k)));
}

function sideTmp(dtype: i32, batch: usize, rows: usize, columns: usize, k: usize): usize {
  if (rows > THIN || k === 0) return 0;
  const sums = k > KC ? (batch * ((k - 1) / KC + 1) * rows * padded(columns)) << (dtype === F64 ? 3 : 2) : 0;
  return rowBytes(dtype, batch, rows, k) + sums;
}

/** Columns as whole vectors. */
// @inline
function padded(columns: usize): usize {
  return (columns + 3) & ~3;
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
  swap: bool,
): void {
  // A thin b: the transposed product, with the roles exchanged.
  const rows = swap ? n : m;
  const columns = swap ? m : n;
  const thinAt = swap ? b : a;
  const thinRow = <isize>(swap ? bCol : aRow);
  const thinCol = <isize>(swap ? bRow : aCol);
  const dotted = areDots(n, aRow, aCol, bRow);
  const shift = shiftOf(dtype);
  const bytes = (rows * k) << (dtype === F64 ? 3 : 2);
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
  setArg<isize>(B_ROW, (<isize>(swap ? aCol : bRow)) << shift);
  setArg<isize>(B_COL, (<isize>(swap ? aRow : bCol)) << shift);
  setArg<usize>(OUT, out);
  setArg<usize>(OUT_ROW, swap ? 1 : n);
  setArg<usize>(OUT_COL, swap ? n : 1);
  if (dotted) {
    // Whole blocks of columns.
    const block: usize = columns > ITEMS ? STREAMS : 4;
    const share = max<usize>(CHUNK, <usize>((<u64>columns * k) / ITEMS));
    const item = min(columns, max(block, min(CHUNK, share / k) & ~(block - 1)));
    setArg<usize>(COLUMNS, item);
    const grain = max<usize>(1, CHUNK / (item * min(k, CHUNK)));
    return parallel(dotChunk, batch * ((columns - 1) / item + 1), grain);
  }
  const parts = (k - 1) / KC + 1;
  const pieces = (columns - 1) / ACROSS + 1;
  setArg<usize>(PARTS, parts);
  setArg<usize>(PARTIAL, tmp + rowBytes(dtype, batch, rows, k));
  const grain = max<usize>(1, CHUNK / (min(ACROSS, columns) * min(k, KC)));
  parallel(sumChunk, batch * parts * pieces, grain);
  if (parts > 1) parallel(joinChunk, batch * rows * pieces, 1);
}

function dotChunk(lo: usize, hi: usize): void {
  const dtype = arg<i32>(DTYPE);
  if (dtype === F32) dotItems<f32, f32>(lo, hi);
  else if (dtype === F64) dotItems<f64, f64>(lo, hi);
  else if (dtype === BF16) dotItems<u16, f32>(lo, hi);
  else dotItems<i16, f32>(lo, hi);
}

function sumChunk(lo: usize, hi: usize): void {
  const dtype = arg<i32>(DTYPE);
  if (dtype === F32) sumItems<f32, f32>(lo, hi);
  else if (dtype === F64) sumItems<f64, f64>(lo, hi);
  else if (dtype === BF16) sumItems<u16, f32>(lo, hi);
  else sumItems<i16, f32>(lo, hi);
}

function joinChunk(lo: usize, hi: usize): void {
  const dtype = arg<i32>(DTYPE);
  if (dtype === F32) joinItems<f32, f32>(lo, hi);
  else if (dtype === F64) joinItems<f64, f64>(lo, hi);
  else if (dtype === BF16) joinItems<u16, f32>(lo, hi);
  else joinItems<i16, f32>(lo, hi);
}

/** The matrix of one element of the batch. */
// @inline
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
    let j = first;
    if (isFloat<T>() && m === 1) {
      // Results of one row are contiguous, whichever operand is thin.
      const run = (end - first) / STREAMS;
      dotStreams<T>(k, a, b + <isize>j * step, step, run, out + j * outCol);
      j += run * STREAMS;
    }
    for (; j < end; j += 4) {
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
  const parts = arg<usize>(PARTS);
  const pieces = (n - 1) / ACROSS + 1;
  const step = arg<isize>(B_ROW);
  const line = k * sizeof<Acc>();
  const bytes = (parts > 1 ? padded(n) : ACROSS) * sizeof<Acc>();
  const wide = scratch + SCRATCH_FREE + THIN * ACROSS * sizeof<Acc>();
  for (let index = lo; index < hi; index++) {
    const matrix = index / pieces / parts;
    const from = ((index / pieces) % parts) * KC;
    const end = min(from + KC, k);
    const first = (index % pieces) * ACROSS;
    const cols = min(ACROSS, n - first);
    const a = arg<usize>(ROWS) + matrix * m * line;
    let b = matrixAt<T>(matrix) + first * sizeof<T>() + <isize>from * step;
    const sums =
      parts > 1 ? arg<usize>(PARTIAL) + (index / pieces) * m * bytes + first * sizeof<Acc>() : scratch + SCRATCH_FREE;
    for (let i: usize = 0; i < m; i++) memory.fill(sums + i * bytes, 0, padded(cols) * sizeof<Acc>());
    let p = from;
    if (isFloat<T>() && m === 1) {
      const run = (end - p) / STREAMS;
      addStreams<T>(a + p * sizeof<T>(), b, step, run, cols, sums);
      p += run * STREAMS;
      b += <isize>(run * STREAMS) * step;
    }
    for (; p + 4 <= end; p += 4, b += 4 * step) {
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
    for (; p < end; p++, b += step) {
      for (let i: usize = 0; i < m; i++) addLine<T, Acc>(a + i * line + p * sizeof<Acc>(), b, cols, sums + i * bytes);
    }
    if (parts === 1) {
      for (let i: usize = 0; i < m; i++) putRow<T, Acc>(sums + i * bytes, matrix, i, first, cols);
    }
  }
}

/** Stores a piece of a row of results. */
function putRow<T, Acc>(sums: usize, matrix: usize, row: usize, first: usize, cols: usize): void {
  const outCol = arg<usize>(OUT_COL) * sizeof<T>();
  const matrixOut = arg<usize>(OUT) + matrix * arg<usize>(M) * arg<usize>(N) * sizeof<T>();
  let out = matrixOut + row * arg<usize>(OUT_ROW) * sizeof<T>() + first * outCol;
  for (const end = sums + cols * sizeof<Acc>(); sums < end; sums += sizeof<Acc>(), out += outCol)
    put<T, Acc>(out, load<Acc>(sums));
}

/** Adds the sums of all parts to those of the first, in order, and stores them. */
function joinItems<T, Acc>(lo: usize, hi: usize): void {
  const m = arg<usize>(M);
  const n = arg<usize>(N);
  const parts = arg<usize>(PARTS);
  const pieces = (n - 1) / ACROSS + 1;
  for (let index = lo; index < hi; index++) {
    const matrix = index / pieces / m;
    const row = (index / pieces) % m;
    const first = (index % pieces) * ACROSS;
    const cols = min(ACROSS, n - first);
    const sums = arg<usize>(PARTIAL) + ((matrix * parts * m + row) * padded(n) + first) * sizeof<Acc>();
    for (let part: usize = 1; part < parts; part++)
      addRow<Acc>(sums, sums + part * m * padded(n) * sizeof<Acc>(), cols);
    putRow<T, Acc>(sums, matrix, row, first, cols);
  }
}

function addRow<Acc>(to: usize, from: usize, cols: usize): void {
  const end = to + cols * sizeof<Acc>();
  const body = to + ((cols * sizeof<Acc>()) & ~15);
  for (; to < body; to += 16, from += 16) v128.store(to, v128.add<Acc>(v128.load(to), v128.load(from)));
  for (; to < end; to += sizeof<Acc>(), from += sizeof<Acc>()) store<Acc>(to, load<Acc>(to) + load<Acc>(from));
}
