/** GGUF's metadata: its value types, how they look in JavaScript, and their bytes. */
import { fail } from "../../core/errors.ts";
import { isWellFormed, quoted } from "../named-tensors.ts";

/** The format's numbers for its value types are the indices. */
export const valueTypes = [
  "u8",
  "i8",
  "u16",
  "i16",
  "u32",
  "i32",
  "f32",
  "bool",
  "string",
  "array",
  "u64",
  "i64",
  "f64",
] as const;
export type GgufScalarType = Exclude<(typeof valueTypes)[number], "array">;

/** u64 and i64 are numbers where those are exact, else bigints. */
export type GgufScalar = number | bigint | boolean | string;
export type NumberArray =
  | Uint8Array
  | Int8Array
  | Uint16Array
  | Int16Array
  | Uint32Array
  | Int32Array
  | Float32Array
  | Float64Array
  | BigUint64Array
  | BigInt64Array;
/**
 * Arrays of numbers are read as typed arrays, except u64 and i64: those whose values are all exact numbers are plain
 * arrays of them. Arrays of strings, booleans and arrays are plain.
 */
export type GgufValue = GgufScalar | NumberArray | readonly GgufValue[];

/** A value with the type that the file gives it; arrays of arrays hold typed ones. */
export type GgufTypedArray =
  | { readonly type: `${GgufScalarType}[]`; readonly value: NumberArray | readonly GgufScalar[] }
  | { readonly type: "array[]"; readonly value: readonly GgufTypedArray[] };
export type GgufTyped = { readonly type: GgufScalarType; readonly value: GgufScalar } | GgufTypedArray;

interface Fixed {
  readonly size: number;
  /** Holds an array of them as the file does; JavaScript has none for booleans. */
  readonly array: (new (buffer: ArrayBufferLike, byteOffset: number, length: number) => NumberArray) | null;
  /** Least and greatest of the integers. */
  readonly range: readonly [bigint, bigint] | null;
  get(view: DataView, at: number): GgufScalar;
  set(view: DataView, at: number, value: GgufScalar): void;
}

const narrow = (big: bigint): number | bigint => (Number.isSafeInteger(Number(big)) ? Number(big) : big);
const unsigned = (bits: bigint): readonly [bigint, bigint] => [0n, (1n << bits) - 1n];
const signed = (bits: bigint): readonly [bigint, bigint] => [-(1n << (bits - 1n)), (1n << (bits - 1n)) - 1n];

/** The types whose values all have one size. */
export const fixed: Readonly<Record<Exclude<GgufScalarType, "string">, Fixed>> = {
  u8: {
    size: 1,
    array: Uint8Array,
    range: unsigned(8n),
    get: (v, at) => v.getUint8(at),
    set: (v, at, x) => v.setUint8(at, Number(x)),
  },
  i8: {
    size: 1,
    array: Int8Array,
    range: signed(8n),
    get: (v, at) => v.getInt8(at),
    set: (v, at, x) => v.setInt8(at, Number(x)),
  },
  u16: {
    size: 2,
    array: Uint16Array,
    range: unsigned(16n),
    get: (v, at) => v.getUint16(at, true),
    set: (v, at, x) => v.setUint16(at, Number(x), true),
  },
  i16: {
    size: 2,
    array: Int16Array,
    range: signed(16n),
    get: (v, at) => v.getInt16(at, true),
    set: (v, at, x) => v.setInt16(at, Number(x), true),
  },
  u32: {
    size: 4,
    array: Uint32Array,
    range: unsigned(32n),
    get: (v, at) => v.getUint32(at, true),
    set: (v, at, x) => v.setUint32(at, Number(x), true),
  },
  i32: {
    size: 4,
    array: Int32Array,
    range: signed(32n),
    get: (v, at) => v.getInt32(at, true),
    set: (v, at, x) => v.setInt32(at, Number(x), true),
  },
  f32: {
    size: 4,
    array: Float32Array,
    range: null,
    get: (v, at) => v.getFloat32(at, true),
    set: (v, at, x) => v.setFloat32(at, Number(x), true),
  },
  bool: {
    size: 1,
    array: null,
    range: null,
    get: (v, at) => v.getUint8(at) !== 0,
    set: (v, at, x) => v.setUint8(at, x ? 1 : 0),
  },
  u64: {
    size: 8,
    array: BigUint64Array,
    range: unsigned(64n),
    get: (v, at) => narrow(v.getBigUint64(at, true)),
    set: (v, at, x) => v.setBigUint64(at, BigInt(x), true),
  },
  i64: {
    size: 8,
    array: BigInt64Array,
    range: signed(64n),
    get: (v, at) => narrow(v.getBigInt64(at, true)),
    set: (v, at, x) => v.setBigInt64(at, BigInt(x), true),
  },
  f64: {
    size: 8,
    array: Float64Array,
    range: null,
    get: (v, at) => v.getFloat64(at, true),
    set: (v, at, x) => v.setFloat64(at, Number(x), true),
  },
};

