/** Activations and rearrangements that models are made of. */
import type { GluActivation } from "../backend/fused-ops.ts";
import { fail } from "../core/errors.ts";
import { formatShape, sameShape } from "../core/layout.ts";
import * as check from "../ops/check.ts";
import { compute } from "../ops/compute.ts";
import { elementwise } from "../ops/elementwise.ts";
import { Tensor } from "../ops/index.ts";
import { indexing } from "../ops/indexing.ts";
import { define } from "../ops/op.ts";
import { reductions } from "../ops/reduce.ts";

/** eˣ / Σ eˣ over a dim; halves stay in f32 until the store. */
export const softmax = reductions.softmax;
/** log softmax, without forming the softmax. */
export const logSoftmax = reductions.logSoftmax;
/** 1 / (1 + e⁻ˣ). */
export const sigmoid = elementwise.sigmoid;
/** x / (1 + e⁻ˣ). */
export const silu = elementwise.silu;
/** x · Φ(x), in the form with tanh. */
export const gelu = elementwise.gelu;
/** x · Φ(x), by the error function. */
export const geluErf = elementwise.geluErf;
/** Rows of a table by ids of any shape. */
export const embedding = indexing.embedding;

const gluOps = { silu: "siluMul", gelu: "geluMul", clampedSwiglu: "clampedSwiglu" } as const;

/** act(gate) · up, in one pass where the device can. */
function glu(act: GluActivation, gate: Tensor, up: Tensor): Tensor {
  const op = gluOps[act];
  check.floating(op, gate);
  check.compatible(op, gate, up);
  if (!sameShape(gate.shape, up.shape)) {
    fail(
      "ShapeMismatch",
      `${op}: the gate ${formatShape(gate.shape)} and ${formatShape(up.shape)} must have one shape`,
    );
  }
  return compute(gate.backend, "glu", gate.shape, act, gate, up);
}

/** silu(gate) · up. */
export const siluMul = define("nn", "siluMul", "gate up", (gate: Tensor, up: Tensor): Tensor => glu("silu", gate, up));
/** gelu(gate) · up. */
export const geluMul = define("nn", "geluMul", "gate up", (gate: Tensor, up: Tensor): Tensor => glu("gelu", gate, up));
/** gpt-oss's g · sigmoid(1.702 g) · (u + 1), where g is the gate up to 7 and u is `up` within ±7. */
export const clampedSwiglu = define(
  "nn",
  "clampedSwiglu",
  "gate up",
  (gate: Tensor, up: Tensor): Tensor => glu("clampedSwiglu", gate, up),
);

function halves(op: string, x: Tensor, act: "silu" | "gelu"): Tensor {
  if (x.rank === 0 || x.shape.at(-1)! % 2 !== 0) {
    fail("ShapeMismatch", `${op}: the last dim of ${formatShape(x.shape)} must be even`);
  }
  const half = x.shape.at(-1)! / 2;
  using gate = x.narrow(-1, 0, half);
  using up = x.narrow(-1, half, half);
  return glu(act, gate, up);
}

/** The last dim in two halves: silu(first) · second. */
export const swiglu = define("nn", "swiglu", "x", (x: Tensor): Tensor => halves("swiglu", x, "silu"));
/** The last dim in two halves: gelu(first) · second. */
export const geglu = define("nn", "geglu", "x", (x: Tensor): Tensor => halves("geglu", x, "gelu"));

/** clamp(x / 6 + 1 / 2, 0, 1). */
export const hardSigmoid = define("nn", "hardSigmoid", "x", (x: Tensor): Tensor => {
  check.floating("hardSigmoid", x);
  using line = x.affine(1 / 6, 0.5);
  return line.clamp(0, 1);
});

