/** Matrix products. */
import { call } from "../backend/call.ts";
import { fail } from "../core/errors.ts";
import { broadcastShapes, formatShape } from "../core/layout.ts";
import { result, type Tensor } from "../tensor/tensor.ts";
import * as check from "./check.ts";
import { einsum } from "./einsum.ts";
import { group, op } from "./op.ts";

export const products = group("linear", {
  /**
   * (…, m, k) × (…, k, n) → (…, m, n); leading dims broadcast. f16 and bf16 accumulate in f32. Transposed and
   * broadcast operands are used in place.
   */
  matmul: op("lhs rhs", (lhs: Tensor, rhs: Tensor): Tensor => {
    check.compatible("matmul", lhs, rhs);
    const [a, b] = [lhs.shape, rhs.shape];
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
    // Two matrices are what they are: views of them would take longer to make than a small product.
    if (a.length === 2 && b.length === 2) return result(call(lhs.backend, "matmul", lhs, rhs), [m, n]);
    const batch = broadcastShapes(a.slice(0, -2), b.slice(0, -2), "matmul");
    using left = lhs.view(lhs.layout.broadcastTo([...batch, m, k]));
    using right = rhs.view(rhs.layout.broadcastTo([...batch, k, n]));
    return result(call(lhs.backend, "matmul", left, right), [...batch, m, n]);
  }),

  /** The inner product of two vectors, as a scalar tensor. */
  dot: op("lhs rhs", (lhs: Tensor, rhs: Tensor): Tensor => {
    check.tensor("dot", rhs, "the right side");
    check.hasRank("dot", lhs, 1, "the left side");
    check.hasRank("dot", rhs, 1, "the right side");
    if (lhs.numel !== rhs.numel) {
      fail("ShapeMismatch", `dot: vectors of ${lhs.numel} and ${rhs.numel} elements differ in length`);
    }
    using row = lhs.unsqueeze(0);
    using column = rhs.unsqueeze(1);
    using product = row.matmul(column);
    return product.reshape([]);
  }),

  /** Matrix (m, k) times vector (k). */
  mv: op("lhs rhs", (matrix: Tensor, vector: Tensor): Tensor => {
    check.tensor("mv", vector, "the vector");
    check.hasRank("mv", matrix, 2, "the matrix");
    check.hasRank("mv", vector, 1, "the vector");
    using column = vector.unsqueeze(1);
    using product = matrix.matmul(column);
    return product.squeeze(1);
  }),
});

/** Products that belong to no tensor in particular. */
export const sums = group("linear", {
  einsum: op("equation tensors", einsum),
});
