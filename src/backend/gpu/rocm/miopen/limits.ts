/**
 * What MIOpen cannot do, and what it does otherwise than Wick. Beside each line is where AMD's sources say so
 * (ROCm/MIOpen at 2d1fd99, 3.3; 3.4 is the same there).
 */
import type { DType } from "../../../../core/dtype.ts";
import { numel } from "../../../../core/layout.ts";
import type { View } from "../../../backend.ts";
import type { ConvParams, SdpaParams } from "../../../fused-ops.ts";
import type { Activation } from "./dnn.ts";

export interface Verdict {
  /** Why MIOpen cannot do it; null where it can. */
  readonly refused: string | null;
  /** How its result would not be Wick's: then it is used only where MIOpen is asked for by name. */
  readonly differs: string | null;
}

type Reason = string | false | null;
const first = (...reasons: readonly Reason[]): string | null => reasons.find((r): r is string => !!r) ?? null;

const takes = (x: View, ...dtypes: readonly DType[]): Reason =>
  !dtypes.includes(x.storage.dtype) && `it takes ${dtypes.join(", ")}, not ${x.storage.dtype}`;

/** Descriptors hold int32 (miopenSet4dTensorDescriptor), and kernels index in 32 bits. */
function sized(...shapes: readonly (readonly number[])[]): Reason {
  const sizes = shapes.map(numel);
  if (sizes.includes(0)) return "it takes no empty tensors";
  return sizes.some((n) => n >= 2 ** 31) && `it counts elements in 31 bits, and there are ${Math.max(...sizes)}`;
}

/** src/kernels/activation_functions.h; those that are not listed agree. */
const activationDiffers: Partial<Record<Activation, string>> = {
  relu: "its relu gives NaN for −∞, as x·(x > 0)",
  elu: "its elu loses digits near 0, as eˣ − 1",
};

export const limits = {
  /** Over the last dim. */
  softmax(x: View, log = false): Verdict {
    const cols = x.layout.shape.at(-1) ?? 1;
    return {
      refused: first(
        takes(x, "f32", "f16"), // src/softmax_api.cpp: bf16 is not implemented
        sized(x.layout.shape),
        // src/kernels/MIOpenSoftmax.cl: mad24
        Math.max(cols, x.layout.numel / cols) >= 2 ** 23 && "it multiplies rows and columns in 24 bits",
      ),
      differs: first(
        x.storage.dtype === "f16" && "it sums halves in f16", // src/kernels/MIOpenSoftmax.cl: _FLOAT is half
        log && "its log softmax does not spread NaN over a row", // the same, LogAddExp
      ),
    };
  },

  activation(activation: Activation, x: View): Verdict {
    return {
      refused: first(takes(x, "f32", "f16"), sized(x.layout.shape)), // src/activ_api.cpp, src/solver/activ/fwd_0.cpp
      differs: first(
        x.storage.dtype === "f16" && "it computes halves in f16", // src/kernels/MIOpenNeuron.cl: _FLOAT_PREC is half
        activationDiffers[activation] ?? null,
      ),
    };
  },

  /** x (b, c, h, w), w (o, c/groups, kh, kw). Which algorithm rounds is left to MIOpen's search. */
  conv2d(x: View, w: View, _p: ConvParams): Verdict {
    return { refused: first(takes(x, "f32", "f16", "bf16"), sized(x.layout.shape, w.layout.shape)), differs: null };
  },

  pool2d(kind: "avg" | "max", x: View): Verdict {
    return {
      refused: first(takes(x, "f32", "f16"), sized(x.layout.shape)), // src/solver/pooling/forward2d.cpp
      // src/kernels/MIOpenPooling.cl: fmax, from the lowest finite number up
      differs: kind === "max" ? "its maximum drops NaN, and of −∞ alone is the lowest finite number" : null,
    };
  },

  /** x (b, c, …) with statistics, weight and bias per channel. */
  batchNorm(x: View): Verdict {
    return {
      refused: first(
        takes(x, "f32"), // with halves it wants the rest in f32, which Wick has in x's dtype
        x.layout.rank < 2 && `it takes (batch, channels, …), not ${x.layout.rank} dims`,
        sized(x.layout.shape),
      ),
      differs: null,
    };
  },

  /** As `Backend.sdpa`. src/solver/mha/mha_solver_forward.cpp, src/solution.cpp, src/kernels/MIOpenSoftmaxAttn.cpp. */
  sdpa(q: View, k: View, v: View, mask: View | null, p: SdpaParams): Verdict {
    const [, hq, tq, d] = q.layout.shape as [number, number, number, number];
    const [, hk, tk] = k.layout.shape as [number, number, number, number];
    const dv = v.layout.shape[3]!;
    return {
      refused: first(
        takes(q, "f32"),
        p.window !== 0 && "it has no windows",
        p.sinks !== null && "it has no attention sinks",
        p.causal && "its causal mask is accepted and never applied",
        mask !== null && "it subtracts a mask where Wick adds it, and loses it in rows of more than 256 keys",
        p.softcap !== 0 && "it has no soft cap",
        hq !== hk && `it wants as many heads of keys as of queries, not ${hk} for ${hq}`,
        tq !== tk && `it wants as many keys as queries, not ${tk} for ${tq}`,
        d !== dv && `it wants values as wide as keys, not ${dv} for ${d}`,
        sized(q.layout.shape),
      ),
      differs: null,
    };
  },
};
