/**
 * Ops on elements at equal places. A kernel brings its operands into runs of their class (block.ts) and hands them to a
 * loop for that op and class; the tables of ops are inlined functions, of which a constant op code leaves one line.
 *
 * Broadcast operands cost nothing extra: where every operand is constant or contiguous along the innermost dim, runs
 * follow that dim and are used in place, and a constant is spread over one block that the loop does not step past.
 */
import { Binary, Compare, shiftOf, Unary } from "./abi";
import {
  CF32,
  CF64,
  CI32,
  CI64,
  CU32,
  classOf,
  commit,
  fetchRaw,
  native,
  offsetOf,
  RUN,
  slot,
  target,
  widen,
} from "./block";
import { repeated } from "./copy";
import {
  cos4,
  elu4,
  erf4,
  erf64,
  exp4,
  gelu4,
  gelu64,
  geluErf4,
  log4,
  logistic64,
  normcdf4,
  normcdf64,
  pow64,
  powf4,
  relu4,
  round4,
  round64,
  sigmoid4,
  sign4,
  sign64,
  silu4,
  sin4,
  tanh4,
} from "./math";
import { arg, setArg } from "./memory";
import { parallel } from "./pool";
import { Address, BinaryCode, CompareCode, Count, DTypeCode, Layouts, OutAddress, UnaryCode } from "./types";

/** Elements per chunk: for ops at memory speed, for those that compute, for those that call scalar functions. */
const LIGHT: usize = 1 << 15;
const MEDIUM: usize = 1 << 13;
const HEAVY: usize = 1 << 11;

/** Loops handle blocks of this many bytes; what is left over goes through a padded copy of itself. */
const BLOCK: usize = 64;
/** The slot that no operand uses, for those copies. */
const TAIL: i32 = 6;

// ---- operands ----

/** The shortest innermost dim whose runs are worth following one by one. */
const MIN_ROW: usize = 32;

// @inline
function innerSize(info: usize): usize {
  return <usize>load<u32>(info + ((<usize>load<i32>(info)) << 2));
}
// @inline
function innerStride(info: usize, k: i32): i32 {
  return load<i32>(info + ((<usize>load<i32>(info) * (2 + <usize>k)) << 2));
}

/** Whether runs follow the innermost dim: every operand is constant or contiguous along it. */
function byRows(info: usize, operands: i32): bool {
  if (info === 0 || innerSize(info) < MIN_ROW) return false;
  for (let k = 0; k < operands; k++) {
    if (<u32>innerStride(info, k) > 1) return false;
  }
  return true;
}

/** How many elements from `start` on make the next run. */
// @inline
function runLength(info: usize, rows: bool, most: usize, start: usize, hi: usize): usize {
  const left = min(most, hi - start);
  if (!rows) return left;
  const inner = innerSize(info);
  return min(left, inner - (start % inner));
}

/** 1 where a run of operand `k` has an element for each result, 0 where it is one block of a constant. */
// @inline
function stepOf(info: usize, rows: bool, k: i32): usize {
  return rows ? <usize>innerStride(info, k) : 1;
}

function operandRaw(shift: i32, base: usize, info: usize, rows: bool, k: i32, start: usize, n: usize): usize {
  if (!rows) return fetchRaw(shift, base, info, k, start, n);
  const p = base + (offsetOf(info, k, start) << shift);
  if (innerStride(info, k) !== 0) return p;
  const out = slot(2 * k);
  let bits: u64;
  if (shift === 2) bits = <u64>load<u32>(p);
  else if (shift === 1) bits = <u64>load<u16>(p);
  else if (shift === 0) bits = <u64>load<u8>(p);
  else bits = load<u64>(p);
  const vector = i64x2.splat(repeated(shift, bits));
  for (let at: usize = 0; at < BLOCK; at += 16) v128.store(out + at, vector);
  return out;
}

/** As `operandRaw`, in the dtype's class. */
function operand(dtype: i32, base: usize, info: usize, rows: bool, k: i32, start: usize, n: usize): usize {
  const raw = operandRaw(shiftOf(dtype), base, info, rows, k, start, n);
  if (native(dtype)) return raw;
  const out = slot(2 * k + 1);
  widen(dtype, raw, out, stepOf(info, rows, k) ? n : BLOCK >> 2);
  return out;
}

