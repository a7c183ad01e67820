/**
 * Mixtures of experts on the device: which of them a row goes through is known to the device alone, so that a step can be
 * recorded. Slot r · k + j is the way of row r through the j-th of the k experts that it was given.
 */
import { call } from "../backend/call.ts";
import type { GluActivation } from "../backend/fused-ops.ts";
import { fail } from "../core/errors.ts";
import { formatShape, type Shape, sameShape } from "../core/layout.ts";
import type { QuantType } from "../core/quant-types.ts";
import * as check from "../ops/check.ts";
import { composed } from "../ops/composed/index.ts";
import { compute } from "../ops/compute.ts";
import { Tensor } from "../ops/index.ts";
import { define } from "../ops/op.ts";
import { result } from "../tensor/tensor.ts";

export interface Route {
  /** (n, k): the experts of each row, the best first; of equal ones that with the lower number. */
  readonly ids: Tensor<"u32">;
  /** (n, k): what their results count, the softmax of their scores. */
  readonly mix: Tensor<"f32">;
}

/** The k best of a router's scores (n, experts), and the softmax of these k. NaN is less than any other score. */
export const routeExperts = define("nn", "routeExperts", "scores k", (scores: Tensor, k: number): Route => {
  check.hasRank("routeExperts", scores, 2, "the scores");
  check.floating("routeExperts", scores);
  check.positiveInt("routeExperts", "k", k);
  const [n, experts] = scores.shape as [number, number];
  if (k > experts)
    fail("InvalidArgument", `routeExperts: ${k} of the ${experts} experts of ${formatShape(scores.shape)}`);
  const fused = call(scores.backend, "topk", scores, k, true);
  if (fused)
    return { ids: result(fused.ids, [n, k]) as Tensor<"u32">, mix: result(fused.values, [n, k]) as Tensor<"f32"> };
  const { ids, values } = composed.topk(scores, k, true);
  return { ids: ids as Tensor<"u32">, mix: values as Tensor<"f32"> };
});

/** What a quantized stack of weights is, of shape (experts, out, in): a `QTensor` of three dims. */
export interface QuantizedStack {
  readonly type: QuantType;
  readonly shape: Shape;
  readonly blocks: Tensor;
}

export interface ExpertLinearOptions {
  /** x is RMS-normalised first, as `rmsNorm` does it. */
  readonly norm?: { readonly weight: Tensor; readonly eps: number } | null | undefined;
  /** (experts, out). */
  readonly bias?: Tensor | null | undefined;
  /** The first half of an expert's rows are the gates of the second: results have half as many columns. */
  readonly glu?: GluActivation | null | undefined;
  /** (n, k): results are the sums of each row's slots, as `mixExperts` makes them: (n, out). Not with a gate. */
  readonly mix?: Tensor | null | undefined;
  /** (n, out): added to that sum. */
  readonly residual?: Tensor | null | undefined;
}

/**
 * x (n, in) through the experts ids (n, k) of u32, each a matrix of weight (experts, out, in): (n · k, out), a row for each
 * slot. x may have a row for each slot, too: (n · k, in). The id 0xffffffff is no expert, and gives zeros. With a mix, (n, out).
 */
export const expertLinear = define(
  "nn",
  "expertLinear",
  "x weight ids options?",
  (x: Tensor, weight: Tensor | QuantizedStack, ids: Tensor, options: ExpertLinearOptions = {}): Tensor => {
    const { norm, bias, glu, mix, residual } = options;
    const type = weight instanceof Tensor ? null : weight.type;
    const w = weight instanceof Tensor ? weight : weight.blocks;
    check.floating("expertLinear", x);
    check.sameDevice("expertLinear", x, w);
    if (type === null) check.sameDType("expertLinear", x, w);
    checkSizes(x, weight.shape, ids);
    const [experts, outputs] = weight.shape as [number, number, number];
    if (glu && outputs % 2 !== 0) {
      fail(
        "ShapeMismatch",
        `expertLinear: gates and what they open are the rows of ${formatShape(weight.shape)}: ${outputs} is odd`,
      );
    }
    if (bias) {
      check.compatible("expertLinear", x, bias);
      if (!sameShape(bias.shape, [experts, outputs])) {
        fail(
          "ShapeMismatch",
          `expertLinear: the bias must be ${formatShape([experts, outputs])}, not ${formatShape(bias.shape)}`,
        );
      }
    }
    if (norm) check.compatible("expertLinear", x, norm.weight);
    checkSum(x, ids, outputs, options);
    const around = { norm: norm ?? null, bias: bias ?? null, glu: glu ?? null };
    const params = { ...around, mix: mix ?? null, residual: residual ?? null };
    const shape = mix ? [ids.shape[0]!, outputs] : [ids.numel, glu ? outputs / 2 : outputs];
    return compute(x.backend, "expertLinear", shape, x, w, type, ids, params);
  },
);