/** The value without its types. */
export function plain(typed: GgufTyped): GgufValue {
  return typed.type === "array[]" ? typed.value.map(plain) : typed.value;
}

/** What metadata may be given as: typed, or bare, whose type is then chosen by `typed`. */
export type GgufInput = GgufTyped | GgufValue;

const classes = new Map<unknown, GgufScalarType>([
  [Uint8Array, "u8"],
  [Buffer, "u8"],
  [Int8Array, "i8"],
  [Uint16Array, "u16"],
  [Int16Array, "i16"],
  [Uint32Array, "u32"],
  [Int32Array, "i32"],
  [Float32Array, "f32"],
  [Float64Array, "f64"],
  [BigUint64Array, "u64"],
  [BigInt64Array, "i64"],
]);

/**
 * Gives a bare value its type: whole numbers become the first of u32, i32, u64, i64 that holds them (all of an array),
 * other numbers f32, as readers of model parameters expect. `key` is for error messages.
 */
export function typed(value: GgufInput, key: string): GgufTyped {
  if (isTyped(value)) return checkType(value, key);
  if (typeof value !== "object") return { type: scalarType([value], key), value };
  if (!Array.isArray(value)) {
    const type = classes.get((value as object | null)?.constructor);
    if (type === undefined) return unfit(key, "an object");
    return { type: `${type}[]`, value: value as NumberArray };
  }
  const items = value as readonly GgufInput[];
  if (items.length === 0) {
    return fail(
      "InvalidArgument",
      `gguf: metadata ${quoted(key)} is an empty array; say its type: {type: "u32[]", value: []}`,
    );
  }
  if (items.every((item) => typeof item === "object")) {
    return { type: "array[]", value: items.map((item) => typed(item, key) as GgufTypedArray) };
  }
  return { type: `${scalarType(items as readonly GgufScalar[], key)}[]`, value: items as readonly GgufScalar[] };
}

/** For callers whom TypeScript does not check. */
function checkType(value: GgufTyped, key: string): GgufTyped {
  const type: string = value.type;
  if (type !== "array" && (valueTypes as readonly string[]).includes(type.replace(/\[\]$/, ""))) return value;
  return fail(
    "InvalidArgument",
    `gguf: metadata ${quoted(key)} has the unknown type ${quoted(type)}; types are ${valueTypes.filter((name) => name !== "array").join(", ")}, and arrays of them such as "u32[]"`,
  );
}

const isTyped = (value: GgufInput): value is GgufTyped =>
  typeof value === "object" && value !== null && !Array.isArray(value) && !ArrayBuffer.isView(value) && "type" in value;

