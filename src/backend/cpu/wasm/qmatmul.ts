/**
 * x · wᵀ with quantized weights, used where they lie. Few rows of x are packed as integers and dotted with the rows of
 * w. For many, weights are decoded to f32 panels in cache, KC of a group of columns at a time, and meet all rows of x
 * in the tile of the matrix product: there the decoding costs little, and nothing of x is rounded.
 */
import {
  blockBytes,
  F32,
  IQ4_NL,
  IQ4_XS,
  MXFP4,
  Q2_K,
  Q3_K,
  Q4_0,
  Q4_1,
  Q4_K,
  Q5_0,
  Q5_1,
  Q5_K,
  Q6_K,
  Q8_0,
  Q8_1,
  Q8_K,
  shiftOf,
} from "./abi";
import { narrow, native, RESULT, slot } from "./block";
import { productGrain } from "./gemm";
import { arg, setArg } from "./memory";
import { packPanel } from "./pack";
import { parallel, SCRATCH_BYTES, scratch } from "./pool";
import { packActivations, packedBytes, packingOf } from "./quant-activations";
import { decodeRun } from "./quant-decode";
import { dotRow, dotRows, SHORT, STRETCH } from "./quant-dot";
import { bytesOf } from "./quant-types";
import { BLOCK_FREE, block, columnsOf, KC, MR, packRows, ROW } from "./tile";
import {
  Address,
  BlockBytes,
  BlockSize,
  Bytes,
  Cols,
  DTypeCode,
  Inner,
  OutAddress,
  QuantTypeId,
  Rows,
  TmpAddress,
} from "./types";

/** From how many rows of x on decoding pays. */
// @inline
function isMany(size: usize, m: usize): bool {
  return m >= (size === 256 ? 10 : 16);
}

/** Rows of x that decoded weights meet at once. */
const ROWS: usize = 192;
/** Panels of decoded columns: 48 columns. */
const PANELS: usize = RELAXED ? 4 : 6;
const COLUMNS: usize = 48;
/** Decoding a weight costs as much as multiplying it with so many rows. */
const DECODING: usize = 8;
const HALF: usize = SCRATCH_BYTES / 2;
/** Weights that are worth a chunk. */
const CHUNK: usize = 131072;

// Scratch of the decoding kernel: lines of a panel, panels, a block of results.
const LINES: usize = BLOCK_FREE;
const PANEL: usize = LINES + 12 * KC * 4;
const RESULTS: usize = PANEL + PANELS * KC * ROW;

// Arguments; x is packed once the first stage is over.
const TYPE = 0;
const DTYPE = 1;
const M = 2;
const N = 3;
const K = 4;
const X = 5;
const W = 6;
const OUT = 7;
const SIZE = 8; // weights per block
const BYTES = 9; // bytes per block

/** Rows of packed floats, padded to whole panels. */
// @inline
function paddedRows(m: usize): usize {
  return ((min(m, ROWS) + MR - 1) / MR) * MR;
}

/** Bytes of temporary memory; few rows mostly fit into half of the main thread's scratch memory. */
export function qmatmulTmp(size: BlockSize, m: Rows, k: Inner): Bytes {
  if (isMany(size, m)) return (paddedRows(m) * k) << 2;
  const bytes = m * packedBytes(k);
  return bytes <= HALF ? 0 : bytes;
}

