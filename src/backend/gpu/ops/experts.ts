/** Mixtures of experts, without asking the host which expert a row goes through. */
import { sizeOf } from "../../../core/dtype.ts";
import { Layout } from "../../../core/layout.ts";
import type { QuantType } from "../../../core/quant-types.ts";
import type { View } from "../../backend.ts";
import type { ExpertParams, RoutedParams, ValuesAndIds } from "../../fused-ops.ts";
import type { Storage } from "../../storage.ts";
import { areFew, MOST_SORTED_EXPERTS, planRouted, planSlots, TOPK_COLUMNS, TOPK_MOST } from "../families/experts.ts";
import { quantName } from "../families/family.ts";
import { fineFor, planLinear, planQuantizedLinear } from "../families/linear.ts";
import { gluNumbers, quantOutput } from "../families/quantized.ts";
import { addressOf, at, type Gpu } from "../gpu.ts";
import { sortedProduct } from "./expert-product.ts";
import { aligned, alignedBlocks } from "./linear.ts";
import { rmsNorm } from "./rows.ts";

/** The k largest of the last dim; null where a warp does not find them. */
export function topk(gpu: Gpu, x: View, k: number, softmax: boolean): ValuesAndIds | null {
  const { dtype } = x.storage;
  const cols = x.layout.shape.at(-1)!;
  if (quantOutput[dtype] === undefined || cols > TOPK_COLUMNS || k > TOPK_MOST || k === 0) return null;
  const rows = x.layout.numel / cols;
  const ids = gpu.make("u32", rows * k);
  try {
    const values = gpu.filled(softmax ? "f32" : dtype, rows * k, (out) =>
      gpu.packed(x, (from) =>
        gpu.launch(`topk_${dtype}`, {
          x: from,
          values: out,
          ids: addressOf(ids),
          rows,
          cols,
          k,
          softmax: Number(softmax),
        }),
      ),
    );
    return { values, ids };
  } catch (error) {
    ids.discard();
    throw error;
  }
}

export function mixExperts(gpu: Gpu, y: View, mix: View, residual: View | null): Storage | null {
  const { dtype } = y.storage;
  const mixType = quantOutput[mix.storage.dtype];
  if (quantOutput[dtype] === undefined || mixType === undefined) return null;
  const [rows, k] = mix.layout.shape as [number, number];
  const width = y.layout.shape[1]!;
  return gpu.filled(dtype, rows * width, (out) =>
    gpu.packed(y, (from) =>
      gpu.packed(mix, (factors) =>
        gpu.packed(residual, (added) =>
          gpu.launch(`mix_${dtype}`, {
            y: from,
            mix: factors,
            residual: added,
            out,
            rows,
            width,
            k,
            dtype: mixType,
          }),
        ),
      ),
    ),
  );
}

