/**
 * Sums, extremes and their places along the rows of a view, and the row access that softmax and the norms share.
 *
 * Element (r, c) is number r·cols + c of the view. Each row, or each block of a long row, ends as a record (value,
 * index); records of one row are combined in order, so the result does not depend on the threads. f32 sums add a few
 * elements in a tree and the trees in f64. NaN wins every min and max; the first index wins ties.
 */
import { F64, Reduce, shiftOf } from "./abi";
import {
  CF32,
  CF64,
  CI32,
  CU32,
  classOf,
  commit,
  fetch,
  gatherRun,
  native,
  offsetOf,
  RUN,
  SCRATCH_FREE,
  slot,
  target,
  widen,
} from "./block";
import { arg, setArg } from "./memory";
import { parallel, SCRATCH_BYTES, scratch } from "./pool";
import { Address, Cols, DTypeCode, Layouts, OutAddress, ReduceCode, Rows } from "./types";

/** Elements per chunk of work: some 25 µs. */
const CHUNK: usize = 65536;
/** Bytes of a record: the value (f64 for f32), and the index at +8. */
const RECORD: usize = 16;
/** Where a kernel that does not cut rows keeps RUN records: slots 3 and 4. */
const RECORDS: i32 = 3;
/** Fewer rows (or panels of rows) than this are cut along their columns, too. */
const ENOUGH_ITEMS: usize = 16;
/** Columns that a column sum adds in f32 before it moves on to f64. */
const FLUSH: usize = 16;
/** Rows that softmax and the norms take at once from a view with adjacent rows: one cache line of f32. */
const TILE: usize = 16;
/** Fewer adjacent rows than this are not worth a vector each. */
const FEW_ROWS: usize = 8;

// @inline
function givesPlace(op: i32): bool {
  return op === Reduce.ARGMIN || op === Reduce.ARGMAX;
}

// Row access

/** How many rows lie side by side in memory (the last outer dim, if its stride is 1), or 0. */
export function adjacentRows(info: usize, rows: usize): usize {
  if (info === 0) return 0;
  const rank = <usize>load<u32>(info);
  let product: usize = 1;
  for (let d: usize = 0; d + 1 < rank; d++) {
    const size = <usize>load<u32>(info + 4 + (d << 2));
    product *= size;
    if (product < rows) continue;
    const stride = load<i32>(info + 4 + ((rank + d) << 2));
    return product === rows && stride === 1 && size >= FEW_ROWS ? size : 0;
  }
  return 0;
}

/** The address of elements start … start+n−1 if they lie side by side, or 0. */
function inPlace(shift: i32, x: usize, info: usize, start: usize, n: usize): usize {
  if (info === 0) return x + (start << shift);
  const rank = <usize>load<u32>(info);
  const inner = <usize>load<u32>(info + (rank << 2));
  if (load<i32>(info + 4 + ((2 * rank - 1) << 2)) !== 1 || (start % inner) + n > inner) return 0;
  return x + ((<usize>offsetOf(info, 0, start)) << shift);
}

/** `fetch` for operand 0 that copies only what does not lie side by side. At most RUN elements. */
export function fetchRun(dtype: i32, x: usize, info: usize, start: usize, n: usize): usize {
  const at = inPlace(shiftOf(dtype), x, info, start, n);
  return at !== 0 ? fetch(dtype, at, 0, 0, 0, n) : fetch(dtype, x, info, 0, start, n);
}

/** Rows per chunk of about `elements`: whole tiles where rows are opened by tiles. */
export function rowGrain(elements: usize, cols: usize, side: usize): usize {
  const rows = max<usize>(1, elements / cols);
  return side === 0 ? rows : (rows + TILE - 1) & ~(TILE - 1);
}

/** Set by openRows: the first opened row as class elements, further ones behind it; 0 = use fetchRun. */
export let rowsAt: usize = 0;

/**
 * Makes row r, and as many of the rows after it (below `end`) as come cheaply, contiguous class elements; returns their
 * number. Rows that need a copy are put at their place in `out`, or in scratch memory if `out` has a smaller dtype.
 */
