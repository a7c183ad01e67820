/** Elements of views as JavaScript numbers, and back: f64 for every float, bigints for i64. */
import type { View } from "../../src/backend/backend.ts";
import { type DType, decode, dtypes, encode, isInt } from "../../src/core/dtype.ts";
import { contiguousStrides, type Shape } from "../../src/core/layout.ts";

export type Value = number | bigint;

/** The reference device's memory. */
export interface ReferenceBlock {
  readonly bytes: number;
  readonly data: Uint8Array;
}

/** Every index of a shape, in row-major order. */
export function* indices(shape: Shape): Generator<number[]> {
  const total = shape.reduce((a, b) => a * b, 1);
  const steps = contiguousStrides(shape);
  for (let i = 0; i < total; i++) yield shape.map((size, d) => Math.floor(i / steps[d]!) % size);
}

/** Where each element lies in its storage, in row-major order. */
export function places({ shape, strides, offset }: View["layout"]): number[] {
  let out = [offset];
  for (const [d, size] of shape.entries()) {
    const next = new Array<number>(out.length * size);
    for (let i = 0; i < next.length; i++) next[i] = out[Math.floor(i / size)]! + (i % size) * strides[d]!;
    out = next;
  }
  return out;
}

export const dataOf = (view: View): Uint8Array => (view.storage.block as ReferenceBlock).data;
export const valuesOf = (view: View): Value[] => {
  const all = decode(dataOf(view), view.storage.dtype);
  return places(view.layout).map((at) => all[at]!);
};
export const numbersOf = (view: View): number[] => valuesOf(view).map(Number);

/** What an integer dtype keeps of a number. */
export function wrapped(value: Value, dtype: DType): Value {
  const bits = dtypes[dtype].size * 8;
  const whole = BigInt(value);
  const kept = dtype.startsWith("u") ? BigInt.asUintN(bits, whole) : BigInt.asIntN(bits, whole);
  return dtype === "i64" ? kept : Number(kept);
}

/** What a dtype holds of a result: floats are rounded, integers wrap. */
export const stored = (values: readonly Value[], dtype: DType): Uint8Array =>
  encode(isInt(dtype) ? values.map((v) => wrapped(v, dtype)) : values, dtype);
