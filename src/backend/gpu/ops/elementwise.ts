/** Elementwise ops, casts, fills and random numbers: one launch each. */
import type { DType } from "../../../core/dtype.ts";
import type { View } from "../../backend.ts";
import type { Storage } from "../../storage.ts";
import { at, type Gpu } from "../gpu.ts";

/** One input, one output of the given dtype. `extra` holds scalar arguments. */
export function map(gpu: Gpu, kernel: string, x: View, to: DType, extra: Record<string, number> = {}): Storage {
  const numel = x.layout.numel;
  return gpu.fill(to, numel, (out) =>
    gpu.launch(kernel, { numel, ...gpu.layouts(x.layout), inp: at(x), out, ...extra }),
  );
}

/** Two inputs of one shape. */
export function zip(gpu: Gpu, kernel: string, a: View, b: View, to: DType): Storage {
  const numel = a.layout.numel;
  return gpu.fill(to, numel, (out) =>
    gpu.launch(kernel, { numel, ...gpu.layouts(a.layout, b.layout), lhs: at(a), rhs: at(b), out }),
  );
}

export function where(gpu: Gpu, cond: View, onTrue: View, onFalse: View): Storage {
  const { dtype } = onTrue.storage;
  const numel = cond.layout.numel;
  const layouts = (): { num_dims: number; info: number } => gpu.layouts(cond.layout, onTrue.layout, onFalse.layout);
  return gpu.fill(dtype, numel, (out) =>
    gpu.launch(`where_${cond.storage.dtype}_${dtype}`, {
      numel,
      ...layouts(),
      ids: at(cond),
      t: at(onTrue),
      f: at(onFalse),
      out,
    }),
  );
}

export function constant(gpu: Gpu, dtype: DType, numel: number, value: number | bigint): Storage {
  return gpu.fill(dtype, numel, (out) => gpu.launch(`const_set_${dtype}`, { numel, num_dims: 0, info: 0, value, out }));
}

export function random(
  gpu: Gpu,
  kind: "uniform" | "normal",
  dtype: DType,
  numel: number,
  seed: bigint,
  a: number,
  b: number,
): Storage {
  const range = kind === "uniform" ? { low: a, high: b } : { mean: a, deviation: b };
  return gpu.fill(dtype, numel, (out) => gpu.launch(`rand_${kind}_${dtype}`, { numel, seed, ...range, out }));
}
