/**
 * Matrix products. Floats: B is packed into panels by all threads, then blocks of C are chunks; small matrices of a
 * batch are packed and multiplied by one thread each; products with a thin operand never pack (matvec.ts). Columns of B
 * that lie along k are dotted (dot-tile.ts), others are summed line by line (tile.ts). Integers wrap and take plain
 * loops.
 */
import { F64, I16, I32, I64, shiftOf, U8, U32 } from "./abi";
import { offsetOf, RUN } from "./block";
import { multiplyDots, packDotColumns, paddedDepth } from "./dot-tile";
import { areDots, thin, thinSide, thinTmp } from "./matvec";
import { arg, setArg } from "./memory";
import { packPanel } from "./pack";
import { Kernel, parallel, scratch } from "./pool";
import { COLS, columnsOf, MC, MULTIPLY_FREE, multiply, ROW } from "./tile";
import {
  Address,
  Bytes,
  ColStride,
  Cols,
  Count,
  DTypeCode,
  Inner,
  Layouts,
  OutAddress,
  RowStride,
  Rows,
  TmpAddress,
} from "./types";

// Arguments of the kernels here; a packer's own begin at PACKER.
const DTYPE = 0;
const M = 1;
const N = 2; // columns in this stage
const K = 3;
const A = 4;
const A_ROW = 5;
const A_COL = 6;
const OUT = 7;
const LDO = 8;
const PACKED = 9;
const FIRST = 10; // first column of this stage
const ROWS = 11; // rows per chunk
const COLUMNS = 12; // columns per chunk
const DOTS = 13; // panels are those of dot-tile.ts
export const PACKER = 14;
const B = PACKER;
const B_ROW = PACKER + 1;
const B_COL = PACKER + 2;
const INFO = PACKER + 3;

/** Bytes of B packed at a time: a few times less than usual last-level caches. */
const STAGE: usize = 16 << 20;
/** What a thread may pack into its scratch memory, and the multiplications that are worth a chunk. */
const SMALL: usize = 2 << 20;
const CHUNK: f64 = 262144;

/** Columns of B that a stage packs, a multiple of the panel. */
function stageColumns(dtype: i32, n: usize, k: usize): usize {
  const nr = columnsOf(dtype);
  const panels = min((n + nr - 1) / nr, max<usize>(4, STAGE / (max<usize>(k, 1) * ROW)));
  return panels * nr;
}

/** Bytes that `product` wants for packed columns. */
export function productTmp(dtype: i32, n: usize, k: usize): usize {
  return (stageColumns(dtype, n, k) / columnsOf(dtype)) * paddedDepth(dtype, k) * ROW;
}

/** Whether B (k × n) can be packed by one thread for itself. */
export function isSmall(dtype: i32, n: usize, k: usize): bool {
  return n <= COLS && <f64>(n + 12) * <f64>k <= <f64>(SMALL >> (dtype === F64 ? 3 : 2));
}

/** How many products of this size make a chunk. */
export function productGrain(m: usize, n: usize, k: usize): usize {
  return <usize>max(1.0, CHUNK / (<f64>m * <f64>n * <f64>k + 64.0));
}

/** The thread's own place for packed columns. */
// @inline
export function ownPanels(): usize {
  return scratch + MULTIPLY_FREE;
}

/** `packer` was given the first column and packed place of each stage: panels lo … hi−1 of this stage. */
// @inline
export function stageFirst(): usize {
  return arg<usize>(FIRST);
}
// @inline
export function stagePanels(): usize {
  return arg<usize>(PACKED);
}

/**
 * out (m × n, contiguous) = A · B where `packer` makes the panels of B (its arguments, from PACKER on, are set already).
 * Chunks are blocks of rows and columns, at least 32 of them where the size allows.
 */
export function product(
  dtype: i32,
  m: usize,
  n: usize,
  k: usize,
  a: usize,
  aRow: i32,
  aCol: i32,
  packer: Kernel,
  out: usize,
  tmp: usize,
  dots: bool = false,
): void {
  const nr = columnsOf(dtype);
  const stage = stageColumns(dtype, n, k);
  setArg<i32>(DTYPE, dtype);
  setArg<usize>(M, m);
  setArg<usize>(K, k);
  setArg<usize>(A, a);
  setArg<i32>(A_ROW, aRow);
  setArg<i32>(A_COL, aCol);
  setArg<usize>(LDO, n);
  setArg<usize>(PACKED, tmp);
  setArg<i32>(DOTS, dots);
  const rows = m <= 4 * MC ? MC / 2 : MC;
  const rowChunks = (m + rows - 1) / rows;
  setArg<usize>(ROWS, rows);
  for (let first: usize = 0; first < n; first += stage) {
    const cols = min(stage, n - first);
    setArg<usize>(N, cols);
    setArg<usize>(FIRST, first);
    setArg<usize>(OUT, out + (first << shiftOf(dtype)));
    parallel(packer, (cols + nr - 1) / nr, max<usize>(1, 32768 / (nr * k)));
    let columns = min((cols + nr - 1) / nr, COLS / nr);
    while (columns > 8 && rowChunks * ((cols + columns * nr - 1) / (columns * nr)) < 32) columns = (columns + 1) >> 1;
    columns *= nr;
    setArg<usize>(COLUMNS, columns);
    parallel(multiplyChunk, rowChunks * ((cols + columns - 1) / columns), 1);
  }
}

