/**
 * gather and scatter, and with broadcast ids index_select and index_add. Layouts here have rank ≥ 1; `dim` is the one
 * that ids select from. An id that is its type's largest value means "nothing"; any other id out of range is reported,
 * and nothing is read or written for it.
 */
import { BF16, F8E4M3, F16, F32, F64, shiftOf, U8, U32 } from "./abi";
import { narrow, offsetOf, RUN, slot, widen } from "./block";
import { arg, badIndex, setArg } from "./memory";
import { parallel } from "./pool";
import { Address, Count, Dim, DTypeCode, Flag, Layouts, OutAddress, Shift, Size } from "./types";

const CHUNK: usize = 16384;
/** Rows of fewer bytes are copied element by element. */
const ROW_BYTES: usize = 64;
const NOTHING: usize = 0xffffffff;

// @inline
function word(info: usize, i: usize): usize {
  return <usize>load<i32>(info + (i << 2));
}

/** The product of the dims after `dim`. */
function sizeAfter(info: usize, dim: usize): usize {
  let size: usize = 1;
  for (let d = word(info, 0) - 1; d > dim; d--) size *= word(info, 1 + d);
  return size;
}

/** The number of an id among the ids themselves: dims along which they are broadcast do not count. */
function positionOf(info: usize, index: usize): usize {
  const rank = word(info, 0);
  let position: usize = 0;
  let weight: usize = 1;
  for (let d = rank; d > 0; d--) {
    const size = word(info, d);
    const next = index / size;
    if (word(info, d + 2 * rank) !== 0) {
      position += (index - next * size) * weight;
      weight *= size;
    }
    index = next;
  }
  return position;
}

/** The id at element `at`, or NOTHING. `index` is the element's number in the layout, for the report. */
// @inline
function resolve(idDtype: i32, ids: usize, at: usize, size: usize, info: usize, index: usize): usize {
  let id: i64;
  let none: i64;
  if (idDtype === U32) {
    id = <i64>load<u32>(ids + (at << 2));
    none = 0xffffffff;
  } else if (idDtype === U8) {
    id = <i64>load<u8>(ids + at);
    none = 0xff;
  } else {
    id = load<i64>(ids + (at << 3));
    none = i64.MAX_VALUE;
  }
  if (id === none) return NOTHING;
  if (<u64>id < <u64>size) return <usize>id;
  badIndex(id, positionOf(info, index));
  return NOTHING;
}

const enum GatherArg {
  SHIFT,
  ID_DTYPE,
  DIM,
  INFO,
  SRC_DIM,
  X,
  IDS,
  OUT,
  AFTER, // elements after dim
}

export function gather(
  shift: Shift,
  idDtype: DTypeCode,
  n: Count,
  dim: Dim,
  info: Layouts,
  srcDim: Size,
  x: Address,
  ids: Address,
  out: OutAddress,
): void {
  if (n === 0) return;
  const after = sizeAfter(info, dim);
  setArg<i32>(GatherArg.SHIFT, shift);
  setArg<i32>(GatherArg.ID_DTYPE, idDtype);
  setArg<usize>(GatherArg.DIM, dim);
  setArg<usize>(GatherArg.INFO, info);
  setArg<usize>(GatherArg.SRC_DIM, srcDim);
  setArg<usize>(GatherArg.X, x);
  setArg<usize>(GatherArg.IDS, ids);
  setArg<usize>(GatherArg.OUT, out);
  setArg<usize>(GatherArg.AFTER, after);
  if (after << shift >= ROW_BYTES && wholeRows(info, dim)) {
    parallel(gatherRows, n / after, max<usize>(1, (CHUNK << 2) / (after << shift)));
  } else parallel(gatherElements, n, CHUNK);
}

/** Whether all elements after `dim` share one id and are contiguous in x. */
function wholeRows(info: usize, dim: usize): bool {
  const rank = word(info, 0);
  let stride: usize = 1;
  for (let d = rank - 1; d > dim; d--) {
    const size = word(info, 1 + d);
    if (size !== 1 && (word(info, 1 + rank + d) !== stride || word(info, 1 + 2 * rank + d) !== 0)) return false;
    stride *= size;
  }
  return true;
}