/** Elements per run: with nothing to convert or gather there is no need to cut. */
// @inline
function longestRun(inPlace: bool): usize {
  return inPlace ? usize.MAX_VALUE : RUN;
}

// ---- one operand ----

// @inline
function unary4(op: i32, x: v128, param: v128): v128 {
  if (op === Unary.NEG) return f32x4.neg(x);
  if (op === Unary.RECIP) return f32x4.div(f32x4.splat(1), x);
  if (op === Unary.EXP) return exp4(x);
  if (op === Unary.LOG) return log4(x);
  if (op === Unary.SIN) return sin4(x);
  if (op === Unary.COS) return cos4(x);
  if (op === Unary.TANH) return tanh4(x);
  if (op === Unary.ERF) return erf4(x);
  if (op === Unary.CEIL) return f32x4.ceil(x);
  if (op === Unary.FLOOR) return f32x4.floor(x);
  if (op === Unary.ROUND) return round4(x);
  if (op === Unary.NORMCDF) return normcdf4(x);
  if (op === Unary.ABS) return f32x4.abs(x);
  if (op === Unary.SQR) return f32x4.mul(x, x);
  if (op === Unary.SQRT) return f32x4.sqrt(x);
  if (op === Unary.GELU) return gelu4(x);
  if (op === Unary.GELU_ERF) return geluErf4(x);
  if (op === Unary.RELU) return relu4(x);
  if (op === Unary.SILU) return silu4(x);
  if (op === Unary.SIGN) return sign4(x);
  if (op === Unary.SIGMOID) return sigmoid4(x);
  if (op === Unary.ELU) return elu4(x, param);
  return powf4(x, param);
}

// @inline
function unary64(op: i32, x: f64, param: f64): f64 {
  if (op === Unary.NEG) return -x;
  if (op === Unary.RECIP) return 1 / x;
  if (op === Unary.EXP) return NativeMath.exp(x);
  if (op === Unary.LOG) return NativeMath.log(x);
  if (op === Unary.SIN) return NativeMath.sin(x);
  if (op === Unary.COS) return NativeMath.cos(x);
  if (op === Unary.TANH) return NativeMath.tanh(x);
  if (op === Unary.ERF) return erf64(x);
  if (op === Unary.CEIL) return ceil(x);
  if (op === Unary.FLOOR) return floor(x);
  if (op === Unary.ROUND) return round64(x);
  if (op === Unary.NORMCDF) return normcdf64(x);
  if (op === Unary.ABS) return abs(x);
  if (op === Unary.SQR) return x * x;
  if (op === Unary.SQRT) return sqrt(x);
  if (op === Unary.GELU) return gelu64(x);
  if (op === Unary.GELU_ERF) return x * normcdf64(x);
  if (op === Unary.RELU) return x < 0 ? 0 : x;
  if (op === Unary.SILU) return logistic64(x, x);
  if (op === Unary.SIGN) return sign64(x);
  if (op === Unary.SIGMOID) return logistic64(1, x);
  if (op === Unary.ELU) return x > 0 ? x : param * NativeMath.expm1(x);
  return pow64(x, param);
}

/** The ops that TypeScript lets integers have. */
// @inline
function unaryInt<T>(op: i32, x: T): T {
  const zero = <T>0;
  if (op === Unary.NEG) return zero - x;
  if (op === Unary.ABS) return x < zero ? zero - x : x;
  if (op === Unary.SQR) return x * x;
  if (op === Unary.RELU) return x < zero ? zero : x;
  return x > zero ? <T>1 : x < zero ? <T>-1 : zero;
}

/** f32 runs are whole vectors, see `unaryRun`. */
// @inline
function eachUnary<T>(op: i32, x: usize, out: usize, bytes: usize, param: T): void {
  if (isFloat<T>() && sizeof<T>() === 4) {
    const param4 = f32x4.splat(<f32>param);
    // Two at a time, so that one's steps fill the waits of the other's.
    let at: usize = 0;
    for (; at + 32 <= bytes; at += 32) {
      const first = unary4(op, v128.load(x + at), param4);
      const second = unary4(op, v128.load(x + at, 16), param4);
      v128.store(out + at, first);
      v128.store(out + at, second, 16);
    }
    if (at < bytes) v128.store(out + at, unary4(op, v128.load(x + at), param4));
  } else if (isFloat<T>()) {
    for (let at: usize = 0; at < bytes; at += 8) store<f64>(out + at, unary64(op, load<f64>(x + at), <f64>param));
  } else {
    for (let at: usize = 0; at < bytes; at += sizeof<T>()) store<T>(out + at, unaryInt<T>(op, load<T>(x + at)));
  }
}

