/** Copies between any two layouts, by the fastest kernel that fits. */
import { type DType, sizeOf } from "../../core/dtype.ts";
import { collapse, type Layout } from "../../core/layout.ts";
import type { Gpu } from "./gpu.ts";

/** Addresses are those of the layouts' first elements; the layouts have one shape. */
export function copyLayout(gpu: Gpu, dtype: DType, src: number, from: Layout, dst: number, to: Layout): void {
  const numel = from.numel;
  if (numel === 0) return;
  const bytes = sizeOf(dtype) as 1 | 2 | 4 | 8;
  if (from.isContiguous() && to.isContiguous()) {
    gpu.context.copyOnDevice(BigInt(dst), BigInt(src), numel * bytes);
    return;
  }
  const { shape, strides } = collapse([from, to]);
  const [s, d] = strides as [number[], number[]];
  const rank = shape.length;
  // Rows that are contiguous on both sides.
  if (rank === 2 && s[1] === 1 && d[1] === 1 && s[0]! >= 0 && d[0]! >= 0) {
    gpu.launch(`copy2d_${dtype}`, {
      x: src,
      out: dst,
      rows: shape[0]!,
      cols: shape[1]!,
      x_stride: s[0]!,
      out_stride: d[0]!,
    });
    return;
  }
  // The last two dims swapped: rows of the source are columns of the target.
  if ((rank === 2 || rank === 3) && s[rank - 2] === 1 && d[rank - 1] === 1 && s[rank - 1]! > 0 && d[rank - 2]! > 0) {
    const batched = rank === 3;
    gpu.launch(`transpose_${bytes}`, {
      x: src,
      out: dst,
      batch: batched ? shape[0]! : 1,
      rows: shape[rank - 1]!,
      cols: shape[rank - 2]!,
      x_batch_stride: batched ? s[0]! : 0,
      x_row_stride: s[rank - 1]!,
      out_batch_stride: batched ? d[0]! : 0,
      out_row_stride: d[rank - 2]!,
    });
    return;
  }
  gpu.launch(`copy_strided_${bytes}`, { numel, num_dims: rank, info: gpu.words(shape, s, d), x: src, out: dst });
}
