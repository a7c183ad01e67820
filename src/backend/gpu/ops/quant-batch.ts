/** Linear layers of some rows, up to 16, with quantized weights on Hopper: product, bias, gate and residual in one kernel. */
import { Layout, numel } from "../../../core/layout.ts";
import type { QuantType } from "../../../core/quant-types.ts";
import type { View } from "../../backend.ts";
import type { LinearParams } from "../../fused-ops.ts";
import type { Storage } from "../../storage.ts";
import { quantName } from "../families/family.ts";
import { planQuantBatch, QUANT_BATCH_ROWS } from "../families/quant-batch.ts";
import { gluNumbers, quantOutput } from "../families/quantized.ts";
import type { Gpu } from "../gpu.ts";
import { alignedBlocks } from "./linear.ts";
import { evenLinear } from "./quant-even.ts";
import { alignedRows } from "./quantized.ts";
import { rmsNorm } from "./rows.ts";

/** x (…, k) · wᵀ, where takesWide; null where x has too many rows. */
export function batchLinear(gpu: Gpu, x: View, w: View, type: QuantType, p: LinearParams): Storage | null {
  const { dtype } = x.storage;
  const device = gpu.context.properties;
  const k = x.layout.shape.at(-1)!;
  const m = numel(x.layout.shape.slice(0, -1));
  const n = w.layout.shape[0]!;
  if (m === 0 || m > QUANT_BATCH_ROWS || n === 0 || k === 0) return null;
  const even = evenLinear(gpu, x, w, type, p);
  if (even) return even;
  if (p.norm) return normed(gpu, x, p.norm, (rows) => batchLinear(gpu, rows, w, type, { ...p, norm: null }));
  const plan = planQuantBatch({ n, k }, type, device);
  const run = (out: number, from: number, weights: number, sums: number): void =>
    gpu.packed(p.bias, (bias) =>
      gpu.packed(p.residual, (residual) => {
        gpu.fenceWeights(w.storage);
        gpu.launch(`quant_batch_${quantName(type)}`, {
          ...{
            x: from,
            w: weights,
            bias,
            residual,
            out,
            sums,
            counters: gpu.counters,
            n,
            k,
            batch: m,
          },
          ...{ glu: p.glu ? gluNumbers[p.glu] : 0, dtype: quantOutput[dtype]!, ...plan.launch },
        });
      }),
    );
  return gpu.filled(dtype, m * (p.glu ? n / 2 : n), (out) =>
    alignedRows(gpu, x, (from) =>
      alignedBlocks(gpu, w, (weights) => {
        if (plan.scratch === 0) run(out, from, weights, 0);
        else gpu.temporary(4 * plan.scratch, (sums) => run(out, from, weights, sums));
      }),
    ),
  );
}

function normed<T>(gpu: Gpu, x: View, norm: { readonly weight: View; readonly eps: number }, run: (x: View) => T): T {
  const rows = rmsNorm(gpu, x, norm.weight, norm.eps);
  rows.retain();
  try {
    return run({ storage: rows, layout: Layout.contiguous(x.layout.shape) });
  } finally {
    rows.release();
  }
}