function unaryFloats<T>(op: i32, x: usize, out: usize, bytes: usize, param: T): void {
  switch (op) {
    case Unary.NEG:
      eachUnary<T>(Unary.NEG, x, out, bytes, param);
      break;
    case Unary.RECIP:
      eachUnary<T>(Unary.RECIP, x, out, bytes, param);
      break;
    case Unary.EXP:
      eachUnary<T>(Unary.EXP, x, out, bytes, param);
      break;
    case Unary.LOG:
      eachUnary<T>(Unary.LOG, x, out, bytes, param);
      break;
    case Unary.SIN:
      eachUnary<T>(Unary.SIN, x, out, bytes, param);
      break;
    case Unary.COS:
      eachUnary<T>(Unary.COS, x, out, bytes, param);
      break;
    case Unary.TANH:
      eachUnary<T>(Unary.TANH, x, out, bytes, param);
      break;
    case Unary.ERF:
      eachUnary<T>(Unary.ERF, x, out, bytes, param);
      break;
    case Unary.CEIL:
      eachUnary<T>(Unary.CEIL, x, out, bytes, param);
      break;
    case Unary.FLOOR:
      eachUnary<T>(Unary.FLOOR, x, out, bytes, param);
      break;
    case Unary.ROUND:
      eachUnary<T>(Unary.ROUND, x, out, bytes, param);
      break;
    case Unary.NORMCDF:
      eachUnary<T>(Unary.NORMCDF, x, out, bytes, param);
      break;
    case Unary.ABS:
      eachUnary<T>(Unary.ABS, x, out, bytes, param);
      break;
    case Unary.SQR:
      eachUnary<T>(Unary.SQR, x, out, bytes, param);
      break;
    case Unary.SQRT:
      eachUnary<T>(Unary.SQRT, x, out, bytes, param);
      break;
    case Unary.GELU:
      eachUnary<T>(Unary.GELU, x, out, bytes, param);
      break;
    case Unary.GELU_ERF:
      eachUnary<T>(Unary.GELU_ERF, x, out, bytes, param);
      break;
    case Unary.RELU:
      eachUnary<T>(Unary.RELU, x, out, bytes, param);
      break;
    case Unary.SILU:
      eachUnary<T>(Unary.SILU, x, out, bytes, param);
      break;
    case Unary.SIGN:
      eachUnary<T>(Unary.SIGN, x, out, bytes, param);
      break;
    case Unary.SIGMOID:
      eachUnary<T>(Unary.SIGMOID, x, out, bytes, param);
      break;
    case Unary.ELU:
      eachUnary<T>(Unary.ELU, x, out, bytes, param);
      break;
    case Unary.POWF:
      eachUnary<T>(Unary.POWF, x, out, bytes, param);
      break;
  }
}

function unaryInts<T>(op: i32, x: usize, out: usize, bytes: usize): void {
  switch (op) {
    case Unary.NEG:
      eachUnary<T>(Unary.NEG, x, out, bytes, <T>0);
      break;
    case Unary.ABS:
      eachUnary<T>(Unary.ABS, x, out, bytes, <T>0);
      break;
    case Unary.SQR:
      eachUnary<T>(Unary.SQR, x, out, bytes, <T>0);
      break;
    case Unary.RELU:
      eachUnary<T>(Unary.RELU, x, out, bytes, <T>0);
      break;
    case Unary.SIGN:
      eachUnary<T>(Unary.SIGN, x, out, bytes, <T>0);
      break;
  }
}

function unaryRun(type: i32, op: i32, x: usize, out: usize, n: usize, param: f64): void {
  if (type === CF32) {
    const bytes = n << 2;
    const body = bytes & ~15;
    unaryFloats<f32>(op, x, out, body, <f32>param);
    if (body === bytes) return;
    const tail = slot(TAIL);
    memory.copy(tail, x + body, bytes - body);
    unaryFloats<f32>(op, tail, tail + BLOCK, 16, <f32>param);
    memory.copy(out + body, tail + BLOCK, bytes - body);
  } else if (type === CF64) unaryFloats<f64>(op, x, out, n << 3, param);
  else if (type === CI32) unaryInts<i32>(op, x, out, n << 2);
  else if (type === CU32) unaryInts<u32>(op, x, out, n << 2);
  else unaryInts<i64>(op, x, out, n << 3);
}

