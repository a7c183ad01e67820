/**
 * Brings any dtype and layout into the form that the arithmetic wants: runs of contiguous elements of a compute class.
 * Small floats compute in f32, small integers in i32; so kernels exist for five classes, not for ten dtypes times all
 * layouts. Contiguous elements that already are of their class are used in place.
 *
 * A layout at `info` is a row of u32/i32 words: rank, dims[rank], then strides[rank] for operand 0, 1, … (elements).
 * info 0 means that every operand is contiguous. Operand pointers include the view's offset.
 */
import { BF16, F8E4M3, F16, F32, F64, I16, I32, I64, shiftOf, U8, U32 } from "./abi";
import { scratch } from "./pool";

export const CF32: i32 = 0;
export const CF64: i32 = 1;
export const CI32: i32 = 2;
export const CU32: i32 = 3;
export const CI64: i32 = 4;

/** Elements per run: three operands of 8 bytes and their raw forms stay inside the first-level cache. */
export const RUN: usize = 512;
/** Scratch slots: two of 8·RUN bytes (raw, widened) for each operand, and one for results, at the front of `scratch`. */
const SLOT: usize = RUN << 3;
export const RESULT: i32 = 7;
/** Where a kernel's own scratch memory may begin. */
export const SCRATCH_FREE: usize = 8 * SLOT;

// @inline
export function slot(i: i32): usize {
  return scratch + <usize>i * SLOT;
}

export function classOf(dtype: i32): i32 {
  if (dtype === F64) return CF64;
  if (dtype === I64) return CI64;
  if (dtype === U32) return CU32;
  if (dtype === U8 || dtype === I16 || dtype === I32) return CI32;
  return CF32;
}

/** Whether the dtype's elements are stored as their compute class. */
// @inline
export function native(dtype: i32): bool {
  return dtype === F32 || dtype === F64 || dtype === I32 || dtype === U32 || dtype === I64;
}

/** Elements start … start+n−1 of operand `k`, as contiguous elements of its class: in place where it can be. */
export function fetch(dtype: i32, base: usize, info: usize, k: i32, start: usize, n: usize): usize {
  const raw = fetchRaw(shiftOf(dtype), base, info, k, start, n);
  if (native(dtype)) return raw;
  const out = slot(2 * k + 1);
  widen(dtype, raw, out, n);
  return out;
}

/** As `fetch`, without widening: contiguous elements of 1 << shift bytes. */
export function fetchRaw(shift: i32, base: usize, info: usize, k: i32, start: usize, n: usize): usize {
  if (info === 0) return base + (start << shift);
  const out = slot(2 * k);
  if (shift === 2) gatherRun<u32>(base, info, k, start, n, out);
  else if (shift === 1) gatherRun<u16>(base, info, k, start, n, out);
  else if (shift === 0) gatherRun<u8>(base, info, k, start, n, out);
  else gatherRun<u64>(base, info, k, start, n, out);
  return out;
}

/** The element offset of the `index`-th element of operand `k`. */
export function offsetOf(info: usize, k: i32, index: usize): isize {
  const rank = load<i32>(info);
  const dims = info + 4;
  const strides = dims + ((<usize>rank * (1 + <usize>k)) << 2);
  let at: isize = 0;
  for (let d = rank - 1; d >= 0; d--) {
    const size = <usize>load<u32>(dims + ((<usize>d) << 2));
    const next = index / size;
    at += <isize>(index - next * size) * <isize>load<i32>(strides + ((<usize>d) << 2));
    index = next;
  }
  return at;
}

/** Copies a run of strided elements, innermost dim by innermost dim. */
export function gatherRun<T>(base: usize, info: usize, k: i32, start: usize, n: usize, out: usize): void {
  const rank = load<i32>(info);
  const inner = <usize>load<u32>(info + ((<usize>rank) << 2));
  const stride = <isize>load<i32>(info + 4 + ((<usize>rank * (2 + <usize>k) - 1) << 2));
  const end = out + n * sizeof<T>();
  let skip = start % inner;
  while (out < end) {
    let p = base + offsetOf(info, k, start) * sizeof<T>();
    const count = min(inner - skip, (end - out) / sizeof<T>());
    const stop = out + count * sizeof<T>();
    const step = stride * sizeof<T>();
    if (stride === 1) {
      memory.copy(out, p, count * sizeof<T>());
      out = stop;
    } else {
      for (; out < stop; out += sizeof<T>()) {
        store<T>(out, load<T>(p));
        p += step;
      }
    }
    start += count;
    skip = 0;
  }
}

