/**
 * One row of f32 or f64 with eight lines of a matrix at a time, 64 bytes of each. Prefetchers stop at the end of a
 * page, and that pause is shared by as many lines as are read at once; more than eight of them evict each other from
 * the first-level cache where their distance is a multiple of 4096 bytes. The eight of a dot are not neighbours: each
 * begins a run of lines that follow each other in memory, so that a page that holds the ends of two lines is entered
 * once.
 */
import { addLine, part, total } from "./lines";
import { fma } from "./tile";

/** Lines at a time. */
export const STREAMS: usize = 8;
const TILE: usize = 64;

/** s plus the products of 64 bytes with x0 … x3. */
// @inline
function addTile<T>(s: v128, b: usize, x0: v128, x1: v128, x2: v128, x3: v128): v128 {
  s = fma<T>(x1, v128.load(b, 16), fma<T>(x0, v128.load(b), s));
  return fma<T>(x3, v128.load(b, 48), fma<T>(x2, v128.load(b, 32), s));
}

/** The sum of a line: what its tiles gave, and what is left of it. */
function finish<T>(s: v128, a: usize, b: usize, end: usize): T {
  for (; a + 16 <= end; a += 16, b += 16) s = fma<T>(v128.load(a), v128.load(b), s);
  if (a < end) {
    const n = (end - a) / sizeof<T>();
    s = fma<T>(part<T, T>(a, n), part<T, T>(b, n), s);
  }
  return total<T>(s);
}

/** The row at `a` with lines b + i · step, i < 8 · run, in the order of additions of lines.ts; contiguous results. */
export function dotStreams<T>(k: usize, a: usize, b: usize, step: isize, run: usize, out: usize): void {
  for (let i: usize = 0; i < run; i++, b += step, out += sizeof<T>())
    dot8<T>(k, a, b, <isize>run * step, out, run * sizeof<T>());
}

/**
 * Between lines is a branch that is never taken: engines load all of a basic block before they multiply, and eight
 * lines would not fit the sixteen registers.
 */
function dot8<T>(k: usize, a: usize, b: usize, step: isize, out: usize, outStep: usize): void {
  let b0 = b;
  let b1 = b0 + step;
  let b2 = b1 + step;
  let b3 = b2 + step;
  let b4 = b3 + step;
  let b5 = b4 + step;
  let b6 = b5 + step;
  let b7 = b6 + step;
  let s0 = v128.splat<T>(0);
  let s1 = s0;
  let s2 = s0;
  let s3 = s0;
  let s4 = s0;
  let s5 = s0;
  let s6 = s0;
  let s7 = s0;
  const end = a + k * sizeof<T>();
  const body = a + ((k * sizeof<T>()) & ~(TILE - 1));
  for (; a < body; a += TILE) {
    const x0 = v128.load(a);
    const x1 = v128.load(a, 16);
    const x2 = v128.load(a, 32);
    const x3 = v128.load(a, 48);
    s0 = addTile<T>(s0, b0, x0, x1, x2, x3);
    b0 += TILE;
    if (b1 === 0) break;
    s1 = addTile<T>(s1, b1, x0, x1, x2, x3);
    b1 += TILE;
    if (b2 === 0) break;
    s2 = addTile<T>(s2, b2, x0, x1, x2, x3);
    b2 += TILE;
    if (b3 === 0) break;
    s3 = addTile<T>(s3, b3, x0, x1, x2, x3);
    b3 += TILE;
    if (b4 === 0) break;
    s4 = addTile<T>(s4, b4, x0, x1, x2, x3);
    b4 += TILE;
    if (b5 === 0) break;
    s5 = addTile<T>(s5, b5, x0, x1, x2, x3);
    b5 += TILE;
    if (b6 === 0) break;
    s6 = addTile<T>(s6, b6, x0, x1, x2, x3);
    b6 += TILE;
    if (b7 === 0) break;
    s7 = addTile<T>(s7, b7, x0, x1, x2, x3);
    b7 += TILE;
  }
  store<T>(out, finish<T>(s0, a, b0, end));
  out += outStep;
  store<T>(out, finish<T>(s1, a, b1, end));
  out += outStep;
  store<T>(out, finish<T>(s2, a, b2, end));
  out += outStep;
  store<T>(out, finish<T>(s3, a, b3, end));
  out += outStep;
  store<T>(out, finish<T>(s4, a, b4, end));
  out += outStep;
  store<T>(out, finish<T>(s5, a, b5, end));
  out += outStep;
  store<T>(out, finish<T>(s6, a, b6, end));
  store<T>(out + outStep, finish<T>(s7, a, b7, end));
}

/** sums += the coefficients at `a` times lines b + i · step, i < 8 · run, in their order. */
export function addStreams<T>(a: usize, b: usize, step: isize, run: usize, cols: usize, sums: usize): void {
  for (let i: usize = 0; i < run; i++, b += STREAMS * step, a += STREAMS * sizeof<T>()) add8<T>(a, b, step, cols, sums);
}

function add8<T>(a: usize, b: usize, step: isize, cols: usize, sums: usize): void {
  const end = a + STREAMS * sizeof<T>();
  const body = sums + ((cols * sizeof<T>()) & ~(TILE - 1));
  for (; sums < body; sums += TILE, b += TILE) {
    let s0 = v128.load(sums);
    let s1 = v128.load(sums, 16);
    let s2 = v128.load(sums, 32);
    let s3 = v128.load(sums, 48);
    for (let x = a, line = b; x < end; x += sizeof<T>(), line += step) {
      const weight = v128.load_splat<T>(x);
      s0 = fma<T>(weight, v128.load(line), s0);
      s1 = fma<T>(weight, v128.load(line, 16), s1);
      s2 = fma<T>(weight, v128.load(line, 32), s2);
      s3 = fma<T>(weight, v128.load(line, 48), s3);
    }
    v128.store(sums, s0);
    v128.store(sums, s1, 16);
    v128.store(sums, s2, 32);
    v128.store(sums, s3, 48);
  }
  const rest = cols & (TILE / sizeof<T>() - 1);
  if (rest) for (; a < end; a += sizeof<T>(), b += step) addLine<T, T>(a, b, rest, sums);
}
