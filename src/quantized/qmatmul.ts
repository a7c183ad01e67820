/** Products with quantized weights. Activations are rounded to integers on the fly where few rows are multiplied. */
import { fail } from "../core/errors.ts";
import { formatShape } from "../core/layout.ts";
import type { Module } from "../nn/index.ts";
import * as check from "../ops/check.ts";
import { compute } from "../ops/compute.ts";
import type { Tensor } from "../ops/index.ts";
import { define } from "../ops/op.ts";
import { checkFloat, type QTensor } from "./qtensor.ts";

/** x (…, k) · wᵀ with w (n, k) → (…, n), in x's dtype. */
export const qmatmul = define("quantized", "qmatmul", "x w", (x: Tensor, w: QTensor): Tensor => {
  check.sameDevice("qmatmul", x, w.blocks);
  checkFloat("qmatmul", x.dtype);
  if (w.rank !== 2) {
    fail("UnexpectedNumberOfDims", `qmatmul: the weights must be (n, k), not ${formatShape(w.shape)}`);
  }
  const [n, k] = w.shape as [number, number];
  if (x.shape.at(-1) !== k) {
    fail(
      "ShapeMismatch",
      `qmatmul: ${formatShape(x.shape)} × the transpose of ${w.type} ${formatShape(w.shape)}: the last dim of x must be ${k}`,
    );
  }
  return compute(x.backend, "qmatmul", [...x.shape.slice(0, -1), n], w.type, x, w.blocks);
});

/** x · Wᵀ + bias with quantized W (out, in). */
export class QMatMul implements Module {
  constructor(
    readonly weight: QTensor,
    readonly bias: Tensor | null = null,
  ) {
    if (weight.rank !== 2) {
      fail("UnexpectedNumberOfDims", `QMatMul: the weight must be (out, in), not ${formatShape(weight.shape)}`);
    }
  }

  forward(x: Tensor): Tensor {
    if (!this.bias) return qmatmul(x, this.weight);
    using product = qmatmul(x, this.weight);
    return product.add(this.bias);
  }
}
