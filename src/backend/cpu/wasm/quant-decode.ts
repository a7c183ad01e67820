/** Quantized weights back to floats: whole tensors, rows by id, and runs of a row for other kernels. */
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
  U8,
  U32,
} from "./abi";
import { narrow, native, SCRATCH_FREE } from "./block";
import { arg, badIndex, setArg } from "./memory";
import { parallel, scratch } from "./pool";
import { decode, FACTOR_BYTES } from "./quant-blocks";
import { bytesOf, isSuper } from "./quant-types";
import { Address, BlockBytes, BlockSize, Cols, Count, DTypeCode, OutAddress, QuantTypeId, Rows, Stride } from "./types";

/** Weights per step: some blocks of 32 or one super-block, decoded to f32 in scratch memory before they are narrowed. */
const STEP: usize = 256;
const CHUNK: usize = 32768;

function decodeBlocks<T>(w: usize, n: usize, to: usize): void {
  const factors = scratch + SCRATCH_FREE;
  const bytes: usize = isSuper<T>() ? 1024 : 128;
  for (const end = to + (n << 2); to < end; to += bytes) {
    decode<T>(w, factors, to);
    w += blockBytes<T>();
  }
}

/** n weights, whole blocks, from the block at `w` on, as f32. Uses FACTOR_BYTES of scratch memory at SCRATCH_FREE. */
function decodeRun(type: i32, w: usize, n: usize, to: usize): void {
  switch (type) {
    case Q4_0.ID:
      return decodeBlocks<Q4_0>(w, n, to);
    case Q4_1.ID:
      return decodeBlocks<Q4_1>(w, n, to);
    case Q5_0.ID:
      return decodeBlocks<Q5_0>(w, n, to);
    case Q5_1.ID:
      return decodeBlocks<Q5_1>(w, n, to);
    case Q8_0.ID:
      return decodeBlocks<Q8_0>(w, n, to);
    case Q8_1.ID:
      return decodeBlocks<Q8_1>(w, n, to);
    case Q2_K.ID:
      return decodeBlocks<Q2_K>(w, n, to);
    case Q3_K.ID:
      return decodeBlocks<Q3_K>(w, n, to);
    case Q4_K.ID:
      return decodeBlocks<Q4_K>(w, n, to);
    case Q5_K.ID:
      return decodeBlocks<Q5_K>(w, n, to);
    case Q6_K.ID:
      return decodeBlocks<Q6_K>(w, n, to);
    case Q8_K.ID:
      return decodeBlocks<Q8_K>(w, n, to);
    case IQ4_NL.ID:
      return decodeBlocks<IQ4_NL>(w, n, to);
    case IQ4_XS.ID:
      return decodeBlocks<IQ4_XS>(w, n, to);
    default:
      return decodeBlocks<MXFP4>(w, n, to);
  }
}

/** n weights from the block at `w` on, in any float dtype. */
function decodeTo(dtype: i32, type: i32, size: usize, bytes: usize, w: usize, n: usize, out: usize): void {
  const wide = scratch + SCRATCH_FREE + FACTOR_BYTES;
  const shift = shiftOf(dtype);
  for (let i: usize = 0; i < n; i += STEP) {
    const count = min(STEP, n - i);
    const to = out + (i << shift);
    decodeRun(type, w + bytesOf(size, bytes, i), count, native(dtype) ? to : wide);
    if (!native(dtype)) narrow(dtype, wide, to, count);
  }
}

const enum DequantizeArg {
  TYPE,
  DTYPE,
  N,
  W,
  OUT,
  SIZE, // weights per block
  BYTES, // per block
}

/** n weights, whole blocks, to f32, f16 or bf16. */
export function dequantize(
  type: QuantTypeId,
  size: BlockSize,
  bytes: BlockBytes,
  dtype: DTypeCode,
  n: Count,
  w: Address,
  out: OutAddress,
): void {
  if (n === 0) return;
  setArg<i32>(DequantizeArg.TYPE, type);
  setArg<i32>(DequantizeArg.DTYPE, dtype);
  setArg<usize>(DequantizeArg.N, n);
  setArg<usize>(DequantizeArg.W, w);
  setArg<usize>(DequantizeArg.OUT, out);
  setArg<usize>(DequantizeArg.SIZE, size);
  setArg<usize>(DequantizeArg.BYTES, bytes);
  parallel(dequantizeChunk, (n - 1) / STEP + 1, CHUNK / STEP);
}

