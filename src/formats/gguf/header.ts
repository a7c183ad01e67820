/**
 * What a GGUF file holds before its data: a version, typed metadata, and for every tensor a type, a shape and where its
 * bytes start. Integers are little-endian; the file lists dims from the fastest to the slowest.
 */
import { formatShape, type Shape } from "../../core/layout.ts";
import { checkedSize } from "../checked-size.ts";
import { quoted } from "../named-tensors.ts";
import { type ByteSource, GgufCursor, WINDOW } from "./cursor.ts";
import { bytesOfType, fitsRows, tensorType, unfitRows } from "./types.ts";
import {
  fixed,
  type GgufScalar,
  type GgufScalarType,
  type GgufTyped,
  type GgufTypedArray,
  valueTypes,
} from "./values.ts";

export const MAGIC = "GGUF";
export const ALIGNMENT_KEY = "general.alignment";
export const DEFAULT_ALIGNMENT = 32;
export const MAX_DIMS = 4;
/** Far more than any model has. Each takes more memory than bytes of the file, so the file's size is no limit. */
const MAX_ENTRIES = 2 ** 18;
const MAX_NAME = 65535;
/** Arrays within arrays, in the whole file, and booleans in arrays: as for MAX_ENTRIES. */
const MAX_NESTED = 2 ** 16;
const MAX_BOOLEANS = 2 ** 20;
const MAX_DEPTH = 8;

export interface GgufTensorInfo {
  /** The format's number of the type. */
  readonly type: number;
  /** "F32", "Q4_K" and so on; "type 99" where the number is unknown. */
  readonly typeName: string;
  /** Row-major: the last dim is the one whose elements are neighbours. */
  readonly shape: Shape;
  /** Where the bytes start in the file. */
  readonly offset: number;
  /** Of an unknown type: all up to the next tensor. */
  readonly byteLength: number;
}

export interface GgufHeader {
  readonly version: 1 | 2 | 3;
  readonly alignment: number;
  readonly metadata: ReadonlyMap<string, GgufTyped>;
  /** In the file's order. */
  readonly tensors: ReadonlyMap<string, GgufTensorInfo>;
}

/** `window` is how much of the file is read at once. */
export async function parseGguf(source: ByteSource, signal?: AbortSignal, window = WINDOW): Promise<GgufHeader> {
  const cursor = new GgufCursor(source, signal, window);
  const magic = await cursor.u32("magic bytes");
  if (magic !== Buffer.from(MAGIC).readUInt32LE()) cursor.invalid(`does not start with "${MAGIC}": not a GGUF file`);
  const version = await readVersion(cursor);
  if (version === 1) cursor.lengthBytes = 4;
  const { lengthBytes } = cursor;
  // The least that an entry takes: a name's length, its type, and for a tensor the number of dims and the offset.
  const tensorCount = await cursor.count("tensor count", lengthBytes + 4 + 4 + 8, MAX_ENTRIES);
  const metadataCount = await cursor.count("metadata count", lengthBytes + 4 + 1, MAX_ENTRIES);
  const metadata = await new MetadataReader(cursor).read(metadataCount);
  const alignment = alignmentOf(metadata, cursor);
  const claims = await readClaims(cursor, tensorCount);
  cursor.field = "the data";
  const dataStart = Math.ceil(cursor.at / alignment) * alignment;
  return { version, alignment, metadata, tensors: place(claims, dataStart, alignment, source.size, cursor) };
}

async function readVersion(cursor: GgufCursor): Promise<1 | 2 | 3> {
  const version = await cursor.u32("version");
  if (version === 1 || version === 2 || version === 3) return version;
  if ((version & 0xffff) === 0 && version !== 0) {
    cursor.invalid(`has version ${version}: the file is big-endian, and only little-endian files are read; convert it`);
  }
  return cursor.invalid(`has version ${version}; 1, 2 and 3 are known`);
}

class MetadataReader {
  readonly #cursor: GgufCursor;
  #nested = 0;
  #booleans = 0;

  constructor(cursor: GgufCursor) {
    this.#cursor = cursor;
  }

  async read(count: number): Promise<Map<string, GgufTyped>> {
    const cursor = this.#cursor;
    const out = new Map<string, GgufTyped>();
    for (let i = 0; i < count; i++) {
      cursor.field = `metadata entry ${i}`;
      const key = await cursor.name("key", MAX_NAME);
      cursor.field = `metadata ${quoted(key)}`;
      if (out.has(key)) cursor.invalid("appears twice");
      const type = await this.#type("value type");
      out.set(key, type === "array" ? await this.#array(1) : { type, value: await this.#scalar(type) });
    }
    return out;
  }

  async #type(what: string): Promise<(typeof valueTypes)[number]> {
    const id = await this.#cursor.u32(what);
    return valueTypes[id] ?? this.#cursor.invalid(`has ${what} ${id}; 0 to ${valueTypes.length - 1} are known`);
  }

