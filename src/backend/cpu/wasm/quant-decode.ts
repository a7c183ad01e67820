/** Quantized weights back to floats: whole tensors, rows by id, and runs of a row for other kernels. */
import { narrow, native, SCRATCH_FREE } from "./block";
import { arg, badIndex, setArg, shiftOf, U32, U8 } from "./memory";
import { parallel, scratch } from "./pool";
import { decode, GROUP_BYTES } from "./quant-blocks";
import {
  blockBytes, blockShift, IQ4_NL, IQ4_XS, MXFP4, Q2_K, Q3_K, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0, Q8_1, Q8_K, rowBytes,
} from "./quant-types";

/** Weights per step: some blocks of 32 or one super-block, decoded to f32 in scratch memory before they are narrowed. */
const STEP: usize = 256;
const CHUNK: usize = 32768;

// @ts-ignore: decorator
@inline
function decodeBlocks(type: i32, w: usize, n: usize, to: usize): void {
  const groups = scratch + SCRATCH_FREE;
  const size = <usize>1 << blockShift(type);
  for (const end = to + (n << 2); to < end; to += size << 2) {
    decode(type, w, groups, to);
    w += blockBytes(type);
  }
}

/** n weights, whole blocks, from the block at `w` on, as f32. Uses GROUP_BYTES of scratch memory at SCRATCH_FREE. */
export function decodeRun(type: i32, w: usize, n: usize, to: usize): void {
  switch (type) {
    case Q4_0: return decodeBlocks(Q4_0, w, n, to);
    case Q4_1: return decodeBlocks(Q4_1, w, n, to);
    case Q5_0: return decodeBlocks(Q5_0, w, n, to);
    case Q5_1: return decodeBlocks(Q5_1, w, n, to);
    case Q8_0: return decodeBlocks(Q8_0, w, n, to);
    case Q8_1: return decodeBlocks(Q8_1, w, n, to);
    case Q2_K: return decodeBlocks(Q2_K, w, n, to);
    case Q3_K: return decodeBlocks(Q3_K, w, n, to);
    case Q4_K: return decodeBlocks(Q4_K, w, n, to);
    case Q5_K: return decodeBlocks(Q5_K, w, n, to);
    case Q6_K: return decodeBlocks(Q6_K, w, n, to);
    case Q8_K: return decodeBlocks(Q8_K, w, n, to);
    case IQ4_NL: return decodeBlocks(IQ4_NL, w, n, to);
    case IQ4_XS: return decodeBlocks(IQ4_XS, w, n, to);
    default: return decodeBlocks(MXFP4, w, n, to);
  }
}

/** n weights from the block at `w` on, in any float dtype. */
function decodeTo(dtype: i32, type: i32, w: usize, n: usize, out: usize): void {
  const wide = scratch + SCRATCH_FREE + GROUP_BYTES;
  const shift = shiftOf(dtype);
  for (let i: usize = 0; i < n; i += STEP) {
    const count = min(STEP, n - i);
    const to = out + (i << shift);
    decodeRun(type, w + rowBytes(type, i), count, native(dtype) ? to : wide);
    if (!native(dtype)) narrow(dtype, wide, to, count);
  }
}

// dequantize. Arguments: 0 type, 1 dtype, 2 n, 3 w, 4 out

/** n weights, whole blocks, to f32, f16 or bf16. */
export function dequantize(type: i32, dtype: i32, n: usize, w: usize, out: usize): void {
  if (n == 0) return;
  setArg<i32>(0, type);
  setArg<i32>(1, dtype);
  setArg<usize>(2, n);
  setArg<usize>(3, w);
  setArg<usize>(4, out);
  parallel(dequantizeChunk, (n - 1) / STEP + 1, CHUNK / STEP);
}

function dequantizeChunk(lo: usize, hi: usize): void {
  const type = arg<i32>(0);
  const dtype = arg<i32>(1);
  const first = lo * STEP;
  const n = min(hi * STEP, arg<usize>(2)) - first;
  decodeTo(dtype, type, arg<usize>(3) + rowBytes(type, first), n, arg<usize>(4) + (first << shiftOf(dtype)));
}

// rows. Arguments: 0 type, 1 dtype, 2 id dtype, 3 stride of ids, 4 rows, 5 k, 6 w, 7 ids, 8 out

/** The rows of w (rows × k) that `count` ids name; the largest id of its type gives zeros. */
export function quantizedRows(
  type: i32, dtype: i32, idDtype: i32, count: usize, idStride: i32, rows: usize, k: usize, w: usize, ids: usize, out: usize,
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
  parallel(rowsChunk, count, max<usize>(1, CHUNK / max<usize>(k, 1)));
}

function rowsChunk(lo: usize, hi: usize): void {
  const type = arg<i32>(0);
  const dtype = arg<i32>(1);
  const idDtype = arg<i32>(2);
  const k = arg<usize>(5);
  const bytes = k << shiftOf(dtype);
  for (let i = lo; i < hi; i++) {
    const at = arg<usize>(7) + ((<isize>i * <isize>arg<i32>(3)) << shiftOf(idDtype));
    const id = idDtype == U32 ? <i64>load<u32>(at) : idDtype == U8 ? <i64>load<u8>(at) : load<i64>(at);
    const nothing = idDtype == U32 ? <i64>0xffffffff : idDtype == U8 ? <i64>0xff : i64.MAX_VALUE;
    const to = arg<usize>(8) + i * bytes;
    if (<u64>id < <u64>arg<usize>(4)) {
      decodeTo(dtype, type, arg<usize>(6) + <usize>id * rowBytes(type, k), k, to);
    } else {
      if (id != nothing) badIndex(id, i);
      memory.fill(to, 0, bytes);
    }
  }
}