export function openRows(
  dtype: i32,
  cols: usize,
  info: usize,
  side: usize,
  x: usize,
  out: usize,
  r: usize,
  end: usize,
): usize {
  const shift = shiftOf(dtype);
  let count = end - r;
  if (native(dtype)) {
    rowsAt = inPlace(shift, x, info, r * cols, cols);
    if (rowsAt !== 0) return info === 0 ? count : 1;
    rowsAt = out + ((r * cols) << shift);
  } else {
    rowsAt = scratch + SCRATCH_FREE;
    count = min(count, (SCRATCH_BYTES - SCRATCH_FREE) / (max<usize>(cols, 1) << 2));
    if (count === 0) {
      rowsAt = 0;
      return 1;
    }
  }
  count = min(count, side === 0 ? 1 : min(TILE, side - (r % side)));
  if (count > 1) stageTile(dtype, cols, info, x, r, count, rowsAt);
  else stageRow(dtype, cols, info, x, r * cols, rowsAt);
  return count;
}

function stageRow(dtype: i32, cols: usize, info: usize, x: usize, start: usize, to: usize): void {
  if (native(dtype)) {
    if (shiftOf(dtype) === 2) gatherRun<u32>(x, info, 0, start, cols, to);
    else gatherRun<u64>(x, info, 0, start, cols, to);
    return;
  }
  const at = inPlace(shiftOf(dtype), x, info, start, cols);
  if (at !== 0) return widen(dtype, at, to, cols);
  for (let c: usize = 0; c < cols; c += RUN) {
    const n = min(RUN, cols - c);
    memory.copy(to + (c << 2), fetch(dtype, x, info, 0, start + c, n), n << 2);
  }
}

/** Transposes `count` ≤ TILE adjacent rows, so that whole cache lines are read. */
function stageTile(dtype: i32, cols: usize, info: usize, x: usize, r: usize, count: usize, to: usize): void {
  const rank = <usize>load<u32>(info);
  const inner = <usize>load<u32>(info + (rank << 2));
  const shift = shiftOf(dtype);
  const step = (<usize>load<i32>(info + 4 + ((2 * rank - 1) << 2))) << shift;
  const wide = dtype === F64;
  const pitch = cols << (wide ? 3 : 2);
  let c: usize = 0;
  while (c < cols) {
    let p = x + ((<usize>offsetOf(info, 0, r * cols + c)) << shift);
    const stop = c + min(inner - (c % inner), cols - c);
    if (!wide) {
      for (; c + 4 <= stop; c += 4, p += step << 2) columns4(dtype, p, step, count, to + (c << 2), pitch);
    }
    for (; c < stop; c++, p += step) {
      if (wide) for (let i: usize = 0; i < count; i++) store<u64>(to + i * pitch + (c << 3), load<u64>(p + (i << 3)));
      else {
        const q = fetch(dtype, p, 0, 0, 0, count);
        for (let i: usize = 0; i < count; i++) store<u32>(to + i * pitch + (c << 2), load<u32>(q + (i << 2)));
      }
    }
  }
}