  async #scalar(type: GgufScalarType): Promise<GgufScalar> {
    if (type === "string") return this.#cursor.string("string");
    const { size, get } = fixed[type];
    const view = await this.#cursor.view(size, "value");
    if (type === "bool") this.#checkBooleans([view.getUint8(0)]);
    return get(view, 0);
  }

  #checkBooleans(bytes: ArrayLike<number>): void {
    this.#booleans += bytes.length;
    if (this.#booleans > MAX_BOOLEANS) this.#cursor.invalid(`is one boolean too many; ${MAX_BOOLEANS} are read`);
    for (let i = 0; i < bytes.length; i++) {
      if (bytes[i]! > 1) this.#cursor.invalid(`has the boolean ${bytes[i]}; 0 and 1 are the only ones`);
    }
  }

  async #array(depth: number): Promise<GgufTypedArray> {
    const cursor = this.#cursor;
    if (depth > MAX_DEPTH) cursor.invalid(`has arrays nested deeper than ${MAX_DEPTH} levels`);
    const of = await this.#type("element type");
    if (of === "array") return { type: "array[]", value: await this.#arrays(depth) };
    if (of === "string") return { type: "string[]", value: await this.#strings() };
    const { size, array } = fixed[of];
    const count = await cursor.count("element count", size);
    const bytes = await cursor.bytes(count * size, "elements");
    if (array === null) {
      this.#checkBooleans(bytes);
      return { type: `${of}[]`, value: Array.from(bytes, Boolean) };
    }
    const value = new array(bytes.buffer, bytes.byteOffset, count);
    const isBig = value instanceof BigUint64Array || value instanceof BigInt64Array;
    const isExact = isBig && value.every((big: bigint) => Number.isSafeInteger(Number(big)));
    return { type: `${of}[]`, value: isExact ? Array.from(value, Number) : value };
  }

  async #arrays(depth: number): Promise<GgufTypedArray[]> {
    const count = await this.#cursor.count("element count", 4 + this.#cursor.lengthBytes, MAX_NESTED);
    this.#nested += count;
    if (this.#nested > MAX_NESTED) this.#cursor.invalid(`has too many nested arrays; ${MAX_NESTED} are the most`);
    const out: GgufTypedArray[] = [];
    while (out.length < count) out.push(await this.#array(depth + 1));
    return out;
  }

  async #strings(): Promise<string[]> {
    const cursor = this.#cursor;
    const count = await cursor.count("element count", cursor.lengthBytes);
    const out: string[] = [];
    while (out.length < count) out.push(cursor.heldString() ?? (await cursor.string("string")));
    return out;
  }
}

function alignmentOf(metadata: ReadonlyMap<string, GgufTyped>, cursor: GgufCursor): number {
  const { type, value } = metadata.get(ALIGNMENT_KEY) ?? { type: "u32", value: DEFAULT_ALIGNMENT };
  if (isAlignment(value) && /^[ui]\d+$/.test(type)) return value;
  cursor.field = `metadata ${quoted(ALIGNMENT_KEY)}`;
  const found = typeof value === "object" ? "an array" : typeof value === "string" ? quoted(value) : value;
  return cursor.invalid(`is ${found} (${type}); it must be a power of two from 1 to 2^31, as u32`);
}

export const isAlignment = (value: unknown): value is number =>
  typeof value === "number" && value >= 1 && value <= 2 ** 31 && Number.isInteger(Math.log2(value));

/** What the file says about a tensor, before it is held against the data. */
interface Claim {
  readonly name: string;
  readonly type: number;
  readonly shape: Shape;
  /** From the start of the data. */
  readonly offset: number;
}

async function readClaims(cursor: GgufCursor, count: number): Promise<Claim[]> {
  const names = new Set<string>();
  const claims: Claim[] = [];
  for (let i = 0; i < count; i++) {
    cursor.field = `tensor entry ${i}`;
    const name = await cursor.name("name", MAX_NAME);
    cursor.field = `tensor ${quoted(name)}`;
    if (names.has(name)) cursor.invalid("appears twice");
    names.add(name);
    const rank = await cursor.u32("number of dims");
    if (rank > MAX_DIMS) cursor.invalid(`has ${rank} dims; ${MAX_DIMS} are the most`);
    const shape = new Array<number>(rank);
    for (let d = rank - 1; d >= 0; d--) shape[d] = await cursor.length("dim");
    if (Number.isNaN(checkedSize(shape, 1))) cursor.invalid(`has shape ${formatShape(shape)}, which is too large`);
    claims.push({ name, shape, type: await cursor.u32("type"), offset: await cursor.u64("offset") });
  }
  return claims;
}

/** Holds the claims against the file's size and each other. */
function place(
  claims: readonly Claim[],
  dataStart: number,
  alignment: number,
  fileSize: number,
  cursor: GgufCursor,
): Map<string, GgufTensorInfo> {
  const placed = new Map<string, GgufTensorInfo>();
  // From the last to the first: the start of what follows bounds each tensor, and is all that is known of its size
  // where the type is unknown.
  let next = { name: "", start: fileSize };
  for (const { name, type: id, shape, offset } of claims.toSorted((a, b) => b.offset - a.offset)) {
    cursor.field = `tensor ${quoted(name)}`;
    if (offset % alignment !== 0) cursor.invalid(`has offset ${offset}; the alignment is ${alignment}`);
    const type = tensorType(id);
    if (type && !fitsRows(type, shape)) cursor.invalid(unfitRows(type, shape));
    const start = dataStart + offset;
    const isEmpty = shape.includes(0);
    const room = isEmpty ? 0 : Math.max(0, next.start - start);
    const byteLength = type ? bytesOfType(type, shape) : room;
    if (start > fileSize || byteLength > fileSize - start) {
      cursor.invalid(`has ${byteLength} bytes from byte ${start} on, but the file has only ${fileSize} bytes`);
    }
    if (!isEmpty) {
      if (byteLength > room || room === 0) {
        cursor.invalid(`has bytes ${start} to ${start + byteLength}, which overlap those of ${quoted(next.name)}`);
      }
      next = { name, start };
    }
    placed.set(name, { type: id, typeName: type?.name ?? `type ${id}`, shape, offset: start, byteLength });
  }
  return new Map(claims.map(({ name }) => [name, placed.get(name)!]));
}
