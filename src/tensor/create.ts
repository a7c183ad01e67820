/** Making tensors: from values, filled, random, and the usual patterns. */
import { Device, seedBits } from "../backend/device.ts";
import { Storage } from "../backend/storage.ts";
import { formatBytes } from "../backend/usage.ts";
import { asDType, checkValue, type DType, dtypeOfTypedArray, encode, isFloat, sizeOf } from "../core/dtype.ts";
import { fail } from "../core/errors.ts";
import { checkShape, formatShape, Layout, numel, type Shape } from "../core/layout.ts";
import { positiveInt } from "./check.ts";
import { type NestedArray, result, Tensor } from "./tensor.ts";

export interface TensorOptions {
  /** Default f32, or what the typed array holds. */
  readonly dtype?: DType;
  /** Default "cpu". */
  readonly device?: Device | string;
}
export interface RandomOptions extends TensorOptions {
  /** The same seed gives the same numbers on every device. Without it, the device's own sequence goes on. */
  readonly seed?: number | bigint;
}
type Values = NestedArray | ArrayLike<number> | ArrayLike<bigint>;

/** From a number, nested arrays or a typed array; `shape` reshapes a flat one. */
export function from(values: Values, options: TensorOptions & { readonly shape?: Shape } = {}): Tensor {
  const own = dtypeOfTypedArray(values);
  const isFlat = ArrayBuffer.isView(values);
  if (isFlat && own === undefined) {
    fail("UnexpectedDType", `${values.constructor.name} holds no dtype of Wick; use Array.from() and say the dtype`);
  }
  const inferred = isFlat ? [(values as unknown as ArrayLike<number>).length] : shapeOf(values as NestedArray);
  const flat = isFlat ? (values as unknown as ArrayLike<number>) : flatten(values as NestedArray, inferred);
  const shape = checkShape(options.shape ?? inferred);
  if (numel(shape) !== flat.length) {
    fail(
      "ShapeMismatch",
      `from: ${flat.length} values do not fill shape ${formatShape(shape)} of ${numel(shape)} elements`,
    );
  }
  const dtype = asDType(options.dtype ?? own ?? (typeof flat[0] === "bigint" ? "i64" : "f32"));
  const bytes = own === dtype ? bytesOf(values as unknown as ArrayBufferView) : encode(flat, dtype);
  return fromBytes(bytes, shape, dtype, options.device);
}

const bytesOf = (a: ArrayBufferView): Uint8Array => new Uint8Array(a.buffer, a.byteOffset, a.byteLength);

/** From little-endian elements, which are copied. */
export function fromBytes(bytes: Uint8Array, shape: Shape, dtype: DType, device?: Device | string): Tensor {
  checkShape(shape);
  const need = numel(shape) * sizeOf(asDType(dtype));
  if (bytes.byteLength !== need) {
    fail(
      "ShapeMismatch",
      `fromBytes: shape ${formatShape(shape)} of ${dtype} takes ${need} bytes, not ${bytes.byteLength}`,
    );
  }
  const { backend } = Device.from(device ?? "cpu");
  const storage = Storage.alloc(backend, dtype, numel(shape));
  if (need > 0) backend.write(storage, 0, bytes);
  return result(storage, shape);
}

function shapeOf(values: NestedArray): number[] {
  const shape: number[] = [];
  for (let level = values; Array.isArray(level); level = level[0]!) {
    shape.push(level.length);
    if (level.length === 0) break;
  }
  return shape;
}

function flatten(values: NestedArray, shape: Shape): (number | bigint)[] {
  const out: (number | bigint)[] = [];
  const walk = (v: NestedArray, depth: number): void => {
    if (Array.isArray(v)) {
      if (v.length !== shape[depth]) {
        fail(
          "RaggedArray",
          `nested arrays are ragged: at depth ${depth} one has ${v.length} entries where the first has ${shape[depth] ?? "none"}`,
        );
      }
      for (const inner of v) walk(inner, depth + 1);
    } else if (depth !== shape.length || (typeof v !== "number" && typeof v !== "bigint")) {
      fail(
        "RaggedArray",
        `nested arrays are ragged: found ${typeof v === "object" ? "an object" : String(v)} at depth ${depth} of shape ${formatShape(shape)}`,
      );
    } else {
      out.push(v);
    }
  };
  walk(values, 0);
  return out;
}

export function full(shape: Shape, value: number | bigint, options: TensorOptions = {}): Tensor {
  checkShape(shape);
  const dtype = asDType(options.dtype ?? "f32");
  return result(
    Device.from(options.device ?? "cpu").backend.fill(dtype, numel(shape), checkValue(value, dtype)),
    shape,
  );
}

export function zeros(shape: Shape, options: TensorOptions = {}): Tensor {
  return full(shape, 0, options);
}

export function ones(shape: Shape, options: TensorOptions = {}): Tensor {
  return full(shape, 1, options);
}

/** Uninitialised memory: every element must be written before it is read. */
export function empty(shape: Shape, options: TensorOptions = {}): Tensor {
  checkShape(shape);
  return result(
    Storage.alloc(Device.from(options.device ?? "cpu").backend, asDType(options.dtype ?? "f32"), numel(shape)),
    shape,
  );
}

