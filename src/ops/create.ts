/** Making tensors: from values, filled, random, and the usual patterns. */
import { call } from "../backend/call.ts";
import { Device, seedBits } from "../backend/device.ts";
import { Storage } from "../backend/storage.ts";
import { formatBytes } from "../backend/usage.ts";
import { asDType, checkValue, type DType, dtypeOfTypedArray, encode, isFloat } from "../core/dtype.ts";
import { fail, shown } from "../core/errors.ts";
import { checkShape, formatShape, Layout, numel, type Shape } from "../core/layout.ts";
import { type NestedArray, result, Tensor, upload } from "../tensor/tensor.ts";
import * as check from "./check.ts";
import { group, op } from "./op.ts";

export interface TensorOptions<D extends DType = DType> {
  /** Default f32; of `from`, what the values are: a typed array's own, i64 for bigints, u8 for booleans. */
  readonly dtype?: D;
  /** Default "cpu". */
  readonly device?: Device | string;
}
export interface RandomOptions<D extends DType = DType> extends TensorOptions<D> {
  /** The same seed gives the same numbers on every device. Without it, the device's own sequence goes on. */
  readonly seed?: number | bigint;
}

/** One element, as JavaScript has it. */
export type Value = number | bigint | boolean;
/** What `from` takes. */
export type Values = NestedArray<Value> | ArrayLike<number> | ArrayLike<bigint>;

type Element<V> = V extends readonly (infer A)[]
  ? A extends readonly (infer B)[]
    ? B extends readonly (infer C)[]
      ? C
      : B
    : A
  : V;
/** The dtype that values have by themselves, where the compiler can tell. */
export type DTypeOfValues<V> = V extends Float64Array
  ? "f64"
  : V extends Float32Array
    ? "f32"
    : V extends Uint8Array | Uint8ClampedArray
      ? "u8"
      : V extends Uint32Array
        ? "u32"
        : V extends Int32Array
          ? "i32"
          : V extends Int16Array
            ? "i16"
            : [Element<V>] extends [number]
              ? "f32"
              : [Element<V>] extends [bigint] | [BigInt64Array]
                ? "i64"
                : [Element<V>] extends [boolean]
                  ? "u8"
                  : DType;

const plainTypes: Readonly<Record<string, DType>> = { bigint: "i64", boolean: "u8" };

function from<const V extends Values, D extends DType = DTypeOfValues<V>>(
  values: V,
  options: TensorOptions<D> & { readonly shape?: Shape } = {},
): Tensor<D> {
  const own = dtypeOfTypedArray(values);
  const isFlat = ArrayBuffer.isView(values);
  if (isFlat && own === undefined) {
    fail("UnexpectedDType", `${values.constructor.name} holds no dtype of Wick; use Array.from() and say the dtype`);
  }
  const inferred = isFlat
    ? [(values as unknown as ArrayLike<number>).length]
    : shapeOf(values as unknown as NestedArray<Value>);
  const flat = isFlat
    ? (values as unknown as ArrayLike<number>)
    : flatten(values as unknown as NestedArray<Value>, inferred);
  const shape = checkShape(options.shape ?? inferred);
  if (numel(shape) !== flat.length) {
    fail(
      "ShapeMismatch",
      `from: ${flat.length} values do not fill shape ${formatShape(shape)} of ${numel(shape)} elements`,
    );
  }
  const dtype = asDType(options.dtype ?? own ?? plainTypes[typeof flat[0]] ?? "f32") as D;
  const bytes = own === dtype ? bytesOf(values as unknown as ArrayBufferView) : encode(numbers(flat), dtype);
  return upload(bytes, shape, dtype, options.device);
}

const bytesOf = (a: ArrayBufferView): Uint8Array => new Uint8Array(a.buffer, a.byteOffset, a.byteLength);

const numbers = (flat: ArrayLike<Value>): ArrayLike<number | bigint> =>
  typeof flat[0] === "boolean" ? Array.from(flat, Number) : (flat as ArrayLike<number | bigint>);

function shapeOf(values: NestedArray<Value>): number[] {
  const shape: number[] = [];
  for (let level = values; Array.isArray(level); level = level[0]!) {
    shape.push(level.length);
    if (level.length === 0) break;
  }
  return shape;
}