function gatherRows(lo: usize, hi: usize): void {
  const shift = arg<i32>(GatherArg.SHIFT);
  const dim = arg<usize>(GatherArg.DIM);
  const info = arg<usize>(GatherArg.INFO);
  const after = arg<usize>(GatherArg.AFTER);
  const rank = word(info, 0);
  const size = word(info, 1 + dim);
  const stride = word(info, 1 + rank + dim);
  const bytes = after << shift;
  for (let item = lo; item < hi; item++) {
    const index = item * after;
    const id = resolve(
      arg<i32>(GatherArg.ID_DTYPE),
      arg<usize>(GatherArg.IDS),
      offsetOf(info, 1, index),
      arg<usize>(GatherArg.SRC_DIM),
      info,
      index,
    );
    const to = arg<usize>(GatherArg.OUT) + (index << shift);
    if (id === NOTHING) memory.fill(to, 0, bytes);
    else {
      const at = <usize>offsetOf(info, 0, index) + (id - (item % size)) * stride;
      memory.copy(to, arg<usize>(GatherArg.X) + (at << shift), bytes);
    }
  }
}

function gatherElements(lo: usize, hi: usize): void {
  const shift = arg<i32>(GatherArg.SHIFT);
  if (shift === 2) elements<u32>(lo, hi);
  else if (shift === 1) elements<u16>(lo, hi);
  else if (shift === 0) elements<u8>(lo, hi);
  else elements<u64>(lo, hi);
}

function elements<T>(lo: usize, hi: usize): void {
  const idDtype = arg<i32>(GatherArg.ID_DTYPE);
  const dim = arg<usize>(GatherArg.DIM);
  const info = arg<usize>(GatherArg.INFO);
  const srcDim = arg<usize>(GatherArg.SRC_DIM);
  const x = arg<usize>(GatherArg.X);
  const ids = arg<usize>(GatherArg.IDS);
  const out = arg<usize>(GatherArg.OUT);
  const after = arg<usize>(GatherArg.AFTER);
  const rank = word(info, 0);
  const size = word(info, 1 + dim);
  const stride = word(info, 1 + rank + dim);
  const inner = word(info, rank);
  const xStep: usize = rank - 1 === dim ? 0 : word(info, 2 * rank);
  const idStep = word(info, 3 * rank);
  for (let index = lo; index < hi; ) {
    // x at id 0: what `dim` itself adds to the offset is taken off again
    let from = <usize>offsetOf(info, 0, index) - ((index / after) % size) * stride;
    let at = <usize>offsetOf(info, 1, index);
    const stop = index + min(inner - (index % inner), hi - index);
    for (; index < stop; index++, from += xStep, at += idStep) {
      const id = resolve(idDtype, ids, at, srcDim, info, index);
      store<T>(out + index * sizeof<T>(), id === NOTHING ? 0 : load<T>(x + (from + id * stride) * sizeof<T>()));
    }
  }
}

const enum ScatterArg {
  DTYPE,
  ID_DTYPE,
  MODE,
  DIM,
  INFO,
  DST_DIM,
  DST,
  IDS,
  SRC,
}

const SET: i32 = 0;
const ADD: i32 = 1;
const ADD_SMALL: i32 = 2; // floats that add in f32

/**
 * Sources that hit one element differ only along `dim`. So an item is a place on the other dims, and each thread goes
 * through `dim` in order: the last write wins and sums have one order.
 */
export function scatter(
  dtype: DTypeCode,
  idDtype: DTypeCode,
  add: Flag,
  n: Count,
  dim: Dim,
  info: Layouts,
  dstDim: Size,
  dst: OutAddress,
  ids: Address,
  src: Address,
): void {
  if (n === 0) return;
  const small = dtype === F16 || dtype === BF16 || dtype === F8E4M3;
  setArg<i32>(ScatterArg.DTYPE, dtype);
  setArg<i32>(ScatterArg.ID_DTYPE, idDtype);
  setArg<i32>(ScatterArg.MODE, !add ? SET : small ? ADD_SMALL : ADD);
  setArg<usize>(ScatterArg.DIM, dim);
  setArg<usize>(ScatterArg.INFO, info);
  setArg<usize>(ScatterArg.DST_DIM, dstDim);
  setArg<usize>(ScatterArg.DST, dst);
  setArg<usize>(ScatterArg.IDS, ids);
  setArg<usize>(ScatterArg.SRC, src);
  const size = word(info, 1 + dim);
  // Items next to each other are elements next to each other: a chunk should have enough of them per row.
  const least: usize = word(info, 0) - 1 === dim ? 1 : 256;
  parallel(scatterItems, n / size, max(least, CHUNK / size));
}

