import type { Device } from "../backend/device.ts";
import type { Shape } from "../core/layout.ts";
import type { QuantType } from "../quantized/types.ts";
import { Tensor } from "../tensor/index.ts";
export class QTensor {
  constructor(
    readonly type: QuantType,
    readonly shape: Shape,
    readonly raw: Uint8Array,
  ) {}
  static fromBytes(b: Uint8Array, shape: Shape, type: QuantType, _d?: Device | string) {
    return new QTensor(type, shape, b);
  }
  static quantize(t: Tensor, type: QuantType): QTensor {
    throw new Error(`${type}${t}`);
  }
  async bytes() {
    return this.raw;
  }
  dequantize(): Tensor {
    return Tensor.zeros(this.shape);
  }
  dispose(): void {}
  [Symbol.dispose](): void {}
}
