/** Linear layers of few rows in one kernel: norm, product, bias, gate and residual. */
import { sizeOf } from "../../../core/dtype.ts";
import { Layout, numel } from "../../../core/layout.ts";
import type { QuantType } from "../../../core/quant-types.ts";
import type { View } from "../../backend.ts";
import type { LinearParams } from "../../fused-ops.ts";
import type { Storage } from "../../storage.ts";
import { LINEAR_ROWS, plainRows, planLinear, planOnce, planQuantizedLinear, planThin } from "../families/linear.ts";
import { QUANT_BATCH_FEW } from "../families/quant-batch.ts";
import { takesWide } from "../families/quant-wide.ts";
import { gluNumbers, quantOutput } from "../families/quantized.ts";
import { at, type Gpu } from "../gpu.ts";
import { batchLinear } from "./quant-batch.ts";
import { manyLinear } from "./quant-many.ts";
import { wideLinear } from "./quant-wide.ts";
import { epilogue } from "./rows.ts";

/** A copy made for a kernel is aligned to 16 bytes; other views may not be. */
export const aligned = (view: View | null): boolean => !view?.layout.isContiguous() || at(view) % 16 === 0;

/** x (…, k) · wᵀ; null where x has too many rows, or must be summed as more of them are, or the kernels do not take the dtypes, sizes or layouts. */
export function linear(gpu: Gpu, x: View, w: View, type: QuantType | null, p: LinearParams): Storage | null {
  const { dtype } = x.storage;
  if (gpu.isInvariant) return null;
  if (p.activation) return activatedLinear(gpu, x, w, type, p);
  const alpha = p.norm?.weight ?? null;
  if (quantOutput[dtype] === undefined || !w.layout.isContiguous()) return null;
  if ([alpha, p.bias, p.residual].some((view) => view && view.storage.dtype !== dtype)) return null;
  const k = x.layout.shape.at(-1)!;
  const m = numel(x.layout.shape.slice(0, -1));
  const n = w.layout.shape[0]!;
  const shape = { m, n, k, norm: alpha !== null, fine: dtype === "f32" };
  const device = gpu.context.properties;
  if (type && takesWide(dtype, device.arch) && m > QUANT_BATCH_FEW)
    return batchLinear(gpu, x, w, type, p) ?? wideLinear(gpu, x, w, type, p) ?? manyLinear(gpu, x, w, type, p);
  if (m === 0 || m > LINEAR_ROWS || n === 0 || k === 0) return null;
  if (!type && m > 1 && m > plainRows(dtype, n, device.arch, gpu.blas !== null)) return null;
  // Its norm is read before its turn, as weights are.
  const readsNorm = alpha?.layout.isContiguous() ?? true;
  const thin = type || p.glu || !readsNorm ? null : planThin(shape, dtype);
  const plan = type || thin ? null : planLinear(shape, dtype, device);
  const once = type && !p.glu && readsNorm && dtype !== "f32" ? planOnce(shape, type, device) : null;
  const quantized = type && !once ? planQuantizedLinear(shape, type, device) : null;
  if (!plan && !once && !quantized && !thin) return null;
  if (!type && (w.storage.dtype !== dtype || (k * sizeOf(dtype)) % 16 !== 0 || ![x, w, alpha].every(aligned)))
    return null;
  const columns = p.glu ? n / 2 : n;
  const run = (out: number, weights: number, from: number): void =>
    gpu.packed(alpha, (norm) =>
      gpu.packed(p.bias, (bias) =>
        gpu.packed(p.residual, (residual) => {
          const { threads, splits, blocks, shared_bytes, segment } = (once ?? quantized ?? thin ?? plan)!.launch;
          const values = {
            x: from,
            w: weights,
            alpha: norm,
            bias,
            residual,
            out,
            n,
            k,
            eps: p.norm?.eps ?? 0,
            batch: m,
            glu: p.glu ? gluNumbers[p.glu] : 0,
            splits,
            segment,
            dtype: quantOutput[dtype]!,
            blocks,
            threads,
            shared_bytes,
          };
          gpu.fenceWeights(w.storage);
          if ((thin || once) && alpha) gpu.fenceWeights(alpha.storage);
          if (once) gpu.launch(once.kernel, values);
          else if (quantized) gpu.launch(quantized.kernel, values);
          else if (thin) gpu.launch(thin.kernel, values);
          else if (plan) gpu.launch(plan.kernel, values);
          gpu.latest = out;
        }),
      ),
    );
  return gpu.filled(dtype, m * columns, (out) =>
    gpu.packed(x, (from) => {
      if (type) alignedBlocks(gpu, w, (weights) => run(out, weights, from));
      else run(out, at(w), from);
    }),
  );
}

function activatedLinear(gpu: Gpu, x: View, w: View, type: QuantType | null, p: LinearParams): Storage | null {
  const { activation = null, residual } = p;
  const y = linear(gpu, x, w, type, { ...p, activation: undefined, residual: null, next: null });
  if (!y) return null;
  y.retain();
  try {
    const layout = Layout.contiguous([...x.layout.shape.slice(0, -1), w.layout.shape[0]!]);
    return epilogue(gpu, { storage: y, layout }, { bias: null, activation, residual });
  } finally {
    y.release();
  }
}

export const areAligned = (blocks: View): boolean => at(blocks) % 16 === 0 && blocks.layout.numel % 16 === 0;

/**
 * The address of blocks as kernels take them, which begin and end at multiples of 16 bytes: their own, or that of a copy
 * for views that begin elsewhere and for odd numbers of blocks.
 */
export function alignedBlocks(gpu: Gpu, blocks: View, run: (at: number) => void): void {
  const from = at(blocks);
  const bytes = blocks.layout.numel;
  if (areAligned(blocks)) {
    run(from);
    return;
  }
  gpu.temporary(Math.ceil(bytes / 16) * 16, (copy) => {
    gpu.context.copyOnDevice(BigInt(copy), BigInt(from), bytes);
    run(copy);
  });
}
