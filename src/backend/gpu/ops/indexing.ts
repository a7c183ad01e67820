/** Reading and writing by ids. */
import { collapse, Layout, numel, type Shape, sameShape } from "../../../core/layout.ts";
import type { View } from "../../backend.ts";
import type { Storage } from "../../storage.ts";
import { scatterByBlocks } from "../families/indexing.ts";
import { at, type Gpu } from "../gpu.ts";

const names = (ids: View, x: View): string => `${ids.storage.dtype}_${x.storage.dtype}`;
const without = <T>(list: readonly T[], i: number): T[] => list.toSpliced(i, 1);

export function indexSelect(gpu: Gpu, x: View, ids: View, dim: number): Storage {
  const { shape, strides } = x.layout;
  const shapeOut = shape.with(dim, ids.layout.numel);
  const left = collapse([new Layout(shape.slice(0, dim), strides.slice(0, dim))]);
  const inner = new Layout(shape.slice(dim + 1), strides.slice(dim + 1));
  // Whole rows move where the dims after `dim` are contiguous and those before it are one stride apart.
  if (left.shape.length > 1 || !inner.isContiguous()) {
    const spread = shapeOut.map((_, i) => (i === dim ? ids.layout.strides[0]! : 0));
    return gather(gpu, x, ids, { shape: shapeOut, strides: spread }, dim);
  }
  return gpu.fill(x.storage.dtype, numel(shapeOut), (out) =>
    gpu.launch(`is_${names(ids, x)}`, {
      numel: numel(shapeOut),
      ...gpu.layouts(ids.layout),
      ids: at(ids),
      inp: at(x),
      out,
      left: left.shape[0] ?? 1,
      src_dim: shape[dim]!,
      ids_dim: ids.layout.numel,
      right: inner.numel,
      left_stride: left.strides[0]![0] ?? 0,
      dim_stride: strides[dim]!,
      error: gpu.watchIndex("indexSelect", shape[dim]!, dim),
    }),
  );
}

/** `layout` is that of the ids over the result's shape, which may repeat them (stride 0). */
export function gather(
  gpu: Gpu,
  x: View,
  ids: View,
  layout: { shape: Shape; strides: readonly number[] },
  dim: number,
): Storage {
  const { shape } = layout;
  const n = numel(shape);
  return gpu.fill(x.storage.dtype, n, (out) =>
    gpu.launch(`gather_${names(ids, x)}`, {
      numel: n,
      ids: at(ids),
      inp: at(x),
      out,
      left: numel(shape.slice(0, dim)),
      src_dim: x.layout.shape[dim]!,
      ids_dim: shape[dim]!,
      right: numel(shape.slice(dim + 1)),
      num_dims: shape.length,
      info: gpu.words(shape, layout.strides, x.layout.strides.with(dim, 0)),
      src_stride: x.layout.strides[dim]!,
      error: gpu.watchIndex("gather", x.layout.shape[dim]!, dim),
    }),
  );
}

/** ids of `idStrides` over src's shape. */
export function scatter(
  gpu: Gpu,
  dst: View,
  ids: View,
  idStrides: readonly number[],
  src: View,
  dim: number,
  add: boolean,
): void {
  if (src.layout.numel === 0) return;
  const places = without(src.layout.shape, dim);
  const lanes = numel(places);
  const length = src.layout.shape[dim]!;
  const operands = [idStrides, src.layout.strides, dst.layout.strides];
  gpu.launch(`${add ? "sa" : "s"}_${names(ids, src)}`, {
    ids: at(ids),
    inp: at(src),
    out: at(dst),
    left: lanes,
    src_dim: length,
    dst_dim: dst.layout.shape[dim]!,
    right: 1,
    num_dims: places.length,
    info: gpu.words(places, ...operands.map((strides) => without(strides, dim))),
    ids_stride: idStrides[dim]!,
    src_stride: src.layout.strides[dim]!,
    dst_stride: dst.layout.strides[dim]!,
    blocks: Number(scatterByBlocks(lanes, length)),
    error: gpu.watchIndex("scatter", dst.layout.shape[dim]!, dim),
  });
}

/** As scatter with `add`, with 1-D ids for the slices of `dim`. */
export function indexAdd(gpu: Gpu, dst: View, ids: View, src: View, dim: number): void {
  if (src.layout.numel === 0) return;
  const contiguous = [dst, ids, src].every((v) => v.layout.isContiguous());
  if (!contiguous || !sameShape(src.layout.shape.with(dim, 0), dst.layout.shape.with(dim, 0))) {
    const spread = src.layout.shape.map((_, i) => (i === dim ? ids.layout.strides[0]! : 0));
    scatter(gpu, dst, ids, spread, src, dim, true);
    return;
  }
  const { shape } = src.layout;
  const [left, right] = [numel(shape.slice(0, dim)), numel(shape.slice(dim + 1))];
  gpu.launch(`ia_${names(ids, src)}`, {
    ids: at(ids),
    ids_dim: shape[dim]!,
    inp: at(src),
    out: at(dst),
    left,
    src_dim: shape[dim]!,
    dst_dim: dst.layout.shape[dim]!,
    right,
    num_dims: 0,
    info: 0,
    ids_stride: 1,
    src_stride: right,
    dst_stride: right,
    blocks: Number(scatterByBlocks(left * right, shape[dim]!)),
    error: gpu.watchIndex("indexAdd", dst.layout.shape[dim]!, dim),
  });
}