function multiplyChunk(lo: usize, hi: usize): void {
  const dtype = arg<i32>(DTYPE);
  const shift = shiftOf(dtype);
  const k = arg<usize>(K);
  const aRow = <isize>arg<i32>(A_ROW);
  const ldo = arg<usize>(LDO);
  const rows = arg<usize>(ROWS);
  const columns = arg<usize>(COLUMNS);
  const dots = arg<i32>(DOTS) !== 0;
  const panel = (dots ? paddedDepth(dtype, k) : k) * ROW;
  const across = (arg<usize>(N) + columns - 1) / columns;
  for (let chunk = lo; chunk < hi; chunk++) {
    const i = (chunk / across) * rows;
    const j = (chunk % across) * columns;
    const a = arg<usize>(A) + ((<isize>i * aRow) << shift);
    const b = arg<usize>(PACKED) + (j / columnsOf(dtype)) * panel;
    const out = arg<usize>(OUT) + ((i * ldo + j) << shift);
    const height = min(rows, arg<usize>(M) - i);
    const width = min(columns, arg<usize>(N) - j);
    const aCol = <isize>arg<i32>(A_COL);
    if (dots) multiplyDots(dtype, height, width, k, a, aRow, aCol, b, out, ldo);
    else multiply(dtype, height, width, k, a, aRow, aCol, b, out, ldo);
  }
}

function packColumns(
  dtype: i32,
  b: usize,
  bRow: isize,
  bCol: isize,
  first: usize,
  cols: usize,
  k: usize,
  dst: usize,
): void {
  const nr = columnsOf(dtype);
  for (let j: usize = 0; j < cols; j += nr, dst += k * ROW) {
    packPanel(dtype, b + ((<isize>(first + j) * bCol) << shiftOf(dtype)), bCol, bRow, min(nr, cols - j), nr, k, dst);
  }
}

function packChunk(lo: usize, hi: usize): void {
  const dtype = arg<i32>(DTYPE);
  const nr = columnsOf(dtype);
  const k = arg<usize>(K);
  const cols = min(hi * nr, arg<usize>(N)) - lo * nr;
  const first = stageFirst() + lo * nr;
  const b = arg<usize>(B);
  const bRow = <isize>arg<i32>(B_ROW);
  const bCol = <isize>arg<i32>(B_COL);
  if (arg<i32>(DOTS))
    packDotColumns(dtype, b, bRow, bCol, first, cols, k, stagePanels() + lo * paddedDepth(dtype, k) * ROW);
  else packColumns(dtype, b, bRow, bCol, first, cols, k, stagePanels() + lo * k * ROW);
}

/** Whole products of a batch. */
function batchChunk(lo: usize, hi: usize): void {
  const dtype = arg<i32>(DTYPE);
  const shift = shiftOf(dtype);
  const m = arg<usize>(M);
  const n = arg<usize>(N);
  const k = arg<usize>(K);
  const info = arg<usize>(INFO);
  for (let i = lo; i < hi; i++) {
    const a = arg<usize>(A) + (info ? offsetOf(info, 0, i) << shift : 0);
    const b = arg<usize>(B) + (info ? offsetOf(info, 1, i) << shift : 0);
    const aRow = <isize>arg<i32>(A_ROW);
    const aCol = <isize>arg<i32>(A_COL);
    const bRow = <isize>arg<i32>(B_ROW);
    const bCol = <isize>arg<i32>(B_COL);
    const out = arg<usize>(OUT) + ((i * m * n) << shift);
    if (arg<i32>(DOTS)) {
      packDotColumns(dtype, b, bRow, bCol, 0, n, k, ownPanels());
      multiplyDots(dtype, m, n, k, a, aRow, aCol, ownPanels(), out, n);
    } else {
      packColumns(dtype, b, bRow, bCol, 0, n, k, ownPanels());
      multiply(dtype, m, n, k, a, aRow, aCol, ownPanels(), out, n);
    }
  }
}

export function isInteger(dtype: i32): bool {
  return dtype === U8 || dtype === U32 || dtype === I16 || dtype === I32 || dtype === I64;
}

/** Bytes of temporary memory for `matmul`, whatever the strides. */
export function matmulTmp(dtype: DTypeCode, batch: Count, m: Rows, n: Cols, k: Inner): Bytes {
  if (isInteger(dtype) || m === 0 || n === 0) return 0;
  return max(productTmp(dtype, n, k), thinTmp(dtype, batch, m, n, k));
}

