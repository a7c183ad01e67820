/** Linear layers of many rows with quantized weights on Hopper: norm in the kernel that brings x into order, product, bias, gate and residual in one. */
import { numel } from "../../../core/layout.ts";
import type { QuantType } from "../../../core/quant-types.ts";
import type { View } from "../../backend.ts";
import type { LinearParams } from "../../fused-ops.ts";
import type { Storage } from "../../storage.ts";
import { planQuantTiles, type QuantTilesPlan } from "../families/quant-tiles.ts";
import { isWideDepth } from "../families/quant-wide.ts";
import { gluNumbers, quantOutput } from "../families/quantized.ts";
import type { Gpu } from "../gpu.ts";
import { alignedBlocks } from "./linear.ts";
import { type Added, inOrder, mapOf, multiplyWide, nothing, type Sizes } from "./quant-wide.ts";
import { alignedRows, blasRows } from "./quantized.ts";

/** x (rows, k) · wᵀ (n, k) to `out` by boxes of weights, for which there is a map: all at multiples of 16 bytes. */
export function multiplyBoxes(
  gpu: Gpu,
  { kernel, order, scratch, launch }: QuantTilesPlan,
  dtype: "bf16" | "f16",
  x: number,
  { w, map }: { readonly w: number; readonly map: number },
  shape: Sizes,
  out: number,
  { alpha, eps, ...added }: Omit<Added, "came"> = nothing,
): void {
  const { rows, n, k } = shape;
  inOrder(gpu, dtype, x, shape, { alpha, eps }, order, scratch, ({ x: ordered }, parts) =>
    gpu.launch(kernel, {
      ...{ x: ordered, w, map, out, parts, counters: gpu.counters, n, k, batch: rows },
      ...{ ...added, dtype: quantOutput[dtype]!, ...launch },
    }),
  );
}

/** x (…, k) · wᵀ, where takesWide; null where BLAS is faster, or x has rows of a length that these kernels do not take. */
export function manyLinear(gpu: Gpu, x: View, w: View, type: QuantType, p: LinearParams): Storage | null {
  const dtype = x.storage.dtype as "bf16" | "f16";
  const k = x.layout.shape.at(-1)!;
  const rows = numel(x.layout.shape.slice(0, -1));
  const n = w.layout.shape[0]!;
  if (rows === 0 || n === 0 || k === 0 || !isWideDepth(type, k)) return null;
  if (gpu.blas && rows >= blasRows(type, gpu.context.properties.arch)) return null;
  const plan = planQuantTiles({ rows, n, k }, type, gpu.multiprocessors);
  const map = plan ? mapOf(gpu, w, plan.boxes, p.glu ? 2 : 1) : 0;
  const glu = p.glu ? gluNumbers[p.glu] : 0;
  const eps = p.norm?.eps ?? 0;
  return gpu.filled(dtype, rows * (p.glu ? n / 2 : n), (out) =>
    alignedRows(gpu, x, (from) =>
      alignedBlocks(gpu, w, (weights) =>
        alignedRows(gpu, p.norm?.weight ?? null, (alpha) =>
          gpu.packed(p.bias, (bias) =>
            gpu.packed(p.residual, (residual) => {
              gpu.fenceWeights(w.storage);
              const added = { alpha, eps, bias, residual, glu };
              const shape = { rows, n, k };
              if (plan && map) multiplyBoxes(gpu, plan, dtype, from, { w: weights, map }, shape, out, added);
              else multiplyWide(gpu, type, dtype, from, weights, shape, out, added);
            }),
          ),
        ),
      ),
    ),
  );
}
