/** Linear layers of some rows, up to 16, by boxes of quantized weights on Hopper: norm in the kernel that brings x into order, product, bias, gate and residual in one. */
import type { DType } from "../../../core/dtype.ts";
import { numel } from "../../../core/layout.ts";
import type { QuantType } from "../../../core/quant-types.ts";
import type { View } from "../../backend.ts";
import type { LinearParams } from "../../fused-ops.ts";
import type { Storage } from "../../storage.ts";
import { type EvenKind, hasEvenOrder, planQuantEven, type QuantEvenPlan } from "../families/quant-even.ts";
import { gluNumbers, quantOutput } from "../families/quantized.ts";
import { at, type Gpu } from "../gpu.ts";
import { type Added, mapOf, nothing, type Sizes } from "./quant-wide.ts";
import { alignedRows } from "./quantized.ts";
import { filledInOrder, nowhere, type OrderedTo, orderedAs } from "./x-order.ts";

/** The kernel that was made for what comes behind a product, where there is one. */
function kindOf(
  { order, launch }: QuantEvenPlan,
  dtype: DType,
  { bias, residual, glu }: Omit<Added, "alpha" | "eps">,
  to: OrderedTo,
): EvenKind {
  if (dtype !== "f16" || bias || (to.ordered && to.order !== order.order)) return "any";
  if (residual) return !glu && to.ordered && to.next_alpha ? "add" : "any";
  if (launch.cuts > 1 || to.next_alpha) return "any";
  if (!glu) return to.ordered ? "any" : "plain";
  return glu === gluNumbers.silu && to.ordered ? "gate" : "any";
}

/** x (rows, k) · wᵀ (n, k) to `out`: all at multiples of 16 bytes. */
export function multiplyEven(
  gpu: Gpu,
  plan: QuantEvenPlan,
  dtype: "bf16" | "f16",
  x: number,
  { w, map }: { readonly w: number; readonly map: number },
  { rows, n, k }: Sizes,
  out: number,
  { alpha, eps, came, ...added }: Added = nothing,
  to = nowhere,
): void {
  const { order, scratch, launch } = plan;
  const bytes = came ? 0 : order.bytes;
  gpu.temporary(bytes + 4 * scratch, (room) => {
    const given = { x, alpha, out: room, rows, k, eps };
    if (!came && hasEvenOrder(k)) gpu.launch(`even_order_${dtype}`, { ...given, order: order.order, threads: k / 8 });
    else if (!came) gpu.launch(`quant_order_${dtype}`, { ...given, ...order });
    gpu.launch(`quant_even_${kindOf(plan, dtype, added, to)}_${plan.name}`, {
      ...{ x: came?.x ?? room, w, map, out, parts: room + bytes, counters: gpu.counters, n, k, batch: rows, ...to },
      ...{
        ...added,
        dtype: quantOutput[dtype]!,
        raw: came ? 1 : 0,
        told: came?.told ?? 0,
        raise: came?.raise ?? 1,
        eps,
        ...launch,
        threads: launch.threads + (came?.told ? 32 : 0),
      },
    });
  });
}

/** x (…, k) · wᵀ, where takesWide; null where x has too many rows, or weights have no map of boxes. */
export function evenLinear(gpu: Gpu, x: View, w: View, type: QuantType, p: LinearParams): Storage | null {
  const dtype = x.storage.dtype as "bf16" | "f16";
  const k = x.layout.shape.at(-1)!;
  const rows = numel(x.layout.shape.slice(0, -1));
  const n = w.layout.shape[0]!;
  const shape = { rows, n, k };
  const came = orderedAs(x, shape, type, p.norm);
  const isLifted = came !== null && dtype === "bf16";
  const plan = rows === 0 || n === 0 || k === 0 ? null : planQuantEven(shape, type, gpu.multiprocessors, isLifted);
  const halves = p.glu ? 2 : 1;
  const map = plan ? mapOf(gpu, w, plan.boxes, halves) : 0;
  if (!plan || !map) return null;
  const [glu, eps] = [p.glu ? gluNumbers[p.glu] : 0, p.norm?.eps ?? 0];
  return filledInOrder(gpu, dtype, { rows, k: n / halves }, p.glu && p.next?.norm ? null : p.next, (out, to) =>
    alignedRows(gpu, x, (from) =>
      alignedRows(gpu, p.norm?.weight ?? null, (alpha) =>
        gpu.packed(p.bias, (bias) =>
          gpu.packed(p.residual, (residual) => {
            gpu.fenceWeights(w.storage);
            const added = { alpha, eps, came, bias, residual, glu };
            multiplyEven(gpu, plan, dtype, from, { w: at(w), map }, shape, out, added, to);
          }),
        ),
      ),
    ),
  );
}
