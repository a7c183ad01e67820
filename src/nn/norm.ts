/** Normalisations. Statistics are taken in f32 for halves and in two passes, so a large mean does no harm. */

import { call } from "../backend/call.ts";
import { fail } from "../core/errors.ts";
import { formatShape, sameShape } from "../core/layout.ts";
import * as check from "../ops/check.ts";
import { composed } from "../ops/composed/index.ts";
import { compute } from "../ops/compute.ts";
import type { Tensor } from "../ops/index.ts";
import { define } from "../ops/op.ts";
import { result } from "../tensor/tensor.ts";

function checkWeight(op: string, x: Tensor, w: Tensor | null, size: number, what: string): void {
  if (!w) return;
  check.compatible(op, x, w);
  if (w.rank !== 1 || w.numel !== size) {
    fail(
      "ShapeMismatch",
      `${op}: the ${what} must have shape [${size}] for an input of ${formatShape(x.shape)}, not ${formatShape(w.shape)}`,
    );
  }
}

function checkNorm(op: string, x: Tensor, eps: number): number {
  check.floating(op, x);
  if (x.rank === 0) fail("UnexpectedNumberOfDims", `${op} needs at least one dim`);
  if (!(eps >= 0)) fail("InvalidArgument", `${op}: eps must be 0 or more, not ${eps}`);
  return x.shape.at(-1)!;
}

/** x / √(mean(x²) + eps) · weight over the last dim. */
export const rmsNorm = define(
  "nn",
  "rmsNorm",
  "x alpha? eps?",
  (x: Tensor, weight: Tensor | null, eps = 1e-5): Tensor => {
    checkWeight("rmsNorm", x, weight, checkNorm("rmsNorm", x, eps), "weight");
    return compute(x.backend, "rmsNorm", x.shape, x, weight, eps);
  },
);

export interface SumAndNorm {
  /** x + residual, rounded to their dtype. */
  readonly sum: Tensor;
  /** rmsNorm(sum). */
  readonly normed: Tensor;
}

/** A residual connection and the norm after it, in one pass where the device can. */
export const addRmsNorm = define(
  "nn",
  "addRmsNorm",
  "x residual alpha? eps?",
  (x: Tensor, residual: Tensor, weight: Tensor | null, eps = 1e-5): SumAndNorm => {
    check.compatible("addRmsNorm", x, residual);
    checkWeight("addRmsNorm", x, weight, checkNorm("addRmsNorm", x, eps), "weight");
    if (!sameShape(x.shape, residual.shape)) {
      fail(
        "ShapeMismatch",
        `addRmsNorm: the input ${formatShape(x.shape)} and the residual ${formatShape(residual.shape)} must have one shape`,
      );
    }
    const fused = call(x.backend, "addRmsNorm", x, residual, weight, eps);
    if (fused) return { sum: result(fused.sum, x.shape), normed: result(fused.normed, x.shape) };
    return composed.addRmsNorm(x, residual, weight, eps);
  },
);

/** (x − mean) / √(variance + eps) · weight + bias over the last dim. */
export const layerNorm = define(
  "nn",
  "layerNorm",
  "x alpha? beta? eps?",
  (x: Tensor, weight: Tensor | null, bias: Tensor | null, eps = 1e-5): Tensor => {
    const size = checkNorm("layerNorm", x, eps);
    checkWeight("layerNorm", x, weight, size, "weight");
    checkWeight("layerNorm", x, bias, size, "bias");
    return compute(x.backend, "layerNorm", x.shape, x, weight, bias, eps);
  },
);

/** Multiplies and shifts per channel, dim 1 of x. */
function perChannel(x: Tensor, weight: Tensor | null, bias: Tensor | null): Tensor {
  const shape = x.shape.map((d, i) => (i === 1 ? d : 1));
  let y = x.view(x.layout);
  if (weight) {
    using before = y;
    using w = weight.reshape(shape);
    y = before.mul(w);
  }
  if (bias) {
    using before = y;
    using b = bias.reshape(shape);
    y = before.add(b);
  }
  return y;
}

/** Each group of channels of x (b, c, …) normalised as one, then weight and bias per channel. */
export const groupNorm = define(
  "nn",
  "groupNorm",
  "x groups alpha? beta? eps?",
  (x: Tensor, groups: number, weight: Tensor | null, bias: Tensor | null, eps = 1e-5): Tensor => {
    check.floating("groupNorm", x);
    check.positiveInt("groupNorm", "groups", groups);
    const [b, c] = x.shape;
    if (b === undefined || c === undefined)
      fail("UnexpectedNumberOfDims", `groupNorm takes (batch, channels, …), not ${formatShape(x.shape)}`);
    if (c % groups !== 0) fail("ShapeMismatch", `groupNorm: ${c} channels do not divide into ${groups} groups`);
    checkWeight("groupNorm", x, weight, c, "weight");
    checkWeight("groupNorm", x, bias, c, "bias");
    using grouped = x.reshape([b, groups, b * groups === 0 ? 0 : x.numel / (b * groups)]);
    using normal = layerNorm(grouped, null, null, eps);
    using back = normal.reshape(x.shape);
    return perChannel(back, weight, bias);
  },
);

export interface BatchStatistics {
  readonly mean: Tensor;
  readonly variance: Tensor;
}

/** Inference: (x − mean) / √(variance + eps) · weight + bias with given statistics per channel, dim 1 of x. */
export const batchNorm = define(
  "nn",
  "batchNorm",
  "x statistics alpha? beta? eps?",
  (x: Tensor, statistics: BatchStatistics, weight: Tensor | null, bias: Tensor | null, eps = 1e-5): Tensor => {
    check.floating("batchNorm", x);
    const c =
      x.shape[1] ?? fail("UnexpectedNumberOfDims", `batchNorm takes (batch, channels, …), not ${formatShape(x.shape)}`);
    checkWeight("batchNorm", x, statistics.mean, c, "mean");
    checkWeight("batchNorm", x, statistics.variance, c, "variance");
    checkWeight("batchNorm", x, weight, c, "weight");
    checkWeight("batchNorm", x, bias, c, "bias");
    using safe = statistics.variance.add(eps);
    using deviation = safe.sqrt();
    using rescale = deviation.recip();
    using negative = statistics.mean.neg();
    using centred = perChannel(x, null, negative);
    using normal = perChannel(centred, rescale, null);
    return perChannel(normal, weight, bias);
  },
);
