/** What each elementwise op means, for one number (or bigint) at a time. */
import type { BinaryOp, CompareOp, UnaryOp } from "../../src/backend/backend.ts";
import type { Value } from "./elements.ts";

const { abs, exp, PI, sqrt, tanh } = Math;

/** By its series, whose terms are all of one sign. */
function erf(x: number): number {
  if (Number.isNaN(x)) return x;
  if (abs(x) > 6) return Math.sign(x);
  let term = x;
  let sum = x;
  for (let n = 1; abs(term) > 1e-18 * abs(sum); n++) {
    term *= (2 * x * x) / (2 * n + 1);
    sum += term;
  }
  return (2 / sqrt(PI)) * exp(-x * x) * sum;
}

/** 1 − erf, by its continued fraction where the difference would lose digits. */
function erfc(x: number): number {
  if (!(x > 2)) return 1 - erf(x);
  let tail = x;
  for (let n = 200; n > 0; n--) tail = x + n / 2 / tail;
  return exp(-x * x) / (sqrt(PI) * tail);
}

const awayFromZero = (x: number): number => Math.sign(x) * Math.floor(abs(x) + 0.5);
const normcdf = (x: number): number => erfc(-x / Math.SQRT2) / 2;
const sigmoid = (x: number): number => 1 / (1 + exp(-x));

/** C's, where JavaScript's differs: 1 to any power is 1, and so is −1 to ±∞. */
function power(x: number, y: number): number {
  if (x === 1 || (x === -1 && abs(y) === Number.POSITIVE_INFINITY)) return 1;
  return x ** y;
}

export const unary: Readonly<Record<UnaryOp, (x: number, param: number) => number>> = {
  neg: (x) => -x,
  recip: (x) => 1 / x,
  exp,
  log: Math.log,
  sin: Math.sin,
  cos: Math.cos,
  tanh,
  erf,
  ceil: Math.ceil,
  floor: Math.floor,
  round: (x) => (Number.isInteger(x) || !Number.isFinite(x) ? x : awayFromZero(x)),
  normcdf,
  abs,
  sqr: (x) => x * x,
  sqrt,
  gelu: (x) => (x === Number.NEGATIVE_INFINITY ? -0 : 0.5 * x * (1 + tanh(sqrt(2 / PI) * (x + 0.044715 * x ** 3)))),
  gelu_erf: (x) => (x === Number.NEGATIVE_INFINITY ? -0 : x * normcdf(x)),
  relu: (x) => (x < 0 ? 0 : x),
  silu: (x) => (x === Number.NEGATIVE_INFINITY ? -0 : x * sigmoid(x)),
  sign: (x) => (x > 0 ? 1 : x < 0 ? -1 : 0),
  sigmoid,
  elu: (x, alpha) => (x > 0 ? x : alpha * Math.expm1(x)),
  powf: power,
};

/** Those that integers have. */
export const unaryOfInteger: Partial<Readonly<Record<UnaryOp, (x: bigint) => bigint>>> = {
  neg: (x) => -x,
  abs: (x) => (x < 0n ? -x : x),
  sqr: (x) => x * x,
  relu: (x) => (x < 0n ? 0n : x),
  sign: (x) => (x > 0n ? 1n : x < 0n ? -1n : 0n),
};

const either = (a: number, b: number, pick: (a: number, b: number) => number): number =>
  Number.isNaN(a) || Number.isNaN(b) ? Number.NaN : pick(a, b);

export const binary: Readonly<Record<BinaryOp, (a: number, b: number) => number>> = {
  add: (a, b) => a + b,
  sub: (a, b) => a - b,
  mul: (a, b) => a * b,
  div: (a, b) => a / b,
  maximum: (a, b) => either(a, b, Math.max),
  minimum: (a, b) => either(a, b, Math.min),
  pow: power,
};

export const binaryOfIntegers: Readonly<Record<BinaryOp, (a: bigint, b: bigint) => bigint>> = {
  add: (a, b) => a + b,
  sub: (a, b) => a - b,
  mul: (a, b) => a * b,
  div: (a, b) => (b === 0n ? 0n : a / b),
  maximum: (a, b) => (a > b ? a : b),
  minimum: (a, b) => (a < b ? a : b),
  pow: (a, b) => (b >= 0n ? a ** b : a === 1n ? 1n : a === -1n ? (b % 2n === 0n ? 1n : -1n) : 0n),
};

export const compare: Readonly<Record<CompareOp, (a: Value, b: Value) => boolean>> = {
  eq: (a, b) => a === b,
  ne: (a, b) => a !== b,
  lt: (a, b) => a < b,
  le: (a, b) => a <= b,
  gt: (a, b) => a > b,
  ge: (a, b) => a >= b,
};