/**
 * out (batch, m, n) = a (m × k) · b (k × n) for each matrix of the batch. `info`: the batch dims with a's and b's
 * strides, 0 for one matrix. Rows and columns may have any strides.
 */
export function matmul(
  dtype: DTypeCode,
  batch: Count,
  m: Rows,
  n: Cols,
  k: Inner,
  info: Layouts,
  a: Address,
  aRow: RowStride,
  aCol: ColStride,
  b: Address,
  bRow: RowStride,
  bCol: ColStride,
  out: OutAddress,
  tmp: TmpAddress,
): void {
  const shift = shiftOf(dtype);
  if (batch === 0 || m === 0 || n === 0) return;
  if (k === 0) return memory.fill(out, 0, (batch * m * n) << shift);
  if (batch === 1) info = 0;
  // One b for the whole batch, and a's matrices one after the other: a taller a.
  if (
    info !== 0 &&
    load<i32>(info) === 1 &&
    load<i32>(info, 12) === 0 &&
    <i64>load<i32>(info, 8) === <i64>m * <i64>aRow
  ) {
    m *= batch;
    batch = 1;
    info = 0;
  }
  const side = thinSide(dtype, m, n, aRow, aCol, bRow, bCol);
  if (side !== 0) return thin(dtype, batch, m, n, k, info, a, aRow, aCol, b, bRow, bCol, out, tmp, side === 2);
  const dots = areDots(n, aRow, aCol, bRow);
  setArg<i32>(DTYPE, dtype);
  setArg<i32>(DOTS, dots);
  setArg<usize>(B, b);
  setArg<i32>(B_ROW, bRow);
  setArg<i32>(B_COL, bCol);
  setArg<usize>(INFO, info);
  const whole = isSmall(dtype, n, k) && (batch >= 8 || <f64>m * <f64>n * <f64>k <= CHUNK);
  if (isInteger(dtype) || whole) {
    setArg<usize>(M, m);
    setArg<usize>(N, n);
    setArg<usize>(K, k);
    setArg<usize>(A, a);
    setArg<i32>(A_ROW, aRow);
    setArg<i32>(A_COL, aCol);
    setArg<usize>(OUT, out);
    if (!isInteger(dtype)) return parallel(batchChunk, batch, productGrain(m, n, k));
    return parallel(integerChunk, batch * m, productGrain(1, n, k));
  }
  for (let i: usize = 0; i < batch; i++) {
    const at = a + (info ? offsetOf(info, 0, i) << shift : 0);
    setArg<usize>(B, b + (info ? offsetOf(info, 1, i) << shift : 0));
    product(dtype, m, n, k, at, aRow, aCol, packChunk, out + ((i * m * n) << shift), tmp, dots);
  }
}

/** Rows lo … hi−1 of the batch's results. */
function integerChunk(lo: usize, hi: usize): void {
  const dtype = arg<i32>(DTYPE);
  if (dtype === U8) integerRows<u8, i32>(lo, hi);
  else if (dtype === I16) integerRows<i16, i32>(lo, hi);
  else if (dtype === I64) integerRows<i64, i64>(lo, hi);
  else integerRows<i32, i32>(lo, hi);
}

/** Sums in Acc, which wraps as the dtype does after truncation. */
function integerRows<T, Acc>(lo: usize, hi: usize): void {
  const m = arg<usize>(M);
  const n = arg<usize>(N);
  const k = arg<usize>(K);
  const info = arg<usize>(INFO);
  const aStep = <isize>arg<i32>(A_COL) * sizeof<T>();
  const bRow = <isize>arg<i32>(B_ROW) * sizeof<T>();
  const bCol = <isize>arg<i32>(B_COL) * sizeof<T>();
  const sums = scratch;
  for (let row = lo; row < hi; row++) {
    const matrix = row / m;
    let a = arg<usize>(A) + <isize>(row % m) * <isize>arg<i32>(A_ROW) * sizeof<T>();
    let b = arg<usize>(B);
    if (info) {
      a += offsetOf(info, 0, matrix) * sizeof<T>();
      b += offsetOf(info, 1, matrix) * sizeof<T>();
    }
    for (let j: usize = 0; j < n; j += RUN) {
      const count = min(RUN, n - j);
      memory.fill(sums, 0, count * sizeof<Acc>());
      for (let p: usize = 0; p < k; p++) {
        const x = <Acc>load<T>(a + <isize>p * aStep);
        let from = b + <isize>p * bRow + <isize>j * bCol;
        for (let at = sums; at < sums + count * sizeof<Acc>(); at += sizeof<Acc>()) {
          store<Acc>(at, load<Acc>(at) + x * <Acc>load<T>(from));
          from += bCol;
        }
      }
      const to = arg<usize>(OUT) + (row * n + j) * sizeof<T>();
      for (let i: usize = 0; i < count; i++) store<T>(to + i * sizeof<T>(), <T>load<Acc>(sums + i * sizeof<Acc>()));
    }
  }
}