/** Null where the kernels do not take the dtypes, sizes or layouts. */
export function expertLinear(
  gpu: Gpu,
  x: View,
  w: View,
  type: QuantType | null,
  ids: View,
  p: ExpertParams,
): Storage | null {
  if (p.mix) return expertSum(gpu, x, w, type, ids, p, p.mix);
  const { dtype } = x.storage;
  if (quantOutput[dtype] === undefined || !w.layout.isContiguous()) return null;
  const [experts, n] = w.layout.shape as [number, number];
  const [rows, k] = x.layout.shape as [number, number];
  const slots = ids.layout.numel;
  const columns = p.glu ? n / 2 : n;
  if (slots === 0 || columns === 0) return gpu.make(dtype, slots * columns);
  if (k === 0 || experts * n >= 2 ** 32) return null;
  if (!type && ((k * sizeOf(dtype)) % 16 !== 0 || ![x, w].every(aligned))) return null;
  const few = !gpu.isInvariant && areFew(slots, experts, type);
  if (p.norm && !(type && few && p.norm.weight.storage.dtype === dtype)) return afterNorm(gpu, x, w, type, ids, p);
  if (!few) return experts > MOST_SORTED_EXPERTS ? null : sortedProduct(gpu, x, w, type, ids, p);
  const { arch } = gpu.context.properties;
  const shape = { m: 1, n, k, norm: p.norm !== null, fine: dtype === "f32" };
  const plan = planSlots(shape, type, dtype, slots, { arch, multiprocessors: gpu.multiprocessors });
  if (!plan) return p.norm ? afterNorm(gpu, x, w, type, ids, p) : null;
  const { threads, splits, blocks, shared_bytes, segment } = plan.launch;
  const run = (out: number, weights: number, from: number): void =>
    gpu.packed(ids, (chosen) =>
      gpu.packed(p.bias, (bias) =>
        gpu.packed(p.norm?.weight ?? null, (alpha) => {
          const values = {
            x: from,
            w: weights,
            alpha,
            eps: p.norm?.eps ?? 0,
            ids: chosen,
            bias,
            out,
            n,
            k,
            per_slot: blocks,
            share: slots / rows,
            experts,
            glu: p.glu ? gluNumbers[p.glu] : 0,
            splits,
            segment,
            dtype: quantOutput[dtype]!,
            slots,
            threads,
            shared_bytes,
            early: Number(gpu.expertIds === chosen),
            error: gpu.watchIndex("expertLinear", experts, 0),
          };
          gpu.fenceWeights(w.storage);
          if (type) gpu.launch(`expert_linear${fineFor(dtype)}_${quantName(type)}`, values);
          else gpu.launch(`expert_linear_${dtype}`, values);
          gpu.expertIds = chosen;
        }),
      ),
    );
  return gpu.filled(dtype, slots * columns, (out) =>
    gpu.packed(x, (from) => {
      if (type) alignedBlocks(gpu, w, (weights) => run(out, weights, from));
      else run(out, at(w), from);
    }),
  );
}

/** Null where the two kernels do not take the dtypes, sizes or layouts. */
export function routedExperts(
  gpu: Gpu,
  x: View,
  scores: View,
  open: View,
  down: View,
  p: RoutedParams,
): Storage | null {
  const { dtype } = x.storage;
  const { count: slots, type, norm, residual } = p;
  if ((dtype !== "bf16" && dtype !== "f16") || scores.storage.dtype !== dtype || gpu.isInvariant) return null;
  if (
    ![x, scores, open, down].every(({ layout }) => layout.isContiguous()) ||
    x.layout.shape[0] !== 1 ||
    !aligned(scores)
  )
    return null;
  if ([norm?.weight, residual].some((view) => view && (view.storage.dtype !== dtype || !view.layout.isContiguous())))
    return null;
  const [experts, rows] = open.layout.shape as [number, number];
  const [hidden, width] = [down.layout.shape[1]!, rows / 2];
  if (x.layout.shape[1] !== hidden) return null;
  const device = { arch: gpu.context.properties.arch, multiprocessors: gpu.multiprocessors };
  const plan = planRouted({ hidden, width, experts, slots }, type, device);
  if (!plan) return null;
  const common = { scores: at(scores), slots, experts, dtype: quantOutput[dtype]! };
  // Of what is read before the kernel before the first has ended, that one may have made the scores alone.
  const early = Number(gpu.latest === common.scores);
  return gpu.filled(dtype, hidden, (out) =>
    gpu.temporary(plan.between, (between) =>
      alignedBlocks(gpu, open, (gates) =>
        alignedBlocks(gpu, down, (weights) => {
          for (const view of [open, down, norm?.weight]) if (view) gpu.fenceWeights(view.storage);
          gpu.launch(`routed_open_${plan.quant}`, {
            ...{ ...common, ...plan.open, x: at(x), w: gates, alpha: norm ? at(norm.weight) : 0, eps: norm?.eps ?? 0 },
            ...{ out: between, width, k: hidden, glu: gluNumbers[p.glu], early },
          });
          gpu.launch(`routed_down_${plan.quant}`, {
            ...{ ...common, ...plan.down, x: between, w: weights, residual: residual ? at(residual) : 0 },
            ...{ out, n: hidden, k: width },
          });
        }),
      ),
    ),
  );
}

