import { call } from "../backend/call.ts";
import type { Device } from "../backend/device.ts";
import { formatBytes } from "../backend/usage.ts";
import type { DType } from "../core/dtype.ts";
import { fail } from "../core/errors.ts";
import { checkShape, formatShape, numel, type Shape } from "../core/layout.ts";
import { asQuantType, type QuantType, quantTypeNames, quantTypes } from "../core/quant-types.ts";
import * as check from "../ops/check.ts";
import { compute } from "../ops/compute.ts";
import { Tensor } from "../ops/index.ts";
import { result } from "../tensor/tensor.ts";

/** What quantized weights are multiplied with and turned into. */
const floats: readonly DType[] = ["f32", "f16", "bf16"];

export function checkFloat(op: string, dtype: DType): void {
  if (!floats.includes(dtype)) {
    fail("UnsupportedDTypeForOp", `${op} takes ${floats.join(", ")}, not ${dtype}; convert with toDType("f32")`);
  }
}

/** The shape of the blocks of a tensor of `shape`: its last dim counts bytes. */
function blockShape(op: string, shape: Shape, type: QuantType): number[] {
  checkShape(shape);
  const { size, bytes } = quantTypes[type];
  const width = shape.at(-1);
  if (width === undefined) {
    return fail(
      "UnexpectedNumberOfDims",
      `${op}: a ${type} tensor has rows of blocks, so its rank is at least 1, not 0`,
    );
  }
  if (width % size !== 0) {
    fail(
      "InvalidShape",
      `${op}: the rows of shape ${formatShape(shape)} have ${width} elements, which is no multiple of the ${size} of a ${type} block`,
    );
  }
  return [...shape.slice(0, -1), (width / size) * bytes];
}

export class QTensor {
  readonly type: QuantType;
  readonly shape: Shape;
  /** u8, contiguous; of this tensor's shape with the last dim in bytes. Owned by the QTensor. */
  readonly blocks: Tensor;

  private constructor(type: QuantType, shape: Shape, blocks: Tensor) {
    this.type = type;
    this.shape = shape;
    this.blocks = blocks;
  }

  /** From the bytes of a GGUF tensor, which are copied. `type` may be GGUF's number. */
  static fromBytes(bytes: Uint8Array, shape: Shape, type: QuantType | number, device?: Device | string): QTensor {
    const known = asQuantType(type);
    const inBytes = blockShape("fromBytes", shape, known);
    if (bytes.byteLength !== numel(inBytes)) {
      fail(
        "ShapeMismatch",
        `fromBytes: shape ${formatShape(shape)} of ${known} takes ${numel(inBytes)} bytes, not ${bytes.byteLength}`,
      );
    }
    return new QTensor(known, shape, Tensor.fromBytes(bytes, inBytes, "u8", device));
  }

  /** Over a u8 tensor that holds the blocks row by row, under any shape of the right number of bytes. */
  static fromBlocks(blocks: Tensor, shape: Shape, type: QuantType | number): QTensor {
    const known = asQuantType(type);
    const inBytes = blockShape("fromBlocks", shape, known);
    if (blocks.dtype !== "u8") {
      fail("UnexpectedDType", `fromBlocks: blocks are a tensor of u8, not of ${blocks.dtype}`);
    }
    if (blocks.numel !== numel(inBytes)) {
      fail(
        "ShapeMismatch",
        `fromBlocks: shape ${formatShape(shape)} of ${known} takes ${numel(inBytes)} bytes, not the ${blocks.numel} of ${formatShape(blocks.shape)}`,
      );
    }
    using rows = blocks.contiguous();
    return new QTensor(known, shape, rows.reshape(inBytes));
  }

  /** The nearest weights that the type can hold; each row is quantized by itself. */
  static quantize(x: Tensor, type: QuantType): QTensor {
    const known = asQuantType(type);
    if (!quantTypes[known].writable) {
      const writable = quantTypeNames.filter((t) => quantTypes[t].writable).join(", ");
      fail("UnsupportedDTypeForOp", `quantize: ${known} can be read but not written; choose one of ${writable}`);
    }
    checkFloat("quantize", x.dtype);
    const inBytes = blockShape("quantize", x.shape, known);
    return new QTensor(known, x.shape, result(call(x.backend, "quantize", known, x), inBytes));
  }

  get device(): Device {
    return this.blocks.device;
  }

  get rank(): number {
    return this.shape.length;
  }

  /** How many weights it holds. */
  get numel(): number {
    return numel(this.shape);
  }

  get byteLength(): number {
    return this.blocks.numel;
  }

  get disposed(): boolean {
    return this.blocks.disposed;
  }

  dequantize(dtype: DType = "f32"): Tensor {
    checkFloat("dequantize", dtype);
    return result(call(this.blocks.backend, "dequantize", this.type, this.blocks, dtype), this.shape);
  }

  /** The rows of this table (n, width) that `ids` of any shape name, as floats: shape (…ids, width). */
  rows(ids: Tensor, dtype: DType = "f32"): Tensor {
    checkFloat("rows", dtype);
    check.ids("rows", this.blocks, ids);
    if (this.rank !== 2) {
      fail("UnexpectedNumberOfDims", `rows: the table must have 2 dims; its shape is ${formatShape(this.shape)}`);
    }
    using flat = ids.flattenAll();
    const shape = [flat.numel, this.shape[1]!];
    using rows = compute(this.blocks.backend, "quantizedRows", shape, this.type, this.blocks, flat, dtype);
    return rows.reshape([...ids.shape, this.shape[1]!]);
  }

  /** A copy on another device; another view of the same memory if it is there already. */
  async toDevice(device: Device | string): Promise<QTensor> {
    return new QTensor(this.type, this.shape, await this.blocks.toDevice(device));
  }

  toDeviceSync(device: Device | string): QTensor {
    return new QTensor(this.type, this.shape, this.blocks.toDeviceSync(device));
  }

  /** The blocks as a GGUF file holds them; a copy. */
  bytes(): Promise<Uint8Array> {
    return this.blocks.bytes();
  }

  bytesSync(): Uint8Array {
    return this.blocks.bytesSync();
  }

  /** Takes it out of its scope, so that it lives until it is disposed or collected. */
  keep(): this {
    this.blocks.keep();
    return this;
  }

  dispose(): void {
    this.blocks.dispose();
  }

  [Symbol.dispose](): void {
    this.dispose();
  }

  toString(): string {
    const state = this.disposed ? "disposed, " : "";
    return `QTensor(${state}${formatShape(this.shape)}, ${this.type}, ${this.device.name}, ${formatBytes(this.byteLength)})`;
  }

  [Symbol.for("nodejs.util.inspect.custom")](): string {
    return this.toString();
  }
}
