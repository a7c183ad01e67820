/**
 * Attention for many query rows, transposed: scoresᵀ = K·Qᵀ and outᵀ = Vᵀ·P. A panel then holds a vector of query rows
 * for each key, so the softmax runs over lanes without any horizontal step, and its result is already the packed
 * operand of the second product.
 */
import { F64, Sdpa, shiftOf } from "./abi";
import {
  BLOCK,
  begin,
  blockAt,
  DTYPE,
  expLanes,
  finiteMax,
  firstKey,
  KEYS,
  keyCount,
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
import { narrow, native, RUN, slot } from "./block";
import { arg, setArg } from "./memory";
import { packPanel } from "./pack";
import { parallel, SCRATCH_BYTES, scratch } from "./pool";
import { ADD, BLOCK_FREE, block, CONTINUE, MR, packRows, ROW, SET } from "./tile";

const FIRST = OWN; // sequence
const PANELS = OWN + 1; // panels of query rows per item
const DEPTH = OWN + 2; // keys per block: BLOCK, or less where heads are too large for the scratch memory
/** Multiplications that are worth a chunk. */
const CHUNK: f64 = 262144;

function roundUp(n: usize, to: usize): usize {
  return ((n + to - 1) / to) * to;
}

/** Bytes of scratch memory: queries, scores, sums and statistics of each panel; keys, values and mask of a block. */
function bytes(panels: usize, keys: usize, size: usize): usize {
  const d = <usize>word(Sdpa.D);
  const dv = roundUp(<usize>word(Sdpa.DV), MR);
  const padded = roundUp(keys, MR);
  return ROW * (panels * (d + 2 * padded + 2 * dv + 4) + keys + 2) + (padded * d + keys * dv) * size;
}

/** `count` sequences from `first` on; the first one is open, and the others have as many rows. */
export function prefill(first: i32, count: i32): void {
  const size: usize = arg<i32>(DTYPE) === F64 ? 8 : 4;
  const lanes = ROW / size;
  const heads = <usize>count * <usize>word(Sdpa.HQ);
  const tq = <usize>rowCount;
  let panels = min<usize>(96 / lanes, (tq - 1) / lanes + 1);
  while (panels > 2 && heads * ((tq - 1) / (panels * lanes) + 1) < 16) panels = (panels + 1) >> 1;
  let keys = <usize>BLOCK;
  while (panels > 1 && bytes(panels, keys, size) > SCRATCH_BYTES - BLOCK_FREE) panels >>= 1;
  while (keys > 4 && bytes(panels, keys, size) > SCRATCH_BYTES - BLOCK_FREE) keys >>= 1;
  setArg<i32>(FIRST, first);
  setArg<usize>(PANELS, panels);
  setArg<usize>(DEPTH, keys);
  const blocks = (tq - 1) / (panels * lanes) + 1;
  const work = <f64>(panels * lanes) * <f64>keyCount * <f64>(word(Sdpa.D) + word(Sdpa.DV));
  parallel(size === 8 ? chunk64 : chunk32, heads * blocks, <usize>max(1.0, CHUNK / (work + 64.0)));
}

function chunk32(lo: usize, hi: usize): void {
  items<f32>(lo, hi);
}
function chunk64(lo: usize, hi: usize): void {
  items<f64>(lo, hi);
}

/** Items (sequence, query head, block of query rows). */
function items<T>(lo: usize, hi: usize): void {
  openSequence(arg<i32>(FIRST));
  const rows = arg<usize>(PANELS) * (ROW / sizeof<T>());
  const blocks = (<usize>rowCount - 1) / rows + 1;
  for (let item = lo; item < hi; item++) {
    const head = <i32>(item / blocks);
    const first = (item % blocks) * rows;
    openSequence(arg<i32>(FIRST) + head / word(Sdpa.HQ));
    attend<T>(head % word(Sdpa.HQ), <i32>first, <i32>min(rows, <usize>rowCount - first));
  }
}

/** Rows first … first+rows−1 of one head. */
function attend<T>(head: i32, first: i32, rows: i32): void {
  const dtype = arg<i32>(DTYPE);
  const lanes = <i32>(ROW / sizeof<T>());
  const panels = (rows + lanes - 1) / lanes;
  const d = <usize>word(Sdpa.D);
  const height = roundUp(<usize>word(Sdpa.DV), MR);
  const depth = arg<usize>(DEPTH);
  const kvHead = head / (word(Sdpa.HQ) / word(Sdpa.HK));

  const queries = scratch + BLOCK_FREE;
  const half = roundUp(depth, MR) * ROW;
  const scores = queries + <usize>panels * d * ROW; // two halves for each panel
  const sums = scores + 2 * <usize>panels * half;
  const stats = sums + <usize>panels * height * ROW; // for each panel: largest score, sum of exponentials
  const merged = stats + 2 * <usize>panels * ROW; // sums of earlier ranges, and their statistics
  const mergedStats = merged + <usize>panels * height * ROW;
  const factors = mergedStats + 2 * <usize>panels * ROW;
  const masks = factors + 2 * ROW;
  const keys = masks + depth * ROW;
  const values = keys + roundUp(depth, MR) * d * sizeof<T>();

  begin<T>(head, factors);
  for (let i = 0; i < panels; i++) {
    const valid = <usize>min(lanes, rows - i * lanes);
    packQueries<T>(head, first + i * lanes, valid, queries + <usize>i * d * ROW);
    fillStats<T>(mergedStats + <usize>(2 * i) * ROW, load<T>(factors), load<T>(factors, sizeof<T>()));
    fillStats<T>(stats + <usize>(2 * i) * ROW, <T>-Infinity, 0);
  }
  memory.fill(sums, 0, <usize>panels * height * ROW);
  memory.fill(merged, 0, <usize>panels * height * ROW);
  const end = lastKey(first + rows - 1) + 1;
  for (let j = firstKey(first) & ~(<i32>depth - 1); j < end; j += <i32>depth) {
    const count = <usize>min(<i32>depth, end - j);
    packKeys<T>(blockAt(KEYS, Sdpa.K_STRIDES, kvHead, j), count, keys);
    packRows(
      dtype,
      blockAt(VALUES, Sdpa.V_STRIDES, kvHead, j),
      word(Sdpa.V_STRIDES + 3),
      word(Sdpa.V_STRIDES + 2),
      word(Sdpa.DV),
      count,
      values,
    );
    for (let i = 0; i < panels; i++) {
      const row = first + i * lanes;
      const valid = min(lanes, rows - i * lanes);
      if (lastKey(row + valid - 1) < j || firstKey(row) >= j + <i32>count) continue;
      const panel = scores + 2 * <usize>i * half;
      const stat = stats + <usize>(2 * i) * ROW;
      const sum = sums + <usize>i * height * ROW;
      score<T>(keys, count, queries + <usize>i * d * ROW, panel, panel + half);
      adjust<T>(head, row, valid, j, count, panel, panel + half, masks);
      if (softmax<T>(panel, count, stat, factors)) rescale<T>(sum, height, factors);
      block<T>(height, lanes, count, values, panel, 0, sum, ROW, CONTINUE);
    }
    if (((j + <i32>depth) & (RANGE - 1)) !== 0 && j + <i32>depth < end) continue;
    for (let i = 0; i < panels; i++) {
      const at = <usize>i * height * ROW;
      const stat = stats + <usize>(2 * i) * ROW;
      merge<T>(merged + at, mergedStats + <usize>(2 * i) * ROW, sums + at, stat, height);
      fillStats<T>(stat, <T>-Infinity, 0);
    }
    memory.fill(sums, 0, <usize>panels * height * ROW);
  }
  for (let i = 0; i < panels; i++) {
    const totals = mergedStats + <usize>(2 * i + 1) * ROW;
    const at = merged + <usize>i * height * ROW;
    for (let r = 0; r < min(lanes, rows - i * lanes); r++) {
      const column = <usize>r * sizeof<T>();
      finish<T>(dtype, at + column, load<T>(totals + column), resultAt(head, first + i * lanes + r));
    }
  }
}

/** The greatest scores and the sums of a panel's rows. */
function fillStats<T>(stat: usize, most: T, total: T): void {
  for (let at: usize = 0; at < ROW; at += 16) {
    v128.store(stat + at, v128.splat<T>(most));
    v128.store(stat + at, v128.splat<T>(total), ROW);
  }
}

/** Lanes of the vectors that dots are summed in: elements of a head that are so far apart share a sum. */
// @inline
function classes<T>(): usize {
  return 16 / sizeof<T>();
}

/** Elements of a head in one class. */
// @inline
function classDepth<T>(c: usize): usize {
  return (<usize>word(Sdpa.D) + classes<T>() - 1 - c) / classes<T>();
}

/** A panel of query rows, class by class. */
function packQueries<T>(head: i32, row: i32, valid: usize, to: usize): void {
  const dtype = arg<i32>(DTYPE);
  const minor = word(Sdpa.Q_STRIDES + 2);
  const major = word(Sdpa.Q_STRIDES + 3);
  const from = queryAt(head, row);
  for (let c: usize = 0; c < classes<T>(); c++) {
    const n = classDepth<T>(c);
    const at = from + ((<isize>c * major) << shiftOf(dtype));
    packPanel(dtype, at, minor, major * <i32>classes<T>(), valid, ROW / sizeof<T>(), n, to);
    to += n * ROW;
  }
}

/** A block of keys, class by class. */
function packKeys<T>(from: usize, count: usize, to: usize): void {
  const dtype = arg<i32>(DTYPE);
  const minor = word(Sdpa.K_STRIDES + 2);
  const major = word(Sdpa.K_STRIDES + 3);
  for (let c: usize = 0; c < classes<T>(); c++) {
    const n = classDepth<T>(c);
    const at = from + ((<isize>c * major) << shiftOf(dtype));
    packRows(dtype, at, minor, major * <i32>classes<T>(), count, n, to);
    to += roundUp(count, MR) * n * sizeof<T>();
  }
}

/** Scores as dots have them: the classes' sums, of which two are added here and two more, at `rest`, later. */
function score<T>(keys: usize, count: usize, queries: usize, panel: usize, rest: usize): void {
  const padded = roundUp(count, MR);
  for (let c: usize = 0; c < classes<T>(); c++) {
    const n = classDepth<T>(c);
    const to = c < 2 ? panel : rest;
    const mode = (c & 1) === 0 ? SET : ADD;
    if (n > 0) block<T>(padded, ROW / sizeof<T>(), n, keys, queries, 0, to, ROW, mode);
    else if (mode === SET) memory.fill(to, 0, padded * ROW);
    keys += padded * n * sizeof<T>();
    queries += n * ROW;
  }
}

/** Scale, softcap, mask and causality of a panel of scores (keys j … j+count−1, query rows from `row` on). */
function adjust<T>(
  head: i32,
  row: i32,
  valid: i32,
  j: i32,
  count: usize,
  panel: usize,
  rest: usize,
  masks: usize,
): void {
  const end = panel + count * ROW;
  const cap = <T>arg<f64>(SOFTCAP);
  const scale = v128.splat<T>(<T>arg<f64>(SCALE));
  for (let at = panel; at < end; at += 16) {
    let s = v128.load(at);
    if (classes<T>() === 4) s = v128.add<T>(s, v128.load(at - panel + rest));
    v128.store(at, v128.mul<T>(s, scale));
  }
  if (cap > 0) {
    const c = v128.splat<T>(cap);
    for (let at = panel; at < end; at += 16)
      v128.store(at, v128.mul<T>(c, tanhLanes<T>(v128.div<T>(v128.load(at), c))));
  }
  if (arg<usize>(MASK)) {
    const dtype = arg<i32>(DTYPE);
    packPanel(
      dtype,
      maskAt(head, row, j),
      word(Sdpa.MASK_STRIDES + 2),
      word(Sdpa.MASK_STRIDES + 3),
      valid,
      ROW / sizeof<T>(),
      count,
      masks,
    );
    for (let at = panel, from = masks; at < end; at += 16, from += 16)
      v128.store(at, v128.add<T>(v128.load(at), v128.load(from)));
  }
  if (!word(Sdpa.CAUSAL) && word(Sdpa.WINDOW) === 0) return;
  for (let r = 0; r < valid; r++) {
    const column = panel + <usize>r * sizeof<T>();
    const before = min(max(firstKey(row + r) - j, 0), <i32>count);
    const after = min(max(lastKey(row + r) + 1 - j, 0), <i32>count);
    for (let key = 0; key < before; key++) store<T>(column + <usize>key * ROW, <T>-Infinity);
    for (let key = after; key < <i32>count; key++) store<T>(column + <usize>key * ROW, <T>-Infinity);
  }
}

/** Scores become exponentials relative to the largest so far; true when earlier sums must be rescaled by `factors`. */
function softmax<T>(panel: usize, count: usize, stat: usize, factors: usize): bool {
  const end = panel + count * ROW;
  let changed = false;
  for (let column: usize = 0; column < ROW; column += 16) {
    const old = v128.load(stat + column);
    let m = old;
    for (let at = panel + column; at < end; at += ROW) m = v128.max<T>(m, v128.load(at));
    v128.store(stat + column, m);
    m = finiteMax<T>(m);
    // Keys that are `classes` apart share a sum, as they share a lane where a row is alone.
    const zero = v128.splat<T>(0);
    let a = zero;
    let b = zero;
    let c = zero;
    let d = zero;
    for (let at = panel + column; at < end; at += classes<T>() * ROW) {
      a = v128.add<T>(a, exponential<T>(at, m));
      if (at + ROW < end) b = v128.add<T>(b, exponential<T>(at + ROW, m));
      if (classes<T>() === 2) continue;
      if (at + 2 * ROW < end) c = v128.add<T>(c, exponential<T>(at + 2 * ROW, m));
      if (at + 3 * ROW < end) d = v128.add<T>(d, exponential<T>(at + 3 * ROW, m));
    }
    a = v128.add<T>(a, b);
    const total = classes<T>() === 2 ? a : v128.add<T>(a, v128.add<T>(c, d));
    const factor = expLanes<T>(v128.sub<T>(old, m));
    v128.store(factors + column, factor);
    v128.store(stat + ROW + column, v128.add<T>(v128.mul<T>(v128.load(stat + ROW + column), factor), total));
    if (v128.any_true(v128.ne<T>(factor, v128.splat<T>(1)))) changed = true;
  }
  return changed;
}

// @inline
function exponential<T>(at: usize, base: v128): v128 {
  const e = expLanes<T>(v128.sub<T>(v128.load(at), base));
  v128.store(at, e);
  return e;
}

/** What rows have so far, and the results of one more range. */
function merge<T>(state: usize, stat: usize, sum: usize, own: usize, height: usize): void {
  for (let column: usize = 0; column < ROW; column += 16) {
    const old = v128.load(stat + column);
    const most = v128.load(own + column);
    const m = v128.max<T>(old, most);
    const base = finiteMax<T>(m);
    const f = expLanes<T>(v128.sub<T>(old, base));
    const g = expLanes<T>(v128.sub<T>(most, base));
    v128.store(stat + column, m);
    const totals = v128.mul<T>(v128.load(stat + ROW + column), f);
    v128.store(stat + ROW + column, v128.add<T>(totals, v128.mul<T>(v128.load(own + ROW + column), g)));
    for (let at = column; at < height * ROW; at += ROW) {
      const before = v128.mul<T>(v128.load(state + at), f);
      v128.store(state + at, v128.add<T>(before, v128.mul<T>(v128.load(sum + at), g)));
    }
  }
}

function rescale<T>(sum: usize, height: usize, factors: usize): void {
  const end = sum + height * ROW;
  for (let column: usize = 0; column < ROW; column += 16) {
    const factor = v128.load(factors + column);
    for (let at = sum + column; at < end; at += ROW) v128.store(at, v128.mul<T>(v128.load(at), factor));
  }
}

/** Writes a row of the result, whose elements are ROW apart. */
function finish<T>(dtype: i32, sum: usize, total: T, out: usize): void {
  const dv = <usize>word(Sdpa.DV);
  for (let c: usize = 0; c < dv; c += RUN) {
    const count = min(RUN, dv - c);
    const to = out + (c << shiftOf(dtype));
    const at = native(dtype) ? to : slot(0);
    for (let i: usize = 0; i < count; i++) store<T>(at + i * sizeof<T>(), load<T>(sum + (c + i) * ROW) / total);
    if (!native(dtype)) narrow(dtype, at, to, count);
  }
}
