/** Writing GGUF files (version 3, little-endian). */
import type { FileHandle } from "node:fs/promises";
import { fail } from "../../core/errors.ts";
import { checkShape, formatShape, type Shape } from "../../core/layout.ts";
import { Tensor } from "../../ops/index.ts";
import type { QTensor } from "../../quantized/index.ts";
import { writeAtomically } from "../atomic-file.ts";
import { namedEntries, quoted } from "../named-tensors.ts";
import { ALIGNMENT_KEY, DEFAULT_ALIGNMENT, isAlignment, MAGIC, MAX_DIMS } from "./header.ts";
import { bytesOfType, fitsRows, type GgufTensorType, tensorTypeNamed, typeOfDType, unfitRows } from "./types.ts";
import { encodeValue, type GgufInput, text, typed, u32, u64 } from "./values.ts";

/** The format's limits. */
const MAX_KEY_BYTES = 65535;
const MAX_NAME_BYTES = 64;
const VERSION = 3;

/** The promise of a tensor: its bytes are asked for when their turn comes, so that one tensor is in memory at once. */
export interface GgufPromisedTensor {
  readonly name: string;
  /** The format's name of it, such as "F16" or "Q4_K". */
  readonly type: string;
  readonly shape: Shape;
  /** Gives all bytes of the tensor in order, in pieces of any size. */
  readonly data: () => AsyncIterable<Uint8Array>;
}
export type GgufEntry = { readonly name: string; readonly tensor: Tensor | QTensor } | GgufPromisedTensor;

export interface WriteGgufOptions {
  /** Values without a type get one: see `GgufInput`. */
  readonly metadata?: Readonly<Record<string, GgufInput>> | ReadonlyMap<string, GgufInput> | undefined;
  readonly tensors: Iterable<GgufEntry>;
  /** A power of two; 32, or what `metadata` says, unless given. */
  readonly alignment?: number | undefined;
  readonly signal?: AbortSignal | undefined;
}

interface Entry {
  readonly name: string;
  readonly type: GgufTensorType;
  readonly shape: Shape;
  readonly byteLength: number;
  readonly data: () => AsyncIterable<Uint8Array>;
}

/** Replaces `path` in one step, or, where anything fails, leaves it as it was. */
export async function writeGguf(path: string, options: WriteGgufOptions): Promise<void> {
  const { metadata = {}, tensors, signal } = options;
  const pairs = new Map(namedEntries(metadata).map(([key, value]) => [key, typed(value, key)]));
  const alignment = options.alignment ?? pairs.get(ALIGNMENT_KEY)?.value ?? DEFAULT_ALIGNMENT;
  if (!isAlignment(alignment)) {
    return fail("InvalidArgument", `gguf: alignment ${alignment} is not a power of two from 1 to 2^31`);
  }
  // Readers take the default where the key is missing.
  if (pairs.has(ALIGNMENT_KEY) || alignment !== DEFAULT_ALIGNMENT) {
    pairs.set(ALIGNMENT_KEY, { type: "u32", value: alignment });
  }
  const entries = [...tensors].map(describe);
  checkUnique(entries);
  const padding = (length: number): number => -length & (alignment - 1);
  const head: Uint8Array[] = [Buffer.from(MAGIC), u32(VERSION), u64(entries.length), u64(pairs.size)];
  for (const key of pairs.keys()) checkKey(key);
  for (const [key, value] of pairs) head.push(text(key), encodeValue(value, key));
  let offset = 0;
  for (const { name, type, shape, byteLength } of entries) {
    head.push(text(name), u32(shape.length), ...shape.toReversed().map(u64), u32(type.id), u64(offset));
    offset += byteLength + padding(byteLength);
  }
  const header = Buffer.concat(head);
  await writeAtomically(
    path,
    async (handle) => {
      await handle.writeFile(header);
      await handle.writeFile(new Uint8Array(padding(header.length)));
      for (const entry of entries) {
        await writeData(handle, entry, signal);
        await handle.writeFile(new Uint8Array(padding(entry.byteLength)));
      }
    },
    signal,
  );
}

function checkKey(key: string): void {
  const bytes = Buffer.byteLength(key);
  if (bytes > MAX_KEY_BYTES) {
    fail(
      "InvalidArgument",
      `gguf: metadata ${quoted(key)} has a key of ${bytes} bytes; the format allows ${MAX_KEY_BYTES}`,
    );
  }
}

function describe(entry: GgufEntry): Entry {
  const what = `gguf: tensor ${quoted(entry.name)}`;
  const nameBytes = Buffer.byteLength(entry.name);
  if (nameBytes > MAX_NAME_BYTES) {
    fail("InvalidArgument", `${what} has a name of ${nameBytes} bytes; the format allows ${MAX_NAME_BYTES}; rename it`);
  }
  const { type, shape, data } = "tensor" in entry ? ofTensor(entry.tensor, what) : ofPromise(entry, what);
  if (shape.length > MAX_DIMS) {
    fail("UnexpectedNumberOfDims", `${what} has shape ${formatShape(shape)}; the format allows ${MAX_DIMS} dims`);
  }
  if (!fitsRows(type, shape)) fail("InvalidShape", `${what} ${unfitRows(type, shape)}`);
  return { name: entry.name, type, shape, byteLength: bytesOfType(type, shape), data };
}

function ofTensor(tensor: Tensor | QTensor, what: string): Pick<Entry, "type" | "shape" | "data"> {
  const type = tensor instanceof Tensor ? typeOfDType(tensor.dtype, what) : tensorTypeNamed(tensor.type)!;
  return {
    type,
    shape: tensor.shape,
    async *data() {
      yield await tensor.bytes();
    },
  };
}

function ofPromise(entry: GgufPromisedTensor, what: string): Pick<Entry, "type" | "shape" | "data"> {
  const type =
    tensorTypeNamed(entry.type) ?? fail("UnexpectedDType", `${what} has the unknown type ${quoted(entry.type)}`);
  return { type, shape: checkShape(entry.shape), data: entry.data };
}

function checkUnique(entries: readonly Entry[]): void {
  const names = new Set<string>();
  for (const { name } of entries) {
    if (names.has(name)) fail("InvalidArgument", `gguf: two tensors are named ${quoted(name)}; rename one`);
    names.add(name);
  }
}

async function writeData(handle: FileHandle, { name, byteLength, data }: Entry, signal?: AbortSignal): Promise<void> {
  let written = 0;
  for await (const bytes of data()) {
    signal?.throwIfAborted();
    written += bytes.byteLength;
    if (written > byteLength) break;
    await handle.writeFile(bytes);
  }
  if (written !== byteLength) {
    const found = written > byteLength ? "more" : `only ${written}`;
    fail("InvalidArgument", `gguf: tensor ${quoted(name)} takes ${byteLength} bytes, but ${found} came`);
  }
}
