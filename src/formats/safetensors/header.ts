/**
 * The header of a safetensors file: 8 bytes of length, then a JSON object that gives every tensor a dtype, a shape and
 * a range of the data that follows. The ranges must cover the data exactly: no overlap, no hole, no rest.
 */
import { type DType, dtypes } from "../../core/dtype.ts";
import { fail } from "../../core/errors.ts";
import { formatShape, type Shape } from "../../core/layout.ts";
import { checkedSize } from "../checked-size.ts";
import { quoted } from "../named-tensors.ts";
import { JsonReader } from "./json-reader.ts";

/** The reference implementation's limit. */
export const MAX_HEADER = 100_000_000;
const MAX_DIMS = 64;
const METADATA = "__metadata__";

/** What the format calls our dtypes. */
const native = {
  U8: "u8",
  U32: "u32",
  I16: "i16",
  I32: "i32",
  I64: "i64",
  BF16: "bf16",
  F16: "f16",
  F32: "f32",
  F64: "f64",
  F8_E4M3: "f8e4m3",
} as const satisfies Record<string, DType>;

/** Bits per element of the format's other dtypes: such tensors are listed, and read as bytes only. */
const foreign = {
  BOOL: 8,
  I8: 8,
  U16: 16,
  U64: 64,
  C64: 64,
  F8_E5M2: 8,
  F8_E8M0: 8,
  F8_E4M3FNUZ: 8,
  F8_E5M2FNUZ: 8,
  F6_E2M3: 6,
  F6_E3M2: 6,
  F4: 4,
} as const;

export type ForeignDType = keyof typeof foreign;

export interface SafetensorsInfo {
  /** One of ours, or the format's own name of a dtype we do not have. */
  readonly dtype: DType | ForeignDType;
  readonly shape: Shape;
  readonly byteLength: number;
  /** Where the bytes start in the file. */
  readonly offset: number;
}

export interface SafetensorsHeader {
  readonly metadata: ReadonlyMap<string, string>;
  /** In the order of their bytes. */
  readonly tensors: ReadonlyMap<string, SafetensorsInfo>;
}

export const isForeign = (dtype: DType | ForeignDType): dtype is ForeignDType => Object.hasOwn(foreign, dtype);

/** `json` is the header of a file whose data, `dataLength` bytes, starts at `dataStart`. */
export function parseHeader(json: Uint8Array, path: string, dataStart: number, dataLength: number): SafetensorsHeader {
  if (json[0] !== 0x7b) fail("InvalidFile", `${path}: the header does not start with "{": not a safetensors file`);
  const reader = new JsonReader(json, `${path}: the header`);
  let metadata = new Map<string, string>();
  const entries: [string, SafetensorsInfo][] = [];
  reader.object((key) => {
    if (key === METADATA) metadata = readStrings(reader);
    else entries.push([key, readEntry(reader, key, path, dataStart, dataLength)]);
  });
  reader.end();
  const tensors = new Map(entries.sort(([, a], [, b]) => a.offset - b.offset || a.byteLength - b.byteLength));
  checkCoverage(tensors, path, dataStart, dataLength);
  return { metadata, tensors };
}

/** An object of strings. */
export function readStrings(reader: JsonReader): Map<string, string> {
  const out = new Map<string, string>();
  reader.object((key) => out.set(key, reader.string()));
  return out;
}