/** Four columns of a tile of 4-byte class elements, four rows at a time. */
function columns4(dtype: i32, p: usize, step: usize, count: usize, to: usize, pitch: usize): void {
  let p0 = p;
  let p1 = p + step;
  let p2 = p1 + step;
  let p3 = p2 + step;
  if (!native(dtype)) {
    const wide = slot(1);
    widen(dtype, p0, wide, count);
    widen(dtype, p1, wide + (TILE << 2), count);
    widen(dtype, p2, wide + (TILE << 3), count);
    widen(dtype, p3, wide + 3 * (TILE << 2), count);
    p0 = wide;
    p1 = wide + (TILE << 2);
    p2 = wide + (TILE << 3);
    p3 = wide + 3 * (TILE << 2);
  }
  let i: usize = 0;
  for (; i + 4 <= count; i += 4, to += pitch << 2) {
    const a = v128.load(p0 + (i << 2));
    const b = v128.load(p1 + (i << 2));
    const c = v128.load(p2 + (i << 2));
    const d = v128.load(p3 + (i << 2));
    const ab01 = v128.shuffle<i32>(a, b, 0, 4, 1, 5);
    const ab23 = v128.shuffle<i32>(a, b, 2, 6, 3, 7);
    const cd01 = v128.shuffle<i32>(c, d, 0, 4, 1, 5);
    const cd23 = v128.shuffle<i32>(c, d, 2, 6, 3, 7);
    v128.store(to, v128.shuffle<i64>(ab01, cd01, 0, 2));
    v128.store(to + pitch, v128.shuffle<i64>(ab01, cd01, 1, 3));
    v128.store(to + 2 * pitch, v128.shuffle<i64>(ab23, cd23, 0, 2));
    v128.store(to + 3 * pitch, v128.shuffle<i64>(ab23, cd23, 1, 3));
  }
  for (; i < count; i++, to += pitch) {
    store<u32>(to, load<u32>(p0 + (i << 2)));
    store<u32>(to + 4, load<u32>(p1 + (i << 2)));
    store<u32>(to + 8, load<u32>(p2 + (i << 2)));
    store<u32>(to + 12, load<u32>(p3 + (i << 2)));
  }
}

// Folding contiguous class elements

// @inline
function combine<T>(op: i32, a: T, b: T): T {
  return op === Reduce.SUM ? <T>(a + b) : op === Reduce.MIN ? min<T>(a, b) : max<T>(a, b);
}

// @inline
function combineLanes<T>(op: i32, a: v128, b: v128): v128 {
  if (op === Reduce.SUM) return v128.add<T>(a, b);
  if (isInteger<T>() && sizeof<T>() === 8) {
    return v128.bitselect(a, b, op === Reduce.MIN ? v128.lt<T>(a, b) : v128.gt<T>(a, b));
  } else {
    return op === Reduce.MIN ? v128.min<T>(a, b) : v128.max<T>(a, b);
  }
}

/** Four vectors, `step` bytes apart, in a tree. */
// @inline
function combine4<T>(op: i32, p: usize, step: usize): v128 {
  const ab = combineLanes<T>(op, v128.load(p), v128.load(p + step));
  return combineLanes<T>(op, ab, combineLanes<T>(op, v128.load(p + 2 * step), v128.load(p + 3 * step)));
}

/** n ≥ 1 elements folded by sum, min or max. */
// @inline
export function fold<T>(op: i32, p: usize, n: usize): T {
  const end = p + n * sizeof<T>();
  let all: T;
  if (n * sizeof<T>() >= 128) {
    let a = combine4<T>(op, p, 16);
    let b = combine4<T>(op, p + 64, 16);
    for (p += 128; p + 128 <= end; p += 128) {
      a = combineLanes<T>(op, a, combine4<T>(op, p, 16));
      b = combineLanes<T>(op, b, combine4<T>(op, p + 64, 16));
    }
    for (; p + 16 <= end; p += 16) a = combineLanes<T>(op, a, v128.load(p));
    a = combineLanes<T>(op, a, b);
    a = combineLanes<T>(op, a, v128.shuffle<i64>(a, a, 1, 0));
    if (sizeof<T>() === 4) a = combineLanes<T>(op, a, v128.shuffle<i32>(a, a, 1, 0, 3, 2));
    all = v128.extract_lane<T>(a, 0);
  } else {
    all = load<T>(p);
    p += sizeof<T>();
  }
  for (; p < end; p += sizeof<T>()) all = combine<T>(op, all, load<T>(p));
  return all;
}

