/**
 * Attention for few query rows per head: bound by reading keys and values, which therefore happens once for all query
 * heads that share them. An item is one key-value head of a sequence or, where there are few of those, one range of its
 * keys: then results of ranges (largest score, sum of exponentials, unnormalised sums) wait in the upper half of the
 * main thread's scratch memory to be merged.
 */
import { BF16, F16, F64, Sdpa, shiftOf } from "./abi";
import { addLines, score, sumPair } from "./attention-lines";
import {
  BLOCK,
  begin,
  blockAt,
  DTYPE,
  expLanes,
  finiteMax,
  firstKey,
  KEYS,
  lastKey,
  MASK,
  maskAt,
  OWN,
  openSequence,
  queryAt,
  RANGE,
  resultAt,
  rowCount,
  SCALE,
  SOFTCAP,
  tanhLanes,
  VALUES,
  word,
} from "./attention-scores";
import { narrow, native, RUN, SCRATCH_FREE, slot, widen } from "./block";
import { arg, setArg } from "./memory";
import { packPanel } from "./pack";
import { parallel, SCRATCH_BYTES, scratch } from "./pool";

const FIRST = OWN; // sequence
const RANGES = OWN + 1; // per head; 0 where an item is a whole head
const PARTIALS = OWN + 2;

/** Heads are cut into ranges where there are fewer. */
const ITEMS: i32 = 32;
const HALF: usize = SCRATCH_BYTES / 2;

// @inline
function sizeOf(): usize {
  return arg<i32>(DTYPE) === F64 ? 8 : 4;
}

/** Query rows that share keys and values. */
// @inline
function sharing(): usize {
  return <usize>(word(Sdpa.HQ) / word(Sdpa.HK)) * <usize>rowCount;
}

/** Elements of one row's result: the largest score, the sum, and from SUMS on whole vectors. */
const SUMS: usize = 4;
// @inline
function partial(): usize {
  return SUMS + ((<usize>word(Sdpa.DV) + 3) & ~3);
}

/** Whether queries, results and one block fit below HALF. */
export function fitsDecode(): bool {
  const perRow = <f64>word(Sdpa.D) + 2.0 * <f64>partial() + <f64>BLOCK;
  const perKey = <f64>word(Sdpa.D) + <f64>word(Sdpa.DV) + 1.0;
  const own = (<f64>sharing() * perRow + <f64>BLOCK * perKey) * <f64>sizeOf();
  return own + <f64>SCRATCH_FREE <= <f64>HALF;
}

/** The ranges that the rows of the open sequence see: the first, and the one behind the last. */
// @inline
function firstRange(): i32 {
  return firstKey(0) / RANGE;
}
// @inline
function endRange(): i32 {
  return lastKey(rowCount - 1) / RANGE + 1;
}

/** `count` sequences from `first` on; the first one is open, and the others have as many rows. */
export function decode(first: i32, count: i32): void {
  const heads = count * word(Sdpa.HK);
  const results = <f64>heads * <f64>sharing() * <f64>partial() * <f64>sizeOf();
  let most = 1;
  let total: f64 = 0;
  for (let i = 0; i < count; i++) {
    openSequence(first + i);
    const ranges = endRange() - firstRange();
    most = max(most, ranges);
    total += <f64>ranges;
  }
  openSequence(first);
  const split = heads < ITEMS && most > 1 && results * <f64>most <= <f64>HALF;
  setArg<i32>(FIRST, first);
  setArg<i32>(RANGES, split ? most : 0);
  setArg<usize>(PARTIALS, scratch + HALF);
  const keys = split ? <f64>RANGE : (total / <f64>count) * <f64>RANGE;
  const work = keys * <f64>(word(Sdpa.D) + word(Sdpa.DV));
  const items = <usize>heads * (split ? <usize>most : 1);
  parallel(sizeOf() === 8 ? chunk64 : chunk32, items, <usize>max(1.0, 65536.0 / work));
  if (split)
    parallel(
      sizeOf() === 8 ? merge64 : merge32,
      <usize>heads * sharing(),
      max<usize>(1, 4096 / (<usize>most * partial())),
    );
}

