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
export function decodeRun(type: i32, w: usize, n: usize, to: usize): void {
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

// dequantize. Arguments: 0 type, 1 dtype, 2 n, 3 w, 4 out, 5 weights per block, 6 bytes per block

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
  setArg<i32>(0, type);
  setArg<i32>(1, dtype);
  setArg<usize>(2, n);
  setArg<usize>(3, w);
  setArg<usize>(4, out);
  setArg<usize>(5, size);
  setArg<usize>(6, bytes);
  parallel(dequantizeChunk, (n - 1) / STEP + 1, CHUNK / STEP);
}

function dequantizeChunk(lo: usize, hi: usize): void {
  const type = arg<i32>(0);
  const dtype = arg<i32>(1);
  const size = arg<usize>(5);
  const bytes = arg<usize>(6);
  const first = lo * STEP;
  const n = min(hi * STEP, arg<usize>(2)) - first;
  decodeTo(
    dtype,
    type,
    size,
    bytes,
    arg<usize>(3) + bytesOf(size, bytes, first),
    n,
    arg<usize>(4) + (first << shiftOf(dtype)),
  );
}

// rows. Arguments: 0 type, 1 dtype, 2 id dtype, 3 stride of ids, 4 rows, 5 k, 6 w, 7 ids, 8 out, 9 weights and 10 bytes per block

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
  setArg<i32>(0, type);
  setArg<i32>(1, dtype);
  setArg<i32>(2, idDtype);
  setArg<i32>(3, idStride);
  setArg<usize>(4, rows);
  setArg<usize>(5, k);
  setArg<usize>(6, w);
  setArg<usize>(7, ids);
  setArg<usize>(8, out);
  setArg<usize>(9, size);
  setArg<usize>(10, bytes);
  parallel(rowsChunk, count, max<usize>(1, CHUNK / max<usize>(k, 1)));
}

function rowsChunk(lo: usize, hi: usize): void {
  const type = arg<i32>(0);
  const dtype = arg<i32>(1);
  const idDtype = arg<i32>(2);
  const k = arg<usize>(5);
  const size = arg<usize>(9);
  const bytes = arg<usize>(10);
  const outBytes = k << shiftOf(dtype);
  for (let i = lo; i < hi; i++) {
    const at = arg<usize>(7) + ((<isize>i * <isize>arg<i32>(3)) << shiftOf(idDtype));
    const id = idDtype === U32 ? <i64>load<u32>(at) : idDtype === U8 ? <i64>load<u8>(at) : load<i64>(at);
    const nothing = idDtype === U32 ? <i64>0xffffffff : idDtype === U8 ? <i64>0xff : i64.MAX_VALUE;
    const to = arg<usize>(8) + i * outBytes;
    if (<u64>id < <u64>arg<usize>(4)) {
      decodeTo(dtype, type, size, bytes, arg<usize>(6) + <usize>id * bytesOf(size, bytes, k), k, to);
    } else {
      if (id !== nothing) badIndex(id, i);
      memory.fill(to, 0, outBytes);
    }
  }
}
