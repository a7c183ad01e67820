/**
 * What every op that a device may have in one piece is made of: formulas over the core ops. A device that has none of them
 * still does everything, and they say what its own kernels must compute.
 */
import type { FusedOps, SumAndNorm, ValuesAndIds } from "../../backend/fused-ops.ts";
import type { Tensor } from "../../tensor/tensor.ts";
import { sdpa, sdpaVarlen } from "./attention.ts";
import { conv2d, convTranspose2d } from "./conv.ts";
import { advance, affine, indexAdd, indexSelect } from "./elements.ts";
import { expertLinear, mixExperts, routedExperts, topk } from "./experts.ts";
import { epilogue, glu, linear } from "./linear.ts";
import { addRmsNorm, layerNorm, rmsNorm, softmax } from "./norm.ts";
import { qmatmul, quantizedRows } from "./quantized.ts";
import { pool2d, upsampleBilinear2d, upsampleNearest2d } from "./resample.ts";
import { rope } from "./rope.ts";

type OnTensors<R> = R extends SumAndNorm
  ? { sum: Tensor; normed: Tensor }
  : R extends ValuesAndIds
    ? { values: Tensor; ids: Tensor }
    : R extends object
      ? Tensor
      : R;

/** As the device's op of that name, of tensors. */
export type Composed = {
  readonly [K in keyof FusedOps]: (
    ...args: Parameters<FusedOps<Tensor>[K]>
  ) => OnTensors<Exclude<ReturnType<FusedOps[K]>, null>>;
};

export const composed: Composed = {
  addRmsNorm,
  advance,
  affine,
  conv2d,
  convTranspose2d,
  epilogue,
  expertLinear,
  glu,
  indexAdd,
  indexSelect,
  layerNorm,
  linear,
  mixExperts,
  pool2d,
  qmatmul,
  quantizedRows,
  rmsNorm,
  rope,
  routedExperts,
  sdpa,
  sdpaVarlen,
  softmax,
  topk,
  upsampleBilinear2d,
  upsampleNearest2d,
};
