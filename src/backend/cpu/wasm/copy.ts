/** Moves elements without looking at them: copies between layouts, and fills. Elements are known by log2 of their bytes. */
import { fetchRaw, offsetOf, RUN, SCRATCH_FREE, scatterRun } from "./block";
import { arg, setArg } from "./memory";
import { parallel, scratch } from "./pool";
import { Address, Count, Layouts, OutAddress, Shift } from "./types";

/** Bytes or elements per chunk: some tens of microseconds of copying. */
const FLAT_GRAIN: usize = 1 << 18;
const STRIDED_GRAIN: usize = 1 << 15;

const enum CopyArg {
  SHIFT,
  INFO,
  SRC,
  DST,
  SRC_DIM, // the dims along which src and dst are contiguous
  DST_DIM,
}

/** dst ← src, both of n elements and any layout (operands 0 and 1 of `info`). */
export function copy(shift: Shift, n: Count, info: Layouts, src: Address, dst: OutAddress): void {
  if (n === 0) return;
  setArg<i32>(CopyArg.SHIFT, shift);
  setArg<usize>(CopyArg.INFO, info);
  setArg<usize>(CopyArg.SRC, src);
  setArg<usize>(CopyArg.DST, dst);
  if (info === 0) {
    parallel(copyFlat, n << shift, FLAT_GRAIN);
    return;
  }
  const rank = load<i32>(info);
  const inner = rank - 1;
  if (strideAt(info, 0, inner) === 1 && strideAt(info, 1, inner) === 1 && sizeAt(info, inner) >= 8) {
    parallel(copyRows, n, STRIDED_GRAIN);
    return;
  }
  const i = unitDim(info, 0);
  const j = unitDim(info, 1);
  if (i < 0 || j < 0 || i === j) {
    parallel(copyStrided, n, STRIDED_GRAIN);
    return;
  }
  setArg<i32>(CopyArg.SRC_DIM, i);
  setArg<i32>(CopyArg.DST_DIM, j);
  const tilesI = (sizeAt(info, i) - 1) / TILE + 1;
  const tilesJ = (sizeAt(info, j) - 1) / TILE + 1;
  const batch = n / (sizeAt(info, i) * sizeAt(info, j));
  parallel(copyTiles, batch * tilesI * tilesJ, 1);
}

// @inline
function sizeAt(info: usize, d: i32): usize {
  return <usize>load<u32>(info + 4 + ((<usize>d) << 2));
}
// @inline
function strideAt(info: usize, k: i32, d: i32): isize {
  return <isize>load<i32>(info + 4 + ((<usize>load<i32>(info) * (1 + <usize>k) + <usize>d) << 2));
}

/** The dim along which operand `k` is contiguous, if it is long enough to gain from tiles; otherwise −1. */
function unitDim(info: usize, k: i32): i32 {
  for (let d = load<i32>(info) - 1; d >= 0; d--) {
    if (strideAt(info, k, d) === 1 && sizeAt(info, d) >= 4) return d;
  }
  return -1;
}

function copyFlat(lo: usize, hi: usize): void {
  memory.copy(arg<usize>(CopyArg.DST) + lo, arg<usize>(CopyArg.SRC) + lo, hi - lo);
}

/** Both sides are contiguous along the innermost dim. */
function copyRows(lo: usize, hi: usize): void {
  const shift = arg<i32>(CopyArg.SHIFT);
  const info = arg<usize>(CopyArg.INFO);
  const src = arg<usize>(CopyArg.SRC);
  const dst = arg<usize>(CopyArg.DST);
  const inner = sizeAt(info, load<i32>(info) - 1);
  let skip = lo % inner;
  while (lo < hi) {
    const count = min(inner - skip, hi - lo);
    const from = src + (offsetOf(info, 0, lo) << shift);
    memory.copy(dst + (offsetOf(info, 1, lo) << shift), from, count << shift);
    lo += count;
    skip = 0;
  }
}

function copyStrided(lo: usize, hi: usize): void {
  const shift = arg<i32>(CopyArg.SHIFT);
  const info = arg<usize>(CopyArg.INFO);
  const src = arg<usize>(CopyArg.SRC);
  const dst = arg<usize>(CopyArg.DST);
  for (; lo < hi; lo += RUN) {
    const n = min(RUN, hi - lo);
    const from = fetchRaw(shift, src, info, 0, lo, n);
    if (shift === 2) scatterRun<u32>(dst, info, 1, lo, n, from);
    else if (shift === 1) scatterRun<u16>(dst, info, 1, lo, n, from);
    else if (shift === 0) scatterRun<u8>(dst, info, 1, lo, n, from);
    else scatterRun<u64>(dst, info, 1, lo, n, from);
  }
}

