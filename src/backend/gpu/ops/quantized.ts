/** Quantized weights: dequantizing, row lookup, and products with activations rounded to 8 bits. */
import { type DType, sizeOf } from "../../../core/dtype.ts";
import { fail } from "../../../core/errors.ts";
import { Layout, numel } from "../../../core/layout.ts";
import { type QuantType, quantTypes } from "../../../core/quant-types.ts";
import type { View } from "../../backend.ts";
import type { Storage } from "../../storage.ts";
import { quantName } from "../families/family.ts";
import { isQuantizer, quantOutput } from "../families/quantized.ts";
import type { Gpu } from "../gpu.ts";
import { alignedBlocks, linear, rounded } from "./linear.ts";
import { multiply } from "./matmul.ts";

export function dequantize(gpu: Gpu, type: QuantType, blocks: View, to: DType): Storage {
  const { size, bytes } = quantTypes[type];
  const n = (blocks.layout.numel / bytes) * size;
  return gpu.filled(to, n, (out) =>
    alignedBlocks(gpu, blocks, (w) => gpu.launch(`dequantize_block_${quantName(type)}_${to}`, { w, out, numel: n })),
  );
}

export function quantizedRows(gpu: Gpu, type: QuantType, blocks: View, ids: View, to: DType): Storage {
  const { size, bytes } = quantTypes[type];
  const [rows, rowBytes] = blocks.layout.shape as [number, number];
  const k = (rowBytes / bytes) * size;
  const count = ids.layout.numel;
  return gpu.filled(to, count * k, (out) =>
    gpu.packed(ids, (from) =>
      alignedBlocks(gpu, blocks, (w) =>
        gpu.launch(`get_rows_${quantName(type)}_${to}`, {
          w,
          ids: from,
          out,
          count,
          rows,
          k,
          id_bytes: sizeOf(ids.storage.dtype),
          error: gpu.watchIndex("rows", rows, 0),
        }),
      ),
    ),
  );
}

/** From contiguous f32. */
export function quantize(gpu: Gpu, type: QuantType, x: View): Storage {
  const { size, bytes } = quantTypes[type];
  const n = x.layout.numel;
  const target = quantName(type);
  if (!isQuantizer(target)) {
    fail(
      "UnsupportedOp",
      `quantize: ${gpu.name} does not quantize to ${type}; quantize on "cpu", then move the result with toDevice()`,
    );
  }
  return gpu.filled("u8", (n / size) * bytes, (out) =>
    gpu.packed(x, (from) => gpu.launch(`quantize_${target}`, { x: from, out, numel: n })),
  );
}

/** x (…, k) times wᵀ, by the number of rows: one pass over the weights, blocks by blocks, or dequantized through BLAS. */
export function qmatmul(gpu: Gpu, type: QuantType, x: View, blocks: View): Storage {
  const few = linear(gpu, x, blocks, type, { norm: null, bias: null, glu: null, residual: null });
  if (few) return few;
  const { dtype } = x.storage;
  const k = x.layout.shape.at(-1)!;
  const m = numel(x.layout.shape.slice(0, -1));
  const n = blocks.layout.shape[0]!;
  return gpu.filled(dtype, m * n, (y) => {
    if (k === 0) {
      gpu.context.memset(BigInt(y), 0, m * n * sizeOf(dtype));
      return;
    }
    // The vendor's BLAS is faster on halves, dequantizing included, but not in f32.
    const product = gpu.blas && dtype !== "f32" ? throughBlas : onBytes;
    gpu.packed(x, (from) => alignedBlocks(gpu, blocks, (w) => product(gpu, type, dtype, from, w, { m, n, k }, y)));
  });
}

interface Sizes {
  readonly m: number;
  readonly n: number;
  readonly k: number;
}

function onBytes(gpu: Gpu, type: QuantType, dtype: DType, x: number, w: number, { m, n, k }: Sizes, y: number): void {
  rounded(gpu, x, m * k, dtype, (xq, xs) =>
    gpu.launch(`mul_mat_${quantName(type)}_q8`, { xq, xs, w, out: y, batch: m, n, k, dtype: quantOutput[dtype]! }),
  );
}

function throughBlas(
  gpu: Gpu,
  type: QuantType,
  dtype: DType,
  x: number,
  w: number,
  { m, n, k }: Sizes,
  y: number,
): void {
  const none = Layout.contiguous([]);
  gpu.temporary(n * k * sizeOf(dtype), (out) => {
    gpu.launch(`dequantize_block_${quantName(type)}_${dtype}`, { w, out, numel: n * k });
    const a = { at: x, row: k, col: 1, batch: none };
    multiply(gpu, { dtype, m, n, k, a, b: { at: out, row: 1, col: k, batch: none } }, y);
  });
}
