/** Reductions over dims, each in three forms: dropping the dims, keeping them with size 1, and over everything. */
import type { ReduceOp } from "../backend/backend.ts";
import { call } from "../backend/call.ts";
import { fail } from "../core/errors.ts";
import { formatShape, normalizeDim, normalizeDims } from "../core/layout.ts";
import { result, Tensor } from "../tensor/tensor.ts";
import * as check from "./check.ts";
import { compute } from "./compute.ts";
import { group, op } from "./op.ts";

/** One dim or several. */
export type Dims = number | readonly number[];

/** The dims that are meant; all of them where none are named. */
function named(name: string, x: Tensor, dims: Dims | undefined): number[] {
  if (dims === undefined) return x.shape.map((_, i) => i);
  return normalizeDims(typeof dims === "number" ? [dims] : dims, x.rank, name);
}

function fold(name: ReduceOp, x: Tensor, over: number[], keepdim: boolean): Tensor {
  // An index is a result of its own dtype, even where there is nothing to reduce.
  if (over.length === 0)
    return name.startsWith("arg") ? Tensor.zeros(x.shape, { ...onDeviceOf(x), dtype: "u32" }) : x.view(x.layout);
  const kept = x.shape.map((_, i) => i).filter((i) => !over.includes(i));
  if (name !== "sum" && over.some((d) => x.shape[d] === 0)) {
    fail(
      "EmptyTensor",
      `${name}: dim ${over.find((d) => x.shape[d] === 0)} of shape ${formatShape(x.shape)} is empty, so there is no ${name}`,
    );
  }
  using view = x.view(x.layout.permute([...kept, ...over.sort((a, b) => a - b)]));
  const shape = keepdim ? x.shape.map((d, i) => (over.includes(i) ? 1 : d)) : kept.map((i) => x.shape[i]!);
  return result(call(x.backend, "reduce", name, view, over.length), shape);
}

const onDeviceOf = ({ device }: Tensor) => ({ device });
const widen = (x: Tensor): Tensor => x.toDType(x.dtype === "f64" ? "f64" : "f32");

/** Halves are summed in f32, so that neither the sum overflows nor its scaling rounds twice. */
function mean(x: Tensor, over: number[], keepdim: boolean): Tensor {
  check.floating("mean", x);
  const count = over.reduce((n, d) => n * x.shape[d]!, 1);
  using wide = widen(x);
  using total = fold("sum", wide, over, keepdim);
  using average = total.affine(1 / count, 0);
  return average.toDType(x.dtype);
}

/** The unbiased variance, in two passes, or its root. */
function spread(name: "var" | "std", x: Tensor, over: number[], keepdim: boolean): Tensor {
  check.floating(name, x);
  const count = over.reduce((n, d) => n * x.shape[d]!, 1);
  using wide = widen(x);
  using centre = mean(wide, [...over], true);
  using deviation = wide.sub(centre);
  using squared = deviation.sqr();
  using total = fold("sum", squared, over, keepdim);
  using variance = total.affine(1 / Math.max(count - 1, 0), 0);
  if (name === "var") return variance.toDType(x.dtype);
  using root = variance.sqrt();
  return root.toDType(x.dtype);
}

/** Runs an op of the last dim along any dim; the result is a view with the dims back in place. */
function alongLast(name: string, x: Tensor, dim: number, run: (x: Tensor) => Tensor): Tensor {
  const d = normalizeDim(dim, x.rank, name);
  using last = x.view(x.layout.transpose(d, x.rank - 1));
  using y = run(last);
  return y.view(y.layout.transpose(d, x.rank - 1));
}

function softmax(name: string, x: Tensor, dim: number, log: boolean): Tensor {
  check.floating(name, x);
  return alongLast(name, x, dim, (last) => compute(x.backend, "softmax", last.shape, last, log));
}

type Fold = (x: Tensor, over: number[], keepdim: boolean) => Tensor;
/** Over any number of dims. */
const dropping = (name: string, run: Fold) =>
  op("x dims?", (x: Tensor, dims?: Dims): Tensor => run(x, named(name, x, dims), false));
const keeping = (name: string, run: Fold) =>
  op("x dims?", (x: Tensor, dims?: Dims): Tensor => run(x, named(name, x, dims), true));
/** Over one dim, or all. */
const alongOne = (name: string, run: Fold) =>
  op("x dim?", (x: Tensor, dim?: number): Tensor => run(x, named(name, x, dim), false));
const alongOneKept = (name: string, run: Fold) =>
  op("x dim?", (x: Tensor, dim?: number): Tensor => run(x, named(name, x, dim), true));
const everything = (run: Fold) => op("x", (x: Tensor): Tensor => run(x, named("", x, undefined), false));

const by =
  (name: ReduceOp): Fold =>
  (x, over, keepdim) =>
    fold(name, x, over, keepdim);
