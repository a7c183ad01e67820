/** Rotary embeddings: each pair (a, b) becomes (a·cos − b·sin, a·sin + b·cos). */
import type { RopeKind } from "../../backend/fused-ops.ts";
import { scope } from "../../tensor/scope.ts";
import { Tensor } from "../../tensor/tensor.ts";
import { widen } from "./elements.ts";

export const rope = (kind: RopeKind, x: Tensor, cos: Tensor, sin: Tensor): Tensor =>
  scope(() => {
    const [b, y, z, d] = x.shape as [number, number, number, number];
    const half = d / 2;
    const t = kind === "rope_thd" ? y : z;
    // Heads share the angles of their position.
    const angles = (table: Tensor): Tensor => {
      const batches = table.rank === 3 ? b : 1;
      const rows = table.reshape([batches, table.shape.at(-2)!, half]).narrow(1, 0, t);
      return widen(rows.reshape(kind === "rope_thd" ? [batches, t, 1, half] : [batches, 1, t, half]));
    };
    const neighbours = kind === "rope_i";
    const pairs = neighbours ? x.reshape([b, y, z, half, 2]) : x.reshape([b, y, z, 2, half]);
    const side = neighbours ? 4 : 3;
    const [first, second] = [0, 1].map((i) => widen(pairs.narrow(side, i, 1).squeezeDims([side]))) as [Tensor, Tensor];
    const [c, s] = [angles(cos), angles(sin)];
    const turned = [first.mul(c).sub(second.mul(s)), first.mul(s).add(second.mul(c))];
    return Tensor.stack(turned, side).reshape(x.shape).toDType(x.dtype);
  });
