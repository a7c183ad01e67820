/** Softmax and norms over the last dim, in f32 for halves. */
import { scope } from "../../tensor/scope.ts";
import type { Tensor } from "../../tensor/tensor.ts";
import { compute } from "../compute.ts";
import { widen } from "./elements.ts";

export const softmax = (x: Tensor, log: boolean): Tensor =>
  scope(() => {
    if (x.numel === 0) return x.copy();
    const wide = widen(x);
    const shifted = wide.sub(wide.maxKeepdim(-1));
    const powers = shifted.exp();
    const total = powers.sumKeepdim(-1);
    return (log ? shifted.sub(total.log()) : powers.div(total)).toDType(x.dtype);
  });

/** x · weight + bias in x's own width, rounded to `like`'s dtype. */
function scaled(x: Tensor, weight: Tensor | null, bias: Tensor | null, like: Tensor): Tensor {
  const y = weight ? x.mul(widen(weight)) : x;
  return (bias ? y.add(widen(bias)) : y).toDType(like.dtype);
}

export const rmsNorm = (x: Tensor, weight: Tensor | null, eps: number): Tensor =>
  scope(() => {
    if (x.numel === 0) return x.copy();
    const wide = widen(x);
    const size = wide.sqr().meanKeepdim(-1).add(eps).sqrt();
    return scaled(wide.div(size), weight, null, x);
  });

export const layerNorm = (x: Tensor, weight: Tensor | null, bias: Tensor | null, eps: number): Tensor =>
  scope(() => {
    if (x.numel === 0) return x.copy();
    const wide = widen(x);
    const centred = wide.sub(wide.meanKeepdim(-1));
    const size = centred.sqr().meanKeepdim(-1).add(eps).sqrt();
    return scaled(centred.div(size), weight, bias, x);
  });

export const addRmsNorm = (
  x: Tensor,
  residual: Tensor,
  weight: Tensor | null,
  eps: number,
): { sum: Tensor; normed: Tensor } => {
  const sum = x.add(residual);
  return { sum, normed: compute(x.backend, "rmsNorm", x.shape, sum, weight, eps) };
};