function unaryGrain(op: i32, type: i32): usize {
  switch (op) {
    case Unary.NEG:
    case Unary.RECIP:
    case Unary.CEIL:
    case Unary.FLOOR:
    case Unary.ROUND:
    case Unary.ABS:
    case Unary.SQR:
    case Unary.SQRT:
    case Unary.RELU:
    case Unary.SIGN:
      return LIGHT;
    case Unary.POWF:
      return HEAVY;
  }
  return type === CF32 ? MEDIUM : HEAVY;
}

const enum UnaryArg {
  OP,
  DTYPE,
  INFO,
  X,
  OUT,
  PARAM,
}

/** `param` is elu's alpha and powf's exponent. */
export function unary(
  op: UnaryCode,
  dtype: DTypeCode,
  n: Count,
  info: Layouts,
  x: Address,
  out: OutAddress,
  param: f64,
): void {
  if (op === Unary.POWF && param === 2) op = Unary.SQR;
  else if (op === Unary.POWF && param === -1) op = Unary.RECIP;
  setArg<i32>(UnaryArg.OP, op);
  setArg<i32>(UnaryArg.DTYPE, dtype);
  setArg<usize>(UnaryArg.INFO, info);
  setArg<usize>(UnaryArg.X, x);
  setArg<usize>(UnaryArg.OUT, out);
  setArg<f64>(UnaryArg.PARAM, param);
  parallel(unaryKernel, n, unaryGrain(op, classOf(dtype)));
}

function unaryKernel(lo: usize, hi: usize): void {
  const op = arg<i32>(UnaryArg.OP);
  const dtype = arg<i32>(UnaryArg.DTYPE);
  const info = arg<usize>(UnaryArg.INFO);
  const type = classOf(dtype);
  const shift = shiftOf(dtype);
  const most = longestRun(info === 0 && native(dtype));
  for (let n: usize = 0; lo < hi; lo += n) {
    n = runLength(info, false, most, lo, hi);
    const x = operand(dtype, arg<usize>(UnaryArg.X), info, false, 0, lo, n);
    const out = arg<usize>(UnaryArg.OUT) + (lo << shift);
    const to = target(dtype, out);
    unaryRun(type, op, x, to, n, arg<f64>(UnaryArg.PARAM));
    commit(dtype, to, out, n);
  }
}

// ---- affine ----

const enum AffineArg {
  DTYPE,
  INFO,
  X,
  OUT,
  MUL,
  ADD,
}

/** x · mul + add in the class of the dtype, each operation rounded as alone; integers truncate mul and add first. */
export function affine(
  dtype: DTypeCode,
  n: Count,
  info: Layouts,
  x: Address,
  out: OutAddress,
  mul: f64,
  add: f64,
): void {
  setArg<i32>(AffineArg.DTYPE, dtype);
  setArg<usize>(AffineArg.INFO, info);
  setArg<usize>(AffineArg.X, x);
  setArg<usize>(AffineArg.OUT, out);
  setArg<f64>(AffineArg.MUL, mul);
  setArg<f64>(AffineArg.ADD, add);
  parallel(affineKernel, n, LIGHT);
}

function affineRun<T>(x: usize, out: usize, n: usize, mul: T, add: T): void {
  const bytes = n * sizeof<T>();
  const body = bytes & ~15;
  const mul4 = v128.splat<T>(mul);
  const add4 = v128.splat<T>(add);
  let at: usize = 0;
  for (; at < body; at += 16) v128.store(out + at, v128.add<T>(v128.mul<T>(v128.load(x + at), mul4), add4));
  for (; at < bytes; at += sizeof<T>()) store<T>(out + at, load<T>(x + at) * mul + add);
}