/** The sum of n ≥ 1 elements; f32 adds trees of 32 elements, then in f64. */
function sumRun<T, A>(p: usize, n: usize): A {
  if (!isFloat<T>() || sizeof<T>() !== 4) return <A>fold<T>(Reduce.SUM, p, n);
  const end = p + (n << 2);
  let low = f64x2.splat(0);
  let high = f64x2.splat(0);
  for (; p + 128 <= end; p += 128) {
    const tree = f32x4.add(combine4<f32>(Reduce.SUM, p, 16), combine4<f32>(Reduce.SUM, p + 64, 16));
    low = f64x2.add(low, f64x2.promote_low_f32x4(tree));
    high = f64x2.add(high, f64x2.promote_low_f32x4(v128.shuffle<i64>(tree, tree, 1, 1)));
  }
  low = f64x2.add(low, high);
  let sum = f64x2.extract_lane(low, 0) + f64x2.extract_lane(low, 1);
  for (; p < end; p += 4) sum += <f64>load<f32>(p);
  return <A>sum;
}

/** Whether a candidate replaces the best so far: NaN beats numbers, equals do not replace. */
// @inline
function better<T>(least: bool, a: T, best: T): bool {
  if (isFloat<T>()) {
    if (isNaN<T>(best)) return false;
    if (isNaN<T>(a)) return true;
  }
  return least ? a < best : a > best;
}

/** The first place of a value that is known to be there. */
function find<T>(p: usize, value: T): usize {
  let i: usize = 0;
  if (isFloat<T>() && isNaN<T>(value)) {
    while (!isNaN<T>(load<T>(p + i * sizeof<T>()))) i++;
  } else {
    while (load<T>(p + i * sizeof<T>()) !== value) i++;
  }
  return i;
}

const enum Arg {
  OP,
  DTYPE,
  ROWS,
  COLS,
  INFO,
  X,
  OUT,
  ADJACENT_ROWS,
  PANELS, // per adjacent rows
  BLOCKS, // per row
  BLOCK, // columns of one
  RECORDS,
}

export function reduce(
  op: ReduceCode,
  dtype: DTypeCode,
  rows: Rows,
  cols: Cols,
  info: Layouts,
  x: Address,
  out: OutAddress,
): void {
  if (cols === 0) {
    memory.fill(out, 0, rows << shiftOf(dtype));
    return;
  }
  if (rows === 0) return;
  const side = adjacentRows(info, rows);
  const panels: usize = side === 0 ? 1 : (side - 1) / RUN + 1;
  const items = side === 0 ? rows : (rows / side) * panels;
  const width: usize = side === 0 ? 1 : min(side, RUN);
  let block = cols;
  if (items < ENOUGH_ITEMS && cols > 2 * (CHUNK / width)) {
    const most = (SCRATCH_BYTES - SCRATCH_FREE) / RECORD / rows; // records that fit, per row
    block = max(CHUNK / width, (cols - 1) / most + 1);
  }
  const blocks = (cols - 1) / block + 1;
  setArg<i32>(Arg.OP, op);
  setArg<i32>(Arg.DTYPE, dtype);
  setArg<usize>(Arg.ROWS, rows);
  setArg<usize>(Arg.COLS, cols);
  setArg<usize>(Arg.INFO, info);
  setArg<usize>(Arg.X, x);
  setArg<usize>(Arg.OUT, out);
  setArg<usize>(Arg.ADJACENT_ROWS, side);
  setArg<usize>(Arg.PANELS, panels);
  setArg<usize>(Arg.BLOCKS, blocks);
  setArg<usize>(Arg.BLOCK, block);
  setArg<usize>(Arg.RECORDS, scratch + SCRATCH_FREE);
  const grain = max<usize>(1, CHUNK / (width * min(block, CHUNK) + 16));
  if (side === 0) parallel(reduceRows, items * blocks, grain);
  else parallel(reduceColumns, items * blocks, grain);
  if (blocks > 1) parallel(combineBlocks, rows, max<usize>(1, (CHUNK >> 3) / blocks));
}

function reduceRows(lo: usize, hi: usize): void {
  const kind = classOf(arg<i32>(Arg.DTYPE));
  if (kind === CF32) rowItems<f32, f64>(lo, hi);
  else if (kind === CF64) rowItems<f64, f64>(lo, hi);
  else if (kind === CI32) rowItems<i32, i32>(lo, hi);
  else if (kind === CU32) rowItems<u32, u32>(lo, hi);
  else rowItems<i64, i64>(lo, hi);
}