function readEntry(
  reader: JsonReader,
  name: string,
  path: string,
  dataStart: number,
  dataLength: number,
): SafetensorsInfo {
  const invalid = (problem: string): never => fail("InvalidFile", `${path}: tensor ${quoted(name)} ${problem}`);
  const sizes = (most: number, what: string): number[] => {
    const out: number[] = [];
    reader.array(() => {
      if (out.length === most) invalid(`has more than ${most} ${what}`);
      out.push(reader.size());
    });
    return out;
  };
  let code: string | undefined;
  let shape: number[] | undefined;
  let range: number[] | undefined;
  reader.object((key) => {
    if (key === "dtype") code = reader.string();
    else if (key === "shape") shape = sizes(MAX_DIMS, "dims");
    else if (key === "data_offsets") range = sizes(2, "data_offsets");
    else reader.any();
  });
  if (code === undefined || shape === undefined || range === undefined) {
    return invalid('lacks one of "dtype", "shape" and "data_offsets"');
  }
  const dtype = dtypeOf(code) ?? invalid(`has the unknown dtype ${quoted(code)}`);
  const [begin, end] = range;
  if (begin === undefined || end === undefined || begin > end || end > dataLength) {
    return invalid(`has data_offsets ${formatShape(range)}, which are no range of the ${dataLength} bytes of data`);
  }
  const bits = checkedSize(shape, bitsOf(dtype));
  if (bits !== (end - begin) * 8) {
    const found = Number.isSafeInteger(bits) ? `needs ${bits / 8} bytes` : "is too large";
    invalid(`has ${end - begin} bytes of data, but shape ${formatShape(shape)} of ${code} ${found}`);
  }
  return { dtype, shape, byteLength: end - begin, offset: dataStart + begin };
}

function dtypeOf(code: string): DType | ForeignDType | undefined {
  if (Object.hasOwn(native, code)) return native[code as keyof typeof native];
  return Object.hasOwn(foreign, code) ? (code as ForeignDType) : undefined;
}

const bitsOf = (dtype: DType | ForeignDType): number => (isForeign(dtype) ? foreign[dtype] : dtypes[dtype].size * 8);

function checkCoverage(
  tensors: SafetensorsHeader["tensors"],
  path: string,
  dataStart: number,
  dataLength: number,
): void {
  let at = dataStart;
  let last = "";
  for (const [name, { offset, byteLength }] of tensors) {
    if (offset < at) fail("InvalidFile", `${path}: the bytes of tensors ${quoted(last)} and ${quoted(name)} overlap`);
    if (offset > at)
      fail("InvalidFile", `${path}: ${offset - at} bytes before tensor ${quoted(name)} belong to no tensor`);
    at += byteLength;
    last = name;
  }
  const rest = dataStart + dataLength - at;
  if (rest > 0) fail("InvalidFile", `${path}: the last ${rest} bytes belong to no tensor`);
}

const codeOf = new Map<DType, string>(Object.entries(native).map(([code, dtype]) => [dtype, code]));

/** The first bytes of a file with these tensors one after the other; padded so that the data is 8-byte aligned. */
export function formatHeader(
  tensors: readonly { name: string; dtype: DType; shape: Shape; byteLength: number }[],
  metadata: readonly (readonly [string, string])[],
): Uint8Array {
  // Put together by hand: as a property of an object, a name such as "__proto__" would be lost.
  const member = (key: string, value: string) => `${JSON.stringify(key)}:${value}`;
  const members: string[] = [];
  if (metadata.length > 0) {
    members.push(member(METADATA, `{${metadata.map(([key, value]) => member(key, JSON.stringify(value))).join(",")}}`));
  }
  let at = 0;
  for (const { name, dtype, shape, byteLength } of tensors) {
    if (name === METADATA) fail("InvalidArgument", `safetensors: no tensor can be named "${METADATA}"; rename it`);
    const entry = { dtype: codeOf.get(dtype), shape, data_offsets: [at, at + byteLength] };
    members.push(member(name, JSON.stringify(entry)));
    at += byteLength;
  }
  const json = Buffer.from(`{${members.join(",")}}`);
  const padded = Math.ceil(json.length / 8) * 8;
  if (padded > MAX_HEADER) {
    fail(
      "InvalidArgument",
      `safetensors: the header takes ${padded} bytes, the format allows ${MAX_HEADER}; use several files`,
    );
  }
  const out = Buffer.alloc(8 + padded, " ");
  out.writeBigUInt64LE(BigInt(padded));
  json.copy(out, 8);
  return out;
}
