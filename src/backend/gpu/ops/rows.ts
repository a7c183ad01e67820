/** Softmax, norms and rotary embeddings: fused kernels over rows. */
import { collapse } from "../../../core/layout.ts";
import type { View } from "../../backend.ts";
import type { SumAndNorm } from "../../fused-ops.ts";
import type { Storage } from "../../storage.ts";
import { planWholeRows } from "../families/rows.ts";
import { addressOf, at, type Gpu } from "../gpu.ts";

export function softmax(gpu: Gpu, x: View, log: boolean): Storage {
  const { dtype } = x.storage;
  const cols = x.layout.shape.at(-1)!;
  const n = x.layout.numel;
  return gpu.fill(dtype, n, (dst) =>
    gpu.packed(x, (src) => {
      const { threads, suffix } = planWholeRows(cols, dtype);
      const kernel = `${log ? "log_softmax" : "softmax"}${suffix}_${dtype}`;
      gpu.launch(kernel, { src, dst, n_cols: cols, n_rows: n / cols, block_size: threads });
    }),
  );
}

export function rmsNorm(gpu: Gpu, x: View, weight: View | null, eps: number): Storage {
  return norm(gpu, "rmsnorm", x, weight, null, eps);
}

export function layerNorm(gpu: Gpu, x: View, weight: View | null, bias: View | null, eps: number): Storage {
  return norm(gpu, "layernorm", x, weight, bias, eps);
}

function norm(gpu: Gpu, kernel: string, x: View, weight: View | null, bias: View | null, eps: number): Storage {
  const { dtype } = x.storage;
  const cols = x.layout.shape.at(-1)!;
  const n = x.layout.numel;
  const { threads, suffix } = planWholeRows(cols, dtype);
  const sizes = { n_cols: cols, n_rows: n / cols, block_size: threads, eps };
  return gpu.fill(dtype, n, (dst) =>
    gpu.packed(x, (src) =>
      gpu.packed(weight, (alpha) =>
        gpu.packed(bias, (beta) => gpu.launch(`${kernel}${suffix}_${dtype}`, { src, dst, alpha, beta, ...sizes })),
      ),
    ),
  );
}

export function addRmsNorm(gpu: Gpu, x: View, residual: View, weight: View | null, eps: number): SumAndNorm {
  const { dtype } = x.storage;
  const cols = x.layout.shape.at(-1)!;
  const n = x.layout.numel;
  const { threads, suffix } = planWholeRows(cols, dtype);
  const sizes = { n_cols: cols, n_rows: n / cols, block_size: threads, eps };
  const sum = gpu.make(dtype, n);
  try {
    const normed = gpu.fill(dtype, n, (dst) =>
      gpu.packed(x, (src) =>
        gpu.packed(residual, (other) =>
          gpu.packed(weight, (alpha) => {
            const operands = { src, residual: other, sum: addressOf(sum), dst, alpha };
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

export function glu(gpu: Gpu, act: "silu" | "gelu", gate: View, up: View): Storage {
  const { dtype } = gate.storage;
  const n = gate.layout.numel;
  const kernel = `${act === "silu" ? "swiglu" : "geglu"}_${dtype}`;
  const { shape, strides } = collapse([gate.layout, up.layout]);
  const [g, u] = strides as [number[], number[]];
  return gpu.fill(dtype, n, (dst) => {
    // Two halves of one tensor, or two tensors: rows one stride apart, contiguous inside.
    if (shape.length === 2 && g[1] === 1 && u[1] === 1 && g[0] === u[0] && g[0]! >= 0) {
      gpu.launch(kernel, { gate: at(gate), up: at(up), dst, rows: shape[0]!, width: shape[1]!, row_stride: g[0]! });
      return;
    }
    gpu.packed(gate, (a) =>
      gpu.packed(up, (b) => gpu.launch(kernel, { gate: a, up: b, dst, rows: 1, width: n, row_stride: n })),
    );
  });
}

export function rope(gpu: Gpu, kind: "rope" | "rope_i" | "rope_thd", x: View, cos: View, sin: View): Storage {
  const { dtype } = x.storage;
  const [b, y, z, d] = x.layout.shape as [number, number, number, number];
  const [h, t] = kind === "rope_thd" ? [z, y] : [y, z];
  const perBatch = cos.layout.rank === 3;
  return gpu.fill(dtype, x.layout.numel, (dst) =>
    gpu.packed(x, (src) =>
      gpu.packed(cos, (c) =>
        gpu.packed(sin, (s) =>
          gpu.launch(`${kind}_${dtype}`, {
            ...{ src, cos: c, sin: s, dst, b, bh: b * h, t, h, d, td: t * d },
            stride_b: perBatch ? h * t * d : 0,
            table_stride: perBatch ? (cos.layout.shape[1]! * d) / 2 : 0,
          }),
        ),
      ),
    ),
  );
}
