/**
 * Attention for few query rows per head: bound by reading keys and values, which therefore happens once for all query
 * heads that share them. An item is one key-value head and a range of its keys; ranges are merged at the end, in order,
 * from partial results (largest score, sum of exponentials, unnormalised sums) in the upper half of the main thread's
 * scratch memory.
 */
import { BF16, F16, F64, Sdpa, shiftOf } from "./abi";
import { addLines, BLOCK, score, sumPair } from "./attention-lines";
import {
  begin,
  DTYPE,
  expLanes,
  finiteMax,
  firstKey,
  KEYS,
  lastKey,
  MASK,
  OUT,
  OWN,
  Q,
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

const RANGES = OWN; // ranges of keys per head
const PARTIALS = OWN + 1;

/** A range is worth a chunk from this many keys on; more than ITEMS items bring nothing. */
const RANGE: i32 = 512;
const ITEMS: i32 = 32;
const HALF: usize = SCRATCH_BYTES / 2;

// @inline
function sizeOf(): usize {
  return arg<i32>(DTYPE) === F64 ? 8 : 4;
}

/** Query rows that share keys and values. */
// @inline
function sharing(): usize {
  return <usize>(word(Sdpa.HQ) / word(Sdpa.HK)) * <usize>word(Sdpa.TQ);
}

/** Elements of one row's partial result. */
// @inline
function partial(): usize {
  return 2 + <usize>word(Sdpa.DV);
}

/** Whether the queries and one block fit below HALF, and the partial results of unsplit heads above it. */
export function fitsDecode(): bool {
  const perRow = <f64>word(Sdpa.D) + <f64>partial() + <f64>BLOCK;
  const perKey = <f64>word(Sdpa.D) + <f64>word(Sdpa.DV) + 1.0;
  const own = (<f64>sharing() * perRow + <f64>BLOCK * perKey) * <f64>sizeOf();
  return own + <f64>SCRATCH_FREE <= <f64>HALF;
}

export function decode(): void {
  const heads = word(Sdpa.B) * word(Sdpa.HK);
  const span = max(0, lastKey(word(Sdpa.TQ) - 1) + 1 - firstKey(0));
  const room = <f64>HALF / (<f64>heads * <f64>sharing() * <f64>partial() * <f64>sizeOf());
  let ranges = min(min((ITEMS - 1) / heads + 1, span / RANGE), <i32>min(room, <f64>ITEMS));
  if (ranges < 1) ranges = 1;
  setArg<i32>(RANGES, ranges);
  setArg<usize>(PARTIALS, scratch + HALF);
  const work = (span / ranges + 1) * (word(Sdpa.D) + word(Sdpa.DV));
  parallel(sizeOf() === 8 ? chunk64 : chunk32, <usize>(heads * ranges), <usize>max(1, 65536 / work));
  if (ranges > 1)
    parallel(
      sizeOf() === 8 ? merge64 : merge32,
      <usize>word(Sdpa.B) * <usize>word(Sdpa.HQ) * <usize>word(Sdpa.TQ),
      max<usize>(1, 4096 / (<usize>ranges * partial())),
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
  const rows = sharing();
  for (let item = lo; item < hi; item++) {
    const head = <i32>item / ranges;
    const range = <i32>item % ranges;
    const from = firstKey(0);
    const span = max(0, lastKey(word(Sdpa.TQ) - 1) + 1 - from);
    const each = ((span / ranges + BLOCK) / BLOCK) * BLOCK;
    const first = from + min(span, range * each);
    const end = from + min(span, (range + 1) * each);
    const results = ranges > 1 ? arg<usize>(PARTIALS) + item * rows * partial() * sizeof<T>() : scratch + SCRATCH_FREE;
    attend<S, T>(head / word(Sdpa.HK), head % word(Sdpa.HK), first, end, range === 0, results);
    if (ranges === 1) {
      for (let r: usize = 0; r < rows; r++) {
        const at = results + r * partial() * sizeof<T>();
        finish<T>(at + 2 * sizeof<T>(), load<T>(at, sizeof<T>()), <usize>head * rows + r);
      }
    }
  }
}

/**
 * Keys first … end−1 of one key-value head for all rows that share it; one range of them has the sinks. S: the stored
 * type, as in lines.ts.
 */
function attend<S, T>(b: i32, kvHead: i32, first: i32, end: i32, withSinks: bool, results: usize): void {
  const dtype = arg<i32>(DTYPE);
  const shift = shiftOf(dtype);
  const d = <usize>word(Sdpa.D);
  const dv = <usize>word(Sdpa.DV);
  const tq = word(Sdpa.TQ);
  const rows = sharing();
  const ratio = word(Sdpa.HQ) / word(Sdpa.HK);
  const size = sizeof<T>();
  const once = sizeof<S>() === 2 && rows === 1; // halves that serve one row are widened in registers
  const resultBytes = partial() * size;
  const queries = scratch + SCRATCH_FREE + rows * resultBytes;
  const scores = queries + rows * d * size;
  const rowBytes = <usize>BLOCK * size;
  const masks = scores + rows * rowBytes;
  const lines = masks + rowBytes;
  for (let r = 0; r < <i32>rows; r++) {
    const at =
      <isize>b * word(Sdpa.Q_STRIDES) +
      <isize>(kvHead * ratio + r / tq) * word(Sdpa.Q_STRIDES + 1) +
      <isize>(r % tq) * word(Sdpa.Q_STRIDES + 2);
    packPanel(
      dtype,
      arg<usize>(Q) + (at << shift),
      0,
      word(Sdpa.Q_STRIDES + 3),
      1,
      1,
      d,
      queries + <usize>r * d * size,
    );
    const result = results + <usize>r * resultBytes;
    memory.fill(result, 0, resultBytes);
    if (withSinks) begin<T>(kvHead * ratio + r / tq, result);
    else store<T>(result, <T>-Infinity);
  }
  const k = arg<usize>(KEYS) + ((<isize>b * word(Sdpa.K_STRIDES) + <isize>kvHead * word(Sdpa.K_STRIDES + 1)) << shift);
  const v =
    arg<usize>(VALUES) + ((<isize>b * word(Sdpa.V_STRIDES) + <isize>kvHead * word(Sdpa.V_STRIDES + 1)) << shift);
  for (let j = first; j < end; j += BLOCK) {
    const count = min(BLOCK, end - j);
    const k0 = k + ((<isize>j * word(Sdpa.K_STRIDES + 2)) << shift);
    const v0 = v + ((<isize>j * word(Sdpa.V_STRIDES + 2)) << shift);
    if (once && word(Sdpa.K_STRIDES + 3) === 1)
      score<S, T>(rows, d, queries, k0, (<isize>word(Sdpa.K_STRIDES + 2)) << shift, count, scores);
    else {
      const keys = fetchLines<T>(dtype, k0, word(Sdpa.K_STRIDES + 2), word(Sdpa.K_STRIDES + 3), count, d, lines);
      score<T, T>(
        rows,
        d,
        queries,
        keys,
        keys === lines ? <isize>(d * size) : (<isize>word(Sdpa.K_STRIDES + 2)) << shift,
        count,
        scores,
      );
    }
    for (let r = 0; r < <i32>rows; r++) {
      const row = scores + <usize>r * rowBytes;
      adjust<T>(b, kvHead * ratio + r / tq, r % tq, j, count, row, masks);
      softmax<T>(row, results + <usize>r * resultBytes);
    }
    const sums = results + 2 * size;
    if (once && word(Sdpa.V_STRIDES + 3) === 1) {
      addLines<S, T>(count, scores, v0, (<isize>word(Sdpa.V_STRIDES + 2)) << shift, dv, sums);
      continue;
    }
    const values = fetchLines<T>(dtype, v0, word(Sdpa.V_STRIDES + 2), word(Sdpa.V_STRIDES + 3), count, dv, lines);
    const step = values === lines ? <isize>(dv * size) : (<isize>word(Sdpa.V_STRIDES + 2)) << shift;
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
function adjust<T>(b: i32, head: i32, i: i32, j: i32, count: i32, row: usize, masks: usize): void {
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
    const from =
      <isize>b * word(Sdpa.MASK_STRIDES) +
      <isize>head * word(Sdpa.MASK_STRIDES + 1) +
      <isize>i * word(Sdpa.MASK_STRIDES + 2) +
      <isize>j * word(Sdpa.MASK_STRIDES + 3);
    packPanel(dtype, arg<usize>(MASK) + (from << shiftOf(dtype)), 0, word(Sdpa.MASK_STRIDES + 3), 1, 1, count, masks);
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
  if (factor !== 1) scaleRow<T>(result + 2 * sizeof<T>(), factor);
}

function scaleRow<T>(at: usize, factor: T): void {
  const end = at + <usize>word(Sdpa.DV) * sizeof<T>();
  for (; at < end; at += sizeof<T>()) store<T>(at, load<T>(at) * factor);
}

/** Rows (batch element, query head, query) from the ranges' partial results. */
function merge<T>(lo: usize, hi: usize): void {
  const ranges = <usize>arg<i32>(RANGES);
  const rows = sharing();
  const dv = <usize>word(Sdpa.DV);
  const bytes = partial() * sizeof<T>();
  const sums = scratch + SCRATCH_FREE;
  for (let row = lo; row < hi; row++) {
    const first = arg<usize>(PARTIALS) + ((row / rows) * ranges * rows + (row % rows)) * bytes;
    let m = <T>-Infinity;
    for (let i: usize = 0; i < ranges; i++) m = max<T>(m, load<T>(first + i * rows * bytes));
    const base = finiteMax<T>(v128.splat<T>(m));
    let total = <T>0;
    memory.fill(sums, 0, dv * sizeof<T>());
    for (let i: usize = 0; i < ranges; i++) {
      const from = first + i * rows * bytes;
      const factor = v128.extract_lane<T>(expLanes<T>(v128.sub<T>(v128.splat<T>(load<T>(from)), base)), 0);
      total += factor * load<T>(from, sizeof<T>());
      for (let c: usize = 0; c < dv * sizeof<T>(); c += sizeof<T>())
        store<T>(sums + c, load<T>(sums + c) + factor * load<T>(from + c, 2 * sizeof<T>()));
    }
    finish<T>(sums, total, row);
  }
}

/** Writes row `row` of the result. */
function finish<T>(sums: usize, total: T, row: usize): void {
  const dtype = arg<i32>(DTYPE);
  const dv = <usize>word(Sdpa.DV);
  const out = arg<usize>(OUT) + ((row * dv) << shiftOf(dtype));
  for (let c: usize = 0; c < dv; c += RUN) {
    const count = min(RUN, dv - c);
    const to = out + (c << shiftOf(dtype));
    const at = native(dtype) ? to : slot(0);
    for (let i: usize = 0; i < count; i++)
      store<T>(at + i * sizeof<T>(), load<T>(sums + (c + i) * sizeof<T>()) / total);
    if (!native(dtype)) narrow(dtype, at, to, count);
  }
}
