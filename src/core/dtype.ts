/** The element types, their sizes, and how a JavaScript number becomes one. */
import { fail } from "./errors.ts";
import { f8e4m3ToF32, f16ToF32, f32ToBf16, f32ToF8e4m3, f32ToF16 } from "./halves.ts";

export type DType = keyof typeof dtypes;

type Kind = "float" | "int";
interface DTypeInfo {
  /** Bytes per element. */
  readonly size: 1 | 2 | 4 | 8;
  readonly kind: Kind;
  /** Range of the integer types; `null` for floats. */
  readonly range: readonly [bigint, bigint] | null;
}

const float = (size: DTypeInfo["size"]): DTypeInfo => ({ size, kind: "float", range: null });
const int = (size: DTypeInfo["size"], signed: boolean): DTypeInfo => {
  const bits = BigInt(size * 8);
  const range = signed
    ? ([-(1n << (bits - 1n)), (1n << (bits - 1n)) - 1n] as const)
    : ([0n, (1n << bits) - 1n] as const);
  return { size, kind: "int", range };
};

export const dtypes = {
  u8: int(1, false),
  u32: int(4, false),
  i16: int(2, true),
  i32: int(4, true),
  i64: int(8, true),
  bf16: float(2),
  f16: float(2),
  f32: float(4),
  f64: float(8),
  f8e4m3: float(1),
} as const satisfies Record<string, DTypeInfo>;

export const dtypeNames = Object.keys(dtypes) as DType[];
export const sizeOf = (dtype: DType): number => dtypes[dtype].size;
export const isFloat = (dtype: DType): boolean => dtypes[dtype].kind === "float";
export const isInt = (dtype: DType): boolean => dtypes[dtype].kind === "int";

export function asDType(name: string): DType {
  if (Object.hasOwn(dtypes, name)) return name as DType;
  return fail("UnexpectedDType", `unknown dtype "${name}"; known are ${dtypeNames.join(", ")}`);
}

/** What `Tensor.data()` returns for a dtype: halves and f8 are widened to f32, which holds them exactly. */
export type ArrayOf<D extends DType> = {
  u8: Uint8Array;
  u32: Uint32Array;
  i16: Int16Array;
  i32: Int32Array;
  i64: BigInt64Array;
  bf16: Float32Array;
  f16: Float32Array;
  f32: Float32Array;
  f64: Float64Array;
  f8e4m3: Float32Array;
}[D];
export type TypedArray = ArrayOf<DType>;

/** What one element is in JavaScript. */
export type ScalarOf<D extends DType> = D extends "i64" ? bigint : number;

/** The dtype a typed array holds by itself, or `undefined` for those no dtype matches. */
export function dtypeOfTypedArray(data: unknown): DType | undefined {
  if (data instanceof Float32Array) return "f32";
  if (data instanceof Float64Array) return "f64";
  if (data instanceof Uint8Array || data instanceof Uint8ClampedArray) return "u8";
  if (data instanceof Uint32Array) return "u32";
  if (data instanceof Int32Array) return "i32";
  if (data instanceof Int16Array) return "i16";
  if (data instanceof BigInt64Array) return "i64";
  return undefined;
}

/** Checks that `value` can be an element of `dtype`: integers must be whole and in range; any number fits a float. */
export function checkValue(value: number | bigint, dtype: DType): number | bigint {
  const { range } = dtypes[dtype];
  if (range === null) return value;
  if (typeof value === "number" && !Number.isInteger(value)) {
    fail("ValueOutOfRange", `${value} is not an integer, so it cannot be an element of dtype ${dtype}`);
  }
  if (typeof value === "number" && dtype !== "i64") {
    if (value >= Number(range[0]) && value <= Number(range[1])) return value;
  } else {
    const big = BigInt(value);
    if (big >= range[0] && big <= range[1]) return value;
  }
  return fail("ValueOutOfRange", `${value} does not fit dtype ${dtype} (${range[0]} to ${range[1]})`);
}

/** Packs numbers as little-endian elements of `dtype`. */
export function encode(values: ArrayLike<number | bigint>, dtype: DType): Uint8Array {
  const n = values.length;
  const out = new Uint8Array(n * sizeOf(dtype));
  const target = storageArray(out, dtype);
  if (target instanceof BigInt64Array) {
    for (let i = 0; i < n; i++) target[i] = BigInt(checkValue(values[i]!, dtype));
    return out;
  }
  const convert = fromNumber[dtype];
  const { range } = dtypes[dtype];
  if (range) {
    // Most are numbers in range; what else there may be is looked at one by one.
    const [low, high] = [Number(range[0]), Number(range[1])];
    for (let i = 0; i < n; i++) {
      const value = values[i]!;
      const fits = typeof value === "number" && value >= low && value <= high && Number.isInteger(value);
      target[i] = fits ? value : Number(checkValue(value, dtype));
    }
  } else if (convert) for (let i = 0; i < n; i++) target[i] = convert(Number(values[i]!));
  else for (let i = 0; i < n; i++) target[i] = Number(values[i]!);
  return out;
}

/** Unpacks little-endian elements of `dtype`; the result owns its memory. */
export function decode<D extends DType>(bytes: Uint8Array, dtype: D): ArrayOf<D> {
  const raw = storageArray(bytes.slice(), dtype);
  const convert = toNumber[dtype];
  return (convert ? Float32Array.from(raw as Uint16Array, convert) : raw) as ArrayOf<D>;
}

const fromNumber: Partial<Record<DType, (x: number) => number>> = {
  f16: f32ToF16,
  bf16: f32ToBf16,
  f8e4m3: f32ToF8e4m3,
};
const bf16Word = new Uint32Array(1);
const bf16Float = new Float32Array(bf16Word.buffer);
const toNumber: Partial<Record<DType, (bits: number) => number>> = {
  f16: f16ToF32,
  bf16: (bits) => {
    bf16Word[0] = bits << 16;
    return bf16Float[0]!;
  },
  f8e4m3: f8e4m3ToF32,
};

/** The bytes seen as the elements' bit patterns (halves as u16, f8 as u8). `bytes` must be aligned to the element. */
function storageArray(bytes: Uint8Array, dtype: DType) {
  const { buffer, byteOffset } = bytes;
  const n = bytes.byteLength / sizeOf(dtype);
  switch (dtype) {
    case "u8":
    case "f8e4m3":
      return new Uint8Array(buffer, byteOffset, n);
    case "u32":
      return new Uint32Array(buffer, byteOffset, n);
    case "i16":
      return new Int16Array(buffer, byteOffset, n);
    case "i32":
      return new Int32Array(buffer, byteOffset, n);
    case "i64":
      return new BigInt64Array(buffer, byteOffset, n);
    case "bf16":
    case "f16":
      return new Uint16Array(buffer, byteOffset, n);
    case "f32":
      return new Float32Array(buffer, byteOffset, n);
    case "f64":
      return new Float64Array(buffer, byteOffset, n);
    default:
      return dtype satisfies never;
  }
}