function flatten(values: NestedArray<Value>, shape: Shape): Value[] {
  const out: Value[] = [];
  const ragged = (v: unknown, depth: number): never =>
    fail("RaggedArray", `nested arrays are ragged: found ${shown(v)} at depth ${depth} of shape ${formatShape(shape)}`);
  const walk = (v: NestedArray<Value>, depth: number): void => {
    if (!Array.isArray(v)) ragged(v, depth);
    else if (v.length !== shape[depth]) {
      fail(
        "RaggedArray",
        `nested arrays are ragged: at depth ${depth} one has ${v.length} entries where the first has ${shape[depth] ?? "none"}`,
      );
    } else if (depth + 1 < shape.length) for (const inner of v) walk(inner, depth + 1);
    else for (const inner of v) out.push(isValue(inner) ? inner : ragged(inner, depth + 1));
  };
  if (isValue(values)) return [values];
  walk(values, 0);
  return out;
}

const isValue = (v: unknown): v is Value => typeof v === "number" || typeof v === "bigint" || typeof v === "boolean";

/** Everything that is filled by the device. */
function filled<D extends DType>(shape: Shape, value: number | bigint, options: TensorOptions<D>): Tensor<D> {
  checkShape(shape);
  const dtype = asDType(options.dtype ?? "f32");
  const { backend } = Device.from(options.device ?? "cpu");
  return result(call(backend, "fill", dtype, numel(shape), checkValue(value, dtype)), shape);
}

function random<D extends DType>(
  kind: "uniform" | "normal",
  name: string,
  shape: Shape,
  [a, b]: readonly [number, number],
  o: RandomOptions<D>,
): Tensor<D> {
  checkShape(shape);
  const dtype = asDType(o.dtype ?? "f32");
  if (!isFloat(dtype))
    fail("UnsupportedDTypeForOp", `${name} needs a float dtype, not ${dtype}; convert afterwards with toDType()`);
  if (!Number.isFinite(a) || !Number.isFinite(b)) fail("InvalidArgument", `${name}: ${a} and ${b} must be finite`);
  const device = Device.from(o.device ?? "cpu");
  const seed = o.seed === undefined ? device.nextSeed() : seedBits(o.seed);
  return result(call(device.backend, "random", kind, dtype, numel(shape), seed, a, b), shape);
}

export interface UniformOptions<D extends DType = DType> extends RandomOptions<D> {
  /** Default 0. */
  readonly low?: number;
  /** Default 1. */
  readonly high?: number;
}

function rand<D extends DType = "f32">(shape: Shape, options: UniformOptions<D> = {}): Tensor<D> {
  const { low = 0, high = 1 } = options;
  if (!(low <= high)) fail("InvalidArgument", `rand: low ${low} is above high ${high}`);
  return random("uniform", "rand", shape, [low, high], options);
}

export interface NormalOptions<D extends DType = DType> extends RandomOptions<D> {
  /** Default 0. */
  readonly mean?: number;
  /** Default 1. */
  readonly std?: number;
}

function randn<D extends DType = "f32">(shape: Shape, options: NormalOptions<D> = {}): Tensor<D> {
  const { mean = 0, std = 1 } = options;
  if (!(std >= 0)) fail("InvalidArgument", `randn: the standard deviation ${std} is negative`);
  return random("normal", "randn", shape, [mean, std], options);
}

function arange<D extends DType = "f32">(
  start: number,
  end?: number,
  options: TensorOptions<D> & { readonly step?: number } = {},
): Tensor<D> {
  const [from, to] = end === undefined ? [0, start] : [start, end];
  const step = options.step ?? 1;
  if (!Number.isFinite(from) || !Number.isFinite(to) || !Number.isFinite(step) || step === 0) {
    fail("InvalidArgument", `arange: start ${from}, end ${to} and step ${step} must be finite, and the step not 0`);
  }
  const count = Math.max(0, Math.ceil((to - from) / step));
  checkShape([count]);
  const values = hostNumbers("arange", count);
  for (let i = 0; i < count; i++) values[i] = from + i * step;
  const dtype = asDType(options.dtype ?? "f32") as D;
  return upload(encode(values, dtype), [count], dtype, options.device);
}

