/** Reductions, running sums and sorting. */
import { type DType, sizeOf } from "../../../core/dtype.ts";
import { collapse, Layout, numel } from "../../../core/layout.ts";
import type { ReduceOp, View } from "../../backend.ts";
import type { Storage } from "../../storage.ts";
import { partialBytes, planColumns, planRows } from "../families/reduce.ts";
import { sortKey, sortTile } from "../families/sort.ts";
import { at, type Gpu } from "../gpu.ts";

/** Reduces the last `dims` dims: along columns where neighbouring results are neighbours in memory, else row by row. */
export function reduce(gpu: Gpu, op: ReduceOp, x: View, dims: number): Storage {
  const { dtype } = x.storage;
  const { shape } = x.layout;
  const split = shape.length - dims;
  const rows = numel(shape.slice(0, split));
  const length = numel(shape.slice(split));
  return gpu.filled(op.startsWith("arg") ? "u32" : dtype, rows, (out) => {
    if (length === 0) {
      gpu.context.memset(BigInt(out), 0, rows * sizeOf(dtype));
      return;
    }
    const columns = asColumns(x.layout, split);
    if (columns) return reduceColumns(gpu, op, dtype, columns, at(x), out);
    const { threads, pieces } = planRows(rows, length, dtype);
    const common = { x: at(x), out, rows, length, ...rowLayout(gpu, x.layout, split) };
    inPieces(gpu, op, dtype, { rows, inner: 1, pieces, out }, (partial) =>
      gpu.launch(`${op}_${dtype}`, { ...common, partial, row_threads: threads, pieces }),
    );
  });
}

/** Merges dims within the kept and within the reduced ones, so that rows stay rows. */
function rowLayout(gpu: Gpu, layout: Layout, split: number): { num_dims: number; info: number } {
  if (layout.isContiguous()) return { num_dims: 0, info: 0 };
  const parts = [part(layout, 0, split), part(layout, split, layout.rank)].map((l) => collapse([l]));
  const shape = parts.flatMap((c) => c.shape);
  return {
    num_dims: shape.length,
    info: gpu.words(
      shape,
      parts.flatMap((c) => c.strides[0]!),
    ),
  };
}

const part = (l: Layout, from: number, to: number): Layout =>
  new Layout(l.shape.slice(from, to), l.strides.slice(from, to));

/** What is reduced, and its neighbours that are left, in memory. */
export interface Columns {
  readonly outer: number;
  readonly inner: number;
  readonly length: number;
  readonly outerStride: number;
  readonly lengthStride: number;
}

function asColumns(layout: Layout, split: number): Columns | null {
  const kept = collapse([part(layout, 0, split)]);
  const over = collapse([part(layout, split, layout.rank)]);
  const rank = kept.shape.length;
  if (rank < 1 || rank > 2 || over.shape.length !== 1 || kept.strides[0]![rank - 1] !== 1 || over.strides[0]![0] === 1)
    return null;
  return {
    outer: rank === 2 ? kept.shape[0]! : 1,
    inner: kept.shape[rank - 1]!,
    length: over.shape[0]!,
    outerStride: rank === 2 ? kept.strides[0]![0]! : 0,
    lengthStride: over.strides[0]![0]!,
  };
}

export function reduceColumns(gpu: Gpu, op: ReduceOp, dtype: DType, c: Columns, x: number, out: number): void {
  const { threads, pieces } = planColumns(c.outer, c.length, c.inner, dtype);
  const { outer, length, inner } = c;
  const sizes = { outer, length, inner, outer_stride: c.outerStride, length_stride: c.lengthStride };
  inPieces(gpu, op, dtype, { rows: outer * inner, inner, pieces, out }, (partial) =>
    gpu.launch(`${op}_cols_${dtype}`, { x, out, partial, ...sizes, col_threads: threads, pieces }),
  );
}

/** Runs a reduction whose rows may be cut into pieces, and joins the pieces. */
function inPieces(
  gpu: Gpu,
  op: ReduceOp,
  dtype: DType,
  { rows, inner, pieces, out }: { rows: number; inner: number; pieces: number; out: number },
  run: (partial: number) => void,
): void {
  if (pieces === 1) {
    run(0);
    return;
  }
  gpu.temporary(rows * pieces * partialBytes(op, dtype), (partial) => {
    run(partial);
    gpu.launch(`${op}_join_${dtype}`, { partial, out, rows, inner, pieces });
  });
}

export function cumsum(gpu: Gpu, x: View): Storage {
  const { dtype } = x.storage;
  const cols = x.layout.shape.at(-1)!;
  const n = x.layout.numel;
  return gpu.filled(dtype, n, (out) =>
    gpu.packed(x, (from) => gpu.launch(`cumsum_${dtype}`, { x: from, out, rows: n / cols, cols })),
  );
}

export function argsort(gpu: Gpu, x: View, descending: boolean): Storage {
  const { dtype } = x.storage;
  const direction = descending ? "desc" : "asc";
  const cols = x.layout.shape.at(-1)!;
  const n = x.layout.numel;
  return gpu.filled("u32", n, (out) =>
    gpu.packed(x, (from) => {
      const rows = n / cols;
      if (cols <= sortTile(dtype)) gpu.launch(`argsort_${direction}_${dtype}`, { x: from, out, rows, cols });
      else sortWide(gpu, direction, dtype, from, out, rows, cols);
    }),
  );
}

/** Sorts tiles, then merges runs of doubling length, back and forth between two buffers; the last merge writes `out`. */
function sortWide(
  gpu: Gpu,
  direction: "asc" | "desc",
  dtype: DType,
  x: number,
  out: number,
  rows: number,
  cols: number,
): void {
  const key = sortKey(dtype);
  const [keyBytes, indexBytes] = [rows * cols * (key === "u64" ? 8 : 4), rows * cols * 4];
  gpu.temporary(2 * (keyBytes + indexBytes), (tmp) => {
    const keys = [tmp, tmp + keyBytes];
    const index = [tmp + 2 * keyBytes, tmp + 2 * keyBytes + indexBytes];
    gpu.launch(`argsort_tile_${direction}_${dtype}`, { x, keys_out: keys[0]!, index_out: index[0]!, rows, cols });
    let source = 0;
    for (let run = sortTile(dtype); run < cols; run *= 2, source = 1 - source) {
      const last = run * 2 >= cols;
      gpu.launch(`argsort_merge_${key}`, {
        keys_in: keys[source]!,
        index_in: index[source]!,
        keys_out: last ? 0 : keys[1 - source]!,
        index_out: last ? out : index[1 - source]!,
        rows,
        cols,
        run,
      });
    }
  });
}