function chunk32(lo: usize, hi: usize): void {
  const dtype = arg<i32>(DTYPE);
  if (dtype === BF16) items<u16, f32>(lo, hi);
  else if (dtype === F16) items<i16, f32>(lo, hi);
  else items<f32, f32>(lo, hi);
}
function chunk64(lo: usize, hi: usize): void {
  items<f64, f64>(lo, hi);
}
function merge32(lo: usize, hi: usize): void {
  merge<f32>(lo, hi);
}
function merge64(lo: usize, hi: usize): void {
  merge<f64>(lo, hi);
}

function items<S, T>(lo: usize, hi: usize): void {
  const ranges = arg<i32>(RANGES);
  const bytes = partial() * sizeof<T>();
  for (let item = lo; item < hi; item++) {
    const head = <i32>item / max(ranges, 1);
    const kvHead = head % word(Sdpa.HK);
    openSequence(arg<i32>(FIRST) + head / word(Sdpa.HK));
    const rows = sharing();
    const results = scratch + SCRATCH_FREE;
    if (ranges > 0) {
      const range = firstRange() + (<i32>item % ranges);
      packQueries<T>(kvHead);
      attend<S, T>(kvHead, range * RANGE);
      memory.copy(arg<usize>(PARTIALS) + item * rows * bytes, results, rows * bytes);
      continue;
    }
    // What was merged so far is behind the results of a range.
    const states = results + rows * bytes;
    for (let r: usize = 0; r < rows; r++) open<T>(kvHead, r, states + r * bytes);
    packQueries<T>(kvHead);
    for (let range = firstRange(); range < endRange(); range++) {
      attend<S, T>(kvHead, range * RANGE);
      for (let r: usize = 0; r < rows; r++) mergeInto<T>(states + r * bytes, results + r * bytes);
    }
    for (let r: usize = 0; r < rows; r++) finish<T>(states + r * bytes, kvHead, r);
  }
}

/** The query head of a row of those that share keys. */
// @inline
function headOf(kvHead: i32, r: usize): i32 {
  return kvHead * (word(Sdpa.HQ) / word(Sdpa.HK)) + <i32>r / rowCount;
}

/** What a row has before its first range. */
function open<T>(kvHead: i32, r: usize, state: usize): void {
  memory.fill(state, 0, partial() * sizeof<T>());
  begin<T>(headOf(kvHead, r), state);
}

// @inline
function queriesAt<T>(): usize {
  return scratch + SCRATCH_FREE + 2 * sharing() * partial() * sizeof<T>();
}

function packQueries<T>(kvHead: i32): void {
  const d = <usize>word(Sdpa.D);
  const rows = sharing();
  let to = queriesAt<T>();
  for (let r: usize = 0; r < rows; r++, to += d * sizeof<T>()) {
    const from = queryAt(headOf(kvHead, r), <i32>r % rowCount);
    packPanel(arg<i32>(DTYPE), from, 0, word(Sdpa.Q_STRIDES + 3), 1, 1, d, to);
  }
}

