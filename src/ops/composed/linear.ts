/** Linear layers and gates, step by step. */
import type { LinearParams } from "../../backend/fused-ops.ts";
import type { QuantType } from "../../core/quant-types.ts";
import type { Tensor } from "../../tensor/tensor.ts";
import { compute } from "../compute.ts";

export function glu(act: "silu" | "gelu", gate: Tensor, up: Tensor): Tensor {
  using open = gate[act]();
  return open.mul(up);
}

export function linear(x: Tensor, w: Tensor, type: QuantType | null, p: LinearParams<Tensor>): Tensor {
  const { norm, bias, glu: act, residual } = p;
  using rows = norm ? compute(x.backend, "rmsNorm", x.shape, x, norm.weight, norm.eps) : x.view(x.layout);
  using y = product(rows, w, type, bias);
  using out = act ? gated(act, y) : y.view(y.layout);
  return residual ? residual.add(out) : out.view(out.layout);
}

function product(x: Tensor, w: Tensor, type: QuantType | null, bias: Tensor | null): Tensor {
  using transposed = w.t();
  const y = type
    ? compute(x.backend, "qmatmul", [...x.shape.slice(0, -1), w.shape[0]!], type, x, w)
    : x.matmul(transposed);
  if (!bias) return y;
  using bare = y;
  return bare.add(bias);
}

function gated(act: "silu" | "gelu", y: Tensor): Tensor {
  const half = y.shape.at(-1)! / 2;
  using gate = y.narrow(-1, 0, half);
  using up = y.narrow(-1, half, half);
  return compute(y.backend, "glu", up.shape, act, gate, up);
}