const [sum, min, max] = [by("sum"), by("min"), by("max")];
const variance: Fold = (x, over, keepdim) => spread("var", x, over, keepdim);
const deviation: Fold = (x, over, keepdim) => spread("std", x, over, keepdim);

/** Their results are indices. */
const indices =
  (name: "argmin" | "argmax", keepdim: boolean) =>
  (x: Tensor, dim?: number): Tensor<"u32"> =>
    fold(name, x, named(name, x, dim), keepdim) as Tensor<"u32">;
const index = (name: "argmin" | "argmax") => op("x dim?", indices(name, false));
const indexKept = (name: "argmin" | "argmax") => op("x dim?", indices(name, true));
const indexOfAll = (name: "argmin" | "argmax") => op("x", (x: Tensor): Tensor<"u32"> => indices(name, false)(x));

export const reductions = group("reduce", {
  /** The sum over the dims, which the result does not have; over everything where none are given. */
  sum: dropping("sum", sum),
  /** As `sum`; the dims stay, with size 1. */
  sumKeepdim: keeping("sum", sum),
  /** `sum` over everything. */
  sumAll: everything(sum),

  /** The mean over the dims, or over everything. */
  mean: dropping("mean", mean),
  /** As `mean`; the dims stay, with size 1. */
  meanKeepdim: keeping("mean", mean),
  /** `mean` over everything. */
  meanAll: everything(mean),

  /** The smallest along a dim, or of everything; NaN where there is one. */
  min: alongOne("min", min),
  /** As `min`; the dims stay, with size 1. */
  minKeepdim: alongOneKept("min", min),
  /** `min` over everything. */
  minAll: everything(min),

  /** The largest along a dim, or of everything; NaN where there is one. */
  max: alongOne("max", max),
  /** As `max`; the dims stay, with size 1. */
  maxKeepdim: alongOneKept("max", max),
  /** `max` over everything. */
  maxAll: everything(max),

  /** Where the smallest lies along a dim, the first of several, or in all elements in row-major order. */
  argmin: index("argmin"),
  /** As `argmin`; the dims stay, with size 1. */
  argminKeepdim: indexKept("argmin"),
  /** `argmin` over everything. */
  argminAll: indexOfAll("argmin"),

  /** Where the largest lies along a dim, the first of several, or in all elements in row-major order. */
  argmax: index("argmax"),
  /** As `argmax`; the dims stay, with size 1. */
  argmaxKeepdim: indexKept("argmax"),
  /** `argmax` over everything. */
  argmaxAll: indexOfAll("argmax"),

  /** The unbiased variance along a dim, or of everything. */
  var: alongOne("var", variance),
  /** As `var`; the dims stay, with size 1. */
  varKeepdim: alongOneKept("var", variance),
  /** `var` over everything. */
  varAll: everything(variance),

  /** The unbiased standard deviation along a dim, or of everything. */
  std: alongOne("std", deviation),
  /** As `std`; the dims stay, with size 1. */
  stdKeepdim: alongOneKept("std", deviation),
  /** `std` over everything. */
  stdAll: everything(deviation),

  /** log Σ eˣ over the dims, or over everything, without overflow. */
  logSumExp: op("x dim?", (x: Tensor, dims?: Dims): Tensor => {
    check.floating("logSumExp", x);
    const over = named("logSumExp", x, dims);
    using highest = fold("max", x, [...over], true);
    // An infinite maximum must not be subtracted: ∞ − ∞ is NaN.
    using magnitude = highest.abs();
    using infinite = magnitude.eq(Number.POSITIVE_INFINITY);
    using zero = Tensor.zerosLike(highest);
    using shift = infinite.whereCond(zero, highest);
    using shifted = x.sub(shift);
    using powers = shifted.exp();
    using total = fold("sum", powers, [...over], true);
    using logarithm = total.log();
    using full = logarithm.add(shift);
    return full.squeezeDims(over);
  }),

  /** The running sum along a dim. */
  cumsum: op(
    "x dim",
    (x: Tensor, dim: number): Tensor =>
      alongLast("cumsum", x, dim, (last) => result(call(x.backend, "cumsum", last), last.shape)),
  ),

  /** eˣ / Σ eˣ along a dim; halves stay in f32 until the store. */
  softmax: op("x dim", (x: Tensor, dim: number): Tensor => softmax("softmax", x, dim, false)),

  /** The logarithm of the softmax, without forming it. */
  logSoftmax: op("x dim", (x: Tensor, dim: number): Tensor => softmax("logSoftmax", x, dim, true)),

  /** The square root of the sum of squares. */
  norm: op("x", (x: Tensor): Tensor => {
    check.floating("norm", x);
    using wide = widen(x);
    using squares = wide.sqr();
    using total = fold("sum", squares, named("norm", x, undefined), false);
    using root = total.sqrt();
    return root.toDType(x.dtype);
  }),
});