function dequantizeChunk(lo: usize, hi: usize): void {
  const type = arg<i32>(DequantizeArg.TYPE);
  const dtype = arg<i32>(DequantizeArg.DTYPE);
  const size = arg<usize>(DequantizeArg.SIZE);
  const bytes = arg<usize>(DequantizeArg.BYTES);
  const first = lo * STEP;
  const n = min(hi * STEP, arg<usize>(DequantizeArg.N)) - first;
  decodeTo(
    dtype,
    type,
    size,
    bytes,
    arg<usize>(DequantizeArg.W) + bytesOf(size, bytes, first),
    n,
    arg<usize>(DequantizeArg.OUT) + (first << shiftOf(dtype)),
  );
}

const enum RowsArg {
  TYPE,
  DTYPE,
  ID_DTYPE,
  ID_STRIDE,
  ROWS,
  K,
  W,
  IDS,
  OUT,
  SIZE, // weights per block
  BYTES, // per block
}

/** The rows of w (rows × k) that `count` ids name; the largest id of its type gives zeros. */
export function quantizedRows(
  type: QuantTypeId,
  size: BlockSize,
  bytes: BlockBytes,
  dtype: DTypeCode,
  idDtype: DTypeCode,
  count: Count,
  idStride: Stride,
  rows: Rows,
  k: Cols,
  w: Address,
  ids: Address,
  out: OutAddress,
): void {
  setArg<i32>(RowsArg.TYPE, type);
  setArg<i32>(RowsArg.DTYPE, dtype);
  setArg<i32>(RowsArg.ID_DTYPE, idDtype);
  setArg<i32>(RowsArg.ID_STRIDE, idStride);
  setArg<usize>(RowsArg.ROWS, rows);
  setArg<usize>(RowsArg.K, k);
  setArg<usize>(RowsArg.W, w);
  setArg<usize>(RowsArg.IDS, ids);
  setArg<usize>(RowsArg.OUT, out);
  setArg<usize>(RowsArg.SIZE, size);
  setArg<usize>(RowsArg.BYTES, bytes);
  parallel(rowsChunk, count, max<usize>(1, CHUNK / max<usize>(k, 1)));
}

function rowsChunk(lo: usize, hi: usize): void {
  const type = arg<i32>(RowsArg.TYPE);
  const dtype = arg<i32>(RowsArg.DTYPE);
  const idDtype = arg<i32>(RowsArg.ID_DTYPE);
  const k = arg<usize>(RowsArg.K);
  const size = arg<usize>(RowsArg.SIZE);
  const bytes = arg<usize>(RowsArg.BYTES);
  const outBytes = k << shiftOf(dtype);
  for (let i = lo; i < hi; i++) {
    const at = arg<usize>(RowsArg.IDS) + ((<isize>i * <isize>arg<i32>(RowsArg.ID_STRIDE)) << shiftOf(idDtype));
    const id = idDtype === U32 ? <i64>load<u32>(at) : idDtype === U8 ? <i64>load<u8>(at) : load<i64>(at);
    const nothing = idDtype === U32 ? <i64>0xffffffff : idDtype === U8 ? <i64>0xff : i64.MAX_VALUE;
    const to = arg<usize>(RowsArg.OUT) + i * outBytes;
    if (<u64>id < <u64>arg<usize>(RowsArg.ROWS)) {
      decodeTo(dtype, type, size, bytes, arg<usize>(RowsArg.W) + <usize>id * bytesOf(size, bytes, k), k, to);
    } else {
      if (id !== nothing) badIndex(id, i);
      memory.fill(to, 0, outBytes);
    }
  }
}
