/**
 * Stable argsort of rows: elements become unsigned keys in the wanted order (NaN behind everything), and a radix sort
 * moves keys and indices, one byte of the key per pass; a byte that all keys share needs no pass. Rows that fit in a
 * thread's scratch memory are sorted one per item; longer ones one after the other, each pass by blocks on all threads.
 */
import { F64, I64 } from "./abi";
import { CF32, CF64, CI32, CI64, classOf, fetch, RUN, SCRATCH_FREE } from "./block";
import { arg, setArg } from "./memory";
import { parallel, SCRATCH_BYTES, scratch } from "./pool";
import { Address, Bytes, Cols, DTypeCode, Flag, OutAddress, Rows, TmpAddress } from "./types";

/** Rows up to this length are sorted by insertion. */
const SHORT: usize = 64;
/** Elements per block of a long row. */
const BLOCK: usize = 65536;
const CHUNK: usize = 4096;
const BINS: usize = 256;
const COUNTS_BYTES: usize = BINS << 2;

// @inline
function keyBytes(dtype: i32): usize {
  return dtype === F64 || dtype === I64 ? 8 : 4;
}

/** Two key buffers, a second index buffer, and the counts of each block. */
function workBytes(dtype: i32, cols: usize): u64 {
  const blocks = (<u64>cols + BLOCK - 1) / BLOCK;
  return ((<u64>cols * (2 * keyBytes(dtype) + 4) + 7) & ~7) + blocks * COUNTS_BYTES;
}

/** Whether a row is worth all threads, or needs memory of its own. */
function isLong(dtype: i32, rows: usize, cols: usize): bool {
  return SCRATCH_FREE + workBytes(dtype, cols) > SCRATCH_BYTES || (rows < 4 && cols > 2 * BLOCK);
}

/** Bytes that argsort needs at `tmp`; more than the memory can have stays more than that. */
export function argsortTmp(dtype: DTypeCode, rows: Rows, cols: Cols): Bytes {
  return rows > 0 && isLong(dtype, rows, cols) ? <usize>min<u64>(workBytes(dtype, cols), u32.MAX_VALUE) : 0;
}

const enum Arg {
  DTYPE,
  DESCENDING,
  COLS,
  X,
  OUT,
  ROW, // from here on of a long row
  TMP,
  SHIFT, // of the byte
  KEYS,
  INDICES, // 0: not yet written
  KEYS_TO,
  INDICES_TO,
  COUNTS,
}

export function argsort(
  dtype: DTypeCode,
  descending: Flag,
  rows: Rows,
  cols: Cols,
  x: Address,
  out: OutAddress,
  tmp: TmpAddress,
): void {
  if (cols === 0) return;
  setArg<i32>(Arg.DTYPE, dtype);
  setArg<i32>(Arg.DESCENDING, descending);
  setArg<usize>(Arg.COLS, cols);
  setArg<usize>(Arg.X, x);
  setArg<usize>(Arg.OUT, out);
  if (!isLong(dtype, rows, cols)) {
    parallel(sortRows, rows, max<usize>(1, CHUNK / cols));
    return;
  }
  setArg<usize>(Arg.TMP, tmp);
  for (let r: usize = 0; r < rows; r++) {
    setArg<usize>(Arg.ROW, r);
    if (keyBytes(dtype) === 8) sortLong<u64>(tmp, cols, out + ((r * cols) << 2));
    else sortLong<u32>(tmp, cols, out + ((r * cols) << 2));
  }
}

function sortRows(lo: usize, hi: usize): void {
  if (keyBytes(arg<i32>(Arg.DTYPE)) === 8) rows<u64>(lo, hi);
  else rows<u32>(lo, hi);
}

function rows<K>(lo: usize, hi: usize): void {
  const cols = arg<usize>(Arg.COLS);
  const tmp = scratch + SCRATCH_FREE;
  for (let r = lo; r < hi; r++) {
    const out = arg<usize>(Arg.OUT) + ((r * cols) << 2);
    toKeys<K>(r * cols, cols, tmp);
    if (cols <= SHORT) insertion<K>(tmp, cols, out);
    else radix<K>(tmp, cols, out);
  }
}

