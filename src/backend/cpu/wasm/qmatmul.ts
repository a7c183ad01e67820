/**
 * x · wᵀ with quantized weights, used where they lie. The rows of x are packed as integers and dotted with the rows of w:
 * few of them one by one (quant-dot.ts), several at once (quant-many.ts), with the same results.
 */
import {
  blockBytes,
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
import { parallel, SCRATCH_BYTES, scratch } from "./pool";
import { packActivations, packedBytes, packingOf } from "./quant-activations";
import { dotRow, dotRows, SHORT, STRETCH, totals } from "./quant-dot";
import { COLUMNS, dotMany, ROWS, SUMS } from "./quant-many";
import { bytesOf } from "./quant-types";
import { Address, BlockSize, Bytes, Cols, DTypeCode, Inner, OutAddress, QuantTypeId, Rows, TmpAddress } from "./types";

/** From how many rows of x on they meet weights together. */
const MANY: usize = 6;
const HALF: usize = SCRATCH_BYTES / 2;
/** Weights that are worth a chunk. */
const CHUNK: usize = 131072;

// Arguments; x is packed.
const TYPE = 0;
const DTYPE = 1;
const M = 2;
const N = 3;
const K = 4;
const X = 5;
const W = 6;
const OUT = 7;
const SIZE = 8; // weights per block

/** Bytes of temporary memory; few rows mostly fit into half of the main thread's scratch memory. */
export function qmatmulTmp(m: Rows, k: Inner): Bytes {
  const bytes = min(m, ROWS) * packedBytes(k);
  return bytes <= HALF ? 0 : bytes;
}

/** out (m × n) = x (m × k, contiguous) · wᵀ (n × k). x and out: f32, f16 or bf16. */
export function qmatmul(
  type: QuantTypeId,
  size: BlockSize,
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
  if (tmp === 0) tmp = scratch + HALF;
  for (let i: usize = 0; i < m; i += ROWS) {
    const rows = min(ROWS, m - i);
    packActivations(packing(type), dtype, rows, k, x + ((i * k) << shift), tmp);
    setArguments(type, size, dtype, rows, n, k, tmp, w, out + ((i * n) << shift));
    if (rows < MANY) parallel(dotChunk, n, max<usize>(4, (CHUNK / (rows * k)) & ~3));
    else parallel(dotChunk, n, COLUMNS * productGrain(rows, COLUMNS, k));
  }
}

function setArguments(
  type: i32,
  size: usize,
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
  if (m >= MANY) return many<T>(lo, hi);
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

/** Bytes from a column's sums to the next one's. */
const STEP: usize = ROWS * 16;

/** The same, some of them at a time with all rows of x. */
function many<T>(lo: usize, hi: usize): void {
  const m = arg<usize>(M);
  const k = arg<usize>(K);
  const line = bytesOf(arg<usize>(SIZE), blockBytes<T>(), k);
  for (let first = lo; first < hi; first += COLUMNS) {
    const cols = min(COLUMNS, hi - first);
    dotMany<T>(arg<usize>(W) + first * line, line, cols, arg<usize>(X), m, k);
    for (let j: usize = 0; j < cols; j += 4) {
      const count = min<usize>(4, cols - j);
      let at = scratch + SUMS + j * STEP;
      for (let i: usize = 0; i < m; i++, at += 16) {
        // Past the last column are sums that are not stored.
        const results = totals(v128.load(at), v128.load(at, STEP), v128.load(at, 2 * STEP), v128.load(at, 3 * STEP));
        put(results, count, i, first + j);
      }
    }
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
