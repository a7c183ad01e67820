/** Reading and writing by ids. */
import { collapse, Layout, numel, type Shape } from "../../../core/layout.ts";
import type { View } from "../../backend.ts";
import type { Storage } from "../../storage.ts";
import { scatterByBlocks } from "../families/indexing.ts";
import { at, type Gpu } from "../gpu.ts";

const without = <T>(list: readonly T[], i: number): T[] => list.toSpliced(i, 1);

/** The strides of 1-D ids on `dim` over a shape of that rank. */
const spread = (ids: View, rank: number, dim: number): number[] =>
  Array.from({ length: rank }, (_, i) => (i === dim ? ids.layout.strides[0]! : 0));

export function indexSelect(gpu: Gpu, x: View, ids: View, dim: number): Storage {
  const { shape, strides } = x.layout;
  const { dtype } = x.storage;
  const shapeOut = shape.with(dim, ids.layout.numel);
  const left = collapse([new Layout(shape.slice(0, dim), strides.slice(0, dim))]);
  const inner = new Layout(shape.slice(dim + 1), strides.slice(dim + 1));
  // Whole rows move where the dims after `dim` are contiguous and those before it are one stride apart.
  if (left.shape.length > 1 || !inner.isContiguous()) {
    return gather(gpu, "indexSelect", x, ids, { shape: shapeOut, strides: spread(ids, shape.length, dim) }, dim);
  }
  return gpu.filled(dtype, numel(shapeOut), (out) =>
    gpu.launch(`index_select_${ids.storage.dtype}_${dtype}`, {
      x: at(x),
      ids: at(ids),
      out,
      left: left.shape[0] ?? 1,
      x_dim: shape[dim]!,
      ids_dim: ids.layout.numel,
      right: inner.numel,
      ids_stride: ids.layout.strides[0]!,
      left_stride: left.strides[0]![0] ?? 0,
      dim_stride: strides[dim]!,
      error: gpu.watchIndex("indexSelect", shape[dim]!, dim),
    }),
  );
}

/** `layout` is that of the ids over the result's shape, which may repeat them (stride 0); `op` is what errors name. */
export function gather(
  gpu: Gpu,
  op: "gather" | "indexSelect",
  x: View,
  ids: View,
  layout: { shape: Shape; strides: readonly number[] },
  dim: number,
): Storage {
  const { shape } = layout;
  const { dtype } = x.storage;
  const n = numel(shape);
  return gpu.filled(dtype, n, (out) =>
    gpu.launch(`gather_${ids.storage.dtype}_${dtype}`, {
      x: at(x),
      ids: at(ids),
      out,
      numel: n,
      num_dims: shape.length,
      info: gpu.words(shape, layout.strides, x.layout.strides.with(dim, 0)),
      x_dim: x.layout.shape[dim]!,
      x_stride: x.layout.strides[dim]!,
      error: gpu.watchIndex(op, x.layout.shape[dim]!, dim),
    }),
  );
}

/** ids of `idStrides` over src's shape; `op` is what errors name. */
export function scatter(
  gpu: Gpu,
  op: "scatter" | "scatterAdd" | "indexAdd",
  dst: View,
  ids: View,
  idStrides: readonly number[],
  src: View,
  dim: number,
): void {
  if (src.layout.numel === 0) return;
  const lanes = without(src.layout.shape, dim);
  const length = src.layout.shape[dim]!;
  const operands = [idStrides, src.layout.strides, dst.layout.strides];
  const { shape, strides } = collapse(operands.map((steps) => new Layout(lanes, without(steps, dim))));
  const kind = op === "scatter" ? "scatter" : "scatter_add";
  gpu.launch(`${kind}_${ids.storage.dtype}_${src.storage.dtype}`, {
    x: at(src),
    ids: at(ids),
    out: at(dst),
    lanes: numel(lanes),
    x_dim: length,
    out_dim: dst.layout.shape[dim]!,
    num_dims: shape.length,
    info: shape.length === 0 ? 0 : gpu.words(shape, ...strides),
    ids_stride: idStrides[dim]!,
    x_stride: src.layout.strides[dim]!,
    out_stride: dst.layout.strides[dim]!,
    blocks: Number(scatterByBlocks(numel(lanes), length)),
    error: gpu.watchIndex(op, dst.layout.shape[dim]!, dim),
  });
}

/** As scatterAdd, with 1-D ids for the slices of `dim`. */
export function indexAdd(gpu: Gpu, dst: View, ids: View, src: View, dim: number): void {
  scatter(gpu, "indexAdd", dst, ids, spread(ids, src.layout.rank, dim), src, dim);
}