// Keys

function toKeys<K>(start: usize, n: usize, to: usize): void {
  const dtype = arg<i32>(Arg.DTYPE);
  const kind = classOf(dtype);
  const flip: K = arg<i32>(Arg.DESCENDING) ? <K>-1 : 0;
  for (let c: usize = 0; c < n; c += RUN) {
    const count = min(RUN, n - c);
    const p = fetch(dtype, arg<usize>(Arg.X), 0, 0, start + c, count);
    const keys = to + c * sizeof<K>();
    for (let i: usize = 0; i < count; i++) {
      const from = p + i * sizeof<K>();
      let key = load<K>(from);
      const top: K = (<K>1) << (8 * sizeof<K>() - 1);
      if (kind === CF32 || kind === CF64) {
        // −0 + 0 is +0. Negative floats reverse their order.
        if (sizeof<K>() === 8) key = <K>reinterpret<u64>(load<f64>(from) + 0.0);
        else key = <K>reinterpret<u32>(load<f32>(from) + 0.0);
        const nan = (key & ~top) > (sizeof<K>() === 8 ? <K>0x7ff0000000000000 : <K>0x7f800000);
        key = nan ? <K>-1 : (key & top ? ~key : key | top) ^ flip;
      } else if (kind === CI32 || kind === CI64) key = key ^ top ^ flip;
      else key ^= flip;
      store<K>(keys + i * sizeof<K>(), key);
    }
  }
}

function insertion<K>(keys: usize, n: usize, out: usize): void {
  for (let i: usize = 0; i < n; i++) {
    const key = load<K>(keys + i * sizeof<K>());
    let j = i;
    for (; j > 0; j--) {
      const before = load<K>(keys + (j - 1) * sizeof<K>());
      if (before <= key) break;
      store<K>(keys + j * sizeof<K>(), before);
      store<u32>(out + (j << 2), load<u32>(out + ((j - 1) << 2)));
    }
    store<K>(keys + j * sizeof<K>(), key);
    store<u32>(out + (j << 2), <u32>i);
  }
}

// Radix passes

function count<K>(keys: usize, n: usize, shift: i32, counts: usize): void {
  memory.fill(counts, 0, COUNTS_BYTES);
  const end = keys + n * sizeof<K>();
  for (; keys < end; keys += sizeof<K>()) {
    const bin = counts + ((<usize>(load<K>(keys) >> <K>shift) & 0xff) << 2);
    store<u32>(bin, load<u32>(bin) + 1);
  }
}

/** Counts of each block to the place of its first key per bin; false if one bin has all keys. */
function place(counts: usize, blocks: usize, n: usize): bool {
  let at: u32 = 0;
  for (let bin: usize = 0; bin < BINS; bin++) {
    const first = at;
    for (let b: usize = 0; b < blocks; b++) {
      const p = counts + b * COUNTS_BYTES + (bin << 2);
      const many = load<u32>(p);
      store<u32>(p, at);
      at += many;
    }
    if (<usize>(at - first) === n) return false;
  }
  return true;
}

/** Elements lo … hi−1 to their places; `indices` 0 stands for 0, 1, 2, … */
function move<K>(
  keys: usize,
  indices: usize,
  lo: usize,
  hi: usize,
  shift: i32,
  counts: usize,
  keysTo: usize,
  indicesTo: usize,
): void {
  for (let i = lo; i < hi; i++) {
    const key = load<K>(keys + i * sizeof<K>());
    const bin = counts + ((<usize>(key >> <K>shift) & 0xff) << 2);
    const to = <usize>load<u32>(bin);
    store<u32>(bin, <u32>to + 1);
    store<K>(keysTo + to * sizeof<K>(), key);
    store<u32>(indicesTo + (to << 2), indices === 0 ? <u32>i : load<u32>(indices + (i << 2)));
  }
}

/** What no pass has moved is in its first order; what an odd number of passes has moved is not yet in `out`. */
function finish(indices: usize, n: usize, out: usize): void {
  if (indices === 0) for (let i: usize = 0; i < n; i++) store<u32>(out + (i << 2), <u32>i);
  else if (indices !== out) memory.copy(out, indices, n << 2);
}

