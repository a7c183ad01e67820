/** Attention with the whole score matrix in memory. */
import type { SdpaParams } from "../../backend/fused-ops.ts";
import { scope } from "../../tensor/scope.ts";
import { Tensor } from "../../tensor/tensor.ts";
import type { TensorOptions } from "../create.ts";
import { widen } from "./elements.ts";

export const sdpa = (q: Tensor, k: Tensor, v: Tensor, mask: Tensor | null, p: SdpaParams<Tensor>): Tensor =>
  scope(() => {
    const [b, hq, tq, d] = q.shape as [number, number, number, number];
    const [, hk, tk] = k.shape as [number, number, number, number];
    const [qw, kw, vw] = [q, k, v].map(widen) as [Tensor, Tensor, Tensor];
    const options = { dtype: qw.dtype, device: q.device };
    // Query heads that share a key head become a dim over which keys and values broadcast.
    const grouped = [b, hk, hk === 0 ? 0 : hq / hk, tq];
    let scores = qw
      .reshape([...grouped, d])
      .matmul(kw.unsqueeze(2).t())
      .affine(p.scale, 0);
    if (p.softcap > 0) {
      scores = scores
        .affine(1 / p.softcap, 0)
        .tanh()
        .affine(p.softcap, 0);
    }
    if (mask) scores = scores.add(widen(mask).reshape([...grouped, tk]));
    if (p.causal || p.window > 0) {
      // Chosen, not added: what a hidden key scores does not matter, be it NaN.
      const hidden = Tensor.full([], Number.NEGATIVE_INFINITY, options);
      scores = visibleKeys(tq, tk, p, options).whereCond(scores, hidden);
    }
    if (p.sinks) {
      const sinks = widen(p.sinks).reshape([1, hk, grouped[2]!, 1, 1]);
      scores = Tensor.cat([scores, sinks.broadcastAs([...grouped, 1])], -1);
    }
    const mixed = scores.softmax(-1).narrow(-1, 0, tk).matmul(vw.unsqueeze(2));
    return mixed.reshape([b, hq, tq, v.shape[3]!]).toDType(q.dtype);
  });

/** 1 where query i may see key j, 0 elsewhere. */
function visibleKeys(tq: number, tk: number, { causal, window }: SdpaParams<Tensor>, options: TensorOptions): Tensor {
  const rows = Tensor.arange(tk - tq, tk, options).reshape([tq, 1]);
  const ahead = Tensor.arange(0, tk, options).sub(rows);
  if (!causal) return ahead.abs().le(window);
  return window > 0 ? ahead.le(0).mul(ahead.gt(-window)) : ahead.le(0);
}
