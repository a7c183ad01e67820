/** Quantized weights: dequantizing, row lookup, and products with activations rounded to 8 bits. */
import { type DType, sizeOf } from "../../../core/dtype.ts";
import { fail } from "../../../core/errors.ts";
import { Layout, numel } from "../../../core/layout.ts";
import { type QuantType, quantTypes } from "../../../core/quant-types.ts";
import type { View } from "../../backend.ts";
import type { Storage } from "../../storage.ts";
import { kernels } from "../catalogue.ts";
import { matVecName, quantOutput } from "../families/quantized.ts";
import { at, type Gpu } from "../gpu.ts";
import { multiply } from "./matmul.ts";

/** The most activation rows that one pass over the weights serves. */
const MAT_VEC_ROWS = 8;
/** From so many rows on, dequantizing to halves and the vendor's BLAS are faster than multiplying blocks. */
const BLAS_ROWS = 32;

const nameOf = (type: QuantType): string => type.toLowerCase();

export function dequantize(gpu: Gpu, type: QuantType, blocks: View, to: DType): Storage {
  const { size, bytes } = quantTypes[type];
  const n = (blocks.layout.numel / bytes) * size;
  return gpu.fill(to, n, (out) =>
    gpu.launch(`dequantize_block_${nameOf(type)}_${to}`, { numel: n, w: at(blocks), out }),
  );
}

export function quantizedRows(gpu: Gpu, type: QuantType, blocks: View, ids: View, to: DType): Storage {
  const { size, bytes } = quantTypes[type];
  const [rows, rowBytes] = blocks.layout.shape as [number, number];
  const k = (rowBytes / bytes) * size;
  const count = ids.layout.numel;
  return gpu.fill(to, count * k, (out) =>
    gpu.packed(ids, (from) =>
      gpu.launch(`get_rows_${nameOf(type)}_${to}`, {
        ...{ count, rows, k, w: at(blocks), ids: from, out, id_bytes: sizeOf(ids.storage.dtype) },
        error: gpu.watchIndex("rows", rows, 0),
      }),
    ),
  );
}

/** From contiguous f32. */
export function quantize(gpu: Gpu, type: QuantType, x: View): Storage {
  const { size, bytes } = quantTypes[type];
  const n = x.layout.numel;
  const kernel = `quantize_${nameOf(type)}`;
  if (!kernels.has(kernel)) {
    fail(
      "UnsupportedOp",
      `quantize: ${gpu.backend.name} does not quantize to ${type}; quantize on "cpu", then move the result with toDevice()`,
    );
  }
  return gpu.fill("u8", (n / size) * bytes, (dst) =>
    gpu.packed(x, (src) => gpu.launch(kernel, { numel: n, src, dst })),
  );
}

/** x (…, k) times wᵀ, by the number of rows: one pass over the weights, blocks by blocks, or dequantized through BLAS. */
export function qmatmul(gpu: Gpu, type: QuantType, x: View, blocks: View): Storage {
  const { dtype } = x.storage;
  const k = x.layout.shape.at(-1)!;
  const m = numel(x.layout.shape.slice(0, -1));
  const n = blocks.layout.shape[0]!;
  return gpu.fill(dtype, m * n, (y) => {
    if (k === 0) {
      gpu.context.memset(BigInt(y), 0, m * n * sizeOf(dtype));
    } else if (m >= BLAS_ROWS && gpu.blas && dtype !== "f32") {
      throughBlas(gpu, type, x, blocks, { m, n, k }, y);
    } else {
      onBytes(gpu, type, x, blocks, { m, n, k }, y);
    }
  });
}

interface Sizes {
  readonly m: number;
  readonly n: number;
  readonly k: number;
}

function onBytes(gpu: Gpu, type: QuantType, x: View, blocks: View, { m, n, k }: Sizes, y: number): void {
  const { dtype } = x.storage;
  const scales = (m * k) / 4; // {scale, sum} in f32 for each 32 bytes
  gpu.packed(x, (src) =>
    gpu.temporary(m * k + scales, (xq) => {
      const xs = xq + m * k;
      gpu.launch(`quantize_q8_${dtype}`, { numel: m * k, src, xq, xs });
      const common = { n, k, w: at(blocks), xq, xs, y, batch: m, dtype: quantOutput[dtype]! };
      gpu.launch(m <= MAT_VEC_ROWS ? matVecName(type, m) : `mul_mat_${nameOf(type)}_q8`, common);
    }),
  );
}

function throughBlas(gpu: Gpu, type: QuantType, x: View, blocks: View, { m, n, k }: Sizes, y: number): void {
  const { dtype } = x.storage;
  const none = Layout.contiguous([]);
  gpu.packed(x, (src) =>
    gpu.temporary(n * k * sizeOf(dtype), (out) => {
      gpu.launch(`dequantize_block_${nameOf(type)}_${dtype}`, { numel: n * k, w: at(blocks), out });
      const a = { at: src, row: k, col: 1, batch: none };
      multiply(gpu, { dtype, m, n, k, a, b: { at: out, row: 1, col: k, batch: none } }, y);
    }),
  );
}