function radix<K>(tmp: usize, n: usize, out: usize): void {
  let keys = tmp;
  let keysTo = tmp + n * sizeof<K>();
  let indices: usize = 0;
  let indicesTo = out;
  const spare = keysTo + n * sizeof<K>();
  const counts = (spare + (n << 2) + 7) & ~7;
  for (let shift = 0; shift < 8 * <i32>sizeof<K>(); shift += 8) {
    count<K>(keys, n, shift, counts);
    if (!place(counts, 1, n)) continue;
    move<K>(keys, indices, 0, n, shift, counts, keysTo, indicesTo);
    const next = keysTo;
    keysTo = keys;
    keys = next;
    indices = indicesTo;
    indicesTo = indices === out ? spare : out;
  }
  finish(indices, n, out);
}

function sortLong<K>(tmp: usize, n: usize, out: usize): void {
  const blocks = (n - 1) / BLOCK + 1;
  let keys = tmp;
  let keysTo = tmp + n * sizeof<K>();
  let indices: usize = 0;
  let indicesTo = out;
  const spare = keysTo + n * sizeof<K>();
  const counts = (spare + (n << 2) + 7) & ~7;
  parallel(keysOfBlocks, blocks, 1);
  for (let shift = 0; shift < 8 * <i32>sizeof<K>(); shift += 8) {
    setArg<i32>(Arg.SHIFT, shift);
    setArg<usize>(Arg.KEYS, keys);
    setArg<usize>(Arg.INDICES, indices);
    setArg<usize>(Arg.KEYS_TO, keysTo);
    setArg<usize>(Arg.INDICES_TO, indicesTo);
    setArg<usize>(Arg.COUNTS, counts);
    parallel(countBlocks, blocks, 1);
    if (!place(counts, blocks, n)) continue;
    parallel(moveBlocks, blocks, 1);
    const next = keysTo;
    keysTo = keys;
    keys = next;
    indices = indicesTo;
    indicesTo = indices === out ? spare : out;
  }
  finish(indices, n, out);
}

function keysOfBlocks(lo: usize, hi: usize): void {
  const cols = arg<usize>(Arg.COLS);
  const start = arg<usize>(Arg.ROW) * cols + lo * BLOCK;
  const n = min(hi * BLOCK, cols) - lo * BLOCK;
  if (keyBytes(arg<i32>(Arg.DTYPE)) === 8) toKeys<u64>(start, n, arg<usize>(Arg.TMP) + ((lo * BLOCK) << 3));
  else toKeys<u32>(start, n, arg<usize>(Arg.TMP) + ((lo * BLOCK) << 2));
}

function countBlocks(lo: usize, hi: usize): void {
  const n = min(hi * BLOCK, arg<usize>(Arg.COLS)) - lo * BLOCK;
  const counts = arg<usize>(Arg.COUNTS) + lo * COUNTS_BYTES;
  if (keyBytes(arg<i32>(Arg.DTYPE)) === 8)
    count<u64>(arg<usize>(Arg.KEYS) + ((lo * BLOCK) << 3), n, arg<i32>(Arg.SHIFT), counts);
  else count<u32>(arg<usize>(Arg.KEYS) + ((lo * BLOCK) << 2), n, arg<i32>(Arg.SHIFT), counts);
}

function moveBlocks(lo: usize, hi: usize): void {
  const end = min(hi * BLOCK, arg<usize>(Arg.COLS));
  const counts = arg<usize>(Arg.COUNTS) + lo * COUNTS_BYTES;
  const keys = arg<usize>(Arg.KEYS);
  const indices = arg<usize>(Arg.INDICES);
  const shift = arg<i32>(Arg.SHIFT);
  const keysTo = arg<usize>(Arg.KEYS_TO);
  const indicesTo = arg<usize>(Arg.INDICES_TO);
  if (keyBytes(arg<i32>(Arg.DTYPE)) === 8) move<u64>(keys, indices, lo * BLOCK, end, shift, counts, keysTo, indicesTo);
  else move<u32>(keys, indices, lo * BLOCK, end, shift, counts, keysTo, indicesTo);
}