function scalarType(values: readonly GgufScalar[], key: string): GgufScalarType {
  const kinds = new Set(values.map((v) => (typeof v === "bigint" ? "number" : typeof v)));
  const [kind] = kinds;
  if (kinds.size > 1) return unfit(key, `a mixture of ${[...kinds].join(" and ")}`);
  if (kind === "boolean") return "bool";
  if (kind === "string") return "string";
  if (kind !== "number") return unfit(key, `${kind}`);
  const numbers = values as readonly (number | bigint)[];
  if (!numbers.every(isWhole)) return "f32";
  const fits = integerTypes.find((type) => numbers.every((v) => inRange(v, fixed[type].range!)));
  return fits ?? fail("ValueOutOfRange", `gguf: metadata ${quoted(key)}: no integer type holds all of its values`);
}

const integerTypes = ["u32", "i32", "u64", "i64"] as const;
const isWhole = (v: number | bigint): boolean =>
  typeof v === "bigint" || (Number.isInteger(v) && !Object.is(v, -0) && inRange(v, [-(2n ** 63n), 2n ** 64n - 1n]));
const inRange = (v: number | bigint, [least, most]: readonly [bigint, bigint]): boolean => v >= least && v <= most;

function unfit(key: string, found: string): never {
  return fail(
    "InvalidArgument",
    `gguf: metadata ${quoted(key)} is ${found}; it can be a number, bigint, boolean, string, or an array of one of them`,
  );
}

export function u32(value: number): Uint8Array {
  const out = Buffer.alloc(4);
  out.writeUInt32LE(value);
  return out;
}

export function u64(value: number): Uint8Array {
  const out = Buffer.alloc(8);
  out.writeBigUInt64LE(BigInt(value));
  return out;
}

export function text(value: string): Uint8Array {
  const bytes = Buffer.from(value);
  return Buffer.concat([u64(bytes.length), bytes]);
}

/** The number of the type and the bytes of the value; `key` is for error messages. */
export function encodeValue(typed: GgufTyped, key: string): Uint8Array {
  const { type } = typed;
  if (!type.endsWith("[]")) return Buffer.concat([typeNumber(type), elements(type, [typed.value], key)]);
  return Buffer.concat([typeNumber("array"), encodeArray(typed as GgufTypedArray, key)]);
}

function encodeArray({ type, value }: GgufTypedArray, key: string): Uint8Array {
  if (!type.endsWith("[]") || !(Array.isArray(value) || ArrayBuffer.isView(value)))
    unfit(key, `no array (type ${type})`);
  const of = type.slice(0, -2);
  const values =
    type === "array[]"
      ? value.map((inner) => encodeArray(inner, key))
      : [elements(of, value as ArrayLike<unknown>, key)];
  return Buffer.concat([typeNumber(of), u64(value.length), ...values]);
}

function typeNumber(type: string): Uint8Array {
  return u32(valueTypes.indexOf(type as GgufScalarType));
}

function elements(type: string, values: ArrayLike<unknown>, key: string): Uint8Array {
  if (type === "string") {
    return Buffer.concat(Array.from(values, (value) => text(checked("string", value, key) as string)));
  }
  const { size, set } = fixed[type as keyof typeof fixed];
  const out = new Uint8Array(values.length * size);
  const view = new DataView(out.buffer);
  for (let i = 0; i < values.length; i++) set(view, i * size, checked(type as GgufScalarType, values[i], key));
  return out;
}

/** The value, if its type can hold it. */
function checked(type: GgufScalarType, value: unknown, key: string): GgufScalar {
  const bad = (expected: string): never =>
    fail(
      "ValueOutOfRange",
      `gguf: metadata ${quoted(key)}: ${quoted(String(value))} is not ${expected} (type ${type})`,
    );
  if (type === "string") {
    if (typeof value !== "string") return bad("a string");
    return isWellFormed(value) ? value : bad("well-formed Unicode");
  }
  if (type === "bool") return typeof value === "boolean" ? value : bad("a boolean");
  const { range } = fixed[type];
  if (range === null) return typeof value === "number" ? value : bad("a number");
  const whole = typeof value === "bigint" || (typeof value === "number" && Number.isInteger(value));
  return whole && inRange(value, range) ? value : bad(`a whole number from ${range[0]} to ${range[1]}`);
}
