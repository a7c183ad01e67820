/** Reading and writing safetensors files. Opening reads the header only; each tensor is read when asked for. */
import { sizeOf } from "../../core/dtype.ts";
import { fail } from "../../core/errors.ts";
import { numel } from "../../core/layout.ts";
import type { Tensor } from "../../ops/index.ts";
import { writeAtomically } from "../atomic-file.ts";
import { BinaryFile } from "../binary-file.ts";
import { type NamedTensors, namedEntries, quoted } from "../named-tensors.ts";
import type { ByteRange, FilePlace, ReadOptions } from "../read-options.ts";
import { uploaded } from "../upload.ts";
import {
  formatHeader,
  isForeign,
  MAX_HEADER,
  parseHeader,
  type SafetensorsHeader,
  type SafetensorsInfo,
} from "./header.ts";

/** Tensors in one file or in several, read by name. */
export interface SafetensorsReader extends AsyncDisposable {
  readonly names: readonly string[];
  readonly metadata: ReadonlyMap<string, string>;
  info(name: string): SafetensorsInfo | Promise<SafetensorsInfo>;
  read(name: string, options?: ReadOptions): Promise<Tensor>;
  /** The bytes as the file holds them, of any dtype; with `range`, those from `start` up to but without `end`. */
  readBytes(name: string, signal?: AbortSignal, range?: ByteRange): Promise<Uint8Array>;
  /** Fills `out` with a tensor's bytes from `start` on, as the file holds them. */
  readInto(out: Uint8Array, name: string, start: number, signal?: AbortSignal): Promise<void>;
  /** Where a tensor's bytes lie. */
  place(name: string): FilePlace | Promise<FilePlace>;
  close(): Promise<void>;
}

export class SafetensorsFile implements SafetensorsReader {
  readonly path: string;
  readonly names: readonly string[];
  readonly metadata: ReadonlyMap<string, string>;
  readonly #file: BinaryFile;
  readonly #tensors: ReadonlyMap<string, SafetensorsInfo>;

  private constructor(file: BinaryFile, { metadata, tensors }: SafetensorsHeader) {
    this.path = file.path;
    this.names = [...tensors.keys()];
    this.metadata = metadata;
    this.#file = file;
    this.#tensors = tensors;
  }

  static async open(path: string): Promise<SafetensorsFile> {
    return SafetensorsFile.over(await BinaryFile.open(path));
  }

  /** Of a file that is open already, and is closed with this or where it is of another format. */
  static async over(file: BinaryFile): Promise<SafetensorsFile> {
    try {
      return new SafetensorsFile(file, await readHeader(file));
    } catch (error) {
      await file.close();
      throw error;
    }
  }

  has(name: string): boolean {
    return this.#tensors.has(name);
  }

  info(name: string): SafetensorsInfo {
    return this.#tensors.get(name) ?? missing(name, this.path, this.names);
  }

  async read(name: string, options: ReadOptions = {}): Promise<Tensor> {
    const { dtype, shape, byteLength } = this.info(name);
    if (isForeign(dtype)) {
      return fail(
        "UnexpectedDType",
        `${this.path}: tensor ${quoted(name)} has dtype ${dtype}, which tensors cannot have; readBytes gives its bytes`,
      );
    }
    const reading = (piece: ByteRange) => (out: Uint8Array) => this.readInto(out, name, piece.start, options.signal);
    return uploaded(this.place(name), { start: 0, end: byteLength }, reading, shape, dtype, options);
  }

  async readBytes(name: string, signal?: AbortSignal, range?: ByteRange): Promise<Uint8Array> {
    const { offset, byteLength } = this.info(name);
    const { start, end } = checkedRange(name, byteLength, range);
    return this.#file.read(offset + start, end - start, signal);
  }

  async readInto(out: Uint8Array, name: string, start: number, signal?: AbortSignal): Promise<void> {
    const { offset, byteLength } = this.info(name);
    checkedRange(name, byteLength, { start, end: start + out.byteLength });
    return this.#file.readInto(out, offset + start, signal);
  }

  place(name: string): FilePlace {
    return { file: this.#file, offset: this.info(name).offset };
  }

  close(): Promise<void> {
    return this.#file.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  toString(): string {
    return `SafetensorsFile(${this.path}, ${this.names.length} tensors)`;
  }

  [Symbol.for("nodejs.util.inspect.custom")](): string {
    return this.toString();
  }
}

/** The whole tensor where no range is asked for. */
export function checkedRange(name: string, byteLength: number, range?: ByteRange): ByteRange {
  const { start, end } = range ?? { start: 0, end: byteLength };
  if (0 <= start && start <= end && end <= byteLength) return { start, end };
  return fail("InvalidArgument", `bytes ${start} to ${end} of tensor ${quoted(name)}, which has ${byteLength}`);
}

export function missing(name: string, path: string, names: readonly string[]): never {
  const some = names.slice(0, 5).map(quoted).join(", ");
  const listed = names.length > 5 ? `its ${names.length} tensors start with ${some}` : `it has ${some || "no tensors"}`;
  return fail("MissingTensor", `${path} has no tensor ${quoted(name)}; ${listed}`);
}

async function readHeader(file: BinaryFile): Promise<SafetensorsHeader> {
  if (file.size < 8) fail("InvalidFile", `${file.path} has ${file.size} bytes; a safetensors file has at least 10`);
  const prefix = Buffer.from(await file.read(0, 8));
  const length = prefix.readBigUInt64LE();
  const most = Math.min(file.size - 8, MAX_HEADER);
  if (length > most) {
    const limit = most === MAX_HEADER ? `the format allows ${most}` : `the file has only ${most} left`;
    fail(
      "InvalidFile",
      `${file.path} claims a header of ${length} bytes, but ${limit}: not a safetensors file, or a truncated one`,
    );
  }
  const start = 8 + Number(length);
  return parseHeader(await file.read(8, Number(length)), file.path, start, file.size - start);
}

export interface SaveSafetensorsOptions {
  readonly metadata?: Readonly<Record<string, string>> | ReadonlyMap<string, string> | undefined;
  readonly signal?: AbortSignal | undefined;
}

/** Replaces `path` in one step, or, where anything fails, leaves it as it was. One tensor at a time is in memory. */
export async function saveSafetensors(
  path: string,
  tensors: NamedTensors,
  { metadata = {}, signal }: SaveSafetensorsOptions = {},
): Promise<void> {
  const entries = namedEntries(tensors).map(([name, tensor]) => {
    const { dtype, shape } = tensor;
    return { name, tensor, dtype, shape, byteLength: numel(shape) * sizeOf(dtype) };
  });
  // Widest elements first: every tensor then starts at a multiple of its element size.
  entries.sort((a, b) => sizeOf(b.dtype) - sizeOf(a.dtype) || (a.name < b.name ? -1 : 1));
  const pairs = namedEntries(metadata);
  for (const [key, value] of pairs) {
    if (typeof value !== "string") fail("InvalidArgument", `safetensors: metadata ${quoted(key)} is not a string`);
  }
  const header = formatHeader(entries, pairs);
  await writeAtomically(
    path,
    async (handle) => {
      await handle.writeFile(header);
      for (const { tensor } of entries) {
        signal?.throwIfAborted();
        await handle.writeFile(await tensor.bytes());
      }
    },
    signal,
  );
}