// ---- transposes ----

/** Tiles of TILE × TILE elements, inside them blocks of one cache line squared: few pages and whole lines at a time. */
const TILE: usize = 256;
const LINE: usize = 64;

/** Source and destination are contiguous along different dims i and j. Items are tiles of these; j varies fastest. */
function copyTiles(lo: usize, hi: usize): void {
  const shift = arg<i32>(CopyArg.SHIFT);
  const info = arg<usize>(CopyArg.INFO);
  const i = arg<i32>(CopyArg.SRC_DIM);
  const j = arg<i32>(CopyArg.DST_DIM);
  const sizeI = sizeAt(info, i);
  const sizeJ = sizeAt(info, j);
  const tilesI = (sizeI - 1) / TILE + 1;
  const tilesJ = (sizeJ - 1) / TILE + 1;
  const rowSrc = strideAt(info, 0, j) << shift;
  const rowDst = strideAt(info, 1, i) << shift;
  for (; lo < hi; lo++) {
    const atJ = (lo % tilesJ) * TILE;
    const outer = lo / tilesJ;
    const atI = (outer % tilesI) * TILE;
    let batch = outer / tilesI;
    let src = arg<usize>(CopyArg.SRC) + (atI << shift) + atJ * rowSrc;
    let dst = arg<usize>(CopyArg.DST) + (atJ << shift) + atI * rowDst;
    for (let d = load<i32>(info) - 1; d >= 0; d--) {
      if (d === i || d === j) continue;
      const size = sizeAt(info, d);
      const at = <isize>(batch % size);
      batch /= size;
      src += (at * strideAt(info, 0, d)) << shift;
      dst += (at * strideAt(info, 1, d)) << shift;
    }
    const countI = min(TILE, sizeI - atI);
    const countJ = min(TILE, sizeJ - atJ);
    if (shift === 2) transposeTile<u32>(src, rowSrc, dst, rowDst, countI, countJ);
    else if (shift === 1) transposeTile<u16>(src, rowSrc, dst, rowDst, countI, countJ);
    else if (shift === 0) transposeTile<u8>(src, rowSrc, dst, rowDst, countI, countJ);
    else transposeTile<u64>(src, rowSrc, dst, rowDst, countI, countJ);
  }
}

/** Element (i, j) from src + i + j·rowSrc to dst + j + i·rowDst (rows in bytes). */
function transposeTile<T>(src: usize, rowSrc: usize, dst: usize, rowDst: usize, countI: usize, countJ: usize): void {
  const block = LINE / sizeof<T>();
  for (let j: usize = 0; j < countJ; j += block) {
    for (let i: usize = 0; i < countI; i += block) {
      const from = src + i * sizeof<T>() + j * rowSrc;
      const to = dst + j * sizeof<T>() + i * rowDst;
      if (sizeof<T>() > 1 && i + block <= countI && j + block <= countJ) {
        transposeBlock<T>(from, rowSrc, to, rowDst);
      } else {
        transposeEdge<T>(from, rowSrc, to, rowDst, min(block, countI - i), min(block, countJ - j));
      }
    }
  }
}

function transposeEdge<T>(src: usize, rowSrc: usize, dst: usize, rowDst: usize, countI: usize, countJ: usize): void {
  for (let i: usize = 0; i < countI; i++) {
    let from = src + i * sizeof<T>();
    let to = dst + i * rowDst;
    for (let j: usize = 0; j < countJ; j++) {
      store<T>(to, load<T>(from));
      from += rowSrc;
      to += sizeof<T>();
    }
  }
}

/**
 * One line squared, by way of a small buffer: each source line is read once and each destination line written once.
 * Without it, rows a power of two apart would push each other out of the cache between the parts of a line.
 */
function transposeBlock<T>(src: usize, rowSrc: usize, dst: usize, rowDst: usize): void {
  const buffer = scratch + SCRATCH_FREE;
  const lanes = 16 / sizeof<T>();
  for (let j: usize = 0; j < LINE; j += 16) {
    for (let i: usize = 0; i < LINE; i += 16) transposeLanes<T>(src + i, rowSrc, buffer + i * (LINE / sizeof<T>()) + j);
    src += rowSrc * lanes;
  }
  for (let at = buffer, end = buffer + LINE * (LINE / sizeof<T>()); at < end; at += LINE) {
    v128.store(dst, v128.load(at));
    v128.store(dst, v128.load(at, 16), 16);
    v128.store(dst, v128.load(at, 32), 32);
    v128.store(dst, v128.load(at, 48), 48);
    dst += rowDst;
  }
}