/** out (m × n) = x (m × k, contiguous) · wᵀ (n × k). x and out: f32, f16 or bf16. */
export function qmatmul(
  type: QuantTypeId,
  size: BlockSize,
  bytes: BlockBytes,
  dtype: DTypeCode,
  m: Rows,
  n: Cols,
  k: Inner,
  x: Address,
  w: Address,
  out: OutAddress,
  tmp: TmpAddress,
): void {
  const shift = shiftOf(dtype);
  if (m === 0 || n === 0) return;
  if (k === 0) return memory.fill(out, 0, (m * n) << shift);
  if (!isMany(size, m)) {
    if (tmp === 0) tmp = scratch + HALF;
    packActivations(packing(type), dtype, m, k, x, tmp);
    setArguments(type, size, bytes, dtype, m, n, k, tmp, w, out);
    return parallel(dotChunk, n, max<usize>(4, (CHUNK / (m * k)) & ~3));
  }
  for (let i: usize = 0; i < m; i += ROWS) {
    const rows = min(ROWS, m - i);
    setArguments(type, size, bytes, dtype, rows, n, k, x + ((i * k) << shift), w, tmp);
    parallel(packChunk, (k - 1) / KC + 1, max<usize>(1, CHUNK / 4 / (rows * KC)));
    setArguments(type, size, bytes, dtype, rows, n, k, tmp, w, out + ((i * n) << shift));
    parallel(decodeChunk, (n - 1) / COLUMNS + 1, productGrain(rows + DECODING, COLUMNS, k));
  }
}

function setArguments(
  type: i32,
  size: usize,
  bytes: usize,
  dtype: i32,
  m: usize,
  n: usize,
  k: usize,
  x: usize,
  w: usize,
  out: usize,
): void {
  setArg<i32>(TYPE, type);
  setArg<i32>(DTYPE, dtype);
  setArg<usize>(M, m);
  setArg<usize>(N, n);
  setArg<usize>(K, k);
  setArg<usize>(X, x);
  setArg<usize>(W, w);
  setArg<usize>(OUT, out);
  setArg<usize>(SIZE, size);
  setArg<usize>(BYTES, bytes);
}

function dotChunk(lo: usize, hi: usize): void {
  switch (arg<i32>(TYPE)) {
    case Q4_0.ID:
      return dots<Q4_0>(lo, hi);
    case Q4_1.ID:
      return dots<Q4_1>(lo, hi);
    case Q5_0.ID:
      return dots<Q5_0>(lo, hi);
    case Q5_1.ID:
      return dots<Q5_1>(lo, hi);
    case Q8_0.ID:
      return dots<Q8_0>(lo, hi);
    case Q8_1.ID:
      return dots<Q8_1>(lo, hi);
    case Q2_K.ID:
      return dots<Q2_K>(lo, hi);
    case Q3_K.ID:
      return dots<Q3_K>(lo, hi);
    case Q4_K.ID:
      return dots<Q4_K>(lo, hi);
    case Q5_K.ID:
      return dots<Q5_K>(lo, hi);
    case Q6_K.ID:
      return dots<Q6_K>(lo, hi);
    case Q8_K.ID:
      return dots<Q8_K>(lo, hi);
    case IQ4_NL.ID:
      return dots<IQ4_NL>(lo, hi);
    case IQ4_XS.ID:
      return dots<IQ4_XS>(lo, hi);
    default:
      return dots<MXFP4>(lo, hi);
  }
}

/** How activations are packed for a type. */
function packing(type: i32): i32 {
  switch (type) {
    case Q4_0.ID:
      return packingOf<Q4_0>();
    case Q4_1.ID:
      return packingOf<Q4_1>();
    case Q5_0.ID:
      return packingOf<Q5_0>();
    case Q5_1.ID:
      return packingOf<Q5_1>();
    case Q8_0.ID:
      return packingOf<Q8_0>();
    case Q8_1.ID:
      return packingOf<Q8_1>();
    case Q2_K.ID:
      return packingOf<Q2_K>();
    case Q3_K.ID:
      return packingOf<Q3_K>();
    case Q4_K.ID:
      return packingOf<Q4_K>();
    case Q5_K.ID:
      return packingOf<Q5_K>();
    case Q6_K.ID:
      return packingOf<Q6_K>();
    case Q8_K.ID:
      return packingOf<Q8_K>();
    case IQ4_NL.ID:
      return packingOf<IQ4_NL>();
    case IQ4_XS.ID:
      return packingOf<IQ4_XS>();
    default:
      return packingOf<MXFP4>();
  }
}

