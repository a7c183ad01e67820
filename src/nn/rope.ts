/** Rotary position embeddings in the three layouts in use. */

import type { RopeKind } from "../backend/fused-ops.ts";
import { fail } from "../core/errors.ts";
import { formatShape, sameShape } from "../core/layout.ts";
import * as check from "../ops/check.ts";
import { compute } from "../ops/compute.ts";
import type { Tensor } from "../ops/index.ts";
import { define } from "../ops/op.ts";

function apply(name: string, kind: RopeKind, x: Tensor, cos: Tensor, sin: Tensor): Tensor {
  check.floating(name, x);
  check.hasRank(name, x, 4);
  check.compatible(name, x, cos);
  check.compatible(name, x, sin);
  const [b, y, z, d] = x.shape as [number, number, number, number];
  const t = kind === "rope_thd" ? y : z;
  if (d % 2 !== 0) fail("ShapeMismatch", `${name}: the head size ${d} must be even`);
  if (!sameShape(cos.shape, sin.shape)) {
    fail(
      "ShapeMismatch",
      `${name}: cos ${formatShape(cos.shape)} and sin ${formatShape(sin.shape)} must have one shape, (t, d/2) or (batch, t, d/2)`,
    );
  }
  const shared = cos.rank === 2;
  const [rows, width] = cos.shape.slice(-2);
  if ((!shared && (cos.rank !== 3 || cos.shape[0] !== b)) || width !== d / 2 || rows! < t) {
    fail(
      "ShapeMismatch",
      `${name}: cos and sin must be (t, ${d / 2}) or (${b}, t, ${d / 2}) with t ≥ ${t} for an input of ${formatShape(x.shape)}, not ${formatShape(cos.shape)}`,
    );
  }
  return compute(x.backend, "rope", x.shape, kind, x, cos, sin);
}

const turning = (name: string, kind: RopeKind) =>
  define("nn", name, "x cos sin", (x: Tensor, cos: Tensor, sin: Tensor): Tensor => apply(name, kind, x, cos, sin));

/** x (b, h, t, d), rotating the pairs (i, i + d/2): Llama's layout in Hugging Face checkpoints. */
export const rope = turning("rope", "rope");
/** x (b, h, t, d), rotating the neighbours (2i, 2i + 1). */
export const ropeI = turning("ropeI", "rope_i");
/** x (b, t, h, d), rotating the pairs (i, i + d/2). */
export const ropeThd = turning("ropeThd", "rope_thd");
