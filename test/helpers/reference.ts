/** Plain f64 references, sample values, layouts and comparisons for the tests; no arithmetic here is Wick's own. */
import { expect } from "vitest";
import { type Device, type DType, dtypeNames, isFloat, isInt, type Shape, Tensor } from "../../src/index.ts";

export const floats = dtypeNames.filter(isFloat);
export const ints = dtypeNames.filter(isInt);
/** The floats that models compute in; f8e4m3 is left out where its two digits say nothing. */
export const wideFloats: DType[] = ["bf16", "f16", "f32", "f64"];

/** Half a unit in the last place, relative, with room for a few roundings in the wide types. */
const relative: Record<DType, number> = {
  u8: 0,
  u32: 0,
  i16: 0,
  i32: 0,
  i64: 0,
  bf16: 2 ** -8,
  f16: 2 ** -11,
  f32: 4e-7,
  f64: 1e-15,
  f8e4m3: 2 ** -4,
};
export const tolerance = (dtype: DType, units = 1): number => relative[dtype] * units;

const formats: Partial<Record<DType, { bits: number; least: number; largest: number; overflow: number }>> = {
  f16: { bits: 10, least: -14, largest: 65504, overflow: Number.POSITIVE_INFINITY },
  bf16: { bits: 7, least: -126, largest: (2 - 2 ** -7) * 2 ** 127, overflow: Number.POSITIVE_INFINITY },
  f8e4m3: { bits: 3, least: -6, largest: 448, overflow: Number.NaN },
};

/** The nearest value of a dtype, ties to even; integers wrap. */
export function nearest(value: number, dtype: DType): number {
  if (isInt(dtype)) return wrap(BigInt(Math.trunc(value)), dtype);
  if (dtype === "f64") return value;
  const x = Math.fround(value);
  const format = formats[dtype];
  if (!format || x === 0 || Number.isNaN(x)) return x;
  if (!Number.isFinite(x)) return Math.sign(x) * format.overflow;
  let exponent = Math.floor(Math.log2(Math.abs(x)));
  if (2 ** exponent > Math.abs(x)) exponent--;
  if (2 ** (exponent + 1) <= Math.abs(x)) exponent++;
  const unit = 2 ** (Math.max(exponent, format.least) - format.bits);
  const rounded = roundHalfEven(x / unit) * unit;
  return Math.abs(rounded) > format.largest ? Math.sign(x) * format.overflow : rounded;
}

function roundHalfEven(x: number): number {
  const floor = Math.floor(x);
  const rest = x - floor;
  if (rest !== 0.5) return Math.round(x);
  return floor % 2 === 0 ? floor : floor + 1;
}

export function wrap(value: bigint, dtype: DType): number {
  switch (dtype) {
    case "u8":
      return Number(BigInt.asUintN(8, value));
    case "u32":
      return Number(BigInt.asUintN(32, value));
    case "i16":
      return Number(BigInt.asIntN(16, value));
    case "i32":
      return Number(BigInt.asIntN(32, value));
    default:
      return Number(BigInt.asIntN(64, value));
  }
}

export const size = (shape: Shape): number => shape.reduce((a, b) => a * b, 1);

/** Values every dtype holds exactly: multiples of 1/4 up to ±2 for floats, −8 … 8 or 0 … 16 for integers. */
export function sample(shape: Shape, dtype: DType, phase = 0): number[] {
  return Array.from({ length: size(shape) }, (_, i) => {
    const k = ((i + phase) * 7 + Math.floor((i + phase) / 17) * 3) % 17;
    if (isFloat(dtype)) return (k - 8) / 4;
    return dtype === "u8" || dtype === "u32" ? k : k - 8;
  });
}

/** All index tuples of a shape in row-major order. */
export function indices(shape: Shape): number[][] {
  return shape.reduce<number[][]>(
    (all, n) => all.flatMap((index) => Array.from({ length: n }, (_, i) => [...index, i])),
    [[]],
  );
}

export function flatIndex(index: readonly number[], shape: Shape): number {
  return index.reduce((at, i, d) => at * shape[d]! + i, 0);
}

