/** Products of many rows with quantized weights on Hopper, and linear layers of up to 64: norm in the kernel that brings x into order, product, bias, gate and residual in one. */
import { numel } from "../../../core/layout.ts";
import type { QuantType } from "../../../core/quant-types.ts";
import type { View } from "../../backend.ts";
import type { LinearParams } from "../../fused-ops.ts";
import type { Storage } from "../../storage.ts";
import { quantName } from "../families/family.ts";
import { planQuantFlow, type QuantFlowPlan } from "../families/quant-flow.ts";
import { isWideDepth, planQuantWide, QUANT_WIDE_FEW, type QuantOrderPlan } from "../families/quant-wide.ts";
import { gluNumbers, quantOutput } from "../families/quantized.ts";
import { at, type Gpu } from "../gpu.ts";
import { alignedBlocks, areAligned } from "./linear.ts";
import { alignedRows } from "./quantized.ts";
import { filledInOrder, nowhere, type Ordered, orderedAs } from "./x-order.ts";

export interface Sizes {
  readonly rows: number;
  readonly n: number;
  readonly k: number;
}
/** Addresses, 0 for what there is not, the gate's number, what belongs to a norm, and x where it came in order. */
export interface Added {
  readonly alpha: number;
  readonly eps: number;
  readonly came?: Ordered | null | undefined;
  readonly bias: number;
  readonly residual: number;
  readonly glu: number;
}
export const nothing: Added = { alpha: 0, eps: 0, bias: 0, residual: 0, glu: 0 };

/** `run` is given x in order, and room for `scratch` floats. */
export function inOrder(
  gpu: Gpu,
  dtype: "bf16" | "f16",
  x: number,
  { rows, k }: Sizes,
  { alpha, eps, came }: Pick<Added, "alpha" | "eps" | "came">,
  order: QuantOrderPlan,
  scratch: number,
  run: (ordered: Ordered & { readonly eps: number }, parts: number) => void,
): void {
  const bytes = came ? 0 : order.bytes;
  gpu.temporary(bytes + 4 * scratch, (room) => {
    if (!came) gpu.launch(`quant_order_${dtype}`, { x, alpha, out: room, rows, k, eps, ...order });
    run({ ...(came ?? { x: room, told: 0, raise: 1 }), eps }, room + bytes);
  });
}

/** x (rows, k) · wᵀ (n, k) to `out`: all at multiples of 16 bytes. */
export function multiplyWide(
  gpu: Gpu,
  type: QuantType,
  dtype: "bf16" | "f16",
  x: number,
  w: number,
  shape: Sizes,
  out: number,
  { alpha, eps, came, ...added }: Added = nothing,
): void {
  const { size, order, scratch, launch } = planQuantWide(shape, type, gpu.multiprocessors, added.glu !== 0);
  const { rows, n, k } = shape;
  inOrder(gpu, dtype, x, shape, { alpha, eps, came }, order, scratch, (ordered, parts) =>
    gpu.launch(`quant_wide${size}_${quantName(type)}`, {
      ...{ ...ordered, w, out, parts, counters: gpu.counters, n, k, batch: rows },
      ...{ ...added, dtype: quantOutput[dtype]!, ...launch },
    }),
  );
}

/** The same by boxes of weights, for which there is a map. */
export function multiplyFlow(
  gpu: Gpu,
  { kernel, order, scratch, launch }: QuantFlowPlan,
  dtype: "bf16" | "f16",
  x: number,
  { w, map }: { readonly w: number; readonly map: number },
  shape: Sizes,
  out: number,
  { alpha, eps, came, ...added }: Added = nothing,
  to = nowhere,
): void {
  const { rows, n, k } = shape;
  inOrder(gpu, dtype, x, shape, { alpha, eps, came }, order, scratch, (ordered, parts) =>
    gpu.launch(kernel, {
      ...{ ...ordered, w, map, out, parts, counters: gpu.counters, n, k, batch: rows, ...to },
      ...{ ...added, dtype: quantOutput[dtype]!, ...launch },
    }),
  );
}

/** The address of a map of weights, in one piece or in halves; 0 where there is none: a copy of those that are not aligned comes to lie anywhere. */
export function mapOf(gpu: Gpu, w: View, { lines, ...pieces }: QuantFlowPlan["boxes"], halves: 1 | 2): number {
  const [rows] = w.layout.shape as [number];
  if (!areAligned(w)) return 0;
  return gpu.boxMap(w.storage, { at: at(w), rows, halves, ...pieces, boxRows: lines / halves, boxPieces: 1 });
}

/** x (…, k) · wᵀ, where takesWide; null where x has too many rows, or rows of a length that these kernels do not take. */
export function wideLinear(gpu: Gpu, x: View, w: View, type: QuantType, p: LinearParams): Storage | null {
  const dtype = x.storage.dtype as "bf16" | "f16";
  const k = x.layout.shape.at(-1)!;
  const rows = numel(x.layout.shape.slice(0, -1));
  const n = w.layout.shape[0]!;
  if (rows === 0 || rows > QUANT_WIDE_FEW || n === 0 || k === 0 || !isWideDepth(type, k)) return null;
  const glu = p.glu ? gluNumbers[p.glu] : 0;
  const flow = planQuantFlow({ rows, n, k }, type, gpu.multiprocessors, p.glu !== null);
  const map = flow ? mapOf(gpu, w, flow.boxes, p.glu ? 2 : 1) : 0;
  const eps = p.norm?.eps ?? 0;
  const shape = { rows, n, k };
  const came = orderedAs(x, shape, type, p.norm);
  const width = p.glu ? n / 2 : n;
  return filledInOrder(gpu, dtype, { rows, k: width }, map ? p.next : null, (out, to) =>
    alignedRows(gpu, x, (from) =>
      alignedBlocks(gpu, w, (weights) =>
        alignedRows(gpu, p.norm?.weight ?? null, (alpha) =>
          gpu.packed(p.bias, (bias) =>
            gpu.packed(p.residual, (residual) => {
              gpu.fenceWeights(w.storage);
              const added = { alpha, eps, came, bias, residual, glu };
              if (flow && map) multiplyFlow(gpu, flow, dtype, from, { w: weights, map }, shape, out, added, to);
              else multiplyWide(gpu, type, dtype, from, weights, shape, out, added);
            }),
          ),
        ),
      ),
    ),
  );
}
