/**
 * Sums over lines of a matrix where they lie: dots with thin rows, and weighted additions. The element type is a type
 * argument: f32, f64, u16 for bf16 and i16 for f16, which are widened in registers.
 */
import { f16ToF32x4, f32ToBf16x4, f32ToF16x4 } from "./block";
import { fma } from "./tile";

/** A vector of the matrix, widened. */
// @inline
function lanes<T>(at: usize): v128 {
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
  let r0 = total<Acc>(s0);
  let r1 = total<Acc>(s1);
  let r2 = total<Acc>(s2);
  let r3 = total<Acc>(s3);
  for (; a < end; a += sizeof<Acc>()) {
    const x = load<Acc>(a);
    r0 += x * one<S, Acc>(b0);
    r1 += x * one<S, Acc>(b1);
    r2 += x * one<S, Acc>(b2);
    r3 += x * one<S, Acc>(b3);
    b0 += sizeof<S>();
    b1 += sizeof<S>();
    b2 += sizeof<S>();
    b3 += sizeof<S>();
  }
  put<T, Acc>(o0, r0);
  put<T, Acc>(o1, r1);
  put<T, Acc>(o2, r2);
  put<T, Acc>(o3, r3);
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
  let r0 = total<Acc>(s0);
  let r1 = total<Acc>(s1);
  let r2 = total<Acc>(s2);
  let r3 = total<Acc>(s3);
  let q0 = total<Acc>(t0);
  let q1 = total<Acc>(t1);
  let q2 = total<Acc>(t2);
  let q3 = total<Acc>(t3);
  for (; a < end; a += sizeof<Acc>()) {
    const x = one<S, Acc>(b0);
    const y = one<S, Acc>(b1);
    r0 += x * load<Acc>(a);
    q0 += y * load<Acc>(a);
    r1 += x * load<Acc>(a1);
    q1 += y * load<Acc>(a1);
    r2 += x * load<Acc>(a2);
    q2 += y * load<Acc>(a2);
    r3 += x * load<Acc>(a3);
    q3 += y * load<Acc>(a3);
    a1 += sizeof<Acc>();
    a2 += sizeof<Acc>();
    a3 += sizeof<Acc>();
    b0 += sizeof<S>();
    b1 += sizeof<S>();
  }
  put<T, Acc>(o0, r0);
  put<T, Acc>(o0 + outRow, r1);
  put<T, Acc>(o0 + 2 * outRow, r2);
  put<T, Acc>(o0 + 3 * outRow, r3);
  put<T, Acc>(o1, q0);
  put<T, Acc>(o1 + outRow, q1);
  put<T, Acc>(o1 + 2 * outRow, q2);
  put<T, Acc>(o1 + 3 * outRow, q3);
}

/** sums += four coefficients at `a` times four lines. */
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
  const end = sums + cols * sizeof<Acc>();
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
  for (; sums < end; sums += sizeof<Acc>()) {
    const s = load<Acc>(sums) + load<Acc>(a) * one<T, Acc>(b0) + load<Acc>(a, sizeof<Acc>()) * one<T, Acc>(b1);
    store<Acc>(
      sums,
      s + load<Acc>(a, 2 * sizeof<Acc>()) * one<T, Acc>(b2) + load<Acc>(a, 3 * sizeof<Acc>()) * one<T, Acc>(b3),
    );
    b0 += sizeof<T>();
    b1 += sizeof<T>();
    b2 += sizeof<T>();
    b3 += sizeof<T>();
  }
}
