/** Products of many rows with quantized weights by Hopper's warpgroups. */
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
  const { size, scratch, launch } = planQuantWide(shape, type, gpu.multiprocessors);
  const multiply = (parts: number): void =>
    gpu.launch(`quant_wide_${size}_${quantName(type)}_${dtype}`, {
      ...{ x, w, out, parts, counters: gpu.counters },
      ...shape,
      ...launch,
    });
  if (scratch === 0) multiply(0);
  else gpu.temporary(4 * scratch, multiply);
}