function reduceColumns(lo: usize, hi: usize): void {
  const kind = classOf(arg<i32>(Arg.DTYPE));
  if (kind === CF32) columnItems<f32, f64>(lo, hi);
  else if (kind === CF64) columnItems<f64, f64>(lo, hi);
  else if (kind === CI32) columnItems<i32, i32>(lo, hi);
  else if (kind === CU32) columnItems<u32, u32>(lo, hi);
  else columnItems<i64, i64>(lo, hi);
}

function combineBlocks(lo: usize, hi: usize): void {
  const kind = classOf(arg<i32>(Arg.DTYPE));
  if (kind === CF32) combineItems<f32, f64>(lo, hi);
  else if (kind === CF64) combineItems<f64, f64>(lo, hi);
  else if (kind === CI32) combineItems<i32, i32>(lo, hi);
  else if (kind === CU32) combineItems<u32, u32>(lo, hi);
  else combineItems<i64, i64>(lo, hi);
}

/** Items are rows, or blocks of rows. */
function rowItems<T, A>(lo: usize, hi: usize): void {
  const op = arg<i32>(Arg.OP);
  const dtype = arg<i32>(Arg.DTYPE);
  const cols = arg<usize>(Arg.COLS);
  const info = arg<usize>(Arg.INFO);
  const x = arg<usize>(Arg.X);
  const blocks = arg<usize>(Arg.BLOCKS);
  if (blocks > 1) {
    const block = arg<usize>(Arg.BLOCK);
    for (let item = lo; item < hi; item++) {
      const r = item / blocks;
      const b = item - r * blocks;
      const to = arg<usize>(Arg.RECORDS) + (b * arg<usize>(Arg.ROWS) + r) * RECORD;
      rowRecord<T, A>(op, dtype, x, info, r * cols, b * block, min(cols, b * block + block), to);
    }
    return;
  }
  const together = cols < RUN ? RUN / cols : 1; // short rows share one fetch
  const records = slot(RECORDS);
  for (let r = lo; r < hi; ) {
    const count = min(together, hi - r);
    if (cols < RUN) {
      const p = fetchRun(dtype, x, info, r * cols, count * cols);
      for (let i: usize = 0; i < count; i++) {
        record<T, A>(op, p + i * cols * sizeof<T>(), cols, 0, true, records + i * RECORD);
      }
    } else rowRecord<T, A>(op, dtype, x, info, r * cols, 0, cols, records);
    settle<T, A>(op, dtype, records, r, count);
    r += count;
  }
}

/** Columns c … end−1 of the row whose first element is number `start`. */
function rowRecord<T, A>(
  op: i32,
  dtype: i32,
  x: usize,
  info: usize,
  start: usize,
  c: usize,
  end: usize,
  to: usize,
): void {
  let first = true;
  for (; c < end; first = false) {
    const n = min(RUN, end - c);
    record<T, A>(op, fetchRun(dtype, x, info, start + c, n), n, c, first, to);
    c += n;
  }
}

/** Merges a run, whose first element is column c, into a record, or starts one. */
function record<T, A>(op: i32, p: usize, n: usize, c: usize, first: bool, to: usize): void {
  if (op === Reduce.SUM) {
    const sum = sumRun<T, A>(p, n);
    store<A>(to, first ? sum : load<A>(to) + sum);
    return;
  }
  const least = op === Reduce.MIN || op === Reduce.ARGMIN;
  const best = least ? fold<T>(Reduce.MIN, p, n) : fold<T>(Reduce.MAX, p, n);
  if (!first && !better<A>(least, <A>best, load<A>(to))) return;
  store<A>(to, <A>best);
  if (givesPlace(op)) store<u32>(to, <u32>(c + find<T>(p, best)), 8);
}