function scatterItems(lo: usize, hi: usize): void {
  const dtype = arg<i32>(ScatterArg.DTYPE);
  const mode = arg<i32>(ScatterArg.MODE);
  const shift = shiftOf(dtype);
  if (mode === ADD && dtype === F32) lines<f32>(lo, hi, ADD);
  else if (mode === ADD && dtype === F64) lines<f64>(lo, hi, ADD);
  else if (shift === 2) lines<u32>(lo, hi, mode);
  else if (shift === 1) lines<u16>(lo, hi, mode);
  else if (shift === 0) lines<u8>(lo, hi, mode);
  else lines<u64>(lo, hi, mode);
}

/** Items that follow each other on the last dim go through `dim` together, row by row. */
function lines<T>(lo: usize, hi: usize, mode: i32): void {
  const dtype = arg<i32>(ScatterArg.DTYPE);
  const idDtype = arg<i32>(ScatterArg.ID_DTYPE);
  const dim = arg<usize>(ScatterArg.DIM);
  const info = arg<usize>(ScatterArg.INFO);
  const dstDim = arg<usize>(ScatterArg.DST_DIM);
  const dst = arg<usize>(ScatterArg.DST);
  const ids = arg<usize>(ScatterArg.IDS);
  const src = arg<usize>(ScatterArg.SRC);
  const rank = word(info, 0);
  const size = word(info, 1 + dim);
  const after = sizeAfter(info, dim);
  const dstStride = word(info, 1 + rank + dim);
  const idStride = word(info, 1 + 2 * rank + dim);
  const srcStride = word(info, 1 + 3 * rank + dim);
  const single = rank - 1 === dim;
  const inner: usize = single ? 1 : word(info, rank);
  const dstStep: usize = single ? 0 : word(info, 2 * rank);
  const idStep: usize = single ? 0 : word(info, 3 * rank);
  const srcStep: usize = single ? 0 : word(info, 4 * rank);
  for (let item = lo; item < hi; ) {
    const count = min(inner - (item % inner), hi - item);
    let index = (item / after) * size * after + (item % after);
    const to = <usize>offsetOf(info, 0, index);
    let at = <usize>offsetOf(info, 1, index);
    let from = <usize>offsetOf(info, 2, index);
    for (let j: usize = 0; j < size; j++, index += after, at += idStride, from += srcStride) {
      if (idStep === 0) {
        const id = resolve(idDtype, ids, at, dstDim, info, index);
        if (id === NOTHING) continue;
        const d = dst + (to + id * dstStride) * sizeof<T>();
        putRow<T>(mode, dtype, d, dstStep, src + from * sizeof<T>(), srcStep, count);
      } else {
        for (let k: usize = 0; k < count; k++) {
          const id = resolve(idDtype, ids, at + k * idStep, dstDim, info, index + k);
          if (id === NOTHING) continue;
          const d = dst + (to + id * dstStride + k * dstStep) * sizeof<T>();
          put<T>(mode, dtype, d, src + (from + k * srcStep) * sizeof<T>());
        }
      }
    }
    item += count;
  }
}

// @inline
function put<T>(mode: i32, dtype: i32, to: usize, from: usize): void {
  if (mode === SET) store<T>(to, load<T>(from));
  else if (mode === ADD) store<T>(to, <T>(load<T>(to) + load<T>(from)));
  else addSmall(dtype, to, from, 1);
}

function putRow<T>(mode: i32, dtype: i32, to: usize, toStep: usize, from: usize, fromStep: usize, count: usize): void {
  let i: usize = 0;
  if (toStep === 1 && fromStep === 1) {
    if (mode === SET) {
      memory.copy(to, from, count * sizeof<T>());
      return;
    }
    if (mode === ADD_SMALL) {
      for (; i < count; i += RUN) addSmall(dtype, to + i * sizeof<T>(), from + i * sizeof<T>(), min(RUN, count - i));
      return;
    }
    for (; i + 16 / sizeof<T>() <= count; i += 16 / sizeof<T>()) {
      const at = to + i * sizeof<T>();
      v128.store(at, v128.add<T>(v128.load(at), v128.load(from + i * sizeof<T>())));
    }
  }
  for (; i < count; i++) put<T>(mode, dtype, to + i * toStep * sizeof<T>(), from + i * fromStep * sizeof<T>());
}

/** At most RUN contiguous elements. */
function addSmall(dtype: i32, to: usize, from: usize, n: usize): void {
  const a = slot(0);
  const b = slot(1);
  widen(dtype, to, a, n);
  widen(dtype, from, b, n);
  for (let i: usize = 0; i < n; i++) store<f32>(a + (i << 2), load<f32>(a + (i << 2)) + load<f32>(b + (i << 2)));
  narrow(dtype, a, to, n);
}
