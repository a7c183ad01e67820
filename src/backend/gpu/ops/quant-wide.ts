/** Products of nine rows and more with quantized weights on Hopper. */
import type { QuantType } from "../../../core/quant-types.ts";
import { quantName } from "../families/family.ts";
import { planQuantBatch, QUANT_BATCH_ROWS } from "../families/quant-batch.ts";
import { planQuantWide } from "../families/quant-wide.ts";
import type { Gpu } from "../gpu.ts";

/** x (rows, k) · wᵀ (n, k) to `out`: all at multiples of 16 bytes. */
export function multiplyWide(
  gpu: Gpu,
  type: QuantType,
  dtype: "bf16" | "f16",
  x: number,
  w: number,
  shape: { readonly rows: number; readonly n: number; readonly k: number },
  out: number,
): void {
  if (shape.rows <= QUANT_BATCH_ROWS) {
    const { arch } = gpu.context.properties;
    const plan = planQuantBatch(shape, type, { multiprocessors: gpu.multiprocessors, arch });
    gpu.launch(`quant_batch_${quantName(type)}_${dtype}`, { x, w, out, ...shape, ...plan });
    return;
  }
  const { size, order, scratch, launch } = planQuantWide(shape, type, gpu.multiprocessors);
  gpu.temporary(order.bytes + 4 * scratch, (ordered) => {
    gpu.launch(`quant_order_${dtype}`, { x, out: ordered, rows: shape.rows, k: shape.k, ...order });
    const values = { x: ordered, w, out, parts: ordered + order.bytes, counters: gpu.counters, ...shape, ...launch };
    gpu.launch(`quant_wide${size}_${quantName(type)}_${dtype}`, values);
  });
}
