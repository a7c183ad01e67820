/** Puts the table's ops on `Tensor`, as methods and as ways to make one; import tensors from here. */
import "../devices.ts";
import type { DType } from "../core/dtype.ts";
import { fail } from "../core/errors.ts";
import { Tensor } from "../tensor/tensor.ts";
import { convolution } from "./conv.ts";
import { creation } from "./create.ts";
import { elementwise, pairwise, selection } from "./elementwise.ts";
import { indexing } from "./indexing.ts";
import { products, sums } from "./linear.ts";
import { ops } from "./op.ts";
import { reductions } from "./reduce.ts";
import { joining, shaping } from "./shape.ts";

const groups = [elementwise, pairwise, selection, reductions, products, shaping, indexing, convolution] as const;
const statics = { ...creation, ...joining, ...sums };

/** A result of no dtype in particular has that of the tensor; a tuple or an array is one of such. */
type Typed<R, D extends DType> =
  R extends Tensor<infer E>
    ? DType extends E
      ? Tensor<D>
      : R
    : R extends readonly unknown[]
      ? { [I in keyof R]: Typed<R[I], D> }
      : R;

/** The op as a method: its first argument is the tensor itself. */
type Method<F, D extends DType> = F extends (x: Tensor, ...args: infer A) => infer R
  ? (...args: A) => Typed<R, D>
  : never;

/** Those whose result has another dtype than the tensor are written out. */
type Own = "whereCond" | "toDType";
/** All of the methods, as functions of the tensor. */
export type TensorOps = typeof elementwise &
  typeof pairwise &
  typeof selection &
  typeof reductions &
  typeof products &
  typeof shaping &
  typeof indexing &
  typeof convolution;
export type TensorMethods<D extends DType> = { [K in keyof TensorOps as Exclude<K, Own>]: Method<TensorOps[K], D> };

declare module "../tensor/tensor.ts" {
  interface Tensor<D extends DType = DType> extends TensorMethods<D> {
    /** Where this tensor (u8, u32 or i64) is not 0 the element of `onTrue`, else of `onFalse`. All broadcast. */
    whereCond<E extends DType>(onTrue: Tensor<E>, onFalse: Tensor<E>): Tensor<E>;
    /** Floats become integers by truncation with saturation (NaN gives 0); integers wrap. */
    toDType<E extends DType>(dtype: E): Tensor<E>;
  }
  namespace Tensor {
    /** From a number, nested arrays or a typed array; `shape` reshapes a flat one. */
    const from: (typeof statics)["from"];
    /** From little-endian elements, which are copied. */
    const fromBytes: (typeof statics)["fromBytes"];
    /** Zeros of a shape. */
    const zeros: (typeof statics)["zeros"];
    /** Ones of a shape. */
    const ones: (typeof statics)["ones"];
    /** One value everywhere. */
    const full: (typeof statics)["full"];
    /** Uninitialised memory: every element must be written before it is read. */
    const empty: (typeof statics)["empty"];
    /** Uniform on [low, high). */
    const rand: (typeof statics)["rand"];
    /** Normal with the given mean and standard deviation. */
    const randn: (typeof statics)["randn"];
    /** start, start + step, … up to but without end. One argument counts from 0. */
    const arange: (typeof statics)["arange"];
    /** Ones on the diagonal of an n × n matrix. */
    const eye: (typeof statics)["eye"];
    /** Ones on and below the diagonal of an n × n matrix. */
    const tril: (typeof statics)["tril"];
    /** Ones on and above the diagonal of an n × n matrix. */
    const triu: (typeof statics)["triu"];
    /** One grid per 1-D tensor, each of the shape of all lengths; "xy" swaps the first two dims as NumPy does. */
    const meshgrid: (typeof statics)["meshgrid"];
    /** Zeros of the shape, dtype and device of a tensor. */
    const zerosLike: (typeof statics)["zerosLike"];
    /** Ones of the shape, dtype and device of a tensor. */
    const onesLike: (typeof statics)["onesLike"];
    /** One value in the shape, dtype and device of a tensor. */
    const fullLike: (typeof statics)["fullLike"];
    /** Uniform in the shape, dtype and device of a tensor. */
    const randLike: (typeof statics)["randLike"];
    /** Normal in the shape, dtype and device of a tensor. */
    const randnLike: (typeof statics)["randnLike"];
    /** Joins tensors along an existing dim. */
    const cat: (typeof statics)["cat"];
    /** Joins tensors of one shape along a new dim. */
    const stack: (typeof statics)["stack"];
    /** Sums of products by Einstein's notation: `Tensor.einsum("bij,bjk->bik", [a, b])`. */
    const einsum: (typeof statics)["einsum"];
  }
}

/** Plain JavaScript is told what was meant: reshape(6, 4) would be taken for reshape(6). */
function tooMany(name: string, takes: readonly string[], args: readonly unknown[]): never {
  const numbers = args.every((arg) => typeof arg === "number");
  const hint = takes.length === 2 && numbers ? `; sizes and dims come as one array: ${name}([${args.join(", ")}])` : "";
  return fail(
    "InvalidArgument",
    `${name}(${takes.slice(1).join(", ")}) takes ${takes.length - 1} arguments at most, not ${args.length}${hint}`,
  );
}

type Run = (x: Tensor, ...args: unknown[]) => unknown;

/** The method of an op that takes at most so many arguments. Each number has its own, as spreading costs more than an op. */
function methodOf(name: string, run: Run, takes: readonly string[]): (this: Tensor, ...args: unknown[]) => unknown {
  const wrong = (args: readonly unknown[]): never => tooMany(name, takes, args);
  if (takes.at(-1)!.endsWith("*") || takes.length > 3) {
    const most = takes.at(-1)!.endsWith("*") ? Number.POSITIVE_INFINITY : takes.length - 1;
    return function (...args) {
      return args.length > most ? wrong(args) : run(this, ...args);
    };
  }
  if (takes.length === 1) {
    return function (...rest) {
      return rest.length > 0 ? wrong(rest) : run(this);
    };
  }
  if (takes.length === 2) {
    return function (a, ...rest) {
      return rest.length > 0 ? wrong([a, ...rest]) : run(this, a);
    };
  }
  return function (a, b, ...rest) {
    return rest.length > 0 ? wrong([a, b, ...rest]) : run(this, a, b);
  };
}

for (const [name, run] of groups.flatMap((group) => Object.entries(group)) as [string, Run][]) {
  const value = methodOf(name, run, ops.get(name)!.takes);
  Object.defineProperty(value, "name", { value: name });
  Object.defineProperty(Tensor.prototype, name, { value, writable: true, configurable: true });
}
Object.assign(Tensor, statics);

export { scope } from "../tensor/scope.ts";
export type { NestedArray } from "../tensor/tensor.ts";
export type { ConvOptions, ConvTransposeOptions, Pair } from "./conv.ts";
export type {
  DTypeOfValues,
  NormalOptions,
  RandomOptions,
  TensorOptions,
  UniformOptions,
  Value,
  Values,
} from "./create.ts";
export type { Operand } from "./elementwise.ts";
export { type Op, type OpFunction, ops } from "./op.ts";
export type { Dims } from "./reduce.ts";
export type { IndexSpec } from "./shape.ts";
export { Tensor };
