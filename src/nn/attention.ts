/** Scaled dot-product attention. */
import type { SdpaParams } from "../backend/backend.ts";
import { fail } from "../core/errors.ts";
import { formatShape } from "../core/layout.ts";
import * as check from "../tensor/check.ts";
import { scope, Tensor, type TensorOptions } from "../tensor/index.ts";
import { result } from "../tensor/tensor.ts";

export interface SdpaOptions {
  /** Default 1 / √d. */
  readonly scale?: number;
  /** Query i sees the keys up to i + tk − tq: aligned to the end. Default false. */
  readonly causal?: boolean;
  /** Added to the scores; broadcasts to (b, hq, tq, tk). */
  readonly mask?: Tensor;
  /** Squashes scores to ±softcap by softcap · tanh(s / softcap). */
  readonly softcap?: number;
  /** With causal: each query sees only its last `window` keys. */
  readonly window?: number;
}

/**
 * softmax(q·kᵀ·scale + mask)·v without the score matrix in memory. q (b, hq, tq, d), k (b, hk, tk, d),
 * v (b, hk, tk, dv); hq is a multiple of hk, and consecutive query heads share a key head.
 */
export function sdpa(q: Tensor, k: Tensor, v: Tensor, options: SdpaOptions = {}): Tensor {
  const { causal = false, mask, softcap = 0, window = 0 } = options;
  for (const [x, name] of [
    [q, "q"],
    [k, "k"],
    [v, "v"],
  ] as const) {
    check.hasRank("sdpa", x, 4, name);
    check.compatible("sdpa", q, x);
  }
  check.floating("sdpa", q);
  const [b, hq, tq, d] = q.shape as [number, number, number, number];
  const [bk, hk, tk, dk] = k.shape as [number, number, number, number];
  const [bv, hv, tv, dv] = v.shape as [number, number, number, number];
  const shapes = `q ${formatShape(q.shape)}, k ${formatShape(k.shape)}, v ${formatShape(v.shape)}`;
  if (bk !== b || bv !== b || dk !== d || hv !== hk || tv !== tk) {
    fail("ShapeMismatch", `sdpa takes q (b, hq, tq, d), k (b, hk, tk, d), v (b, hk, tk, dv); got ${shapes}`);
  }
  if (hk === 0 ? hq !== 0 : hq % hk !== 0) {
    fail("ShapeMismatch", `sdpa: ${hq} query heads are not a multiple of ${hk} key heads; got ${shapes}`);
  }
  if (causal && tq > tk) fail("ShapeMismatch", `sdpa: causal attention needs tq ≤ tk, but tq is ${tq} and tk is ${tk}`);
  if (!(softcap >= 0 && Number.isFinite(softcap)))
    fail("InvalidArgument", `sdpa: softcap must be a positive number, not ${softcap}`);
  check.positiveInt("sdpa", "window", window, 0);
  if (window > 0 && !causal) fail("InvalidArgument", "sdpa: a window needs causal: true");
  const scale = options.scale ?? 1 / Math.sqrt(Math.max(d, 1));
  if (!Number.isFinite(scale)) fail("InvalidArgument", `sdpa: the scale ${scale} must be finite`);
  const params = { scale, causal, softcap, window };
  const run = (m: Tensor | null) => {
    const fused = q.backend.sdpa(q, k, v, m, params);
    return fused ? result(fused, [b, hq, tq, dv]) : sdpaReference(q, k, v, m, params);
  };
  if (!mask) return run(null);
  check.compatible("sdpa", q, mask);
  using m = mask.view(mask.layout.broadcastTo([b, hq, tq, tk], "sdpa: the mask"));
  return run(m);
}

/** The formula itself, op by op, with the whole score matrix in memory; for tests, and where no kernel is fused. */
export function sdpaReference(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | null, p: SdpaParams): Tensor {
  return scope(() => {
    const [b, hq, tq, d] = q.shape as [number, number, number, number];
    const [, hk, tk] = k.shape as [number, number, number, number];
    const wide = q.dtype === "f64" ? "f64" : "f32";
    const [qw, kw, vw] = [q, k, v].map((x) => x.toDType(wide)) as [Tensor, Tensor, Tensor];
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
    if (mask) scores = scores.add(mask.toDType(wide).reshape([...grouped, tk]));
    if (p.causal) {
      // Chosen, not added: what a hidden key scores does not matter, be it NaN.
      const hidden = Tensor.full([], Number.NEGATIVE_INFINITY, { dtype: wide, device: q.device });
      scores = visibleKeys(tq, tk, p.window, { dtype: wide, device: q.device }).whereCond(scores, hidden);
    }
    const mixed = scores.softmax(-1).matmul(vw.unsqueeze(2));
    return mixed.reshape([b, hq, tq, v.shape[3]!]).toDType(q.dtype);
  });
}

/** 1 where query i may see key j, 0 elsewhere. */
function visibleKeys(tq: number, tk: number, window: number, options: TensorOptions): Tensor {
  const rows = Tensor.arange(tk - tq, tk, options).reshape([tq, 1]);
  const ahead = Tensor.arange(0, tk, options).sub(rows);
  return window > 0 ? ahead.le(0).mul(ahead.gt(-window)) : ahead.le(0);
}
