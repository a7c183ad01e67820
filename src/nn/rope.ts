/** Rotary position embeddings in the three layouts in use. */
import { fail } from "../core/errors.ts";
import { formatShape } from "../core/layout.ts";
import * as check from "../tensor/check.ts";
import type { Tensor } from "../tensor/index.ts";
import { result } from "../tensor/tensor.ts";

function apply(kind: "rope" | "rope_i" | "rope_thd", x: Tensor, cos: Tensor, sin: Tensor): Tensor {
  check.floating(kind, x);
  check.hasRank(kind, x, 4);
  check.compatible(kind, x, cos);
  check.compatible(kind, x, sin);
  const [b, y, z, d] = x.shape as [number, number, number, number];
  const t = kind === "rope_thd" ? y : z;
  if (d % 2 !== 0) fail("ShapeMismatch", `${kind}: the head size ${d} must be even`);
  if (cos.rank !== sin.rank || formatShape(cos.shape) !== formatShape(sin.shape)) {
    fail(
      "ShapeMismatch",
      `${kind}: cos ${formatShape(cos.shape)} and sin ${formatShape(sin.shape)} must have one shape, (t, d/2) or (batch, t, d/2)`,
    );
  }
  const shared = cos.rank === 2;
  const [rows, width] = cos.shape.slice(-2);
  if ((!shared && (cos.rank !== 3 || cos.shape[0] !== b)) || width !== d / 2 || rows! < t) {
    fail(
      "ShapeMismatch",
      `${kind}: cos and sin must be (t, ${d / 2}) or (${b}, t, ${d / 2}) with t ≥ ${t} for an input of ${formatShape(x.shape)}, not ${formatShape(cos.shape)}`,
    );
  }
  return result(x.backend.rope(kind, x, cos, sin), x.shape);
}

/** x (b, h, t, d), rotating the pairs (i, i + d/2): Llama's layout in Hugging Face checkpoints. */
export const rope = (x: Tensor, cos: Tensor, sin: Tensor): Tensor => apply("rope", x, cos, sin);
/** x (b, h, t, d), rotating the neighbours (2i, 2i + 1). */
export const ropeI = (x: Tensor, cos: Tensor, sin: Tensor): Tensor => apply("rope_i", x, cos, sin);
/** x (b, t, h, d), rotating the pairs (i, i + d/2). */
export const ropeThd = (x: Tensor, cos: Tensor, sin: Tensor): Tensor => apply("rope_thd", x, cos, sin);