/** Items are panels of up to RUN adjacent rows, or blocks of them: vectors run over rows. */
function columnItems<T, A>(lo: usize, hi: usize): void {
  const op = arg<i32>(Arg.OP);
  const rows = arg<usize>(Arg.ROWS);
  const cols = arg<usize>(Arg.COLS);
  const side = arg<usize>(Arg.ADJACENT_ROWS);
  const panels = arg<usize>(Arg.PANELS);
  const blocks = arg<usize>(Arg.BLOCKS);
  const block = arg<usize>(Arg.BLOCK);
  for (let item = lo; item < hi; item++) {
    const i = item / blocks;
    const b = item - i * blocks;
    const outer = i / panels;
    const first = (i - outer * panels) * RUN;
    const r = outer * side + first;
    const width = min(RUN, side - first);
    const records = blocks > 1 ? arg<usize>(Arg.RECORDS) + (b * rows + r) * RECORD : slot(RECORDS);
    panelRecords<T, A>(op, r, width, b * block, min(cols, b * block + block), records);
    if (blocks === 1) settle<T, A>(op, arg<i32>(Arg.DTYPE), records, r, width);
  }
}

function panelRecords<T, A>(op: i32, r: usize, width: usize, c: usize, end: usize, records: usize): void {
  const dtype = arg<i32>(Arg.DTYPE);
  const cols = arg<usize>(Arg.COLS);
  const info = arg<usize>(Arg.INFO);
  const x = arg<usize>(Arg.X);
  const rank = <usize>load<u32>(info);
  const inner = <usize>load<u32>(info + (rank << 2));
  const shift = shiftOf(dtype);
  const step = (<usize>load<i32>(info + 4 + ((2 * rank - 1) << 2))) << shift;
  const least = op === Reduce.MIN || op === Reduce.ARGMIN;
  const values = slot(2);
  const places = slot(5);
  if (op === Reduce.SUM) {
    memory.fill(values, 0, width * sizeof<T>());
    memory.fill(records, 0, width * RECORD);
  } else {
    // Merging the first column a second time changes nothing.
    const p = x + ((<usize>offsetOf(info, 0, r * cols + c)) << shift);
    memory.copy(values, fetch(dtype, p, 0, 0, 0, width), width * sizeof<T>());
    for (let i: usize = 0; i < width; i++) store<u32>(places + (i << 2), <u32>c);
  }
  let pending: usize = 0;
  while (c < end) {
    let p = x + ((<usize>offsetOf(info, 0, r * cols + c)) << shift);
    const stop = c + min(inner - (c % inner), end - c);
    while (c < stop) {
      const four = !givesPlace(op) && native(dtype) && c + 4 <= stop;
      if (four) {
        if (op === Reduce.SUM) mergeFour<T>(Reduce.SUM, values, p, step, width);
        else if (op === Reduce.MIN) mergeFour<T>(Reduce.MIN, values, p, step, width);
        else mergeFour<T>(Reduce.MAX, values, p, step, width);
      } else {
        const q = fetch(dtype, p, 0, 0, 0, width);
        if (op === Reduce.SUM) mergeOne<T>(Reduce.SUM, values, q, width);
        else if (op === Reduce.MIN) mergeOne<T>(Reduce.MIN, values, q, width);
        else if (op === Reduce.MAX) mergeOne<T>(Reduce.MAX, values, q, width);
        else mergePlaces<T>(least, values, places, q, <u32>c, width);
      }
      const count: usize = four ? 4 : 1;
      c += count;
      p += count * step;
      pending += count;
      if (op === Reduce.SUM && pending >= FLUSH) {
        flush<T, A>(values, records, width);
        pending = 0;
      }
    }
  }
  if (op === Reduce.SUM) flush<T, A>(values, records, width);
  else {
    for (let i: usize = 0; i < width; i++) {
      store<A>(records + i * RECORD, <A>load<T>(values + i * sizeof<T>()));
      store<u32>(records + i * RECORD, load<u32>(places + (i << 2)), 8);
    }
  }
}