function checkSum(x: Tensor, ids: Tensor, outputs: number, { glu, mix, residual }: ExpertLinearOptions): void {
  if (!mix) {
    if (residual) fail("InvalidArgument", "expertLinear: a residual is added to sums of slots, which take a mix");
    return;
  }
  if (glu) fail("InvalidArgument", "expertLinear: sums of slots are without a gate");
  check.floating("expertLinear", mix);
  check.sameDevice("expertLinear", x, mix);
  if (!sameShape(mix.shape, ids.shape)) {
    fail(
      "ShapeMismatch",
      `expertLinear: the mix must be ${formatShape(ids.shape)} as the ids are, not ${formatShape(mix.shape)}`,
    );
  }
  if (!residual) return;
  check.compatible("expertLinear", x, residual);
  if (!sameShape(residual.shape, [ids.shape[0]!, outputs])) {
    fail(
      "ShapeMismatch",
      `expertLinear: the residual must be ${formatShape([ids.shape[0]!, outputs])}, not ${formatShape(residual.shape)}`,
    );
  }
}

function checkSizes(x: Tensor, weight: Shape, ids: Tensor): void {
  check.sameDevice("expertLinear", x, ids);
  check.hasRank("expertLinear", x, 2);
  check.hasRank("expertLinear", ids, 2, "ids");
  if (ids.dtype !== "u32") {
    fail("UnsupportedDTypeForOp", `expertLinear: ids must be u32, not ${ids.dtype}; convert with toDType("u32")`);
  }
  if (weight.length !== 3) {
    fail("UnexpectedNumberOfDims", `expertLinear: the weight must be (experts, out, in), not ${formatShape(weight)}`);
  }
  if (x.shape[1] !== weight[2]) {
    fail(
      "ShapeMismatch",
      `expertLinear: ${formatShape(x.shape)} × weights ${formatShape(weight)}: the last dim of x must be ${weight[2]}`,
    );
  }
  const rows = x.shape[0]!;
  if (rows !== ids.shape[0] && rows !== ids.numel) {
    fail(
      "ShapeMismatch",
      `expertLinear: ids ${formatShape(ids.shape)} are for ${ids.shape[0]} rows of x, or ${ids.numel} with one for each slot, not ${rows}`,
    );
  }
}

/** What the experts made, y (n · k, hidden), mixed by mix (n, k), and a residual added: (n, hidden). Sums are in f32. */
export const mixExperts = define(
  "nn",
  "mixExperts",
  "y mix residual?",
  (y: Tensor, mix: Tensor, residual: Tensor | null = null): Tensor => {
    check.floating("mixExperts", y);
    check.floating("mixExperts", mix);
    check.sameDevice("mixExperts", y, mix);
    check.hasRank("mixExperts", y, 2);
    check.hasRank("mixExperts", mix, 2, "the mix");
    const shape = [mix.shape[0]!, y.shape[1]!];
    if (y.shape[0] !== mix.numel) {
      fail(
        "ShapeMismatch",
        `mixExperts: ${formatShape(y.shape)} must have a row for each of the ${mix.numel} elements of ${formatShape(mix.shape)}`,
      );
    }
    if (residual) {
      check.compatible("mixExperts", y, residual);
      if (!sameShape(residual.shape, shape)) {
        fail(
          "ShapeMismatch",
          `mixExperts: the residual must be ${formatShape(shape)}, not ${formatShape(residual.shape)}`,
        );
      }
    }
    return compute(y.backend, "mixExperts", shape, y, mix, residual);
  },
);
