/** Elementwise ops, casts, fills and random numbers: one launch each. */
import type { DType } from "../../../core/dtype.ts";
import type { BinaryOp, CompareOp, UnaryOp, View } from "../../backend.ts";
import type { Storage } from "../../storage.ts";
import { at, type Gpu } from "../gpu.ts";

export function unary(gpu: Gpu, op: UnaryOp, x: View, param: number): Storage {
  const { dtype } = x.storage;
  const numel = x.layout.numel;
  return gpu.filled(dtype, numel, (out) => {
    const { num_dims, info } = gpu.layouts(x.layout);
    if (op === "elu" || op === "powf") {
      gpu.launch(`${op}_${dtype}`, { x: at(x), out, numel, num_dims, info, param });
    } else {
      gpu.launch(`${op}_${dtype}`, { x: at(x), out, numel, num_dims, info });
    }
  });
}

export function affine(gpu: Gpu, x: View, mul: number, add: number): Storage {
  const { dtype } = x.storage;
  const numel = x.layout.numel;
  return gpu.filled(dtype, numel, (out) => {
    const { num_dims, info } = gpu.layouts(x.layout);
    gpu.launch(`affine_${dtype}`, { x: at(x), out, numel, num_dims, info, mul, add });
  });
}

export function cast(gpu: Gpu, x: View, to: DType): Storage {
  const numel = x.layout.numel;
  return gpu.filled(to, numel, (out) => {
    const { num_dims, info } = gpu.layouts(x.layout);
    gpu.launch(`cast_${x.storage.dtype}_${to}`, { x: at(x), out, numel, num_dims, info });
  });
}

export function binary(gpu: Gpu, op: BinaryOp, lhs: View, rhs: View): Storage {
  const { dtype } = lhs.storage;
  const numel = lhs.layout.numel;
  return gpu.filled(dtype, numel, (out) => {
    const { num_dims, info } = gpu.layouts(lhs.layout, rhs.layout);
    gpu.launch(`${op}_${dtype}`, { lhs: at(lhs), rhs: at(rhs), out, numel, num_dims, info });
  });
}

export function compare(gpu: Gpu, op: CompareOp, lhs: View, rhs: View): Storage {
  const numel = lhs.layout.numel;
  return gpu.filled("u8", numel, (out) => {
    const { num_dims, info } = gpu.layouts(lhs.layout, rhs.layout);
    gpu.launch(`${op}_${lhs.storage.dtype}`, { lhs: at(lhs), rhs: at(rhs), out, numel, num_dims, info });
  });
}

export function where(gpu: Gpu, cond: View, onTrue: View, onFalse: View): Storage {
  const { dtype } = onTrue.storage;
  const numel = cond.layout.numel;
  return gpu.filled(dtype, numel, (out) => {
    const { num_dims, info } = gpu.layouts(cond.layout, onTrue.layout, onFalse.layout);
    gpu.launch(`where_${cond.storage.dtype}_${dtype}`, {
      cond: at(cond),
      on_true: at(onTrue),
      on_false: at(onFalse),
      out,
      numel,
      num_dims,
      info,
    });
  });
}

export function constant(gpu: Gpu, dtype: DType, numel: number, value: number | bigint): Storage {
  return gpu.filled(dtype, numel, (out) => gpu.launch(`fill_${dtype}`, { out, numel, value }));
}

/** Uniform from `a` to `b`, or normal with the mean `a` and the deviation `b`. */
export function random(
  gpu: Gpu,
  kind: "uniform" | "normal",
  dtype: DType,
  numel: number,
  seed: bigint,
  a: number,
  b: number,
): Storage {
  return gpu.filled(dtype, numel, (out) => {
    if (kind === "uniform") gpu.launch(`rand_uniform_${dtype}`, { out, numel, seed, low: a, high: b });
    else gpu.launch(`rand_normal_${dtype}`, { out, numel, seed, mean: a, deviation: b });
  });
}
