/**
 * `Tensor`: a storage seen through a layout. This file holds what every tensor is and does: identity, lifetime and
 * reading. What can be computed with it is the op table's, which puts its ops on the class (ops/index.ts).
 */
import type { Backend } from "../backend/backend.ts";
import { call } from "../backend/call.ts";
import { Device } from "../backend/device.ts";
import { Storage } from "../backend/storage.ts";
import { type ArrayOf, asDType, type DType, decode, type ScalarOf, sizeOf } from "../core/dtype.ts";
import { fail } from "../core/errors.ts";
import { checkShape, formatShape, Layout, normalizeDim, numel, type Shape } from "../core/layout.ts";
import { format, summary } from "./format.ts";
import { enterScope } from "./scope.ts";

/** Nested arrays of numbers (bigints for i64); a plain value for rank 0. */
export type NestedArray<T = number | bigint> = T | NestedArray<T>[];

/** So many elements are shown wherever the tensor stands. */
const FEW = 16;

/** `D` is the dtype where the compiler knows it. */
export class Tensor<D extends DType = DType> {
  readonly layout: Layout;
  readonly #storage: Storage;
  readonly #scope: Set<Tensor> | undefined;
  #disposed = false;

  /** Tensors are made by the creation functions and by operations. */
  constructor(storage: Storage, layout: Layout) {
    storage.retain();
    this.#storage = storage;
    this.layout = layout;
    this.#scope = enterScope(this);
  }

