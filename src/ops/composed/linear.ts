/** Linear layers and gates, step by step. */
import type { EpilogueParams, GluActivation, LinearParams } from "../../backend/fused-ops.ts";
import type { QuantType } from "../../core/quant-types.ts";
import { scope } from "../../tensor/scope.ts";
import type { Tensor } from "../../tensor/tensor.ts";
import { compute } from "../compute.ts";

// No `using` here: these are the steps of decoding, and what it compiles to costs more than they do. Where one throws, the
// scope or the collector frees what was made before.

export function glu(act: GluActivation, gate: Tensor, up: Tensor): Tensor {
  if (act === "clampedSwiglu") return clampedSwiglu(gate, up);
  const open = gate[act]();
  const y = open.mul(up);
  open.dispose();
  return y;
}

/** In f32 for halves, which would round each of the steps. */
const clampedSwiglu = (gate: Tensor, up: Tensor): Tensor =>
  scope(() => {
    const wide = gate.dtype === "f64" ? "f64" : "f32";
    const g = gate.toDType(wide).minimum(7);
    const open = g.mul(g.affine(1.702, 0).sigmoid());
    return open.mul(up.toDType(wide).clamp(-7, 7).add(1)).toDType(gate.dtype);
  });

export function linear(x: Tensor, w: Tensor, type: QuantType | null, p: LinearParams<Tensor>): Tensor {
  const { norm, bias, glu: act, residual, activation = null } = p;
  const rows = norm ? compute(x.backend, "rmsNorm", x.shape, x, norm.weight, norm.eps) : x;
  let y = product(rows, w, type);
  if (norm) rows.dispose();
  if (!act && (bias || activation)) return finished(y, { bias, activation, residual });
  if (bias) y = finished(y, { bias, activation: null, residual: null });
  if (act) y = instead(y, gated(act, y));
  return residual ? instead(y, residual.add(y)) : y;
}

const finished = (y: Tensor, p: EpilogueParams<Tensor>): Tensor =>
  instead(y, compute(y.backend, "epilogue", y.shape, y, p));

export function epilogue(y: Tensor, { bias, activation, residual }: EpilogueParams<Tensor>): Tensor {
  const biased = bias ? y.add(bias) : y;
  const activated = activation ? biased[activation]() : biased;
  const sum = residual ? residual.add(activated) : activated;
  for (const step of new Set([biased, activated])) if (step !== y && step !== sum) step.dispose();
  return sum === y ? y.view(y.layout) : sum;
}

/** The new one; the old one is let go. */
function instead(old: Tensor, fresh: Tensor): Tensor {
  old.dispose();
  return fresh;
}

function product(x: Tensor, w: Tensor, type: QuantType | null): Tensor {
  if (type) return compute(x.backend, "qmatmul", [...x.shape.slice(0, -1), w.shape[0]!], type, x, w);
  const transposed = w.t();
  const y = x.matmul(transposed);
  transposed.dispose();
  return y;
}

function gated(act: GluActivation, y: Tensor): Tensor {
  const half = y.shape.at(-1)! / 2;
  const gate = y.narrow(-1, 0, half);
  const up = y.narrow(-1, half, half);
  const open = compute(y.backend, "glu", up.shape, act, gate, up);
  gate.dispose();
  up.dispose();
  return open;
}
