/** Softmax, norms and rotary embeddings: fused kernels over rows. */
import { isFloat } from "../../../core/dtype.ts";
import { collapse } from "../../../core/layout.ts";
import type { View } from "../../backend.ts";
import type { EpilogueParams, GluActivation, SumAndNorm } from "../../fused-ops.ts";
import type { Storage } from "../../storage.ts";
import { epilogueActivations, planWholeRows } from "../families/rows.ts";
import { addressOf, at, type Gpu } from "../gpu.ts";

export function softmax(gpu: Gpu, x: View, log: boolean): Storage {
  const { dtype } = x.storage;
  const cols = x.layout.shape.at(-1)!;
  const n = x.layout.numel;
  return gpu.filled(dtype, n, (out) =>
    gpu.packed(x, (from) => {
      const { threads, suffix } = planWholeRows(cols, dtype);
      const kernel = `${log ? "log_softmax" : "softmax"}${suffix}_${dtype}` as const;
      gpu.launch(kernel, { x: from, out, rows: n / cols, cols, row_threads: threads });
    }),
  );
}

export function rmsNorm(gpu: Gpu, x: View, weight: View | null, eps: number): Storage {
  const { dtype } = x.storage;
  const cols = x.layout.shape.at(-1)!;
  const n = x.layout.numel;
  const { threads, suffix } = planWholeRows(cols, dtype);
  return gpu.filled(dtype, n, (out) =>
    gpu.packed(x, (from) =>
      gpu.packed(weight, (alpha) => {
        // Weights are read before their turn.
        if (weight?.layout.isContiguous() === false) gpu.context.fence();
        else if (weight) gpu.fenceWeights(weight.storage);
        const operands = { x: from, alpha, out };
        gpu.launch(`rmsnorm${suffix}_${dtype}`, { ...operands, rows: n / cols, cols, eps, row_threads: threads });
      }),
    ),
  );
}

export function layerNorm(gpu: Gpu, x: View, weight: View | null, bias: View | null, eps: number): Storage {
  const { dtype } = x.storage;
  const cols = x.layout.shape.at(-1)!;
  const n = x.layout.numel;
  const { threads, suffix } = planWholeRows(cols, dtype);
  return gpu.filled(dtype, n, (out) =>
    gpu.packed(x, (from) =>
      gpu.packed(weight, (alpha) =>
        gpu.packed(bias, (beta) => {
          const operands = { x: from, alpha, beta, out };
          gpu.launch(`layernorm${suffix}_${dtype}`, { ...operands, rows: n / cols, cols, eps, row_threads: threads });
        }),
      ),
    ),
  );
}

export function addRmsNorm(gpu: Gpu, x: View, residual: View, weight: View | null, eps: number): SumAndNorm {
  const { dtype } = x.storage;
  const cols = x.layout.shape.at(-1)!;
  const n = x.layout.numel;
  const { threads, suffix } = planWholeRows(cols, dtype);
  const sizes = { rows: n / cols, cols, eps, row_threads: threads };
  const sum = gpu.make(dtype, n);
  try {
    const normed = gpu.filled(dtype, n, (out) =>
      gpu.packed(x, (from) =>
        gpu.packed(residual, (other) =>
          gpu.packed(weight, (alpha) => {
            const operands = { x: from, residual: other, alpha, sum: addressOf(sum), out };
            gpu.launch(`add_rmsnorm${suffix}_${dtype}`, { ...operands, ...sizes });
          }),
        ),
      ),
    );
    return { sum, normed };
  } catch (error) {
    sum.discard();
    throw error;
  }
}

/** Null where the bias or the residual is not of y's dtype. */
export function epilogue(gpu: Gpu, y: View, { bias, activation, residual }: EpilogueParams): Storage | null {
  const { dtype } = y.storage;
  const cols = y.layout.shape.at(-1)!;
  const { numel } = y.layout;
  if (!isFloat(dtype) || dtype === "f8e4m3") return null;
  if ([bias, residual].some((view) => view && view.storage.dtype !== dtype)) return null;
  const act = activation ? epilogueActivations[activation] : 0;
  const rows = cols === 0 ? 0 : numel / cols;
  return gpu.filled(dtype, numel, (out) =>
    gpu.packed(y, (from) =>
      gpu.packed(bias, (b) =>
        gpu.packed(residual, (r) =>
          gpu.launch(`epilogue_${dtype}`, { y: from, bias: b, residual: r, out, rows, cols, act }),
        ),
      ),
    ),
  );
}

const gluKernels = { silu: "swiglu", gelu: "geglu", clampedSwiglu: "clamped_swiglu" } as const;

export function glu(gpu: Gpu, act: GluActivation, gate: View, up: View): Storage {
  const { dtype } = gate.storage;
  const n = gate.layout.numel;
  const kernel = `${gluKernels[act]}_${dtype}` as const;
  const { shape, strides } = collapse([gate.layout, up.layout]);
  const [g, u] = strides as [number[], number[]];
  return gpu.filled(dtype, n, (out) => {
    // Two halves of one tensor, or two tensors: rows one stride apart, contiguous inside.
    if (shape.length === 2 && g[1] === 1 && u[1] === 1 && g[0] === u[0] && g[0]! >= 0) {
      gpu.launch(kernel, { gate: at(gate), up: at(up), out, rows: shape[0]!, width: shape[1]!, row_stride: g[0]! });
      return;
    }
    gpu.packed(gate, (a) =>
      gpu.packed(up, (b) => gpu.launch(kernel, { gate: a, up: b, out, rows: 1, width: n, row_stride: n })),
    );
  });
}

export function rope(gpu: Gpu, kind: "rope" | "rope_i" | "rope_thd", x: View, cos: View, sin: View): Storage {
  const { dtype } = x.storage;
  const [b, y, z, d] = x.layout.shape as [number, number, number, number];
  const [h, t] = kind === "rope_thd" ? [z, y] : [y, z];
  const perBatch = cos.layout.rank === 3;
  // Heads that share the tables lie one after another: those of all batches are as good as those of one.
  const isOne = kind !== "rope_thd" && !perBatch;
  const table_stride = perBatch ? (cos.layout.shape[1]! * d) / 2 : 0;
  const sizes = { batch: isOne ? 1 : b, heads: isOne ? b * h : h, positions: t, d, table_stride };
  return gpu.filled(dtype, x.layout.numel, (out) =>
    gpu.packed(x, (from) =>
      gpu.packed(cos, (c) =>
        gpu.packed(sin, (s) => {
          const values = { x: from, cos: c, sin: s, out, ...sizes };
          if (kind === "rope_i") gpu.launch(`rope_i_${dtype}`, values);
          else gpu.launch(`${kind}_${dtype}`, values);
        }),
      ),
    ),
  );
}