/** The range of keys from `start` on for all rows that share a head. S: the stored type, as in lines.ts. */
function attend<S, T>(kvHead: i32, start: i32): void {
  const dtype = arg<i32>(DTYPE);
  const shift = shiftOf(dtype);
  const d = <usize>word(Sdpa.D);
  const dv = <usize>word(Sdpa.DV);
  const rows = sharing();
  const size = sizeof<T>();
  const once = sizeof<S>() === 2 && rows === 1; // halves that serve one row are widened in registers
  const resultBytes = partial() * size;
  const results = scratch + SCRATCH_FREE;
  const queries = queriesAt<T>();
  const scores = queries + rows * d * size;
  const rowBytes = <usize>BLOCK * size;
  const masks = scores + rows * rowBytes;
  const lines = masks + rowBytes;
  memory.fill(results, 0, rows * resultBytes);
  for (let r: usize = 0; r < rows; r++) store<T>(results + r * resultBytes, <T>-Infinity);
  const kStep = (<isize>word(Sdpa.K_STRIDES + 2)) << shift;
  const vStep = (<isize>word(Sdpa.V_STRIDES + 2)) << shift;
  const end = min(start + RANGE, lastKey(rowCount - 1) + 1);
  for (let j = max(start, firstKey(0) & ~(BLOCK - 1)); j < end; j += BLOCK) {
    const count = min(BLOCK, end - j);
    const k0 = blockAt(KEYS, Sdpa.K_STRIDES, kvHead, j);
    const v0 = blockAt(VALUES, Sdpa.V_STRIDES, kvHead, j);
    if (once && word(Sdpa.K_STRIDES + 3) === 1) score<S, T>(rows, d, queries, k0, kStep, count, scores);
    else {
      const keys = fetchLines<T>(dtype, k0, word(Sdpa.K_STRIDES + 2), word(Sdpa.K_STRIDES + 3), count, d, lines);
      score<T, T>(rows, d, queries, keys, keys === lines ? <isize>(d * size) : kStep, count, scores);
    }
    for (let r: usize = 0; r < rows; r++) {
      const row = scores + r * rowBytes;
      adjust<T>(headOf(kvHead, r), <i32>r % rowCount, j, count, row, masks);
      softmax<T>(row, results + r * resultBytes);
    }
    const sums = results + SUMS * size;
    if (once && word(Sdpa.V_STRIDES + 3) === 1) {
      addLines<S, T>(count, scores, v0, vStep, dv, sums);
      continue;
    }
    const values = fetchLines<T>(dtype, v0, word(Sdpa.V_STRIDES + 2), word(Sdpa.V_STRIDES + 3), count, dv, lines);
    const step = values === lines ? <isize>(dv * size) : vStep;
    let r: usize = 0;
    for (; r + 2 <= rows; r += 2)
      sumPair<T>(count, scores + r * rowBytes, values, step, dv, sums + r * resultBytes, resultBytes);
    if (r < rows) addLines<T, T>(count, scores + r * rowBytes, values, step, dv, sums + r * resultBytes);
  }
}

/** Lines of keys or values in their compute class: in place where they can be used so. */
function fetchLines<T>(dtype: i32, src: usize, step: i32, along: i32, count: i32, n: usize, to: usize): usize {
  if (native(dtype) && along === 1) return src;
  if (along === 1) {
    for (let i = 0; i < count; i++)
      widen(dtype, src + ((<isize>i * step) << shiftOf(dtype)), to + ((<usize>i * n) << 2), n);
    return to;
  }
  for (let i = 0; i < count; i++)
    packPanel(dtype, src + ((<isize>i * step) << shiftOf(dtype)), 0, along, 1, 1, n, to + <usize>i * n * sizeof<T>());
  return to;
}

/** Scale, softcap, mask and causality of a row of scores; what is not a key becomes −inf. */
function adjust<T>(head: i32, i: i32, j: i32, count: i32, row: usize, masks: usize): void {
  const end = row + <usize>BLOCK * sizeof<T>();
  const cap = <T>arg<f64>(SOFTCAP);
  const scale = v128.splat<T>(<T>arg<f64>(SCALE));
  for (let at = row; at < end; at += 16) v128.store(at, v128.mul<T>(v128.load(at), scale));
  if (cap > 0) {
    const c = v128.splat<T>(cap);
    for (let at = row; at < end; at += 16) v128.store(at, v128.mul<T>(c, tanhLanes<T>(v128.div<T>(v128.load(at), c))));
  }
  if (arg<usize>(MASK)) {
    const dtype = arg<i32>(DTYPE);
    packPanel(dtype, maskAt(head, i, j), 0, word(Sdpa.MASK_STRIDES + 3), 1, 1, count, masks);
    for (let at = row, m = masks; at < end; at += 16, m += 16) v128.store(at, v128.add<T>(v128.load(at), v128.load(m)));
  }
  const before = min(max(firstKey(i) - j, 0), count);
  const after = min(max(lastKey(i) + 1 - j, 0), count);
  for (let key = 0; key < before; key++) store<T>(row + <usize>key * sizeof<T>(), <T>-Infinity);
  for (let key = after; key < BLOCK; key++) store<T>(row + <usize>key * sizeof<T>(), <T>-Infinity);
}

