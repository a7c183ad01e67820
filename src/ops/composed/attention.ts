/** Attention with the whole score matrix in memory, and of sequences one by one. */
import type { SdpaParams } from "../../backend/fused-ops.ts";
import { fail } from "../../core/errors.ts";
import { scope } from "../../tensor/scope.ts";
import { Tensor } from "../../tensor/tensor.ts";
import { compute } from "../compute.ts";
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

/** Where sequences begin is read by the host, so this cannot be recorded. */
export const sdpaVarlen = (q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, p: SdpaParams<Tensor>): Tensor =>
  scope(() => {
    const [rows, hq] = q.shape as [number, number];
    const dv = v.shape[2]!;
    const ends = Array.from(offsets.dataSync(), Number);
    if (ends[0] !== 0 || ends.at(-1) !== rows || ends.some((end, i) => i > 0 && end < ends[i - 1]!))
      fail("ValueOutOfRange", `sdpaVarlen: offsets must ascend from 0 to the ${rows} rows, but are ${ends.join(", ")}`);
    const lengths = ends.slice(1).map((end, i) => [ends[i]!, end - ends[i]!] as const);
    const parts = lengths.map(([start, length]) => {
      const own = (x: Tensor): Tensor => x.narrow(0, start, length).transpose(0, 1).unsqueeze(0);
      const window = Math.min(p.window, length);
      const y = compute(q.backend, "sdpa", [1, hq, length, dv], own(q), own(k), own(v), null, { ...p, window });
      return y.squeeze(0).transpose(0, 1);
    });
    return Tensor.cat(parts, 0).contiguous();
  });

/** 1 where query i may see key j, 0 elsewhere. */
function visibleKeys(tq: number, tk: number, { causal, window }: SdpaParams<Tensor>, options: TensorOptions): Tensor {
  const rows = Tensor.arange(tk - tq, tk, options).reshape([tq, 1]);
  const ahead = Tensor.arange(0, tk, options).sub(rows);
  if (!causal) return ahead.abs().le(window);
  return window > 0 ? ahead.le(0).mul(ahead.gt(-window)) : ahead.le(0);
}