function affineKernel(lo: usize, hi: usize): void {
  const dtype = arg<i32>(AffineArg.DTYPE);
  const info = arg<usize>(AffineArg.INFO);
  const mul = arg<f64>(AffineArg.MUL);
  const add = arg<f64>(AffineArg.ADD);
  const type = classOf(dtype);
  const shift = shiftOf(dtype);
  const most = longestRun(info === 0 && native(dtype));
  for (let n: usize = 0; lo < hi; lo += n) {
    n = runLength(info, false, most, lo, hi);
    const x = operand(dtype, arg<usize>(AffineArg.X), info, false, 0, lo, n);
    const out = arg<usize>(AffineArg.OUT) + (lo << shift);
    const to = target(dtype, out);
    // By way of i64, so that −1 is all ones in u32, too.
    if (type === CF32) affineRun<f32>(x, to, n, <f32>mul, <f32>add);
    else if (type === CF64) affineRun<f64>(x, to, n, mul, add);
    else if (type === CI64) affineRun<i64>(x, to, n, <i64>mul, <i64>add);
    else affineRun<i32>(x, to, n, <i32>(<i64>mul), <i32>(<i64>add));
    commit(dtype, to, out, n);
  }
}

// ---- two operands ----

// @inline
function binary128<T>(op: i32, a: v128, b: v128): v128 {
  if (op === Binary.ADD) return v128.add<T>(a, b);
  if (op === Binary.SUB) return v128.sub<T>(a, b);
  if (op === Binary.MUL) return v128.mul<T>(a, b);
  if (isInteger<T>() && sizeof<T>() === 8) {
    // WebAssembly has no i64x2.max.
    return op === Binary.MAXIMUM ? v128.bitselect(a, b, i64x2.gt_s(a, b)) : v128.bitselect(b, a, i64x2.gt_s(a, b));
  } else {
    if (op === Binary.MAXIMUM) return v128.max<T>(a, b);
    if (isInteger<T>() || op === Binary.MINIMUM) return v128.min<T>(a, b);
    if (isFloat<T>()) return v128.div<T>(a, b);
  }
}

/** Wraps; negative exponents leave only ±1. */
function powInt<T>(base: T, exponent: T): T {
  if (exponent < <T>0) {
    if (base === <T>1) return base;
    return base === <T>-1 ? (exponent & 1 ? base : <T>1) : <T>0;
  }
  let power = <T>1;
  for (; exponent > <T>0; exponent >>= <T>1) {
    if (exponent & 1) power *= base;
    base *= base;
  }
  return power;
}

/** The ops that no vector instruction does. WebAssembly's division traps where these must not. */
// @inline
function binaryOne<T>(op: i32, a: T, b: T): T {
  if (isFloat<T>()) return <T>pow64(<f64>a, <f64>b);
  if (op === Binary.POW) return powInt<T>(a, b);
  if (b === <T>0) return b;
  if (isSigned<T>() && b === <T>-1) return <T>0 - a;
  return a / b;
}

// @inline
function eachBlock<T>(op: i32, a: usize, stepA: usize, b: usize, stepB: usize, out: usize, blocks: usize): void {
  for (; blocks > 0; blocks--) {
    v128.store(out, binary128<T>(op, v128.load(a), v128.load(b)));
    v128.store(out, binary128<T>(op, v128.load(a, 16), v128.load(b, 16)), 16);
    v128.store(out, binary128<T>(op, v128.load(a, 32), v128.load(b, 32)), 32);
    v128.store(out, binary128<T>(op, v128.load(a, 48), v128.load(b, 48)), 48);
    a += stepA;
    b += stepB;
    out += BLOCK;
  }
}
// @inline
function eachOne<T>(op: i32, a: usize, stepA: usize, b: usize, stepB: usize, out: usize, n: usize): void {
  for (; n > 0; n--) {
    store<T>(out, binaryOne<T>(op, load<T>(a), load<T>(b)));
    a += stepA;
    b += stepB;
    out += sizeof<T>();
  }
}

function binaryBlocks<T>(op: i32, a: usize, stepA: usize, b: usize, stepB: usize, out: usize, blocks: usize): void {
  switch (op) {
    case Binary.ADD:
      eachBlock<T>(Binary.ADD, a, stepA, b, stepB, out, blocks);
      break;
    case Binary.SUB:
      eachBlock<T>(Binary.SUB, a, stepA, b, stepB, out, blocks);
      break;
    case Binary.MUL:
      eachBlock<T>(Binary.MUL, a, stepA, b, stepB, out, blocks);
      break;
    case Binary.MAXIMUM:
      eachBlock<T>(Binary.MAXIMUM, a, stepA, b, stepB, out, blocks);
      break;
    case Binary.MINIMUM:
      eachBlock<T>(Binary.MINIMUM, a, stepA, b, stepB, out, blocks);
      break;
    case Binary.DIV:
      if (isFloat<T>()) eachBlock<T>(Binary.DIV, a, stepA, b, stepB, out, blocks);
      break;
  }
}

