/** Scaled dot-product attention. */
import { fail } from "../core/errors.ts";
import { formatShape } from "../core/layout.ts";
import * as check from "../ops/check.ts";
import { compute } from "../ops/compute.ts";
import type { Tensor } from "../ops/index.ts";
import { define } from "../ops/op.ts";

export interface SdpaOptions {
  /** Default 1 / √d. */
  readonly scale?: number;
  /** Query i sees the keys up to i + tk − tq: aligned to the end. Default false. */
  readonly causal?: boolean;
  /** Added to the scores; broadcasts to (b, hq, tq, tk). */
  readonly mask?: Tensor;
  /** Squashes scores to ±softcap by softcap · tanh(s / softcap). */
  readonly softcap?: number;
  /**
   * With causal: each query sees only its last `window` keys, its own among them. Without: the keys at most `window` away to
   * either side, 2 · window + 1 of them, where query i stands at key i + tk − tq. Default: all.
   */
  readonly window?: number;
  /** (hq): a logit of each head that joins the softmax and has no value, so that the weights of the keys sum to less than 1. */
  readonly sinks?: Tensor;
}

/**
 * softmax(q·kᵀ·scale + mask)·v without the score matrix in memory. q (b, hq, tq, d), k (b, hk, tk, d),
 * v (b, hk, tk, dv); hq is a multiple of hk, and consecutive query heads share a key head.
 */
export const sdpa = define(
  "nn",
  "sdpa",
  "q k v options?",
  (q: Tensor, k: Tensor, v: Tensor, options: SdpaOptions = {}): Tensor => {
    const { causal = false, mask, softcap = 0, window = 0, sinks } = options;
    for (const [x, name] of [
      [q, "q"],
      [k, "k"],
      [v, "v"],
    ] as const) {
      check.tensor("sdpa", x, name);
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
    check.positiveInt("sdpa", "window", window, 0);
    if ((causal || window > 0) && tq > tk) {
      const what = causal ? "causal attention" : "a window";
      fail("ShapeMismatch", `sdpa: ${what} needs tq ≤ tk, but tq is ${tq} and tk is ${tk}`);
    }
    if (!(softcap >= 0 && Number.isFinite(softcap)))
      fail("InvalidArgument", `sdpa: softcap must be a positive number, not ${softcap}`);
    const scale = options.scale ?? 1 / Math.sqrt(Math.max(d, 1));
    if (!Number.isFinite(scale)) fail("InvalidArgument", `sdpa: the scale ${scale} must be finite`);
    if (sinks) {
      check.compatible("sdpa", q, sinks);
      if (sinks.rank !== 1 || sinks.shape[0] !== hq)
        fail("ShapeMismatch", `sdpa: sinks must be (${hq}), one of each query head, not ${formatShape(sinks.shape)}`);
    }
    using own = sinks?.contiguous();
    const params = { scale, causal, softcap, window: Math.min(window, tk), sinks: own ?? null };
    const shape = [b, hq, tq, dv];
    if (!mask) return compute(q.backend, "sdpa", shape, q, k, v, null, params);
    check.compatible("sdpa", q, mask);
    using m = mask.view(mask.layout.broadcastTo([b, hq, tq, tk], "sdpa: the mask"));
    return compute(q.backend, "sdpa", shape, q, k, v, m, params);
  },
);
