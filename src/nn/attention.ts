/** Scaled dot-product attention, of a batch side by side and of sequences one behind the other. */
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

/** What both take: the options as a device takes them. `sinks` is to be disposed. */
function paramsOf(op: string, q: Tensor, heads: number, d: number, keys: number, options: SdpaOptions) {
  const { causal = false, softcap = 0, window = 0, sinks, scale = 1 / Math.sqrt(Math.max(d, 1)) } = options;
  if (!(softcap >= 0 && Number.isFinite(softcap)))
    fail("InvalidArgument", `${op}: softcap must be a positive number, not ${softcap}`);
  if (!Number.isFinite(scale)) fail("InvalidArgument", `${op}: the scale ${scale} must be finite`);
  check.positiveInt(op, "window", window, 0);
  if (sinks) {
    check.compatible(op, q, sinks);
    if (sinks.rank !== 1 || sinks.shape[0] !== heads)
      fail("ShapeMismatch", `${op}: sinks must be (${heads}), one of each query head, not ${formatShape(sinks.shape)}`);
  }
  return { scale, causal, softcap, window: Math.min(window, keys), sinks: sinks?.contiguous() ?? null };
}

function checkOperands(op: string, rank: number, q: Tensor, k: Tensor, v: Tensor): void {
  for (const [x, name] of [
    [q, "q"],
    [k, "k"],
    [v, "v"],
  ] as const) {
    check.tensor(op, x, name);
    check.hasRank(op, x, rank, name);
    check.compatible(op, q, x);
  }
  check.floating(op, q);
}

const shapesOf = (q: Tensor, k: Tensor, v: Tensor): string =>
  `q ${formatShape(q.shape)}, k ${formatShape(k.shape)}, v ${formatShape(v.shape)}`;

function checkHeads(op: string, hq: number, hk: number, shapes: string): void {
  if (hk === 0 ? hq !== 0 : hq % hk !== 0)
    fail("ShapeMismatch", `${op}: ${hq} query heads are not a multiple of ${hk} key heads; got ${shapes}`);
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
    checkOperands("sdpa", 4, q, k, v);
    const [b, hq, tq, d] = q.shape as [number, number, number, number];
    const [bk, hk, tk, dk] = k.shape as [number, number, number, number];
    const [bv, hv, tv, dv] = v.shape as [number, number, number, number];
    const shapes = shapesOf(q, k, v);
    if (bk !== b || bv !== b || dk !== d || hv !== hk || tv !== tk) {
      fail("ShapeMismatch", `sdpa takes q (b, hq, tq, d), k (b, hk, tk, d), v (b, hk, tk, dv); got ${shapes}`);
    }
    checkHeads("sdpa", hq, hk, shapes);
    const { mask } = options;
    const params = paramsOf("sdpa", q, hq, d, tk, options);
    using _ = params.sinks;
    if ((params.causal || params.window > 0) && tq > tk) {
      const what = params.causal ? "causal attention" : "a window";
      fail("ShapeMismatch", `sdpa: ${what} needs tq ≤ tk, but tq is ${tq} and tk is ${tk}`);
    }
    const shape = [b, hq, tq, dv];
    if (!mask) return compute(q.backend, "sdpa", shape, q, k, v, null, params);
    check.compatible("sdpa", q, mask);
    using m = mask.view(mask.layout.broadcastTo([b, hq, tq, tk], "sdpa: the mask"));
    return compute(q.backend, "sdpa", shape, q, k, v, m, params);
  },
);

/**
 * The same within each of several sequences whose rows lie one behind the other, without padding: q (rows, hq, d),
 * k (rows, hk, d), v (rows, hk, dv) → (rows, hq, dv). Sequence i has the rows from offsets[i] to offsets[i + 1]: i64 or
 * u32, one more than there are sequences, ascending from 0 to `rows`. Devices that attend by a kernel of their own do not
 * tell when offsets do not ascend; what they give then is undefined.
 */
export const sdpaVarlen = define(
  "nn",
  "sdpaVarlen",
  "q k v offsets options?",
  (q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, options: Omit<SdpaOptions, "mask"> = {}): Tensor => {
    checkOperands("sdpaVarlen", 3, q, k, v);
    const [rows, hq, d] = q.shape as [number, number, number];
    const [rowsK, hk, dk] = k.shape as [number, number, number];
    const [rowsV, hv, dv] = v.shape as [number, number, number];
    const shapes = shapesOf(q, k, v);
    if (rowsK !== rows || rowsV !== rows || dk !== d || hv !== hk) {
      fail("ShapeMismatch", `sdpaVarlen takes q (rows, hq, d), k (rows, hk, d), v (rows, hk, dv); got ${shapes}`);
    }
    checkHeads("sdpaVarlen", hq, hk, shapes);
    check.sameDevice("sdpaVarlen", q, offsets);
    check.hasRank("sdpaVarlen", offsets, 1, "offsets");
    if (offsets.dtype !== "i64" && offsets.dtype !== "u32")
      fail("UnsupportedDTypeForOp", `sdpaVarlen: offsets must be i64 or u32, not ${offsets.dtype}`);
    if (offsets.shape[0]! < 2)
      fail(
        "ShapeMismatch",
        `sdpaVarlen: offsets must be 0 and the end of each sequence, not ${formatShape(offsets.shape)}`,
      );
    const params = paramsOf("sdpaVarlen", q, hq, d, rows, options);
    using _ = params.sinks;
    using ends = offsets.toDType("i64");
    using packed = ends.contiguous();
    return compute(q.backend, "sdpaVarlen", [rows, hq, dv], q, k, v, packed, params);
  },
);