/** Steps are 0 for a constant, 1 else. */
function binaryRun<T>(op: i32, a: usize, stepA: usize, b: usize, stepB: usize, out: usize, n: usize): void {
  if (op === Binary.POW) {
    eachOne<T>(Binary.POW, a, stepA * sizeof<T>(), b, stepB * sizeof<T>(), out, n);
    return;
  }
  if (isInteger<T>() && op === Binary.DIV) {
    eachOne<T>(Binary.DIV, a, stepA * sizeof<T>(), b, stepB * sizeof<T>(), out, n);
    return;
  }
  const bytes = n * sizeof<T>();
  const body = bytes & ~(BLOCK - 1);
  binaryBlocks<T>(op, a, stepA * BLOCK, b, stepB * BLOCK, out, body / BLOCK);
  const rest = bytes - body;
  if (rest === 0) return;
  const tail = slot(TAIL);
  memory.copy(tail, a + stepA * body, rest);
  memory.copy(tail + BLOCK, b + stepB * body, rest);
  binaryBlocks<T>(op, tail, 0, tail + BLOCK, 0, tail + 2 * BLOCK, 1);
  memory.copy(out + body, tail + 2 * BLOCK, rest);
}

const enum BinaryArg {
  OP,
  DTYPE,
  INFO,
  A,
  B,
  OUT,
}

export function binary(
  op: BinaryCode,
  dtype: DTypeCode,
  n: Count,
  info: Layouts,
  a: Address,
  b: Address,
  out: OutAddress,
): void {
  setArg<i32>(BinaryArg.OP, op);
  setArg<i32>(BinaryArg.DTYPE, dtype);
  setArg<usize>(BinaryArg.INFO, info);
  setArg<usize>(BinaryArg.A, a);
  setArg<usize>(BinaryArg.B, b);
  setArg<usize>(BinaryArg.OUT, out);
  parallel(binaryKernel, n, op === Binary.POW ? HEAVY : LIGHT);
}

function binaryKernel(lo: usize, hi: usize): void {
  const op = arg<i32>(BinaryArg.OP);
  const dtype = arg<i32>(BinaryArg.DTYPE);
  const info = arg<usize>(BinaryArg.INFO);
  const type = classOf(dtype);
  const shift = shiftOf(dtype);
  const rows = byRows(info, 2);
  const stepA = stepOf(info, rows, 0);
  const stepB = stepOf(info, rows, 1);
  const most = longestRun((info === 0 || rows) && native(dtype));
  for (let n: usize = 0; lo < hi; lo += n) {
    n = runLength(info, rows, most, lo, hi);
    const a = operand(dtype, arg<usize>(BinaryArg.A), info, rows, 0, lo, n);
    const b = operand(dtype, arg<usize>(BinaryArg.B), info, rows, 1, lo, n);
    const out = arg<usize>(BinaryArg.OUT) + (lo << shift);
    const to = target(dtype, out);
    if (type === CF32) binaryRun<f32>(op, a, stepA, b, stepB, to, n);
    else if (type === CF64) binaryRun<f64>(op, a, stepA, b, stepB, to, n);
    else if (type === CI32) binaryRun<i32>(op, a, stepA, b, stepB, to, n);
    else if (type === CU32) binaryRun<u32>(op, a, stepA, b, stepB, to, n);
    else binaryRun<i64>(op, a, stepA, b, stepB, to, n);
    commit(dtype, to, out, n);
  }
}

// ---- comparisons ----

// @inline
function compare128<T>(op: i32, a: v128, b: v128): v128 {
  if (op === Compare.EQ) return v128.eq<T>(a, b);
  if (op === Compare.NE) return v128.ne<T>(a, b);
  if (op === Compare.LT) return v128.lt<T>(a, b);
  if (op === Compare.LE) return v128.le<T>(a, b);
  if (op === Compare.GT) return v128.gt<T>(a, b);
  return v128.ge<T>(a, b);
}
// @inline
function compareOne<T>(op: i32, a: T, b: T): bool {
  if (op === Compare.EQ) return a === b;
  if (op === Compare.NE) return a !== b;
  if (op === Compare.LT) return a < b;
  if (op === Compare.LE) return a <= b;
  if (op === Compare.GT) return a > b;
  return a >= b;
}

