/**
 * Sums over lines of a matrix where they lie: dots with thin rows, and weighted additions. The element type is a type
 * argument: f32, f64, u16 for bf16 and i16 for f16, which are widened in registers.
 *
 * A dot adds the products of one vector after the other to one vector of sums, whose lanes are added at the end; what is
 * left of k is a vector with zeros. Weighted additions take one line after the other. Everything that serves the rows
 * of a product keeps to these orders, so that a row's results do not depend on how many rows there are.
 */
import { f16ToF32x4, f32ToBf16x4, f32ToF16x4 } from "./block";
import { fma } from "./tile";

/** A vector of the matrix, widened. */
// @inline
export function lanes<T>(at: usize): v128 {
  if (isFloat<T>()) return v128.load(at);
  return isSigned<T>() ? f16Lanes(at) : i32x4.shl(v128.load_ext<u16>(at), 16);
}

/** f16ToF32x4 in fewer steps: the sign is extended and moves along with the exponent. */
// @inline
function f16Lanes(at: usize): v128 {
  const x = i32x4.shl(v128.load_ext<i16>(at), 13);
  const scaled = f32x4.mul(v128.and(x, i32x4.splat(0x8fffe000)), f32x4.splat(reinterpret<f32>(0x77800000)));
  const top = i32x4.splat(0x0f800000);
  const special = v128.and(i32x4.eq(v128.and(x, top), top), i32x4.splat(0x7f800000));
  return v128.or(scaled, special);
}

/** The first n elements of a vector of the matrix, widened, and zeros. */
export function part<T, Acc>(at: usize, n: usize): v128 {
  if (sizeof<Acc>() === 8) return v128.load_zero<f64>(at);
  if (isFloat<T>()) {
    if (n === 1) return v128.load_zero<f32>(at);
    const pair = v128.load_zero<f64>(at);
    return n === 2 ? pair : v128.load_lane<f32>(at, pair, 2, 8);
  }
  let bits = i32x4.replace_lane(i32x4.splat(0), 0, <i32>load<u16>(at));
  if (n > 1) bits = i32x4.replace_lane(bits, 1, <i32>load<u16>(at, 2));
  if (n > 2) bits = i32x4.replace_lane(bits, 2, <i32>load<u16>(at, 4));
  return isSigned<T>() ? f16ToF32x4(bits) : i32x4.shl(bits, 16);
}

/** A vector of which n elements are there. */
// @inline
export function vector<T, Acc>(at: usize, n: usize): v128 {
  return n === 16 / sizeof<Acc>() ? lanes<T>(at) : part<T, Acc>(at, n);
}

// @inline
export function one<T, Acc>(at: usize): Acc {
  if (isFloat<T>()) return <Acc>load<T>(at);
  const bits = i32x4.splat(<i32>load<u16>(at));
  return <Acc>f32x4.extract_lane(isSigned<T>() ? f16ToF32x4(bits) : i32x4.shl(bits, 16), 0);
}

// @inline
export function put<T, Acc>(at: usize, value: Acc): void {
  if (isFloat<T>()) return store<Acc>(at, value);
  const x = f32x4.splat(<f32>value);
  store<u16>(at, <u16>i32x4.extract_lane(isSigned<T>() ? f32ToF16x4(x) : f32ToBf16x4(x), 0));
}

// @inline
export function total<Acc>(x: v128): Acc {
  if (sizeof<Acc>() === 8) return <Acc>(f64x2.extract_lane(x, 0) + f64x2.extract_lane(x, 1));
  return <Acc>(
    (f32x4.extract_lane(x, 0) + f32x4.extract_lane(x, 1) + (f32x4.extract_lane(x, 2) + f32x4.extract_lane(x, 3)))
  );
}

