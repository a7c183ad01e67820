/** Products of many rows by expert: slots sorted on the device, then all experts in one launch. */
import { sizeOf } from "../../../core/dtype.ts";
import { Layout } from "../../../core/layout.ts";
import type { QuantType } from "../../../core/quant-types.ts";
import type { View } from "../../backend.ts";
import type { ExpertParams } from "../../fused-ops.ts";
import type { Storage } from "../../storage.ts";
import { sharedBudget } from "../attention-plan.ts";
import { type ExpertProductPlan, planExpertDense, planExpertQuant } from "../families/experts.ts";
import { quantName } from "../families/family.ts";
import { at, type Gpu } from "../gpu.ts";
import { alignedBlocks } from "./linear.ts";
import { alignedRows, splitHalves } from "./quantized.ts";
import { glu } from "./rows.ts";

/** For how many rows of an expert tiles are made, however many there are, where rows must not depend on each other. */
const INVARIANT_MEAN = 16;

/** As `expertLinear`, whose checks have been made. */
export function sortedProduct(gpu: Gpu, x: View, w: View, type: QuantType | null, ids: View, p: ExpertParams): Storage {
  const { dtype } = x.storage;
  const n = w.layout.shape[1]!;
  const slots = ids.layout.numel;
  const y = gpu.filled(dtype, slots * n, (out) =>
    gpu.packed(ids, (chosen) =>
      gpu.packed(p.bias, (bias) =>
        alignedRows(gpu, x, (from) => {
          if (type)
            alignedBlocks(gpu, w, (weights) => multiply(gpu, x, w, type, { chosen, slots, bias, from, weights, out }));
          else multiply(gpu, x, w, null, { chosen, slots, bias, from, weights: at(w), out });
        }),
      ),
    ),
  );
  if (!p.glu) return y;
  const half = n / 2;
  const side = (offset: number): View => ({ storage: y, layout: new Layout([slots, half], [n, 1], offset) });
  y.retain();
  try {
    return glu(gpu, p.glu, side(0), side(half));
  } finally {
    y.release();
  }
}

interface Addresses {
  readonly chosen: number;
  readonly slots: number;
  readonly bias: number;
  readonly from: number;
  readonly weights: number;
  readonly out: number;
}

function multiply(gpu: Gpu, x: View, w: View, type: QuantType | null, a: Addresses): void {
  const { dtype } = x.storage;
  const [experts, n] = w.layout.shape as [number, number];
  const [rows, k] = x.layout.shape as [number, number];
  const { slots, out, bias, weights } = a;
  const { arch } = gpu.context.properties;
  const mean = gpu.isInvariant ? INVARIANT_MEAN : slots / Math.min(experts, slots);
  const sorted = (
    plan: ExpertProductPlan<string>,
    run: (order: number, tiles: number, blocks: number) => void,
  ): void => {
    // A tile that is not full for each expert at most.
    const tiles = Math.floor(slots / plan.rows) + Math.min(experts, slots);
    const together = Math.max(1, Math.min(4, Math.floor(sharedBudget(arch) / plan.shared_bytes)));
    const blocks = Math.min(tiles * Math.ceil(n / plan.columns), gpu.multiprocessors * together);
    gpu.temporary(16 * (tiles + 1) + 4 * slots, (table) => {
      const order = table + 16 * (tiles + 1);
      gpu.launch("expert_order", {
        ids: a.chosen,
        order,
        tiles: table,
        out,
        slots,
        row_halves: (n * sizeOf(dtype)) / 2,
        experts,
        tile_rows: plan.rows,
        error: gpu.watchIndex("expertLinear", experts, 0),
        shared_bytes: 8 * (experts + 1),
      });
      run(order, table, blocks);
    });
  };
  const shared = { w: weights, bias, out, n, k, share: slots / rows };
  if (type) {
    const plan = planExpertQuant(mean, type, dtype, { unit: gpu.matrixUnit("bf16"), arch });
    const { size, threads, shared_bytes } = plan;
    const run = (from: number): void =>
      sorted(plan, (order, tiles, blocks) =>
        gpu.launch(`expert_quant${size}_${quantName(type)}_${dtype}`, {
          ...shared,
          ...{ x: from, order, tiles, blocks, threads, shared_bytes },
        }),
      );
    if (plan.isSplit) splitHalves(gpu, a.from, rows * k, run);
    else run(a.from);
    return;
  }
  const plan = planExpertDense(mean, dtype, { unit: gpu.matrixUnit(dtype), arch });
  const { size, threads, shared_bytes } = plan;
  sorted(plan, (order, tiles, blocks) =>
    gpu.launch(`expert_dense${size}_${dtype}`, {
      ...shared,
      ...{ x: a.from, order, tiles, blocks, threads, shared_bytes },
    }),
  );
}