/** Four-byte classes go a block at a time: four masks narrow to sixteen bytes. */
// @inline
function eachCompare<T>(op: i32, a: usize, stepA: usize, b: usize, stepB: usize, out: usize, n: usize): void {
  if (sizeof<T>() === 4) {
    for (; n >= 16; n -= 16) {
      const m0 = compare128<T>(op, v128.load(a), v128.load(b));
      const m1 = compare128<T>(op, v128.load(a, 16), v128.load(b, 16));
      const m2 = compare128<T>(op, v128.load(a, 32), v128.load(b, 32));
      const m3 = compare128<T>(op, v128.load(a, 48), v128.load(b, 48));
      const mask = i8x16.narrow_i16x8_s(i16x8.narrow_i32x4_s(m0, m1), i16x8.narrow_i32x4_s(m2, m3));
      v128.store(out, v128.and(mask, i8x16.splat(1)));
      a += stepA * BLOCK;
      b += stepB * BLOCK;
      out += 16;
    }
  }
  for (; n > 0; n--) {
    store<u8>(out, <u8>compareOne<T>(op, load<T>(a), load<T>(b)));
    a += stepA * sizeof<T>();
    b += stepB * sizeof<T>();
    out++;
  }
}

function compareRun<T>(op: i32, a: usize, stepA: usize, b: usize, stepB: usize, out: usize, n: usize): void {
  switch (op) {
    case Compare.EQ:
      eachCompare<T>(Compare.EQ, a, stepA, b, stepB, out, n);
      break;
    case Compare.NE:
      eachCompare<T>(Compare.NE, a, stepA, b, stepB, out, n);
      break;
    case Compare.LT:
      eachCompare<T>(Compare.LT, a, stepA, b, stepB, out, n);
      break;
    case Compare.LE:
      eachCompare<T>(Compare.LE, a, stepA, b, stepB, out, n);
      break;
    case Compare.GT:
      eachCompare<T>(Compare.GT, a, stepA, b, stepB, out, n);
      break;
    case Compare.GE:
      eachCompare<T>(Compare.GE, a, stepA, b, stepB, out, n);
      break;
  }
}

const enum CompareArg {
  OP,
  DTYPE,
  INFO,
  A,
  B,
  OUT,
}

/** u8 results, 0 or 1. */
export function compare(
  op: CompareCode,
  dtype: DTypeCode,
  n: Count,
  info: Layouts,
  a: Address,
  b: Address,
  out: OutAddress,
): void {
  setArg<i32>(CompareArg.OP, op);
  setArg<i32>(CompareArg.DTYPE, dtype);
  setArg<usize>(CompareArg.INFO, info);
  setArg<usize>(CompareArg.A, a);
  setArg<usize>(CompareArg.B, b);
  setArg<usize>(CompareArg.OUT, out);
  parallel(compareKernel, n, LIGHT);
}

function compareKernel(lo: usize, hi: usize): void {
  const op = arg<i32>(CompareArg.OP);
  const dtype = arg<i32>(CompareArg.DTYPE);
  const info = arg<usize>(CompareArg.INFO);
  const type = classOf(dtype);
  const rows = byRows(info, 2);
  const stepA = stepOf(info, rows, 0);
  const stepB = stepOf(info, rows, 1);
  const most = longestRun((info === 0 || rows) && native(dtype));
  for (let n: usize = 0; lo < hi; lo += n) {
    n = runLength(info, rows, most, lo, hi);
    const a = operand(dtype, arg<usize>(CompareArg.A), info, rows, 0, lo, n);
    const b = operand(dtype, arg<usize>(CompareArg.B), info, rows, 1, lo, n);
    const out = arg<usize>(CompareArg.OUT) + lo;
    if (type === CF32) compareRun<f32>(op, a, stepA, b, stepB, out, n);
    else if (type === CF64) compareRun<f64>(op, a, stepA, b, stepB, out, n);
    else if (type === CI32) compareRun<i32>(op, a, stepA, b, stepB, out, n);
    else if (type === CU32) compareRun<u32>(op, a, stepA, b, stepB, out, n);
    else compareRun<i64>(op, a, stepA, b, stepB, out, n);
  }
}

