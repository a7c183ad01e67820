/** Quantized weights: dequantizing, row lookup, and products. */
import { type DType, sizeOf } from "../../../core/dtype.ts";
import { fail } from "../../../core/errors.ts";
import { Layout, numel } from "../../../core/layout.ts";
import { type QuantType, quantTypes } from "../../../core/quant-types.ts";
import type { View } from "../../backend.ts";
import type { Storage } from "../../storage.ts";
import { hasWarpgroups } from "../attention-plan.ts";
import { quantName } from "../families/family.ts";
import { isQuantizer, planQuantProduct } from "../families/quantized.ts";
import type { Gpu } from "../gpu.ts";
import { alignedBlocks, linear } from "./linear.ts";
import { multiply, type Product } from "./matmul.ts";

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

/** x (…, k) times wᵀ: few rows in one pass over the weights that keeps x at hand, others in tiles. */
export function qmatmul(gpu: Gpu, type: QuantType, x: View, blocks: View): Storage {
  const few = linear(gpu, x, blocks, type, { norm: null, bias: null, glu: null, residual: null });
  if (few) return few;
  const { dtype } = x.storage;
  const k = x.layout.shape.at(-1)!;
  const rows = numel(x.layout.shape.slice(0, -1));
  const n = blocks.layout.shape[0]!;
  return gpu.filled(dtype, rows * n, (out) => {
    if (k === 0) gpu.context.memset(BigInt(out), 0, rows * n * sizeOf(dtype));
    else if (rows > 0 && n > 0)
      alignedRows(gpu, x, (from) =>
        alignedBlocks(gpu, blocks, (w) => {
          gpu.fenceWeights(blocks.storage);
          product(gpu, type, dtype, from, w, { rows, n, k }, out);
        }),
      );
  });
}

/** The address of x as tiles read it, from a multiple of 16 bytes on; 0 where there is none. */
export function alignedRows(gpu: Gpu, x: View | null, run: (from: number) => void): void {
  gpu.packed(x, (from) => {
    const bytes = x ? x.layout.numel * sizeOf(x.storage.dtype) : 0;
    if (from % 16 === 0) run(from);
    else
      gpu.temporary(bytes, (copy) => {
        gpu.context.copyOnDevice(BigInt(copy), BigInt(from), bytes);
        run(copy);
      });
  });
}

interface Sizes {
  readonly rows: number;
  readonly n: number;
  readonly k: number;
}

/** Rows from which the vendor's BLAS makes up for dequantizing the weights first; on units other than warpgroups nobody has measured it. */
export const blasRows = (type: QuantType, arch: string): number =>
  hasWarpgroups(arch) ? (mostRows[type] ?? 768) + 1 : 32;
/** Rows up to which kernels that decode weights on the way are as fast, in tiles of 256: an 8B Llama's prompts on an H200. */
const mostRows: Partial<Record<QuantType, number>> = { Q8_0: 1792, Q4_0: 2304, Q4_K: 1024, Q6_K: 512 };

function product(gpu: Gpu, type: QuantType, dtype: DType, x: number, w: number, sizes: Sizes, out: number): void {
  const { arch } = gpu.context.properties;
  if (gpu.isInvariant) multiplyTiles(gpu, type, dtype, x, w, sizes, out);
  else if (gpu.blas && dtype !== "f32" && sizes.rows >= blasRows(type, arch))
    throughBlas(gpu, type, dtype, x, w, sizes, out);
  else multiplyTiles(gpu, type, dtype, x, w, sizes, out);
}

/** x (rows, k) · wᵀ (n, k) to `out` on any matrix unit, or none: x and w at multiples of 16 bytes. */
export function multiplyTiles(
  gpu: Gpu,
  type: QuantType,
  dtype: DType,
  x: number,
  w: number,
  sizes: Sizes,
  out: number,
): void {
  const { arch } = gpu.context.properties;
  const target = { unit: gpu.matrixUnit("bf16"), arch, multiprocessors: gpu.multiprocessors };
  const { size, isSplit, scratch, launch } = planQuantProduct(sizes, type, dtype, target, gpu.isInvariant);
  const multiply = (from: number, parts: number): void =>
    gpu.launch(`quant_product${size}_${quantName(type)}_${dtype}`, {
      ...sizes,
      ...launch,
      x: from,
      w,
      out,
      parts,
      counters: gpu.counters,
    });
  const share = (from: number): void =>
    scratch === 0 ? multiply(from, 0) : gpu.temporary(scratch, (parts) => multiply(from, parts));
  if (!isSplit) share(x);
  else splitHalves(gpu, x, sizes.rows * sizes.k, share);
}

/** By way of dequantized weights, for which there must be room. */
function throughBlas(gpu: Gpu, type: QuantType, dtype: DType, x: number, w: number, sizes: Sizes, y: number): void {
  dequantized(gpu, type, dtype, w, sizes, (weights) => multiply(gpu, rowsProduct(dtype, x, weights, sizes), y));
}

export function dequantized(
  gpu: Gpu,
  type: QuantType,
  dtype: DType,
  w: number,
  { n, k }: Sizes,
  run: (weights: number) => void,
): void {
  gpu.temporary(n * k * sizeOf(dtype), (weights) => {
    gpu.launch(`dequantize_block_${quantName(type)}_${dtype}`, { w, out: weights, numel: n * k });
    run(weights);
  });
}

/** x (rows, k) · wᵀ (n, k). */
export function rowsProduct(dtype: DType, x: number, w: number, { rows, n, k }: Sizes): Product {
  const batch = Layout.contiguous([]);
  return { dtype, m: rows, n, k, a: { at: x, row: k, col: 1, batch }, b: { at: w, row: 1, col: k, batch } };
}

/** x in f32 as pairs of halves, for the matrix unit. */
export function splitHalves(gpu: Gpu, x: number, numel: number, run: (halves: number) => void): void {
  gpu.temporary(4 * numel, (out) => {
    gpu.launch("split_f32", { x, out, numel });
    run(out);
  });
}