/** One vector squared, into rows LINE bytes apart. */
// @inline
function transposeLanes<T>(src: usize, row: usize, dst: usize): void {
  if (sizeof<T>() === 8) {
    const a = v128.load(src);
    const b = v128.load(src + row);
    v128.store(dst, v128.shuffle<u64>(a, b, 0, 2));
    v128.store(dst, v128.shuffle<u64>(a, b, 1, 3), LINE);
  } else if (sizeof<T>() === 4) {
    const a = v128.load(src);
    const b = v128.load(src + row);
    const c = v128.load(src + 2 * row);
    const d = v128.load(src + 3 * row);
    const ab = v128.shuffle<u32>(a, b, 0, 4, 1, 5);
    const cd = v128.shuffle<u32>(c, d, 0, 4, 1, 5);
    const AB = v128.shuffle<u32>(a, b, 2, 6, 3, 7);
    const CD = v128.shuffle<u32>(c, d, 2, 6, 3, 7);
    v128.store(dst, v128.shuffle<u64>(ab, cd, 0, 2));
    v128.store(dst, v128.shuffle<u64>(ab, cd, 1, 3), LINE);
    v128.store(dst, v128.shuffle<u64>(AB, CD, 0, 2), 2 * LINE);
    v128.store(dst, v128.shuffle<u64>(AB, CD, 1, 3), 3 * LINE);
  } else {
    // Three rounds of interleaving: rows 0 and 4, 1 and 5, … each time.
    const r0 = v128.load(src);
    const r1 = v128.load(src + row);
    const r2 = v128.load(src + 2 * row);
    const r3 = v128.load(src + 3 * row);
    const r4 = v128.load(src + 4 * row);
    const r5 = v128.load(src + 5 * row);
    const r6 = v128.load(src + 6 * row);
    const r7 = v128.load(src + 7 * row);
    const s0 = low16(r0, r4);
    const s1 = high16(r0, r4);
    const s2 = low16(r1, r5);
    const s3 = high16(r1, r5);
    const s4 = low16(r2, r6);
    const s5 = high16(r2, r6);
    const s6 = low16(r3, r7);
    const s7 = high16(r3, r7);
    const t0 = low16(s0, s4);
    const t1 = high16(s0, s4);
    const t2 = low16(s1, s5);
    const t3 = high16(s1, s5);
    const t4 = low16(s2, s6);
    const t5 = high16(s2, s6);
    const t6 = low16(s3, s7);
    const t7 = high16(s3, s7);
    v128.store(dst, low16(t0, t4));
    v128.store(dst, high16(t0, t4), LINE);
    v128.store(dst, low16(t1, t5), 2 * LINE);
    v128.store(dst, high16(t1, t5), 3 * LINE);
    v128.store(dst, low16(t2, t6), 4 * LINE);
    v128.store(dst, high16(t2, t6), 5 * LINE);
    v128.store(dst, low16(t3, t7), 6 * LINE);
    v128.store(dst, high16(t3, t7), 7 * LINE);
  }
}
// @inline
function low16(a: v128, b: v128): v128 {
  return v128.shuffle<u16>(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
}
// @inline
function high16(a: v128, b: v128): v128 {
  return v128.shuffle<u16>(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
}

// ---- fill ----

const enum FillArg {
  OUT,
  PATTERN,
}

/** n elements whose bits are the low bytes of `pattern`. */
export function fill(shift: Shift, n: Count, out: OutAddress, pattern: i64): void {
  setArg<usize>(FillArg.OUT, out);
  setArg<u64>(FillArg.PATTERN, repeated(shift, <u64>pattern));
  parallel(fillBytes, n << shift, FLAT_GRAIN);
}

/** The low 1 << shift bytes of `bits`, repeated over eight bytes. */
export function repeated(shift: i32, bits: u64): u64 {
  if (shift === 0) return (bits & 0xff) * 0x0101010101010101;
  if (shift === 1) return (bits & 0xffff) * 0x0001000100010001;
  if (shift === 2) return (bits & 0xffffffff) * 0x0000000100000001;
  return bits;
}

/** Chunks begin at multiples of eight bytes of the array, so the pattern is in phase. */
function fillBytes(lo: usize, hi: usize): void {
  const out = arg<usize>(FillArg.OUT);
  let pattern = arg<u64>(FillArg.PATTERN);
  const vector = i64x2.splat(pattern);
  for (; hi - lo >= 16; lo += 16) v128.store(out + lo, vector);
  for (; hi - lo >= 8; lo += 8) store<u64>(out + lo, pattern);
  for (; lo < hi; lo++) {
    store<u8>(out + lo, <u8>pattern);
    pattern >>= 8;
  }
}