/** All thin rows with four lines of S; results are stored as T. */
export function dots<S, Acc, T>(
  m: usize,
  k: usize,
  a: usize,
  b0: usize,
  b1: usize,
  b2: usize,
  b3: usize,
  o0: usize,
  o1: usize,
  o2: usize,
  o3: usize,
  outRow: usize,
): void {
  const line = k * sizeof<Acc>();
  let i: usize = 0;
  for (; i + 4 <= m; i += 4, a += 4 * line) {
    dots4x2<S, Acc, T>(k, a, line, b0, b1, o0 + i * outRow, o1 + i * outRow, outRow);
    dots4x2<S, Acc, T>(k, a, line, b2, b3, o2 + i * outRow, o3 + i * outRow, outRow);
  }
  for (; i < m; i++, a += line)
    dots1x4<S, Acc, T>(k, a, b0, b1, b2, b3, o0 + i * outRow, o1 + i * outRow, o2 + i * outRow, o3 + i * outRow);
}

/**
 * One thin row with four lines, two vectors of each at a time: engines load all of a round before they multiply, so that
 * more would not fit the sixteen registers.
 */
function dots1x4<S, Acc, T>(
  k: usize,
  a: usize,
  b0: usize,
  b1: usize,
  b2: usize,
  b3: usize,
  o0: usize,
  o1: usize,
  o2: usize,
  o3: usize,
): void {
  const wide = 16 / sizeof<Acc>();
  const step = wide * sizeof<S>();
  let s0 = v128.splat<Acc>(0);
  let s1 = s0;
  let s2 = s0;
  let s3 = s0;
  const end = a + k * sizeof<Acc>();
  const body = a + (k & ~(2 * wide - 1)) * sizeof<Acc>();
  for (; a < body; a += 32) {
    const x = v128.load(a);
    const y = v128.load(a, 16);
    s0 = fma<Acc>(y, lanes<S>(b0 + step), fma<Acc>(x, lanes<S>(b0), s0));
    s1 = fma<Acc>(y, lanes<S>(b1 + step), fma<Acc>(x, lanes<S>(b1), s1));
    s2 = fma<Acc>(y, lanes<S>(b2 + step), fma<Acc>(x, lanes<S>(b2), s2));
    s3 = fma<Acc>(y, lanes<S>(b3 + step), fma<Acc>(x, lanes<S>(b3), s3));
    b0 += 2 * step;
    b1 += 2 * step;
    b2 += 2 * step;
    b3 += 2 * step;
  }
  for (; a < end; a += 16) {
    const n = min(wide, (end - a) / sizeof<Acc>());
    const x = vector<Acc, Acc>(a, n);
    s0 = fma<Acc>(x, vector<S, Acc>(b0, n), s0);
    s1 = fma<Acc>(x, vector<S, Acc>(b1, n), s1);
    s2 = fma<Acc>(x, vector<S, Acc>(b2, n), s2);
    s3 = fma<Acc>(x, vector<S, Acc>(b3, n), s3);
    b0 += step;
    b1 += step;
    b2 += step;
    b3 += step;
  }
  put<T, Acc>(o0, total<Acc>(s0));
  put<T, Acc>(o1, total<Acc>(s1));
  put<T, Acc>(o2, total<Acc>(s2));
  put<T, Acc>(o3, total<Acc>(s3));
}