/** x · tanh(log(1 + eˣ)). */
export const mish = define("nn", "mish", "x", (x: Tensor): Tensor => {
  check.floating("mish", x);
  // tanh(log(1 + e)) with n = e² + 2e is n / (n + 2), in f32 for halves, where n would overflow; above 20 the factor is
  // 1 in every float dtype but f64 (1e-17 there).
  using wide = x.toDType(x.dtype === "f64" ? "f64" : "f32");
  using capped = wide.minimum(20);
  using e = capped.exp();
  using plus = e.add(2);
  using n = e.mul(plus);
  using d = n.add(2);
  using factor = n.div(d);
  using y = wide.mul(factor);
  return y.toDType(x.dtype);
});

export const leakyRelu = define("nn", "leakyRelu", "x slope?", (x: Tensor, slope = 0.01): Tensor => {
  check.floating("leakyRelu", x);
  using scaled = x.affine(slope, 0);
  using positive = x.ge(0);
  return positive.whereCond(x, scaled);
});

export const selu = define(
  "nn",
  "selu",
  "x alpha? scale?",
  (x: Tensor, alpha = 1.6732632423543772, scale = 1.0507009873554805): Tensor => {
    using e = x.elu(alpha);
    return e.affine(scale, 0);
  },
);

/** In training: zeroes elements with probability p and scales the others by 1 / (1 − p). */
export const dropout = define(
  "nn",
  "dropout",
  "x p options?",
  (x: Tensor, p: number, options: { readonly seed?: number | bigint } = {}): Tensor => {
    check.floating("dropout", x);
    if (!(p >= 0 && p < 1))
      fail("InvalidArgument", `dropout: the probability must be from 0 up to but without 1, not ${p}`);
    using draw = Tensor.rand(x.shape, { ...options, dtype: "f32", device: x.device });
    using keep = draw.ge(p);
    using scaled = x.affine(1 / (1 - p), 0);
    using zero = Tensor.zerosLike(scaled);
    return keep.whereCond(scaled, zero);
  },
);

/** (b, c·r², h, w) → (b, c, h·r, w·r). */
export const pixelShuffle = define("nn", "pixelShuffle", "x factor", (x: Tensor, factor: number): Tensor => {
  check.hasRank("pixelShuffle", x, 4);
  check.positiveInt("pixelShuffle", "the factor", factor);
  const [b, c, h, w] = x.shape as [number, number, number, number];
  const out = c / (factor * factor);
  if (!Number.isInteger(out)) fail("ShapeMismatch", `pixelShuffle: ${c} channels do not divide by ${factor}²`);
  using split = x.reshape([b, out, factor, factor, h, w]);
  using order = split.permute([0, 1, 4, 2, 5, 3]);
  return order.reshape([b, out, h * factor, w * factor]);
});

/** (b, c, h·r, w·r) → (b, c·r², h, w). */
export const pixelUnshuffle = define("nn", "pixelUnshuffle", "x factor", (x: Tensor, factor: number): Tensor => {
  check.hasRank("pixelUnshuffle", x, 4);
  check.positiveInt("pixelUnshuffle", "the factor", factor);
  const [b, c, h, w] = x.shape as [number, number, number, number];
  if (h % factor || w % factor) fail("ShapeMismatch", `pixelUnshuffle: ${h}×${w} does not divide by ${factor}`);
  using split = x.reshape([b, c, h / factor, factor, w / factor, factor]);
  using order = split.permute([0, 1, 3, 5, 2, 4]);
  return order.reshape([b, c * factor * factor, h / factor, w / factor]);
});

/** 1 at each id and 0 elsewhere, in a new last dim of `depth`. The largest value of the id type gives a row of zeros. */
export const oneHot = define(
  "nn",
  "oneHot",
  "ids depth dtype?",
  (ids: Tensor, depth: number, dtype: "f32" | "f64" | "f16" | "bf16" | "u8" | "u32" | "i64" = "f32"): Tensor => {
    check.ids("oneHot", ids, ids);
    check.positiveInt("oneHot", "the depth", depth);
    using flat = ids.reshape([ids.numel, 1]);
    using zeros = Tensor.zeros([ids.numel, depth], { dtype, device: ids.device });
    using ones = Tensor.ones([ids.numel, 1], { dtype, device: ids.device });
    using hot = zeros.scatter(flat, ones, 1);
    return hot.reshape([...ids.shape, depth]);
  },
);