function random(kind: "uniform" | "normal", op: string, shape: Shape, a: number, b: number, o: RandomOptions): Tensor {
  checkShape(shape);
  const dtype = asDType(o.dtype ?? "f32");
  if (!isFloat(dtype))
    fail("UnsupportedDTypeForOp", `${op} needs a float dtype, not ${dtype}; convert afterwards with toDType()`);
  if (!Number.isFinite(a) || !Number.isFinite(b)) fail("InvalidArgument", `${op}: ${a} and ${b} must be finite`);
  const device = Device.from(o.device ?? "cpu");
  const seed = o.seed === undefined ? device.nextSeed() : seedBits(o.seed);
  return result(device.backend.random(kind, dtype, numel(shape), seed, a, b), shape);
}

/** Uniform on [low, high). */
export function rand(
  shape: Shape,
  options: RandomOptions & { readonly low?: number; readonly high?: number } = {},
): Tensor {
  const { low = 0, high = 1 } = options;
  if (!(low <= high)) fail("InvalidArgument", `rand: low ${low} is above high ${high}`);
  return random("uniform", "rand", shape, low, high, options);
}

/** Normal with the given mean and standard deviation. */
export function randn(
  shape: Shape,
  options: RandomOptions & { readonly mean?: number; readonly std?: number } = {},
): Tensor {
  const { mean = 0, std = 1 } = options;
  if (!(std >= 0)) fail("InvalidArgument", `randn: the standard deviation ${std} is negative`);
  return random("normal", "randn", shape, mean, std, options);
}

/** start, start + step, … up to but without end. One argument counts from 0. */
export function arange(start: number, end?: number, options: TensorOptions & { readonly step?: number } = {}): Tensor {
  const [from, to] = end === undefined ? [0, start] : [start, end];
  const step = options.step ?? 1;
  if (!Number.isFinite(from) || !Number.isFinite(to) || !Number.isFinite(step) || step === 0) {
    fail("InvalidArgument", `arange: start ${from}, end ${to} and step ${step} must be finite, and the step not 0`);
  }
  const count = Math.max(0, Math.ceil((to - from) / step));
  checkShape([count]);
  const values = hostNumbers("arange", count);
  for (let i = 0; i < count; i++) values[i] = from + i * step;
  const dtype = asDType(options.dtype ?? "f32");
  return fromBytes(encode(values, dtype), [count], dtype, options.device);
}

/** The values of a range are made here before they go to the device, so they need memory here, too. */
function hostNumbers(op: string, count: number): Float64Array {
  try {
    return new Float64Array(count);
  } catch (cause) {
    return fail("OutOfMemory", `${op}: cannot allocate ${formatBytes(count * 8)} for ${count} values`, { cause });
  }
}

/** An n × n matrix that holds 1 where its row and column stand in the given relation and 0 elsewhere. */
function pattern(op: string, n: number, options: TensorOptions, relation: "eq" | "ge" | "le"): Tensor {
  positiveInt(op, "the size", n, 0);
  using index = arange(n, undefined, { ...options, dtype: "u32" });
  using rows = index.reshape([n, 1]);
  using columns = index.reshape([1, n]);
  using bits = rows[relation](columns);
  return bits.toDType(options.dtype ?? "f32");
}

export const eye = (n: number, options: TensorOptions = {}): Tensor => pattern("eye", n, options, "eq");
/** Ones on and below the diagonal. */
export const tril = (n: number, options: TensorOptions = {}): Tensor => pattern("tril", n, options, "ge");
/** Ones on and above the diagonal. */
export const triu = (n: number, options: TensorOptions = {}): Tensor => pattern("triu", n, options, "le");

/** One grid per 1-D tensor, each of the shape of all lengths; "xy" swaps the first two dims as NumPy does. */
export function meshgrid(tensors: readonly Tensor[], indexing: "ij" | "xy" = "ij"): Tensor[] {
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

export const zerosLike = (x: Tensor): Tensor => zeros(x.shape, { dtype: x.dtype, device: x.device });
export const onesLike = (x: Tensor): Tensor => ones(x.shape, { dtype: x.dtype, device: x.device });
export const fullLike = (x: Tensor, value: number | bigint): Tensor =>
  full(x.shape, value, { dtype: x.dtype, device: x.device });
export const randLike = (
  x: Tensor,
  options: { readonly seed?: number | bigint; readonly low?: number; readonly high?: number } = {},
): Tensor => rand(x.shape, { ...options, dtype: x.dtype, device: x.device });
export const randnLike = (
  x: Tensor,
  options: { readonly seed?: number | bigint; readonly mean?: number; readonly std?: number } = {},
): Tensor => randn(x.shape, { ...options, dtype: x.dtype, device: x.device });

/** A scalar as a tensor of rank 0 with the dtype and device of `like`. */
export function scalarLike(value: number | bigint, like: Tensor): Tensor {
  return new Tensor(like.backend.fill(like.dtype, 1, checkValue(value, like.dtype)), Layout.contiguous([]));
}
