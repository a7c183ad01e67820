/** Reductions, running sums and sorting. */
import { type DType, sizeOf } from "../../../core/dtype.ts";
import { collapse, Layout, numel } from "../../../core/layout.ts";
import type { ReduceOp, View } from "../../backend.ts";
import type { Storage } from "../../storage.ts";
import { partialBytes, planColumns, planRows } from "../families/reduce.ts";
import { sortKey, sortPad, sortTile } from "../families/sort.ts";
import { at, type Gpu } from "../gpu.ts";

/** Reduces the last `dims` dims: along columns where neighbouring results are neighbours in memory, else row by row. */
export function reduce(gpu: Gpu, op: ReduceOp, x: View, dims: number): Storage {
  const { dtype } = x.storage;
  const { shape } = x.layout;
  const split = shape.length - dims;
  const rows = numel(shape.slice(0, split));
  const el = numel(shape.slice(split));
  return gpu.fill(op.startsWith("arg") ? "u32" : dtype, rows, (dst) => {
    if (el === 0) {
      gpu.context.memset(BigInt(dst), 0, rows * sizeOf(dtype));
      return;
    }
    const columns = asColumns(x.layout, split);
    if (columns) return reduceColumns(gpu, op, dtype, columns, at(x), dst);
    const { threads, pieces } = planRows(rows, el, dtype);
    const common = { src_numel: rows * el, el_per_block: el, ...rowLayout(gpu, x.layout, split), src: at(x), dst };
    inPieces(gpu, op, dtype, { rows, inner: 1, pieces, dst }, (partial) =>
      gpu.launch(`fast_${op}_${dtype}`, { ...common, row_threads: threads, pieces, partial }),
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

interface Columns {
  readonly outer: number;
  readonly inner: number;
  readonly el: number;
  readonly outerStride: number;
  readonly elStride: number;
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
    el: over.shape[0]!,
    outerStride: rank === 2 ? kept.strides[0]![0]! : 0,
    elStride: over.strides[0]![0]!,
  };
}

function reduceColumns(gpu: Gpu, op: ReduceOp, dtype: DType, c: Columns, src: number, dst: number): void {
  const { threads, pieces } = planColumns(c.outer, c.el, c.inner, dtype);
  const sizes = { outer: c.outer, el: c.el, inner: c.inner, outer_stride: c.outerStride, el_stride: c.elStride };
  inPieces(gpu, op, dtype, { rows: c.outer * c.inner, inner: c.inner, pieces, dst }, (partial) =>
    gpu.launch(`fast_${op}_cols_${dtype}`, { ...sizes, src, dst, col_threads: threads, pieces, partial }),
  );
}

/** Runs a reduction whose rows may be cut into pieces, and joins the pieces. */
function inPieces(
  gpu: Gpu,
  op: ReduceOp,
  dtype: DType,
  { rows, inner, pieces, dst }: { rows: number; inner: number; pieces: number; dst: number },
  run: (partial: number) => void,
): void {
  if (pieces === 1) {
    run(0);
    return;
  }
  gpu.temporary(rows * pieces * partialBytes(op, dtype), (partial) => {
    run(partial);
    gpu.launch(`fast_${op}_join_${dtype}`, { rows, inner, pieces, partial, dst });
  });
}

export function cumsum(gpu: Gpu, x: View): Storage {
  const { dtype } = x.storage;
  const cols = x.layout.shape.at(-1)!;
  const n = x.layout.numel;
  return gpu.fill(dtype, n, (dst) =>
    gpu.packed(x, (src) => gpu.launch(`cumsum_${dtype}`, { rows: n / cols, cols, src, dst })),
  );
}

export function argsort(gpu: Gpu, x: View, descending: boolean): Storage {
  const { dtype } = x.storage;
  const direction = descending ? "desc" : "asc";
  const ncols = x.layout.shape.at(-1)!;
  const n = x.layout.numel;
  return gpu.fill("u32", n, (dst) =>
    gpu.packed(x, (from) => {
      const rows = n / ncols;
      if (ncols <= sortTile(dtype)) {
        gpu.launch(`asort_${direction}_${dtype}`, { x: from, dst, ncols, ncols_pad: sortPad(ncols), rows });
      } else {
        sortWide(gpu, `asort_tile_${direction}_${dtype}`, dtype, from, dst, rows, ncols);
      }
    }),
  );
}

/** Sorts tiles, then merges runs of doubling length, back and forth between two buffers; the last merge writes `dst`. */
function sortWide(
  gpu: Gpu,
  tileKernel: string,
  dtype: DType,
  x: number,
  dst: number,
  rows: number,
  ncols: number,
): void {
  const key = sortKey(dtype);
  const [keyBytes, indexBytes] = [rows * ncols * (key === "u64" ? 8 : 4), rows * ncols * 4];
  gpu.temporary(2 * (keyBytes + indexBytes), (tmp) => {
    const keys = [tmp, tmp + keyBytes];
    const index = [tmp + 2 * keyBytes, tmp + 2 * keyBytes + indexBytes];
    gpu.launch(tileKernel, { x, keys_out: keys[0]!, dst: index[0]!, ncols, rows });
    let source = 0;
    for (let run = sortTile(dtype); run < ncols; run *= 2, source = 1 - source) {
      const last = run * 2 >= ncols;
      gpu.launch(`asort_merge_${key}`, {
        rows,
        ncols,
        run,
        keys_in: keys[source]!,
        index_in: index[source]!,
        keys_out: last ? 0 : keys[1 - source]!,
        index_out: last ? dst : index[1 - source]!,
      });
    }
  });
}
