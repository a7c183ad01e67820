/** Products of many rows with quantized weights on Hopper, and linear layers of up to 64: norm in the kernel that brings x into order, product, bias, gate and residual in one. */
import { numel } from "../../../core/layout.ts";
import type { QuantType } from "../../../core/quant-types.ts";
import type { View } from "../../backend.ts";
import type { LinearParams } from "../../fused-ops.ts";
import type { Storage } from "../../storage.ts";
import { quantName } from "../families/family.ts";
import { planQuantFlow, type QuantFlowPlan } from "../families/quant-flow.ts";
import { isWideDepth, planQuantWide, QUANT_WIDE_FEW } from "../families/quant-wide.ts";
import { gluNumbers, quantOutput } from "../families/quantized.ts";
import { at, type Gpu } from "../gpu.ts";
import { alignedBlocks } from "./linear.ts";
import { alignedRows } from "./quantized.ts";

export interface Sizes {
  readonly rows: number;
  readonly n: number;
  readonly k: number;
}
/** Addresses, 0 for what there is not, the gate's number, and what belongs to a norm. */
export interface Added {
  readonly alpha: number;
  readonly eps: number;
  readonly bias: number;
  readonly residual: number;
  readonly glu: number;
}
export const nothing: Added = { alpha: 0, eps: 0, bias: 0, residual: 0, glu: 0 };

/** x (rows, k) · wᵀ (n, k) to `out`: all at multiples of 16 bytes. */
export function multiplyWide(
  gpu: Gpu,
  type: QuantType,
  dtype: "bf16" | "f16",
  x: number,
  w: number,
  shape: Sizes,
  out: number,
  { alpha, eps, ...added }: Added = nothing,
): void {
  const { size, order, scratch, launch } = planQuantWide(shape, type, gpu.multiprocessors, added.glu !== 0);
  const { rows, n, k } = shape;
  gpu.temporary(order.bytes + 4 * scratch, (ordered) => {
    gpu.launch(`quant_order_${dtype}`, { x, alpha, out: ordered, rows, k, eps, ...order });
    gpu.launch(`quant_wide${size}_${quantName(type)}`, {
      ...{ x: ordered, w, out, parts: ordered + order.bytes, counters: gpu.counters, n, k, batch: rows },
      ...{ ...added, dtype: quantOutput[dtype]!, ...launch },
    });
  });
}

/** The same by boxes of weights, for which there is a map. */
export function multiplyFlow(
  gpu: Gpu,
  { kernel, order, scratch, launch }: QuantFlowPlan,
  dtype: "bf16" | "f16",
  x: number,
  { w, map }: { readonly w: number; readonly map: number },
  { rows, n, k }: Sizes,
  out: number,
  { alpha, eps, ...added }: Added = nothing,
): void {
  gpu.temporary(order.bytes + 4 * scratch, (ordered) => {
    gpu.launch(`quant_order_${dtype}`, { x, alpha, out: ordered, rows, k, eps, ...order });
    gpu.launch(kernel, {
      ...{ x: ordered, w, map, out, parts: ordered + order.bytes, counters: gpu.counters, n, k, batch: rows },
      ...{ ...added, dtype: quantOutput[dtype]!, ...launch },
    });
  });
}

/** x (…, k) · wᵀ, where takesWide; null where x has too many rows, or rows of a length that these kernels do not take. */
export function wideLinear(gpu: Gpu, x: View, w: View, type: QuantType, p: LinearParams): Storage | null {
  const dtype = x.storage.dtype as "bf16" | "f16";
  const k = x.layout.shape.at(-1)!;
  const rows = numel(x.layout.shape.slice(0, -1));
  const n = w.layout.shape[0]!;
  if (rows === 0 || rows > QUANT_WIDE_FEW || n === 0 || k === 0 || !isWideDepth(type, k)) return null;
  const glu = p.glu ? gluNumbers[p.glu] : 0;
  const flow = planQuantFlow({ rows, n, k }, type, gpu.multiprocessors);
  // A copy of weights that are not aligned comes to lie anywhere.
  const map = (weights: number): number => {
    if (!flow || weights !== at(w)) return 0;
    const { lines, ...pieces } = flow.boxes;
    const halves = p.glu ? 2 : 1;
    return gpu.boxMap(w.storage, { at: weights, rows: n, halves, ...pieces, boxRows: lines / halves, boxPieces: 1 });
  };
  const eps = p.norm?.eps ?? 0;
  return gpu.filled(dtype, rows * (p.glu ? n / 2 : n), (out) =>
    alignedRows(gpu, x, (from) =>
      alignedBlocks(gpu, w, (weights) =>
        alignedRows(gpu, p.norm?.weight ?? null, (alpha) =>
          gpu.packed(p.bias, (bias) =>
            gpu.packed(p.residual, (residual) => {
              gpu.fenceWeights(w.storage);
              const added = { alpha, eps, bias, residual, glu };
              const boxes = { w: weights, map: map(weights) };
              if (flow && boxes.map) multiplyFlow(gpu, flow, dtype, from, boxes, { rows, n, k }, out, added);
              else multiplyWide(gpu, type, dtype, from, weights, { rows, n, k }, out, added);
            }),
          ),
        ),
      ),
    ),
  );
}