  get storage(): Storage {
    if (this.#disposed)
      fail("Disposed", `tensor ${formatShape(this.shape)} ${this.dtype} was disposed and cannot be used`);
    return this.#storage;
  }

  get shape(): Shape {
    return this.layout.shape;
  }

  /** The shape, or the size of one dim, as PyTorch has it. */
  size(): Shape;
  size(dim: number): number;
  size(dim?: number): Shape | number {
    return dim === undefined ? this.shape : this.shape[normalizeDim(dim, this.rank, "size")]!;
  }

  get dtype(): D {
    return this.#storage.dtype as D;
  }

  get rank(): number {
    return this.layout.rank;
  }

  /** How many elements it has. */
  get numel(): number {
    return this.layout.numel;
  }

  get device(): Device {
    return Device.of(this.#storage.backend);
  }

  get backend(): Backend {
    return this.#storage.backend;
  }

  get disposed(): boolean {
    return this.#disposed;
  }

  /** Frees the memory unless another tensor views it. Disposing twice is harmless. */
  dispose(): void {
    if (this.#disposed) return;
    this.#disposed = true;
    this.#scope?.delete(this);
    this.#storage.release();
  }

  [Symbol.dispose](): void {
    this.dispose();
  }

  /** Takes the tensor out of its scope, so that it lives until it is disposed or collected. */
  keep(): this {
    this.#scope?.delete(this);
    return this;
  }

  /** Another tensor over the same storage. */
  view(layout: Layout): Tensor<D> {
    return new Tensor(this.storage, layout);
  }

  /** Whether the elements lie in memory in row-major order without gaps. */
  isContiguous(): boolean {
    return this.layout.isContiguous();
  }

  /** The tensor itself if its elements are in row-major order, otherwise a copy that is. */
  contiguous(): Tensor<D> {
    return this.isContiguous() ? this.view(this.layout) : this.copy();
  }

  /** A copy with storage of its own. */
  copy(): Tensor<D> {
    const out = result<D>(Storage.alloc(this.backend, this.dtype, this.numel), this.shape);
    call(this.backend, "copy", this, out);
    return out;
  }

  /** The elements in row-major order as little-endian bytes; a copy. */
  async bytes(): Promise<Uint8Array> {
    const source = this.contiguous();
    const size = sizeOf(this.dtype);
    const reading = source.storage.read(source.layout.offset * size, source.numel * size);
    source.dispose(); // the storage stays until it is read
    return await reading;
  }

  bytesSync(): Uint8Array {
    using source = this.contiguous();
    const size = sizeOf(this.dtype);
    return source.storage.readSync(source.layout.offset * size, source.numel * size);
  }

  /** The elements in row-major order. f16, bf16 and f8e4m3 are widened to f32; i64 gives a BigInt64Array. */
  async data(): Promise<ArrayOf<D>> {
    return decode(await this.bytes(), this.dtype);
  }

  dataSync(): ArrayOf<D> {
    return decode(this.bytesSync(), this.dtype);
  }

  async toArray(): Promise<NestedArray<ScalarOf<D>>> {
    return nest(await this.data(), this.shape);
  }

  toArraySync(): NestedArray<ScalarOf<D>> {
    return nest(this.dataSync(), this.shape);
  }

  /** The value of a tensor that has exactly one element. */
  async toScalar(): Promise<ScalarOf<D>> {
    this.#checkScalar();
    return (await this.data())[0] as ScalarOf<D>;
  }

  toScalarSync(): ScalarOf<D> {
    this.#checkScalar();
    return this.dataSync()[0] as ScalarOf<D>;
  }

  #checkScalar(): void {
    if (this.numel !== 1) {
      fail(
        "ShapeMismatch",
        `toScalar needs exactly one element; this tensor of shape ${formatShape(this.shape)} has ${this.numel}`,
      );
    }
  }

  /** A copy on another device; the tensor itself if it is there already. Between GPUs nothing is waited for. */
  async toDevice(device: Device | string): Promise<Tensor<D>> {
    const target = Device.from(device);
    return this.#enqueuedOn(target) ?? upload(await this.bytes(), this.shape, this.dtype, target);
  }

  toDeviceSync(device: Device | string): Tensor<D> {
    return this.toDeviceLater(device)();
  }

  /**
   * Begins to copy to another device what the tensor will hold when the work enqueued so far is done. What it returns
   * gives the copy, once, waiting only for that work; the tensor may be disposed before.
   */
  toDeviceLater(device: Device | string): () => Tensor<D> {
    const target = Device.from(device);
    const { shape, dtype } = this;
    const enqueued = this.#enqueuedOn(target);
    if (enqueued) return () => enqueued;
    using source = this.contiguous();
    const size = sizeOf(dtype);
    const [offset, bytes] = [source.layout.offset * size, source.numel * size];
    const reading = call(this.backend, "beginRead", source.storage, offset, bytes);
    if (!reading) {
      const copy = upload<D>(source.bytesSync(), shape, dtype, target);
      return () => copy;
    }
    return () => {
      const storage = Storage.alloc(target.backend, dtype, numel(shape));
      reading.finish((piece, start) => storage.write(start, piece));
      return result(storage, shape);
    };
  }

  /** The copy, where the devices make it by themselves; null where the host has to. */
  #enqueuedOn({ backend }: Device): Tensor<D> | null {
    if (backend === this.backend) return this.view(this.layout);
    if (!backend.copyFrom || !this.backend.copyFrom) return null;
    using source = this.contiguous();
    const size = sizeOf(this.dtype);
    const storage = Storage.alloc(backend, this.dtype, this.numel);
    const offset = source.layout.offset * size;
    if (call(backend, "copyFrom", storage, 0, source.storage, offset, storage.byteLength)) {
      return result(storage, this.shape);
    }
    storage.discard();
    return null;
  }

  /** Values, eliding the middle of large tensors, then shape, dtype and device. */
  toString(): string {
    return this.#disposed ? `Tensor(disposed, ${summary(this)})` : format(this);
  }

  /** Inside of other things a large tensor is shown by what it is, not by its values. */
  [Symbol.for("nodejs.util.inspect.custom")](depth: number, options: { readonly depth: number }): string {
    return depth < options.depth && this.numel > FEW ? `Tensor(${summary(this)})` : this.toString();
  }
}

function nest<D extends DType>(data: ArrayOf<D>, shape: Shape): NestedArray<ScalarOf<D>> {
  let at = 0;
  const level = (d: number): NestedArray<ScalarOf<D>> => {
    if (d === shape.length) return data[at++] as ScalarOf<D>;
    return Array.from({ length: shape[d]! }, () => level(d + 1));
  };
  return level(0);
}

/** A new tensor over a fresh contiguous result. */
export function result<D extends DType>(storage: Storage, shape: Shape): Tensor<D> {
  return new Tensor(storage, Layout.contiguous(shape));
}

/** From little-endian elements, which are copied. */
export function upload<D extends DType>(
  bytes: Uint8Array,
  shape: Shape,
  dtype: D,
  device: Device | string = "cpu",
): Tensor<D> {
  checkShape(shape);
  const need = numel(shape) * sizeOf(asDType(dtype));
  if (bytes.byteLength !== need) {
    fail(
      "ShapeMismatch",
      `fromBytes: shape ${formatShape(shape)} of ${dtype} takes ${need} bytes, not ${bytes.byteLength}`,
    );
  }
  const storage = Storage.alloc(Device.from(device).backend, dtype, numel(shape));
  if (need > 0) storage.write(0, bytes);
  return result(storage, shape);
}
