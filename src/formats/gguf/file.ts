/** Reading GGUF files. Opening reads metadata and the list of tensors; each tensor is read when asked for. */
import type { DType } from "../../core/dtype.ts";
import { fail } from "../../core/errors.ts";
import type { Shape } from "../../core/layout.ts";
import type { Tensor } from "../../ops/index.ts";
import { QTensor } from "../../quantized/index.ts";
import { BinaryFile } from "../binary-file.ts";
import { quoted } from "../named-tensors.ts";
import type { ByteRange, FilePlace, ReadOptions } from "../read-options.ts";
import { checkedRange, missing } from "../safetensors/file.ts";
import { uploaded } from "../upload.ts";
import { type GgufTensorInfo, parseGguf } from "./header.ts";
import { type GgufPart, joinParts, openParts } from "./split.ts";
import { tensorType } from "./types.ts";
import { type GgufTyped, type GgufValue, plain } from "./values.ts";

export class GgufFile implements AsyncDisposable {
  readonly path: string;
  readonly version: 1 | 2 | 3;
  /** Every tensor starts at a multiple of it. */
  readonly alignment: number;
  readonly metadata: ReadonlyMap<string, GgufValue>;
  /** The same with the types that the file gives its values; `writeGguf` takes it as it is. */
  readonly typedMetadata: ReadonlyMap<string, GgufTyped>;
  /** In the file's order. */
  readonly tensors: ReadonlyMap<string, GgufTensorInfo>;
  readonly #files: readonly BinaryFile[];
  readonly #fileOf: ReadonlyMap<string, BinaryFile>;

  private constructor(parts: readonly GgufPart[]) {
    const { header, fileOf } = joinParts(parts);
    const { version, alignment, metadata, tensors } = header;
    this.path = parts[0]!.file.path;
    this.version = version;
    this.alignment = alignment;
    this.metadata = new Map([...metadata].map(([key, value]) => [key, plain(value)]));
    this.typedMetadata = metadata;
    this.tensors = tensors;
    this.#files = parts.map(({ file }) => file);
    this.#fileOf = fileOf;
  }

  /** Of a model in several files, any of them opens all. */
  static async open(path: string, signal?: AbortSignal): Promise<GgufFile> {
    return GgufFile.over(await BinaryFile.open(path), signal);
  }

  /** Of a file that is open already, and is closed with this or where it is of another format. */
  static async over(file: BinaryFile, signal?: AbortSignal): Promise<GgufFile> {
    let parts: readonly GgufPart[] = [];
    try {
      parts = await openParts({ file, header: await parseGguf(file, signal) }, signal);
      return new GgufFile(parts);
    } catch (error) {
      for (const part of parts) await part.file.close();
      await file.close();
      throw error;
    }
  }

  info(name: string): GgufTensorInfo {
    return this.tensors.get(name) ?? missing(name, this.path, [...this.tensors.keys()]);
  }

  /** A `Tensor` where the type is a dtype, a `QTensor` where it is quantized. */
  async readTensor(name: string, options: ReadOptions = {}): Promise<Tensor | QTensor> {
    const info = this.info(name);
    const type = tensorType(info.type);
    if (type?.dtype) return this.#readElements(name, type.dtype, info.shape, options);
    if (type?.quant) {
      using blocks = await this.#readElements(name, "u8", [info.byteLength], options);
      return QTensor.fromBlocks(blocks, info.shape, type.quant);
    }
    const what = type ? `type ${type.name} (number ${type.id})` : `the unknown type number ${info.type}`;
    return fail(
      "UnexpectedDType",
      `${this.path}: tensor ${quoted(name)} has ${what}, which cannot be computed with; readBytes gives its bytes`,
    );
  }

  /** The bytes as the file holds them, of any type; with `range`, those from `start` up to but without `end`. */
  async readBytes(name: string, signal?: AbortSignal, range?: ByteRange): Promise<Uint8Array> {
    const { offset, byteLength } = this.info(name);
    const { start, end } = checkedRange(name, byteLength, range);
    return this.#fileOf.get(name)!.read(offset + start, end - start, signal);
  }

  /** Fills `out` with a tensor's bytes from `start` on, as the file holds them. */
  async readInto(out: Uint8Array, name: string, start: number, signal?: AbortSignal): Promise<void> {
    const { offset, byteLength } = this.info(name);
    checkedRange(name, byteLength, { start, end: start + out.byteLength });
    return this.#fileOf.get(name)!.readInto(out, offset + start, signal);
  }

  /** Where a tensor's bytes lie. */
  place(name: string): FilePlace {
    return { file: this.#fileOf.get(name)!, offset: this.info(name).offset };
  }

  #readElements(name: string, dtype: DType, shape: Shape, options: ReadOptions): Promise<Tensor> {
    const range = { start: 0, end: this.info(name).byteLength };
    const reading = (piece: ByteRange) => (out: Uint8Array) => this.readInto(out, name, piece.start, options.signal);
    return uploaded(this.place(name), range, reading, shape, dtype, options);
  }

  async close(): Promise<void> {
    for (const file of this.#files) await file.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  toString(): string {
    return `GgufFile(${this.path}, version ${this.version}, ${this.metadata.size} values, ${this.tensors.size} tensors)`;
  }

  [Symbol.for("nodejs.util.inspect.custom")](): string {
    return this.toString();
  }
}
