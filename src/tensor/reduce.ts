/** Reductions over dims, each in three forms: dropping the dims, keeping them with size 1, and over everything. */
import type { ReduceOp } from "../backend/backend.ts";
import type { Storage } from "../backend/storage.ts";
import { fail } from "../core/errors.ts";
import { formatShape, normalizeDim, normalizeDims } from "../core/layout.ts";
import * as check from "./check.ts";
import { result, Tensor } from "./tensor.ts";

/** One dim or several. */
export type Dims = number | readonly number[];

function reduce(op: ReduceOp, x: Tensor, dims: Dims, keepdim: boolean): Tensor {
  const over = normalizeDims(typeof dims === "number" ? [dims] : dims, x.rank, op);
  if (over.length === 0) return x.view(x.layout);
  const kept = x.shape.map((_, i) => i).filter((i) => !over.includes(i));
  if (op !== "sum" && over.some((d) => x.shape[d] === 0)) {
    fail(
      "EmptyTensor",
      `${op}: dim ${over.find((d) => x.shape[d] === 0)} of shape ${formatShape(x.shape)} is empty, so there is no ${op}`,
    );
  }
  using view = x.view(x.layout.permute([...kept, ...over.sort((a, b) => a - b)]));
  const shape = keepdim ? x.shape.map((d, i) => (over.includes(i) ? 1 : d)) : kept.map((i) => x.shape[i]!);
  return result(x.backend.reduce(op, view, over.length), shape);
}

const everything = (x: Tensor): number[] => x.shape.map((_, i) => i);

/** Halves are summed in f32, so that neither the sum overflows nor its scaling rounds twice. */
function mean(x: Tensor, dims: Dims, keepdim: boolean): Tensor {
  check.floating("mean", x);
  const over = normalizeDims(typeof dims === "number" ? [dims] : dims, x.rank, "mean");
  const count = over.reduce((n, d) => n * x.shape[d]!, 1);
  using wide = widen(x);
  using total = reduce("sum", wide, over, keepdim);
  using average = total.affine(1 / count, 0);
  return average.toDType(x.dtype);
}

const widen = (x: Tensor): Tensor => x.toDType(x.dtype === "f64" ? "f64" : "f32");

/** The unbiased variance, in two passes. */
function variance(x: Tensor, dim: number, keepdim: boolean): Tensor {
  check.floating("var", x);
  const d = normalizeDim(dim, x.rank, "var");
  using wide = widen(x);
  using centre = mean(wide, d, true);
  using deviation = wide.sub(centre);
  using squared = deviation.sqr();
  using total = reduce("sum", squared, d, keepdim);
  using scaled = total.affine(1 / Math.max(x.shape[d]! - 1, 0), 0);
  return scaled.toDType(x.dtype);
}

function softmax(op: string, x: Tensor, dim: number, log: boolean): Tensor {
  check.floating(op, x);
  return alongLast(op, x, dim, (last) => x.backend.softmax(last, log));
}

/** Runs an op of the last dim along any dim; the result is a view with the dims back in place. */
function alongLast(op: string, x: Tensor, dim: number, run: (x: Tensor) => Storage): Tensor {
  const d = normalizeDim(dim, x.rank, op);
  using last = x.view(x.layout.transpose(d, x.rank - 1));
  using y = result(run(last), last.shape);
  return y.view(y.layout.transpose(d, x.rank - 1));
}

/** Reduces over everything, through a flat view where the layout allows it. */
function all(op: ReduceOp, x: Tensor): Tensor {
  if (x.rank === 0 && op.startsWith("arg")) return x.zeroIndex();
  return reduce(op, x, everything(x), false);
}

type Over<D> = (this: Tensor, dims: D) => Tensor;
type Forms<Name extends string, D> = Record<Name | `${Name}Keepdim`, Over<D>> &
  Record<`${Name}All`, (this: Tensor) => Tensor>;

const forms = <Name extends ReduceOp>(op: Name, single: boolean) =>
  ({
    [op](this: Tensor, dims: Dims): Tensor {
      return reduce(op, this, single ? [dims as number] : dims, false);
    },
    [`${op}Keepdim`](this: Tensor, dims: Dims): Tensor {
      return reduce(op, this, single ? [dims as number] : dims, true);
    },
    [`${op}All`](this: Tensor): Tensor {
      return all(op, this);
    },
  }) as Forms<Name, Dims>;

export type ReduceMethods = typeof methods &
  Forms<"sum" | "mean", Dims> &
  Forms<"min" | "max" | "argmin" | "argmax" | "var", number>;

const methods = {
  /** log Σ eˣ over the dims, without overflow. */
  logSumExp(this: Tensor, dims: Dims): Tensor {
    check.floating("logSumExp", this);
    const over = normalizeDims(typeof dims === "number" ? [dims] : dims, this.rank, "logSumExp");
    using highest = reduce("max", this, over, true);
    // An infinite maximum must not be subtracted: ∞ − ∞ is NaN.
    using magnitude = highest.abs();
    using infinite = magnitude.eq(Number.POSITIVE_INFINITY);
    using zero = Tensor.zerosLike(highest);
    using shift = infinite.whereCond(zero, highest);
    using shifted = this.sub(shift);
    using powers = shifted.exp();
    using total = reduce("sum", powers, over, true);
    using logarithm = total.log();
    using full = logarithm.add(shift);
    return full.squeezeDims(over);
  },

  /** The running sum along a dim. */
  cumsum(this: Tensor, dim: number): Tensor {
    return alongLast("cumsum", this, dim, (last) => this.backend.cumsum(last));
  },

  /** eˣ / Σ eˣ along a dim; halves stay in f32 until the store. */
  softmax(this: Tensor, dim: number): Tensor {
    return softmax("softmax", this, dim, false);
  },

  /** The logarithm of the softmax, without forming it. */
  logSoftmax(this: Tensor, dim: number): Tensor {
    return softmax("logSoftmax", this, dim, true);
  },

  /** The square root of the sum of squares. */
  norm(this: Tensor): Tensor {
    check.floating("norm", this);
    using wide = widen(this);
    using squares = wide.sqr();
    using total = all("sum", squares);
    using root = total.sqrt();
    return root.toDType(this.dtype);
  },

  /** Index 0, which is where the extreme of a single value lies. */
  zeroIndex(this: Tensor): Tensor {
    return Tensor.zeros([], { dtype: "u32", device: this.device });
  },
};

export const reductions: ReduceMethods = {
  ...methods,
  ...forms("sum", false),
  ...forms("min", true),
  ...forms("max", true),
  ...forms("argmin", true),
  ...forms("argmax", true),
  mean(this: Tensor, dims: Dims): Tensor {
    return mean(this, dims, false);
  },
  meanKeepdim(this: Tensor, dims: Dims): Tensor {
    return mean(this, dims, true);
  },
  meanAll(this: Tensor): Tensor {
    return mean(this, everything(this), false);
  },
  var(this: Tensor, dim: number): Tensor {
    return variance(this, dim, false);
  },
  varKeepdim(this: Tensor, dim: number): Tensor {
    return variance(this, dim, true);
  },
  varAll(this: Tensor): Tensor {
    using flat = this.flattenAll();
    return variance(flat, 0, false);
  },
};
