/**
 * `Tensor`: a storage seen through a layout. This file holds what every tensor is and does: identity, lifetime and
 * reading. The operations are grouped by kind in the files beside it and installed on the prototype by `index.ts`;
 * they check shapes, dtypes and devices, then call the backend.
 */
import type { Backend } from "../backend/backend.ts";
import { Device } from "../backend/device.ts";
import type { Storage } from "../backend/storage.ts";
import { type DType, decode, type TypedArray } from "../core/dtype.ts";
import { fail } from "../core/errors.ts";
import { formatShape, Layout, type Shape } from "../core/layout.ts";
import type { ConvMethods } from "./conv.ts";
import * as create from "./create.ts";
import type { ElementwiseMethods } from "./elementwise.ts";
import { format, summary } from "./format.ts";
import type { IndexMethods } from "./indexing.ts";
import type { LinearMethods } from "./linear.ts";
import type { ReduceMethods } from "./reduce.ts";
import { enterScope } from "./scope.ts";
import type { ShapeMethods } from "./shape.ts";
import { cat, stack } from "./shape.ts";

/** Nested arrays of numbers (bigints for i64); a plain value for rank 0. */
export type NestedArray = number | bigint | NestedArray[];

/** The groups of methods are installed by index.ts. */
export interface Tensor
  extends ElementwiseMethods,
    ReduceMethods,
    LinearMethods,
    ShapeMethods,
    IndexMethods,
    ConvMethods {}

export class Tensor {
  static readonly from = create.from;
  static readonly fromBytes = create.fromBytes;
  static readonly zeros = create.zeros;
  static readonly ones = create.ones;
  static readonly full = create.full;
  static readonly empty = create.empty;
  static readonly rand = create.rand;
  static readonly randn = create.randn;
  static readonly arange = create.arange;
  static readonly eye = create.eye;
  static readonly tril = create.tril;
  static readonly triu = create.triu;
  static readonly meshgrid = create.meshgrid;
  static readonly zerosLike = create.zerosLike;
  static readonly onesLike = create.onesLike;
  static readonly fullLike = create.fullLike;
  static readonly randLike = create.randLike;
  static readonly randnLike = create.randnLike;
  static readonly cat = cat;
  static readonly stack = stack;

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

  get dtype(): DType {
    return this.#storage.dtype;
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

  /** Whether the elements lie in memory in row-major order without gaps. */
  isContiguous(): boolean {
    return this.layout.isContiguous();
  }

  /** The elements in row-major order as little-endian bytes; a copy. */
  async bytes(): Promise<Uint8Array> {
    const source = this.contiguous();
    const { storage, layout } = source;
    storage.retain(); // the read is pending: the memory must stay, whatever happens to the tensor
    source.dispose();
    try {
      const size = storage.byteLength / Math.max(storage.length, 1);
      return await storage.backend.read(storage, layout.offset * size, layout.numel * size);
    } finally {
      storage.release();
    }
  }

  bytesSync(): Uint8Array {
    using source = this.contiguous();
    const { storage, layout } = source;
    const size = storage.byteLength / Math.max(storage.length, 1);
    return storage.backend.readSync(storage, layout.offset * size, layout.numel * size);
  }

  /** The elements in row-major order. f16, bf16 and f8e4m3 are widened to f32; i64 gives a BigInt64Array. */
  async data(): Promise<TypedArray> {
    return decode(await this.bytes(), this.dtype);
  }

  dataSync(): TypedArray {
    return decode(this.bytesSync(), this.dtype);
  }

  async toArray(): Promise<NestedArray> {
    return nest(await this.data(), this.shape);
  }

  toArraySync(): NestedArray {
    return nest(this.dataSync(), this.shape);
  }

  /** The value of a tensor that has exactly one element. */
  async toScalar(): Promise<number | bigint> {
    this.#checkScalar();
    return (await this.data())[0]!;
  }

  toScalarSync(): number | bigint {
    this.#checkScalar();
    return this.dataSync()[0]!;
  }

  #checkScalar(): void {
    if (this.numel !== 1) {
      fail(
        "ShapeMismatch",
        `toScalar needs exactly one element; this tensor of shape ${formatShape(this.shape)} has ${this.numel}`,
      );
    }
  }

  /** A copy on another device; the tensor itself if it is there already. */
  async toDevice(device: Device | string): Promise<Tensor> {
    const target = Device.from(device);
    if (target.backend === this.backend) return this.view(this.layout);
    return create.fromBytes(await this.bytes(), this.shape, this.dtype, target);
  }

  toDeviceSync(device: Device | string): Tensor {
    const target = Device.from(device);
    if (target.backend === this.backend) return this.view(this.layout);
    return create.fromBytes(this.bytesSync(), this.shape, this.dtype, target);
  }

  /** Another tensor over the same storage. */
  view(layout: Layout): Tensor {
    return new Tensor(this.storage, layout);
  }

  /** Values, eliding the middle of large tensors, then shape, dtype and device. */
  toString(): string {
    return this.#disposed ? `Tensor(disposed, ${summary(this)})` : format(this);
  }

  [Symbol.for("nodejs.util.inspect.custom")](): string {
    return this.toString();
  }
}

function nest(data: TypedArray, shape: Shape): NestedArray {
  let at = 0;
  const level = (d: number): NestedArray => {
    if (d === shape.length) return data[at++]!;
    return Array.from({ length: shape[d]! }, () => level(d + 1));
  };
  return level(0);
}

/** A new tensor over a fresh contiguous result. */
export function result(storage: Storage, shape: Shape): Tensor {
  return new Tensor(storage, Layout.contiguous(shape));
}