/** Row-major values of `shape`, each computed from its index. */
export const build = (shape: Shape, value: (index: number[]) => number): number[] => indices(shape).map(value);

/** Reads row-major values by index. */
export const reader =
  (values: readonly number[], shape: Shape) =>
  (...index: number[]): number =>
    values[flatIndex(index, shape)]!;

export interface Options {
  readonly dtype: DType;
  readonly device: Device;
}

export const tensor = (values: readonly number[], shape: Shape, options: Options): Tensor =>
  Tensor.from([...values], { ...options, shape });

/** One content in every kind of memory layout. */
export function layouts(values: readonly number[], shape: Shape, options: Options): [name: string, t: Tensor][] {
  const at = reader(values, shape);
  const rank = shape.length;
  const out: [string, Tensor][] = [["contiguous", tensor(values, shape, options)]];
  if (rank > 0) {
    const padded = shape.map((n) => n + 3);
    const inside = build(padded, (index) =>
      index.every((i, d) => i >= 2 && i < 2 + shape[d]!) ? at(...index.map((i) => i - 2)) : 1,
    );
    const window = shape.reduce((t, n, d) => t.narrow(d, 2, n), tensor(inside, padded, options));
    out.push(["narrowed", window]);
    const dims = shape.map((_, d) => d);
    const reversed = build(shape, (index) => at(...index.map((i, d) => shape[d]! - 1 - i)));
    out.push(["flipped", tensor(reversed, shape, options).flip(dims)]);
  }
  if (rank > 1) {
    const order = shape.map((_, d) => rank - 1 - d);
    const turned = build([...shape].reverse(), (index) => at(...[...index].reverse()));
    out.push(["transposed", tensor(turned, [...shape].reverse(), options).permute(order)]);
  }
  return out;
}

interface Wanted {
  readonly shape: Shape;
  readonly dtype?: DType;
  readonly values: readonly number[];
  /** Allowed relative error beside an absolute one of the same size; 0 means bit-equal up to the sign of zero. */
  readonly within?: number;
  readonly what?: string;
}

/** The tensor has this shape, dtype and content; NaN equals NaN. */
export function expectTensor(t: Tensor, { shape, dtype, values, within = 0, what = "" }: Wanted): void {
  expect(t.shape, what).toEqual(shape);
  if (dtype) expect(t.dtype, what).toBe(dtype);
  const got = Array.from(t.dataSync() as ArrayLike<number | bigint>, Number);
  expectClose(got, values, within, what);
}

export function expectClose(got: readonly number[], want: readonly number[], within: number, what = ""): void {
  expect(got.length, `${what}: number of elements`).toBe(want.length);
  for (let i = 0; i < want.length; i++) {
    const [a, b] = [got[i]!, want[i]!];
    if (a === b || (Number.isNaN(a) && Number.isNaN(b))) continue;
    if (!(Math.abs(a - b) <= within * (1 + Math.abs(b))) || !Number.isFinite(b)) {
      expect.fail(`${what}: element ${i} is ${a}, expected ${b} within ${within}`);
    }
  }
}

/** erf by its series and continued fraction, to about 1e-15. */
export function erf(x: number): number {
  const a = Math.abs(x);
  if (Number.isNaN(x)) return x;
  if (a > 6) return Math.sign(x);
  if (a < 2.5) {
    let [term, sum] = [a, a];
    for (let n = 1; Math.abs(term) > 1e-18 * sum && n < 200; n++) {
      term *= (-a * a) / n;
      sum += term / (2 * n + 1);
    }
    return Math.sign(x) * (2 / Math.sqrt(Math.PI)) * sum;
  }
  let fraction = 0;
  for (let n = 100; n > 0; n--) fraction = n / 2 / (a + fraction);
  return Math.sign(x) * (1 - Math.exp(-a * a) / Math.sqrt(Math.PI) / (a + fraction));
}

/** Softmax of one row; a row of −∞ has no weights. */
export function softmaxOf(row: readonly number[]): number[] {
  const top = Math.max(...row);
  const powers = row.map((x) => Math.exp(x - top));
  const total = powers.reduce((a, b) => a + b, 0);
  return powers.map((p) => p / total);
}