/** The sum of each row's slots: in one kernel for few of them, which have rows of x of their own and no bias. */
function expertSum(
  gpu: Gpu,
  x: View,
  w: View,
  type: QuantType | null,
  ids: View,
  p: ExpertParams,
  mix: View,
): Storage | null {
  const { dtype } = x.storage;
  const mixType = quantOutput[mix.storage.dtype];
  if (quantOutput[dtype] === undefined || mixType === undefined || !w.layout.isContiguous()) return null;
  const [experts, n] = w.layout.shape as [number, number];
  const k = x.layout.shape[1]!;
  const [rows, slots] = ids.layout.shape as [number, number];
  const { arch } = gpu.context.properties;
  const device = { arch, multiprocessors: Math.max(1, Math.floor(gpu.multiprocessors / Math.max(1, rows))) };
  const isFused =
    !gpu.isInvariant &&
    areFew(rows * slots, experts, type) &&
    x.layout.shape[0] === rows * slots &&
    ![p.norm, p.glu, p.bias].some((part) => part) &&
    slots <= TOPK_MOST &&
    [rows, slots, n, k].every((size) => size > 0) &&
    experts * n < 2 ** 32 &&
    (type || ((k * sizeOf(dtype)) % 16 === 0 && [x, w].every(aligned)));
  const shape = { m: 1, n, k, norm: false, slots, fine: dtype === "f32" };
  const plan = !isFused ? null : type ? planQuantizedLinear(shape, type, device) : planLinear(shape, dtype, device);
  if (!plan) return mixedAfterwards(gpu, x, w, type, ids, p, mix);
  const { threads, splits, blocks, shared_bytes, segment } = plan.launch;
  const run = (out: number, weights: number, from: number): void =>
    gpu.packed(ids, (chosen) =>
      gpu.packed(mix, (factors) =>
        gpu.packed(p.residual, (residual) => {
          const values = {
            ...{ x: from, w: weights, ids: chosen, mix: factors, residual, out, n, k },
            ...{ per_row: blocks, rows, slots, experts, splits, segment, threads, shared_bytes },
            ...{ dtype: quantOutput[dtype]!, mix_dtype: mixType },
            early: Number(gpu.expertIds === chosen),
            error: gpu.watchIndex("expertLinear", experts, 0),
          };
          gpu.fenceWeights(w.storage);
          if (type) gpu.launch(`expert_sum${fineFor(dtype)}_${quantName(type)}`, values);
          else gpu.launch(`expert_sum_${dtype}`, values);
        }),
      ),
    );
  return gpu.filled(dtype, rows * n, (out) =>
    gpu.packed(x, (from) => {
      if (type) alignedBlocks(gpu, w, (weights) => run(out, weights, from));
      else run(out, at(w), from);
    }),
  );
}

function mixedAfterwards(
  gpu: Gpu,
  x: View,
  w: View,
  type: QuantType | null,
  ids: View,
  p: ExpertParams,
  mix: View,
): Storage | null {
  const storage = expertLinear(gpu, x, w, type, ids, { ...p, mix: null, residual: null });
  if (!storage) return null;
  storage.retain();
  try {
    return mixExperts(
      gpu,
      { storage, layout: Layout.contiguous([ids.layout.numel, w.layout.shape[1]!]) },
      mix,
      p.residual,
    );
  } finally {
    storage.release();
  }
}

/** Where the product does not normalise by itself. */
function afterNorm(gpu: Gpu, x: View, w: View, type: QuantType | null, ids: View, p: ExpertParams): Storage | null {
  const storage = rmsNorm(gpu, x, p.norm!.weight, p.norm!.eps);
  storage.retain();
  try {
    return expertLinear(gpu, { storage, layout: Layout.contiguous(x.layout.shape) }, w, type, ids, {
      ...p,
      norm: null,
    });
  } finally {
    storage.release();
  }
}