/** The values of a range are made here before they go to the device, so they need memory here, too. */
function hostNumbers(name: string, count: number): Float64Array {
  try {
    return new Float64Array(count);
  } catch (cause) {
    return fail("OutOfMemory", `${name}: cannot allocate ${formatBytes(count * 8)} for ${count} values`, { cause });
  }
}

/** An n × n matrix that holds 1 where its row and column stand in the given relation and 0 elsewhere. */
const pattern = (name: string, relation: "eq" | "ge" | "le") =>
  op("n options?", <D extends DType = "f32">(n: number, options: TensorOptions<D> = {}): Tensor<D> => {
    check.positiveInt(name, "the size", n, 0);
    using index = arange(n, undefined, { ...options, dtype: "u32" });
    using rows = index.reshape([n, 1]);
    using columns = index.reshape([1, n]);
    using bits = rows[relation](columns);
    return bits.toDType((options.dtype ?? "f32") as D);
  });

function meshgrid(tensors: readonly Tensor[], indexing: "ij" | "xy" = "ij"): Tensor[] {
  if (tensors.length < 2) fail("InvalidArgument", `meshgrid needs at least two tensors, not ${tensors.length}`);
  for (const t of tensors)
    if (t.rank !== 1) fail("UnexpectedNumberOfDims", `meshgrid takes 1-D tensors, not ${formatShape(t.shape)}`);
  const order = tensors.map((_, i) => i);
  if (indexing === "xy") [order[0], order[1]] = [1, 0];
  const shape = order.map((i) => tensors[i]!.numel);
  return tensors.map((t, i) => {
    const own = shape.map(() => 1).with(order.indexOf(i), t.numel);
    using column = t.reshape(own);
    return column.broadcastAs(shape);
  });
}

/** A scalar as a tensor of rank 0 with the dtype and device of `like`. */
export function scalarLike(value: number | bigint, like: Tensor): Tensor {
  const storage = call(like.backend, "fill", like.dtype, 1, checkValue(value, like.dtype));
  return new Tensor(storage, Layout.contiguous([]));
}

export const creation = group("create", {
  from: op("values options?", from),
  fromBytes: op("bytes shape dtype device?", upload),
  zeros: op(
    "shape options?",
    <D extends DType = "f32">(shape: Shape, options: TensorOptions<D> = {}): Tensor<D> => filled(shape, 0, options),
  ),
  ones: op(
    "shape options?",
    <D extends DType = "f32">(shape: Shape, options: TensorOptions<D> = {}): Tensor<D> => filled(shape, 1, options),
  ),
  full: op(
    "shape value options?",
    <D extends DType = "f32">(shape: Shape, value: number | bigint, options: TensorOptions<D> = {}): Tensor<D> =>
      filled(shape, value, options),
  ),
  empty: op("shape options?", <D extends DType = "f32">(shape: Shape, options: TensorOptions<D> = {}): Tensor<D> => {
    checkShape(shape);
    const { backend } = Device.from(options.device ?? "cpu");
    return result(Storage.alloc(backend, asDType(options.dtype ?? "f32"), numel(shape)), shape);
  }),
  rand: op("shape options?", rand),
  randn: op("shape options?", randn),
  arange: op("start end? options?", arange),
  eye: pattern("eye", "eq"),
  tril: pattern("tril", "ge"),
  triu: pattern("triu", "le"),
  meshgrid: op("tensors indexing?", meshgrid),
  zerosLike: op("x", <D extends DType>(x: Tensor<D>): Tensor<D> => filled(x.shape, 0, x)),
  onesLike: op("x", <D extends DType>(x: Tensor<D>): Tensor<D> => filled(x.shape, 1, x)),
  fullLike: op(
    "x value",
    <D extends DType>(x: Tensor<D>, value: number | bigint): Tensor<D> => filled(x.shape, value, x),
  ),
  randLike: op(
    "x options?",
    <D extends DType>(x: Tensor<D>, options: Pick<UniformOptions, "seed" | "low" | "high"> = {}): Tensor<D> =>
      rand(x.shape, { ...options, dtype: x.dtype, device: x.device }),
  ),
  randnLike: op(
    "x options?",
    <D extends DType>(x: Tensor<D>, options: Pick<NormalOptions, "seed" | "mean" | "std"> = {}): Tensor<D> =>
      randn(x.shape, { ...options, dtype: x.dtype, device: x.device }),
  ),
});
