/** Matrix products. */
import { fail } from "../core/errors.ts";
import { broadcastShapes, formatShape } from "../core/layout.ts";
import * as check from "./check.ts";
import { result, type Tensor } from "./tensor.ts";

export type LinearMethods = typeof linear;

export const linear = {
  /**
   * (…, m, k) × (…, k, n) → (…, m, n); leading dims broadcast. f16 and bf16 accumulate in f32. Transposed and
   * broadcast operands are used in place.
   */
  matmul(this: Tensor, other: Tensor): Tensor {
    check.compatible("matmul", this, other);
    const [a, b] = [this.shape, other.shape];
    if (a.length < 2 || b.length < 2) {
      fail(
        "UnexpectedNumberOfDims",
        `matmul takes tensors of rank 2 and more, not ${formatShape(a)} and ${formatShape(b)}; use mv or dot for vectors`,
      );
    }
    const [m, k] = a.slice(-2) as [number, number];
    const [k2, n] = b.slice(-2) as [number, number];
    if (k !== k2) {
      fail("ShapeMismatch", `matmul: ${formatShape(a)} × ${formatShape(b)}: the inner sizes ${k} and ${k2} differ`);
    }
    const batch = broadcastShapes(a.slice(0, -2), b.slice(0, -2), "matmul");
    using left = this.view(this.layout.broadcastTo([...batch, m, k]));
    using right = other.view(other.layout.broadcastTo([...batch, k, n]));
    return result(this.backend.matmul(left, right), [...batch, m, n]);
  },

  /** The inner product of two vectors, as a scalar tensor. */
  dot(this: Tensor, other: Tensor): Tensor {
    check.hasRank("dot", this, 1, "the left side");
    check.hasRank("dot", other, 1, "the right side");
    if (this.numel !== other.numel) {
      fail("ShapeMismatch", `dot: vectors of ${this.numel} and ${other.numel} elements differ in length`);
    }
    using row = this.unsqueeze(0);
    using column = other.unsqueeze(1);
    using product = row.matmul(column);
    return product.reshape([]);
  },

  /** Matrix (m, k) times vector (k). */
  mv(this: Tensor, vector: Tensor): Tensor {
    check.hasRank("mv", this, 2, "the matrix");
    check.hasRank("mv", vector, 1, "the vector");
    using column = vector.unsqueeze(1);
    using product = this.matmul(column);
    return product.squeeze(1);
  },
};