/** Columns lo … hi−1 of the result: short rows of w four at a time, long ones and what is left one by one. */
function dots<T>(lo: usize, hi: usize): void {
  const m = arg<usize>(M);
  const k = arg<usize>(K);
  const line = bytesOf(arg<usize>(SIZE), blockBytes<T>(), k);
  const bytes = packedBytes(k);
  let j = lo;
  if (line <= SHORT && k <= STRETCH) {
    for (; j + 4 <= hi; j += 4) {
      for (let i: usize = 0; i < m; i++)
        put(dotRows<T>(arg<usize>(W) + j * line, line, arg<usize>(X) + i * bytes, k), 4, i, j);
    }
  }
  for (; j < hi; j++) {
    for (let i: usize = 0; i < m; i++) put(dotRow<T>(arg<usize>(W) + j * line, arg<usize>(X) + i * bytes, k), 1, i, j);
  }
}

/** Stores `count` results of row i from column j on. */
// @inline
function put(results: v128, count: usize, i: usize, j: usize): void {
  const dtype = arg<i32>(DTYPE);
  const to = arg<usize>(OUT) + ((i * arg<usize>(N) + j) << shiftOf(dtype));
  if (count === 4 && native(dtype)) return v128.store(to, results);
  v128.store(slot(RESULT), results);
  if (native(dtype)) memory.copy(to, slot(RESULT), count << 2);
  else narrow(dtype, slot(RESULT), to, count);
}

/** Slices lo … hi−1 of k: all rows of x as panels of the tile. */
function packChunk(lo: usize, hi: usize): void {
  const dtype = arg<i32>(DTYPE);
  const m = arg<usize>(M);
  const k = arg<usize>(K);
  for (let i = lo; i < hi; i++) {
    const p = i * KC;
    packRows(
      dtype,
      arg<usize>(X) + (p << shiftOf(dtype)),
      k,
      1,
      m,
      min(KC, k - p),
      arg<usize>(OUT) + ((paddedRows(m) * p) << 2),
    );
  }
}

/** Groups lo … hi−1 of columns. */
function decodeChunk(lo: usize, hi: usize): void {
  const dtype = arg<i32>(DTYPE);
  const m = arg<usize>(M);
  const n = arg<usize>(N);
  const k = arg<usize>(K);
  const shift = shiftOf(dtype);
  const direct = native(dtype);
  for (let group = lo; group < hi; group++) {
    const first = group * COLUMNS;
    const cols = min(COLUMNS, n - first);
    const out = arg<usize>(OUT) + (first << shift);
    const c = direct ? out : scratch + RESULTS;
    const ldc = direct ? n << 2 : cols << 2;
    for (let p: usize = 0; p < k; p += KC) {
      const kc = min(KC, k - p);
      decodePanels(first, cols, p, kc);
      block<f32>(m, cols, kc, arg<usize>(X) + ((paddedRows(m) * p) << 2), scratch + PANEL, kc * ROW, c, ldc, p > 0);
    }
    if (!direct) for (let r: usize = 0; r < m; r++) narrow(dtype, c + r * ldc, out + ((r * n) << shift), cols);
  }
}

/** Weights p … p+kc−1 of some columns as panels. */
function decodePanels(first: usize, cols: usize, p: usize, kc: usize): void {
  const type = arg<i32>(TYPE);
  const size = arg<usize>(SIZE);
  const bytes = arg<usize>(BYTES);
  const line = bytesOf(size, bytes, arg<usize>(K));
  const nr = columnsOf(F32);
  const lines = scratch + LINES;
  let to = scratch + PANEL;
  let w = arg<usize>(W) + first * line + bytesOf(size, bytes, p);
  for (let j: usize = 0; j < cols; j += nr, to += kc * ROW) {
    const width = min(nr, cols - j);
    for (let r: usize = 0; r < width; r++, w += line) decodeRun(type, w, kc, lines + ((r * kc) << 2));
    packPanel(F32, lines, kc, 1, width, nr, kc, to);
  }
}
