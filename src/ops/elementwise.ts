/** Operations on each element: unary, binary with NumPy broadcasting, comparisons, selection and casts. */
import type { BinaryOp, CompareOp, UnaryOp } from "../backend/backend.ts";
import { call } from "../backend/call.ts";
import { asDType, checkValue, type DType, isInt } from "../core/dtype.ts";
import { broadcastShapes, sameShape } from "../core/layout.ts";
import { result, type Tensor } from "../tensor/tensor.ts";
import * as check from "./check.ts";
import { compute } from "./compute.ts";
import { scalarLike } from "./create.ts";
import { group, op } from "./op.ts";

/** What a binary operation takes on its right: a tensor, or a number in the left one's dtype. */
export type Operand = Tensor | number | bigint;

const onIntegers: ReadonlySet<UnaryOp> = new Set(["neg", "abs", "sqr", "sign", "relu"]);

function apply(name: UnaryOp, x: Tensor, param = 0): Tensor {
  if (isInt(x.dtype) && !onIntegers.has(name)) check.floating(name, x);
  return result(call(x.backend, "unary", name, x, param), x.shape);
}

const unary = (name: UnaryOp) => op("x", (x: Tensor): Tensor => apply(name, x));

function broadcast(name: string, a: Tensor, b: Operand, run: (a: Tensor, b: Tensor) => Tensor): Tensor {
  if (typeof b !== "object") {
    using scalar = scalarLike(b, a);
    return broadcast(name, a, scalar, run);
  }
  check.compatible(name, a, b);
  if (sameShape(a.shape, b.shape)) return run(a, b);
  const shape = broadcastShapes(a.shape, b.shape, name);
  using left = a.view(a.layout.broadcastTo(shape, name));
  using right = b.view(b.layout.broadcastTo(shape, name));
  return run(left, right);
}

const binary = (name: BinaryOp) =>
  op(
    "lhs rhs",
    (lhs: Tensor, rhs: Operand): Tensor =>
      broadcast(name, lhs, rhs, (a, b) => result(call(a.backend, "binary", name, a, b), a.shape)),
  );

const compare = (name: CompareOp) =>
  op(
    "lhs rhs",
    (lhs: Tensor, rhs: Operand): Tensor<"u8"> =>
      broadcast(name, lhs, rhs, (a, b) => result(call(a.backend, "compare", name, a, b), a.shape)) as Tensor<"u8">,
  );

export const elementwise = group("unary", {
  /** −x. */
  neg: unary("neg"),
  /** 1 / x. */
  recip: unary("recip"),
  /** eˣ. */
  exp: unary("exp"),
  /** The natural logarithm. */
  log: unary("log"),
  /** The sine, of radians. */
  sin: unary("sin"),
  /** The cosine, of radians. */
  cos: unary("cos"),
  /** The hyperbolic tangent. */
  tanh: unary("tanh"),
  /** The error function. */
  erf: unary("erf"),
  /** The least integer that is not smaller. */
  ceil: unary("ceil"),
  /** The greatest integer that is not larger. */
  floor: unary("floor"),
  /** To the nearest integer, halves away from zero. */
  round: unary("round"),
  /** The cumulative distribution of the standard normal. */
  normcdf: unary("normcdf"),
  /** The magnitude. */
  abs: unary("abs"),
  /** x². */
  sqr: unary("sqr"),
  /** The square root. */
  sqrt: unary("sqrt"),
  /** x · Φ(x), in the form with tanh. */
  gelu: unary("gelu"),
  /** x · Φ(x), by the error function. */
  geluErf: unary("gelu_erf"),
  /** max(x, 0); NaN stays. */
  relu: unary("relu"),
  /** x / (1 + e⁻ˣ). */
  silu: unary("silu"),
  /** −1, 0 or 1. */
  sign: unary("sign"),
  /** 1 / (1 + e⁻ˣ). */
  sigmoid: unary("sigmoid"),

  /** x where x > 0, alpha · (eˣ − 1) elsewhere. */
  elu: op("x alpha?", (x: Tensor, alpha = 1): Tensor => apply("elu", x, alpha)),

  /** Each element to the power of a number. */
  powf: op("x e", (x: Tensor, exponent: number): Tensor => apply("powf", x, exponent)),

  /** x · mul + add. */
  affine: op("x mul add", (x: Tensor, mul: number, add: number): Tensor => {
    checkValue(mul, x.dtype);
    checkValue(add, x.dtype);
    return compute(x.backend, "affine", x.shape, x, mul, add);
  }),

  /** Limits each element to [low, high]; NaN stays. */
  clamp: op("x low high", (x: Tensor, low: Operand, high: Operand): Tensor => {
    using raised = x.maximum(low);
    return raised.minimum(high);
  }),

  /** Rounds to `decimals` digits after the point. */
  roundTo: op("x decimals", (x: Tensor, decimals: number): Tensor => {
    const scale = 10 ** decimals;
    using scaled = x.affine(scale, 0);
    using rounded = scaled.round();
    return rounded.div(scale);
  }),
});

export const pairwise = group("binary", {
  /** The sum, element by element, as all of these. */
  add: binary("add"),
  /** The difference. */
  sub: binary("sub"),
  /** The product. */
  mul: binary("mul"),
  /** Integers are divided towards zero; by 0 they give 0. */
  div: binary("div"),
  /** The larger of two; NaN where either is. */
  maximum: binary("maximum"),
  /** The smaller of two; NaN where either is. */
  minimum: binary("minimum"),
  /** Each element to the power of the other. */
  pow: binary("pow"),
  /** 1 where equal, else 0; u8, as all comparisons. */
  eq: compare("eq"),
  /** 1 where not equal. */
  ne: compare("ne"),
  /** 1 where less. */
  lt: compare("lt"),
  /** 1 where less or equal. */
  le: compare("le"),
  /** 1 where greater. */
  gt: compare("gt"),
  /** 1 where greater or equal. */
  ge: compare("ge"),
});

export const selection = group("select, cast", {
  /** Where `cond` (u8, u32 or i64) is not 0 the element of `onTrue`, else of `onFalse`. All broadcast. */
  whereCond: op("cond on_true on_false", (cond: Tensor, onTrue: Tensor, onFalse: Tensor): Tensor => {
    check.tensor("whereCond", onTrue);
    check.ids("whereCond", onTrue, cond);
    check.compatible("whereCond", onTrue, onFalse);
    const values = broadcastShapes(onTrue.shape, onFalse.shape, "whereCond");
    const shape = broadcastShapes(cond.shape, values, "whereCond");
    using c = cond.view(cond.layout.broadcastTo(shape));
    using t = onTrue.view(onTrue.layout.broadcastTo(shape));
    using f = onFalse.view(onFalse.layout.broadcastTo(shape));
    return result(call(cond.backend, "where", c, t, f), shape);
  }),

  /** Floats become integers by truncation with saturation (NaN gives 0); integers wrap. */
  toDType: op("x to", (x: Tensor, dtype: DType): Tensor => {
    asDType(dtype);
    if (dtype === x.dtype) return x.view(x.layout);
    return result(call(x.backend, "cast", x, dtype), x.shape);
  }),
});