// ---- selection ----

/** C is the condition's type; T any type of the values' size, whose bits are moved. */
// @inline
function eachWhere<C, T>(
  c: usize,
  stepC: usize,
  t: usize,
  stepT: usize,
  f: usize,
  stepF: usize,
  out: usize,
  n: usize,
): void {
  if (sizeof<C>() === 1 && sizeof<T>() === 4) {
    for (; n >= 4; n -= 4) {
      const mask = i32x4.ne(i32x4.extend_low_i16x8_u(i16x8.extend_low_i8x16_u(v128.load32_zero(c))), i32x4.splat(0));
      v128.store(out, v128.bitselect(v128.load(t), v128.load(f), mask));
      c += stepC << 2;
      t += stepT << 4;
      f += stepF << 4;
      out += 16;
    }
  }
  for (; n > 0; n--) {
    store<T>(out, select<T>(load<T>(t), load<T>(f), load<C>(c) !== 0));
    c += stepC * sizeof<C>();
    t += stepT * sizeof<T>();
    f += stepF * sizeof<T>();
    out += sizeof<T>();
  }
}

function whereRun<C>(
  shift: i32,
  c: usize,
  stepC: usize,
  t: usize,
  stepT: usize,
  f: usize,
  stepF: usize,
  out: usize,
  n: usize,
): void {
  if (shift === 2) eachWhere<C, u32>(c, stepC, t, stepT, f, stepF, out, n);
  else if (shift === 1) eachWhere<C, u16>(c, stepC, t, stepT, f, stepF, out, n);
  else if (shift === 0) eachWhere<C, u8>(c, stepC, t, stepT, f, stepF, out, n);
  else eachWhere<C, u64>(c, stepC, t, stepT, f, stepF, out, n);
}

const enum WhereArg {
  COND_SHIFT,
  SHIFT,
  INFO,
  COND,
  ON_TRUE,
  ON_FALSE,
  OUT,
}

/** onTrue where the condition (u8, u32 or i64) is not zero, onFalse elsewhere. */
export function whereCond(
  condDtype: DTypeCode,
  dtype: DTypeCode,
  n: Count,
  info: Layouts,
  cond: Address,
  onTrue: Address,
  onFalse: Address,
  out: OutAddress,
): void {
  setArg<i32>(WhereArg.COND_SHIFT, shiftOf(condDtype));
  setArg<i32>(WhereArg.SHIFT, shiftOf(dtype));
  setArg<usize>(WhereArg.INFO, info);
  setArg<usize>(WhereArg.COND, cond);
  setArg<usize>(WhereArg.ON_TRUE, onTrue);
  setArg<usize>(WhereArg.ON_FALSE, onFalse);
  setArg<usize>(WhereArg.OUT, out);
  parallel(whereKernel, n, LIGHT);
}

function whereKernel(lo: usize, hi: usize): void {
  const condShift = arg<i32>(WhereArg.COND_SHIFT);
  const shift = arg<i32>(WhereArg.SHIFT);
  const info = arg<usize>(WhereArg.INFO);
  const rows = byRows(info, 3);
  const stepC = stepOf(info, rows, 0);
  const stepT = stepOf(info, rows, 1);
  const stepF = stepOf(info, rows, 2);
  const most = longestRun(info === 0 || rows);
  for (let n: usize = 0; lo < hi; lo += n) {
    n = runLength(info, rows, most, lo, hi);
    const c = operandRaw(condShift, arg<usize>(WhereArg.COND), info, rows, 0, lo, n);
    const t = operandRaw(shift, arg<usize>(WhereArg.ON_TRUE), info, rows, 1, lo, n);
    const f = operandRaw(shift, arg<usize>(WhereArg.ON_FALSE), info, rows, 2, lo, n);
    const out = arg<usize>(WhereArg.OUT) + (lo << shift);
    if (condShift === 0) whereRun<u8>(shift, c, stepC, t, stepT, f, stepF, out, n);
    else if (condShift === 2) whereRun<u32>(shift, c, stepC, t, stepT, f, stepF, out, n);
    else whereRun<u64>(shift, c, stepC, t, stepT, f, stepF, out, n);
  }
}