/** Writes a run of contiguous elements to strided places of operand `k`. */
export function scatterRun<T>(base: usize, info: usize, k: i32, start: usize, n: usize, from: usize): void {
  const rank = load<i32>(info);
  const inner = <usize>load<u32>(info + ((<usize>rank) << 2));
  const stride = <isize>load<i32>(info + 4 + ((<usize>rank * (2 + <usize>k) - 1) << 2));
  const end = from + n * sizeof<T>();
  let skip = start % inner;
  while (from < end) {
    let p = base + offsetOf(info, k, start) * sizeof<T>();
    const count = min(inner - skip, (end - from) / sizeof<T>());
    const stop = from + count * sizeof<T>();
    const step = stride * sizeof<T>();
    if (stride === 1) {
      memory.copy(p, from, count * sizeof<T>());
      from = stop;
    } else {
      for (; from < stop; from += sizeof<T>()) {
        store<T>(p, load<T>(from));
        p += step;
      }
    }
    start += count;
    skip = 0;
  }
}

/** Small dtypes to their class: bf16, f16, f8e4m3 → f32; u8, i16 → i32. */
export function widen(dtype: i32, from: usize, to: usize, n: usize): void {
  const end = to + (n << 2);
  const body = to + ((n & ~3) << 2);
  if (dtype === BF16) {
    for (; to < body; to += 16, from += 8) v128.store(to, i32x4.shl(v128.load_ext<u16>(from), 16));
    for (; to < end; to += 4, from += 2) store<u32>(to, (<u32>load<u16>(from)) << 16);
  } else if (dtype === F16) {
    for (; to < body; to += 16, from += 8) v128.store(to, f16ToF32x4(v128.load_ext<u16>(from)));
    for (; to < end; to += 4, from += 2)
      store<f32>(to, f32x4.extract_lane(f16ToF32x4(i32x4.splat(<i32>load<u16>(from))), 0));
  } else if (dtype === F8E4M3) {
    for (; to < end; to += 4, from += 1) store<f32>(to, f8ToF32(load<u8>(from)));
  } else if (dtype === U8) {
    for (; to < end; to += 4, from += 1) store<i32>(to, <i32>load<u8>(from));
  } else if (dtype === I16) {
    for (; to < body; to += 16, from += 8) v128.store(to, v128.load_ext<i16>(from));
    for (; to < end; to += 4, from += 2) store<i32>(to, <i32>load<i16>(from));
  }
}

/** Class elements to a small dtype: floats round to nearest even, integers wrap. */
export function narrow(dtype: i32, from: usize, to: usize, n: usize): void {
  const end = from + (n << 2);
  const body = from + ((n & ~3) << 2);
  if (dtype === BF16) {
    for (; from < body; from += 16, to += 8) storeLow16(to, f32ToBf16x4(v128.load(from)));
    for (; from < end; from += 4, to += 2)
      store<u16>(to, <u16>i32x4.extract_lane(f32ToBf16x4(f32x4.splat(load<f32>(from))), 0));
  } else if (dtype === F16) {
    for (; from < body; from += 16, to += 8) storeLow16(to, f32ToF16x4(v128.load(from)));
    for (; from < end; from += 4, to += 2)
      store<u16>(to, <u16>i32x4.extract_lane(f32ToF16x4(f32x4.splat(load<f32>(from))), 0));
  } else if (dtype === F8E4M3) {
    for (; from < end; from += 4, to += 1) store<u8>(to, f32ToF8(load<f32>(from)));
  } else if (dtype === U8) {
    for (; from < end; from += 4, to += 1) store<u8>(to, <u8>load<i32>(from));
  } else if (dtype === I16) {
    for (; from < end; from += 4, to += 2) store<u16>(to, <u16>load<i32>(from));
  }
}

