/** Reading GGUF files. Opening reads metadata and the list of tensors; each tensor is read when asked for. */
import { Device } from "../backend/device.ts";
import { Storage } from "../backend/storage.ts";
import type { DType } from "../core/dtype.ts";
import { fail } from "../core/errors.ts";
import { Layout, numel, type Shape } from "../core/layout.ts";
import { QTensor } from "../quantized/index.ts";
import { Tensor } from "../tensor/index.ts";
import { BinaryFile } from "./binary-file.ts";
import { type GgufHeader, type GgufTensorInfo, parseGguf } from "./gguf-header.ts";
import { tensorType } from "./gguf-types.ts";
import { type GgufTyped, type GgufValue, plain } from "./gguf-values.ts";
import { quoted } from "./named-tensors.ts";
import type { ReadOptions } from "./read-options.ts";
import { type ByteRange, missing } from "./safetensors.ts";

/** How much of a tensor is in JavaScript's memory on its way to a device. */
const CHUNK = 16 * 2 ** 20;

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
  readonly #file: BinaryFile;

  private constructor(file: BinaryFile, { version, alignment, metadata, tensors }: GgufHeader) {
    this.path = file.path;
    this.version = version;
    this.alignment = alignment;
    this.metadata = new Map([...metadata].map(([key, value]) => [key, plain(value)]));
    this.typedMetadata = metadata;
    this.tensors = tensors;
    this.#file = file;
  }

  static async open(path: string, signal?: AbortSignal): Promise<GgufFile> {
    const file = await BinaryFile.open(path);
    try {
      return new GgufFile(file, await parseGguf(file, signal));
    } catch (error) {
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
    if (type?.dtype) return this.#readElements(info, type.dtype, info.shape, options);
    if (type?.quant) {
      using blocks = await this.#readElements(info, "u8", [info.byteLength], options);
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
    const { start, end } = range ?? { start: 0, end: byteLength };
    if (!(0 <= start && start <= end && end <= byteLength)) {
      fail("InvalidArgument", `bytes ${start} to ${end} of tensor ${quoted(name)}, which has ${byteLength}`);
    }
    return this.#file.read(offset + start, end - start, signal);
  }

  /** Goes to the device piece by piece: only there is the tensor ever whole. */
  async #readElements(info: GgufTensorInfo, dtype: DType, shape: Shape, options: ReadOptions): Promise<Tensor> {
    const { offset, byteLength } = info;
    const { device, signal } = options;
    const { backend } = Device.from(device ?? "cpu");
    const storage = Storage.alloc(backend, dtype, numel(shape));
    const tensor = new Tensor(storage, Layout.contiguous(shape));
    try {
      for (let at = 0; at < byteLength; at += CHUNK) {
        const chunk = await this.#file.read(offset + at, Math.min(CHUNK, byteLength - at), signal);
        backend.write(storage, at, chunk);
      }
    } catch (error) {
      tensor.dispose();
      throw error;
    }
    return tensor;
  }

  close(): Promise<void> {
    return this.#file.close();
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