// @inline
function mergeOne<T>(op: i32, values: usize, p: usize, width: usize): void {
  const end = values + width * sizeof<T>();
  for (; values + 16 <= end; values += 16, p += 16) {
    v128.store(values, combineLanes<T>(op, v128.load(values), v128.load(p)));
  }
  for (; values < end; values += sizeof<T>(), p += sizeof<T>()) {
    store<T>(values, combine<T>(op, load<T>(values), load<T>(p)));
  }
}

// @inline
function mergeFour<T>(op: i32, values: usize, p: usize, step: usize, width: usize): void {
  const end = values + width * sizeof<T>();
  for (; values + 16 <= end; values += 16, p += 16) {
    v128.store(values, combineLanes<T>(op, v128.load(values), combine4<T>(op, p, step)));
  }
  for (; values < end; values += sizeof<T>(), p += sizeof<T>()) {
    const ab = combine<T>(op, load<T>(p), load<T>(p + step));
    const cd = combine<T>(op, load<T>(p + 2 * step), load<T>(p + 3 * step));
    store<T>(values, combine<T>(op, load<T>(values), combine<T>(op, ab, cd)));
  }
}

function mergePlaces<T>(least: bool, values: usize, places: usize, p: usize, c: u32, width: usize): void {
  const end = values + width * sizeof<T>();
  if (sizeof<T>() === 4) {
    for (; values + 16 <= end; values += 16, places += 16, p += 16) {
      const a = v128.load(p);
      const best = v128.load(values);
      let wins = least ? v128.lt<T>(a, best) : v128.gt<T>(a, best);
      if (isFloat<T>()) wins = v128.or(wins, v128.and(f32x4.ne(a, a), f32x4.eq(best, best)));
      v128.store(values, v128.bitselect(a, best, wins));
      v128.store(places, v128.bitselect(i32x4.splat(c), v128.load(places), wins));
    }
  }
  for (; values < end; values += sizeof<T>(), places += 4, p += sizeof<T>()) {
    if (!better<T>(least, load<T>(p), load<T>(values))) continue;
    store<T>(values, load<T>(p));
    store<u32>(places, c);
  }
}

function flush<T, A>(values: usize, records: usize, width: usize): void {
  for (let i: usize = 0; i < width; i++) {
    const value = load<A>(records + i * RECORD) + <A>load<T>(values + i * sizeof<T>());
    store<A>(records + i * RECORD, value);
  }
  memory.fill(values, 0, width * sizeof<T>());
}

function combineItems<T, A>(lo: usize, hi: usize): void {
  const op = arg<i32>(Arg.OP);
  const rows = arg<usize>(Arg.ROWS);
  const blocks = arg<usize>(Arg.BLOCKS);
  const least = op === Reduce.MIN || op === Reduce.ARGMIN;
  const record = slot(RECORDS);
  for (let r = lo; r < hi; r++) {
    let from = arg<usize>(Arg.RECORDS) + r * RECORD;
    let value = load<A>(from);
    let at = load<u32>(from, 8);
    for (let b: usize = 1; b < blocks; b++) {
      from += rows * RECORD;
      const next = load<A>(from);
      if (op === Reduce.SUM) value += next;
      else if (better<A>(least, next, value)) {
        value = next;
        at = load<u32>(from, 8);
      }
    }
    store<A>(record, value);
    store<u32>(record, at, 8);
    settle<T, A>(op, arg<i32>(Arg.DTYPE), record, r, 1);
  }
}

/** Writes the results of rows r … r+count−1, at most RUN. */
function settle<T, A>(op: i32, dtype: i32, records: usize, r: usize, count: usize): void {
  const out = arg<usize>(Arg.OUT);
  if (givesPlace(op)) {
    for (let i: usize = 0; i < count; i++) store<u32>(out + ((r + i) << 2), load<u32>(records + i * RECORD, 8));
    return;
  }
  const place = out + (r << shiftOf(dtype));
  const to = target(dtype, place);
  for (let i: usize = 0; i < count; i++) store<T>(to + i * sizeof<T>(), <T>load<A>(records + i * RECORD));
  commit(dtype, to, place, count);
}
