/** Conversions between dtypes, by way of their classes: widen, convert, narrow. */
import { shiftOf, U8 } from "./abi";
import { CF32, CF64, CI32, CU32, classOf, fetch, fetchRaw, narrow, native, RESULT, RUN, slot, widen } from "./block";
import { arg, setArg } from "./memory";
import { parallel } from "./pool";
import { Address, Count, DTypeCode, Layouts, OutAddress } from "./types";

const GRAIN: usize = 1 << 15;

const enum Arg {
  FROM,
  TO,
  INFO,
  X,
  OUT,
}

/** Floats to integers truncate and saturate, NaN gives 0; integers wrap; f64 and i64 reach the small floats through f32. */
export function cast(from: DTypeCode, to: DTypeCode, n: Count, info: Layouts, x: Address, out: OutAddress): void {
  setArg<i32>(Arg.FROM, from);
  setArg<i32>(Arg.TO, to);
  setArg<usize>(Arg.INFO, info);
  setArg<usize>(Arg.X, x);
  setArg<usize>(Arg.OUT, out);
  parallel(castKernel, n, GRAIN);
}

// @inline
function isFloatClass(type: i32): bool {
  return type === CF32 || type === CF64;
}
/** Classes whose conversion changes no bits. */
// @inline
function sameBits(a: i32, b: i32): bool {
  return a === b || (a === CI32 && b === CU32) || (a === CU32 && b === CI32);
}

function castKernel(lo: usize, hi: usize): void {
  const from = arg<i32>(Arg.FROM);
  const to = arg<i32>(Arg.TO);
  const info = arg<usize>(Arg.INFO);
  const x = arg<usize>(Arg.X);
  const source = classOf(from);
  const result = classOf(to);
  const same = from === to || (sameBits(source, result) && native(from) && native(to));
  for (; lo < hi; lo += RUN) {
    const n = min(RUN, hi - lo);
    const out = arg<usize>(Arg.OUT) + (lo << shiftOf(to));
    if (same) {
      memory.copy(out, fetchRaw(shiftOf(from), x, info, 0, lo, n), n << shiftOf(from));
    } else if (sameBits(source, result)) {
      // One of the two is small: no conversion between widening and narrowing.
      if (native(to)) widen(from, fetchRaw(shiftOf(from), x, info, 0, lo, n), out, n);
      else narrow(to, fetch(from, x, info, 0, lo, n), out, n);
    } else {
      const converted = native(to) ? out : slot(RESULT);
      convert(source, result, fetch(from, x, info, 0, lo, n), converted, n);
      if (converted !== out) {
        if (isFloatClass(source) && result === CI32) saturate(to, converted, n);
        narrow(to, converted, out, n);
      }
    }
  }
}

/** i32 that came from floats into the range of u8 or i16: narrowing alone would wrap. */
function saturate(dtype: i32, x: usize, n: usize): void {
  const least = dtype === U8 ? 0 : -32768;
  const most = dtype === U8 ? 255 : 32767;
  for (; n > 0; n--) {
    store<i32>(x, max(least, min(most, load<i32>(x))));
    x += 4;
  }
}

/** WebAssembly's saturating truncation and wrapping integer conversions are what is wanted. */
function convertRun<S, T>(x: usize, out: usize, n: usize): void {
  if (isFloat<S>() && sizeof<S>() === 4 && !isFloat<T>() && sizeof<T>() === 4) {
    for (; n >= 4; n -= 4) {
      v128.store(out, isSigned<T>() ? i32x4.trunc_sat_f32x4_s(v128.load(x)) : i32x4.trunc_sat_f32x4_u(v128.load(x)));
      x += 16;
      out += 16;
    }
  } else if (!isFloat<S>() && sizeof<S>() === 4 && isFloat<T>() && sizeof<T>() === 4) {
    for (; n >= 4; n -= 4) {
      v128.store(out, isSigned<S>() ? f32x4.convert_i32x4_s(v128.load(x)) : f32x4.convert_i32x4_u(v128.load(x)));
      x += 16;
      out += 16;
    }
  }
  for (; n > 0; n--) {
    store<T>(out, <T>load<S>(x));
    x += sizeof<S>();
    out += sizeof<T>();
  }
}

function convertFrom<S>(to: i32, x: usize, out: usize, n: usize): void {
  if (to === CF32) convertRun<S, f32>(x, out, n);
  else if (to === CF64) convertRun<S, f64>(x, out, n);
  else if (to === CI32) convertRun<S, i32>(x, out, n);
  else if (to === CU32) convertRun<S, u32>(x, out, n);
  else convertRun<S, i64>(x, out, n);
}

function convert(from: i32, to: i32, x: usize, out: usize, n: usize): void {
  if (from === CF32) convertFrom<f32>(to, x, out, n);
  else if (from === CF64) convertFrom<f64>(to, x, out, n);
  else if (from === CI32) convertFrom<i32>(to, x, out, n);
  else if (from === CU32) convertFrom<u32>(to, x, out, n);
  else convertFrom<i64>(to, x, out, n);
}
