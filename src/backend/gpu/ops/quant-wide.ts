/** Products of more than 32 rows with quantized weights on Hopper. */
import type { QuantType } from "../../../core/quant-types.ts";
import { quantName } from "../families/family.ts";
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
  const { size, order, scratch, launch } = planQuantWide(shape, type, gpu.multiprocessors);
  gpu.temporary(order.bytes + 4 * scratch, (ordered) => {
    gpu.launch(`quant_order_${dtype}`, { x, out: ordered, rows: shape.rows, k: shape.k, ...order });
    const values = { x: ordered, w, out, parts: ordered + order.bytes, counters: gpu.counters, ...shape, ...launch };
    gpu.launch(`quant_wide${size}_${quantName(type)}_${dtype}`, values);
  });
}
