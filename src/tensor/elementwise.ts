/** Operations on each element: unary, binary with NumPy broadcasting, comparisons, selection and casts. */
import { type BinaryOp, binaryOps, type CompareOp, compareOps, type UnaryOp, unaryOps } from "../backend/backend.ts";
import { asDType, checkValue, type DType, isInt } from "../core/dtype.ts";
import { broadcastShapes, sameShape } from "../core/layout.ts";
import * as check from "./check.ts";
import { scalarLike } from "./create.ts";
import { result, type Tensor } from "./tensor.ts";

/** What a binary operation takes on its right: a tensor, or a number in the left one's dtype. */
export type Operand = Tensor | number | bigint;

const onIntegers: ReadonlySet<UnaryOp> = new Set(["neg", "abs", "sqr", "sign", "relu"]);

function unary(op: UnaryOp, x: Tensor, param = 0): Tensor {
  if (isInt(x.dtype) && !onIntegers.has(op)) check.floating(op, x);
  return result(x.backend.unary(op, x, param), x.shape);
}

function broadcast<R>(op: string, a: Tensor, b: Operand, run: (a: Tensor, b: Tensor) => R): R {
  if (typeof b !== "object") {
    using scalar = scalarLike(b, a);
    return broadcast(op, a, scalar, run);
  }
  check.compatible(op, a, b);
  if (sameShape(a.shape, b.shape)) return run(a, b);
  const shape = broadcastShapes(a.shape, b.shape, op);
  using left = a.view(a.layout.broadcastTo(shape, op));
  using right = b.view(b.layout.broadcastTo(shape, op));
  return run(left, right);
}

const binary = (op: BinaryOp) =>
  function (this: Tensor, other: Operand): Tensor {
    return broadcast(op, this, other, (a, b) => result(a.backend.binary(op, a, b), a.shape));
  };

const compare = (op: CompareOp) =>
  function (this: Tensor, other: Operand): Tensor {
    return broadcast(op, this, other, (a, b) => result(a.backend.compare(op, a, b), a.shape));
  };

type Plain = Exclude<UnaryOp, "elu" | "powf" | "gelu_erf">;
type BinaryMethods = Record<BinaryOp | CompareOp, (this: Tensor, other: Operand) => Tensor>;
type UnaryMethods = Record<Plain | "geluErf", (this: Tensor) => Tensor>;
export type ElementwiseMethods = typeof methods & BinaryMethods & UnaryMethods;

const methods = {
  /** x · mul + add. */
  affine(this: Tensor, mul: number, add: number): Tensor {
    checkValue(mul, this.dtype);
    checkValue(add, this.dtype);
    return result(this.backend.affine(this, mul, add), this.shape);
  },

  /** x where x > 0, alpha · (eˣ − 1) elsewhere. */
  elu(this: Tensor, alpha = 1): Tensor {
    return unary("elu", this, alpha);
  },

  /** Each element to the power of a number. */
  powf(this: Tensor, exponent: number): Tensor {
    return unary("powf", this, exponent);
  },

  /** Limits each element to [low, high]; NaN stays. */
  clamp(this: Tensor, low: Operand, high: Operand): Tensor {
    using raised = this.maximum(low);
    return raised.minimum(high);
  },

  /** Rounds to `decimals` digits after the point. */
  roundTo(this: Tensor, decimals: number): Tensor {
    const scale = 10 ** decimals;
    using scaled = this.affine(scale, 0);
    using rounded = scaled.round();
    return rounded.div(scale);
  },

  /** Where this tensor (u8, u32 or i64) is not 0 the element of `onTrue`, else of `onFalse`. All broadcast. */
  whereCond(this: Tensor, onTrue: Tensor, onFalse: Tensor): Tensor {
    check.ids("whereCond", onTrue, this);
    check.compatible("whereCond", onTrue, onFalse);
    const values = broadcastShapes(onTrue.shape, onFalse.shape, "whereCond");
    const shape = broadcastShapes(this.shape, values, "whereCond");
    using cond = this.view(this.layout.broadcastTo(shape));
    using t = onTrue.view(onTrue.layout.broadcastTo(shape));
    using f = onFalse.view(onFalse.layout.broadcastTo(shape));
    return result(this.backend.where(cond, t, f), shape);
  },

  /** Floats become integers by truncation with saturation (NaN gives 0); integers wrap. */
  toDType(this: Tensor, dtype: DType): Tensor {
    asDType(dtype);
    if (dtype === this.dtype) return this.view(this.layout);
    return result(this.backend.cast(this, dtype), this.shape);
  },
};

const plain = unaryOps.filter((op): op is Plain => op !== "elu" && op !== "powf" && op !== "gelu_erf");

export const elementwise: ElementwiseMethods = {
  ...methods,
  ...(Object.fromEntries(
    plain.map((op) => [
      op,
      function (this: Tensor): Tensor {
        return unary(op, this);
      },
    ]),
  ) as Record<Plain, (this: Tensor) => Tensor>),
  geluErf(this: Tensor): Tensor {
    return unary("gelu_erf", this);
  },
  ...(Object.fromEntries([
    ...binaryOps.map((op) => [op, binary(op)] as const),
    ...compareOps.map((op) => [op, compare(op)] as const),
  ]) as BinaryMethods),
};
