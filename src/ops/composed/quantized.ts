/** Quantized weights by way of floats. */
import { call } from "../../backend/call.ts";
import type { DType } from "../../core/dtype.ts";
import { numel } from "../../core/layout.ts";
import { type QuantType, quantTypes } from "../../core/quant-types.ts";
import { scope } from "../../tensor/scope.ts";
import { result, type Tensor } from "../../tensor/tensor.ts";

/** Rows (n, bytes) of blocks as (n, k) floats. */
function floats(type: QuantType, blocks: Tensor, to: DType): Tensor {
  const { size, bytes } = quantTypes[type];
  const [n, width] = blocks.shape as [number, number];
  return result(call(blocks.backend, "dequantize", type, blocks, to), [n, (width / bytes) * size]);
}

export const quantizedRows = (type: QuantType, blocks: Tensor, ids: Tensor, to: DType): Tensor =>
  scope(() => floats(type, blocks.indexSelect(ids, 0), to));

export const qmatmul = (type: QuantType, x: Tensor, blocks: Tensor): Tensor =>
  scope(() => {
    const w = floats(type, blocks, "f32");
    const lead = x.shape.slice(0, -1);
    const rows = x.toDType("f32").reshape([numel(lead), w.shape[1]!]);
    return rows
      .matmul(w.t())
      .reshape([...lead, w.shape[0]!])
      .toDType(x.dtype);
  });