/** Four thin rows with two lines, so that a widened vector serves four times. */
function dots4x2<S, Acc, T>(
  k: usize,
  a: usize,
  line: usize,
  b0: usize,
  b1: usize,
  o0: usize,
  o1: usize,
  outRow: usize,
): void {
  const wide = 16 / sizeof<Acc>();
  const step = wide * sizeof<S>();
  const zero = v128.splat<Acc>(0);
  let s0 = zero;
  let s1 = zero;
  let s2 = zero;
  let s3 = zero;
  let t0 = zero;
  let t1 = zero;
  let t2 = zero;
  let t3 = zero;
  let a1 = a + line;
  let a2 = a1 + line;
  let a3 = a2 + line;
  const end = a + k * sizeof<Acc>();
  const body = a + (k & ~(wide - 1)) * sizeof<Acc>();
  for (; a < body; a += 16) {
    const x = lanes<S>(b0);
    const y = lanes<S>(b1);
    let z = v128.load(a);
    s0 = fma<Acc>(z, x, s0);
    t0 = fma<Acc>(z, y, t0);
    z = v128.load(a1);
    s1 = fma<Acc>(z, x, s1);
    t1 = fma<Acc>(z, y, t1);
    z = v128.load(a2);
    s2 = fma<Acc>(z, x, s2);
    t2 = fma<Acc>(z, y, t2);
    z = v128.load(a3);
    s3 = fma<Acc>(z, x, s3);
    t3 = fma<Acc>(z, y, t3);
    a1 += 16;
    a2 += 16;
    a3 += 16;
    b0 += step;
    b1 += step;
  }
  if (a < end) {
    const n = (end - a) / sizeof<Acc>();
    const x = part<S, Acc>(b0, n);
    const y = part<S, Acc>(b1, n);
    let z = part<Acc, Acc>(a, n);
    s0 = fma<Acc>(z, x, s0);
    t0 = fma<Acc>(z, y, t0);
    z = part<Acc, Acc>(a1, n);
    s1 = fma<Acc>(z, x, s1);
    t1 = fma<Acc>(z, y, t1);
    z = part<Acc, Acc>(a2, n);
    s2 = fma<Acc>(z, x, s2);
    t2 = fma<Acc>(z, y, t2);
    z = part<Acc, Acc>(a3, n);
    s3 = fma<Acc>(z, x, s3);
    t3 = fma<Acc>(z, y, t3);
  }
  put<T, Acc>(o0, total<Acc>(s0));
  put<T, Acc>(o0 + outRow, total<Acc>(s1));
  put<T, Acc>(o0 + 2 * outRow, total<Acc>(s2));
  put<T, Acc>(o0 + 3 * outRow, total<Acc>(s3));
  put<T, Acc>(o1, total<Acc>(t0));
  put<T, Acc>(o1 + outRow, total<Acc>(t1));
  put<T, Acc>(o1 + 2 * outRow, total<Acc>(t2));
  put<T, Acc>(o1 + 3 * outRow, total<Acc>(t3));
}

/** sums += four coefficients at `a` times four lines. Sums have room for whole vectors. */
export function addLines4<T, Acc>(
  a: usize,
  b0: usize,
  b1: usize,
  b2: usize,
  b3: usize,
  cols: usize,
  sums: usize,
): void {
  const wide = 16 / sizeof<Acc>();
  const step = wide * sizeof<T>();
  const x0 = v128.load_splat<Acc>(a);
  const x1 = v128.load_splat<Acc>(a, sizeof<Acc>());
  const x2 = v128.load_splat<Acc>(a, 2 * sizeof<Acc>());
  const x3 = v128.load_splat<Acc>(a, 3 * sizeof<Acc>());
  const body = sums + (cols & ~(wide - 1)) * sizeof<Acc>();
  for (; sums < body; sums += 16) {
    let s = fma<Acc>(x0, lanes<T>(b0), v128.load(sums));
    s = fma<Acc>(x1, lanes<T>(b1), s);
    s = fma<Acc>(x2, lanes<T>(b2), s);
    v128.store(sums, fma<Acc>(x3, lanes<T>(b3), s));
    b0 += step;
    b1 += step;
    b2 += step;
    b3 += step;
  }
  const n = cols & (wide - 1);
  if (n === 0) return;
  let s = fma<Acc>(x0, part<T, Acc>(b0, n), v128.load(sums));
  s = fma<Acc>(x1, part<T, Acc>(b1, n), s);
  s = fma<Acc>(x2, part<T, Acc>(b2, n), s);
  v128.store(sums, fma<Acc>(x3, part<T, Acc>(b3, n), s));
}

/** sums += the coefficient at `a` times a line. */
export function addLine<T, Acc>(a: usize, b: usize, cols: usize, sums: usize): void {
  const wide = 16 / sizeof<Acc>();
  const x = v128.load_splat<Acc>(a);
  const body = sums + (cols & ~(wide - 1)) * sizeof<Acc>();
  for (; sums < body; sums += 16, b += wide * sizeof<T>()) v128.store(sums, fma<Acc>(x, lanes<T>(b), v128.load(sums)));
  const n = cols & (wide - 1);
  if (n) v128.store(sums, fma<Acc>(x, part<T, Acc>(b, n), v128.load(sums)));
}