/** Where a kernel should write a run whose final place is `out`: there, or the result slot when it must be narrowed. */
// @inline
export function target(dtype: i32, out: usize): usize {
  return native(dtype) ? out : slot(RESULT);
}

/** Ends what `target` began. */
// @inline
export function commit(dtype: i32, from: usize, out: usize, n: usize): void {
  if (from !== out) narrow(dtype, from, out, n);
}

// @inline
function storeLow16(to: usize, x: v128): void {
  store<u64>(to, i64x2.extract_lane(i16x8.narrow_i32x4_u(x, x), 0));
}

/** Four f16 in the low halves of the lanes. Multiplying by 2^112 moves the exponent and normalises subnormals. */
// @inline
export function f16ToF32x4(h: v128): v128 {
  const magnitude = i32x4.shl(v128.and(h, i32x4.splat(0x7fff)), 13);
  const scaled = f32x4.mul(magnitude, f32x4.splat(reinterpret<f32>(0x77800000)));
  const special = v128.and(i32x4.ge_s(magnitude, i32x4.splat(0x0f800000)), i32x4.splat(0x7f800000));
  const sign = i32x4.shl(v128.and(h, i32x4.splat(0x8000)), 16);
  return v128.or(v128.or(scaled, special), sign);
}

/** Four f16 as the low halves of the lanes. */
// @inline
export function f32ToF16x4(x: v128): v128 {
  const m = v128.and(x, i32x4.splat(0x7fffffff));
  const sign = i32x4.shr_u(v128.andnot(x, i32x4.splat(0x7fffffff)), 16);
  const odd = v128.and(i32x4.shr_u(m, 13), i32x4.splat(1));
  let r = i32x4.shr_u(i32x4.add(i32x4.sub(m, i32x4.splat(0x38000000 - 0xfff)), odd), 13);
  const tiny = i32x4.sub(f32x4.add(m, f32x4.splat(0.5)), i32x4.splat(0x3f000000));
  r = v128.bitselect(tiny, r, i32x4.lt_s(m, i32x4.splat(0x38800000)));
  r = v128.bitselect(i32x4.splat(0x7c00), r, i32x4.ge_s(m, i32x4.splat(0x477ff000)));
  r = v128.bitselect(i32x4.splat(0x7e00), r, i32x4.gt_s(m, i32x4.splat(0x7f800000)));
  return v128.or(r, sign);
}

// @inline
export function f32ToBf16x4(x: v128): v128 {
  const odd = v128.and(i32x4.shr_u(x, 16), i32x4.splat(1));
  const rounded = i32x4.shr_u(i32x4.add(i32x4.add(x, i32x4.splat(0x7fff)), odd), 16);
  const quiet = v128.or(i32x4.shr_u(x, 16), i32x4.splat(0x40));
  const nan = i32x4.gt_s(v128.and(x, i32x4.splat(0x7fffffff)), i32x4.splat(0x7f800000));
  return v128.bitselect(quiet, rounded, nan);
}

export function f8ToF32(bits: u8): f32 {
  const m = <u32>bits & 0x7f;
  const sign = (<u32>bits & 0x80) << 24;
  if (m === 0x7f) return reinterpret<f32>(sign | 0x7fc00000);
  return reinterpret<f32>(sign | reinterpret<u32>(reinterpret<f32>(m << 20) * reinterpret<f32>(0x7b800000))); // · 2^120
}

/** e4m3fn: beyond 464 there is only NaN. */
export function f32ToF8(x: f32): u8 {
  const bits = reinterpret<u32>(x);
  const m = bits & 0x7fffffff;
  const sign = (bits >> 24) & 0x80;
  if (m > 0x43e80000) return <u8>(sign | 0x7f);
  if (m < 0x3c800000) return <u8>(sign | (reinterpret<u32>(reinterpret<f32>(m) + 16384.0) - 0x46800000));
  return <u8>(sign | ((m - 0x3c000000 + 0x7ffff + ((m >> 20) & 1)) >> 20));
}