/** Scores become exponentials relative to the largest so far, which is kept in the row's result with their sum. */
function softmax<T>(row: usize, result: usize): void {
  const lanes = 16 / sizeof<T>();
  const end = row + <usize>BLOCK * sizeof<T>();
  const old = load<T>(result);
  let most = v128.splat<T>(old);
  for (let at = row; at < end; at += 16) most = v128.max<T>(most, v128.load(at));
  let m = v128.extract_lane<T>(most, 0);
  m = max<T>(m, v128.extract_lane<T>(most, 1));
  if (lanes === 4) m = max<T>(m, max<T>(<T>f32x4.extract_lane(most, 2), <T>f32x4.extract_lane(most, 3)));
  const base = finiteMax<T>(v128.splat<T>(m));
  let totals = v128.splat<T>(0);
  for (let at = row; at < end; at += 16) {
    const e = expLanes<T>(v128.sub<T>(v128.load(at), base));
    totals = v128.add<T>(totals, e);
    v128.store(at, e);
  }
  const factor = v128.extract_lane<T>(expLanes<T>(v128.sub<T>(v128.splat<T>(old), base)), 0);
  let total = v128.extract_lane<T>(totals, 0) + v128.extract_lane<T>(totals, 1);
  if (lanes === 4) total += <T>(f32x4.extract_lane(totals, 2) + f32x4.extract_lane(totals, 3));
  store<T>(result, m);
  store<T>(result, load<T>(result, sizeof<T>()) * factor + total, sizeof<T>());
  if (factor !== 1) scaleRow<T>(result + SUMS * sizeof<T>(), factor);
}

function scaleRow<T>(at: usize, factor: T): void {
  const end = at + <usize>word(Sdpa.DV) * sizeof<T>();
  for (; at < end; at += sizeof<T>()) store<T>(at, load<T>(at) * factor);
}

/** Rows of all heads from the results of their ranges. */
function merge<T>(lo: usize, hi: usize): void {
  openSequence(arg<i32>(FIRST));
  const ranges = <usize>arg<i32>(RANGES);
  const rows = sharing();
  const bytes = partial() * sizeof<T>();
  const state = scratch + SCRATCH_FREE;
  for (let row = lo; row < hi; row++) {
    const head = row / rows;
    const r = row % rows;
    const kvHead = <i32>(head % <usize>word(Sdpa.HK));
    openSequence(arg<i32>(FIRST) + <i32>(head / <usize>word(Sdpa.HK)));
    open<T>(kvHead, r, state);
    const own = <usize>(endRange() - firstRange());
    for (let i: usize = 0; i < own; i++)
      mergeInto<T>(state, arg<usize>(PARTIALS) + ((head * ranges + i) * rows + r) * bytes);
    finish<T>(state, kvHead, r);
  }
}

/** What a row has so far, and the result of one more range. */
function mergeInto<T>(state: usize, result: usize): void {
  const size = sizeof<T>();
  const m = max<T>(load<T>(state), load<T>(result));
  const base = finiteMax<T>(v128.splat<T>(m));
  const f = expLanes<T>(v128.sub<T>(v128.splat<T>(load<T>(state)), base));
  const g = expLanes<T>(v128.sub<T>(v128.splat<T>(load<T>(result)), base));
  store<T>(state, m);
  const total = load<T>(state, size) * v128.extract_lane<T>(f, 0) + load<T>(result, size) * v128.extract_lane<T>(g, 0);
  store<T>(state, total, size);
  for (let at = SUMS * size; at < partial() * size; at += 16)
    v128.store(state + at, v128.add<T>(v128.mul<T>(v128.load(state + at), f), v128.mul<T>(v128.load(result + at), g)));
}

/** Writes a row of the result. */
function finish<T>(state: usize, kvHead: i32, r: usize): void {
  const dtype = arg<i32>(DTYPE);
  const dv = <usize>word(Sdpa.DV);
  const out = resultAt(headOf(kvHead, r), <i32>r % rowCount);
  const total = load<T>(state, sizeof<T>());
  const sums = state + SUMS * sizeof<T>();
  for (let c: usize = 0; c < dv; c += RUN) {
    const count = min(RUN, dv - c);
    const to = out + (c << shiftOf(dtype));
    const at = native(dtype) ? to : slot(0);
    for (let i: usize = 0; i < count; i++)
      store<T>(at + i * sizeof<T>(), load<T>(sums + (c + i) * sizeof<T>()) / total);
    if (!native(dtype)) narrow(dtype, at, to, count);
  }
}
