/** Products of few query rows with a block of keys or values, read where they lie. */
import { BLOCK } from "./attention-scores";
import { addLine, addLines4, dots, vector } from "./lines";
import { fma } from "./tile";

/** Scores of all rows with `count` keys. */
export function score<S, T>(
  rows: usize,
  d: usize,
  queries: usize,
  keys: usize,
  step: isize,
  count: i32,
  scores: usize,
): void {
  const size = sizeof<T>();
  const last = count - 1;
  for (let i = 0; i < count; i += 4) {
    // Past the last key the last one is scored again, in its own place.
    const i1 = min(i + 1, last);
    const i2 = min(i + 2, last);
    const i3 = min(i + 3, last);
    dots<S, T, T>(
      rows,
      d,
      queries,
      keys + <isize>i * step,
      keys + <isize>i1 * step,
      keys + <isize>i2 * step,
      keys + <isize>i3 * step,
      scores + <usize>i * size,
      scores + <usize>i1 * size,
      scores + <usize>i2 * size,
      scores + <usize>i3 * size,
      <usize>BLOCK * size,
    );
  }
}

/** sums += the weights of one row times `count` lines. Sums have room for whole vectors. */
export function addLines<S, T>(count: i32, weights: usize, values: usize, step: isize, dv: usize, sums: usize): void {
  let i = 0;
  for (; i + 4 <= count; i += 4, values += 4 * step) {
    addLines4<S, T>(
      weights + <usize>i * sizeof<T>(),
      values,
      values + step,
      values + 2 * step,
      values + 3 * step,
      dv,
      sums,
    );
  }
  for (; i < count; i++, values += step) addLine<S, T>(weights + <usize>i * sizeof<T>(), values, dv, sums);
}

/** Two rows of weights with `count` lines, four vectors of columns at a time: the sums stay in registers. */
export function sumPair<T>(
  count: i32,
  weights: usize,
  values: usize,
  step: isize,
  dv: usize,
  sums: usize,
  resultBytes: usize,
): void {
  const wide = 16 / sizeof<T>();
  const body = (dv * sizeof<T>()) & ~63;
  const end = weights + <usize>count * sizeof<T>();
  for (let c: usize = 0; c < body; c += 64) {
    const to = sums + c;
    const next = to + resultBytes;
    let a0 = v128.load(to);
    let a1 = v128.load(to, 16);
    let a2 = v128.load(to, 32);
    let a3 = v128.load(to, 48);
    let b0 = v128.load(next);
    let b1 = v128.load(next, 16);
    let b2 = v128.load(next, 32);
    let b3 = v128.load(next, 48);
    let line = values + c;
    for (let at = weights; at < end; at += sizeof<T>(), line += step) {
      const x = v128.load_splat<T>(at);
      const y = v128.load_splat<T>(at, <usize>BLOCK * sizeof<T>());
      let v = v128.load(line);
      a0 = fma<T>(x, v, a0);
      b0 = fma<T>(y, v, b0);
      v = v128.load(line, 16);
      a1 = fma<T>(x, v, a1);
      b1 = fma<T>(y, v, b1);
      v = v128.load(line, 32);
      a2 = fma<T>(x, v, a2);
      b2 = fma<T>(y, v, b2);
      v = v128.load(line, 48);
      a3 = fma<T>(x, v, a3);
      b3 = fma<T>(y, v, b3);
    }
    v128.store(to, a0);
    v128.store(to, a1, 16);
    v128.store(to, a2, 32);
    v128.store(to, a3, 48);
    v128.store(next, b0);
    v128.store(next, b1, 16);
    v128.store(next, b2, 32);
    v128.store(next, b3, 48);
  }
  for (let c = body; c < dv * sizeof<T>(); c += 16) {
    const n = min(wide, dv - c / sizeof<T>());
    let a = v128.load(sums + c);
    let b = v128.load(sums + c + resultBytes);
    let line = values + c;
    for (let at = weights; at < end; at += sizeof<T>(), line += step) {
      const v = vector<T, T>(line, n);
      a = fma<T>(v128.load_splat<T>(at), v, a);
      b = fma<T>(v128.load_splat<T>(at, <usize>BLOCK * sizeof<T>()), v, b);
    }
    v128.store(sums + c, a);
    v128.store(sums + c + resultBytes, b);
  }
}
