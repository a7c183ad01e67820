/** Reading and writing by ids, writing into slices, and sorting. */
import { asPartOf, call } from "../backend/call.ts";
import { isFloat, sizeOf } from "../core/dtype.ts";
import { fail } from "../core/errors.ts";
import { formatShape, normalizeDim, sameShape } from "../core/layout.ts";
import { result, type Tensor } from "../tensor/tensor.ts";
import * as check from "./check.ts";
import { composed } from "./composed/index.ts";
import { compute } from "./compute.ts";
import { group, op } from "./op.ts";

/** Scatter's rule: ids and src have one shape, within x's on every dim but `dim`. */
function checkScatter(op: string, x: Tensor, ids: Tensor, src: Tensor, dim: number): number {
  check.ids(op, x, ids);
  check.compatible(op, x, src);
  const d = normalizeDim(dim, x.rank, op);
  const fits =
    sameShape(ids.shape, src.shape) && ids.rank === x.rank && ids.shape.every((n, i) => i === d || n <= x.shape[i]!);
  if (!fits) {
    fail(
      "ShapeMismatch",
      `${op} on dim ${d}: ids ${formatShape(ids.shape)} and src ${formatShape(src.shape)} must have one shape that fits into ${formatShape(x.shape)}`,
    );
  }
  return d;
}

function scatter(op: string, x: Tensor, ids: Tensor, src: Tensor, dim: number, add: boolean): Tensor {
  const d = checkScatter(op, x, ids, src, dim);
  return accumulate(x, src, add, (out, values) => call(x.backend, "scatter", out, ids, values, d, add));
}

function writeCopy(x: Tensor, write: (out: Tensor) => void): Tensor {
  const out = x.copy();
  try {
    write(out);
  } catch (error) {
    out.dispose();
    throw error;
  }
  return out;
}

/** Runs `write` on a copy of x. Sums of small floats are taken in f32 and rounded once, however many terms they have. */
function accumulate(x: Tensor, src: Tensor, add: boolean, write: (out: Tensor, src: Tensor) => void): Tensor {
  const small = add && isFloat(x.dtype) && sizeOf(x.dtype) < 4;
  if (!small) {
    return writeCopy(x, (out) => write(out, src));
  }
  using wide = x.toDType("f32");
  using values = src.toDType("f32");
  write(wide, values);
  return wide.toDType(x.dtype);
}

export const indexing = group("index", {
  /** The rows of this table (n, width) that `ids` of any shape name: shape (…ids, width). */
  embedding: op("table ids", (table: Tensor, ids: Tensor): Tensor => {
    check.hasRank("embedding", table, 2, "the table");
    check.ids("embedding", table, ids);
    using flat = ids.flattenAll();
    using rows = asPartOf("embedding", () => table.indexSelect(flat, 0));
    return rows.reshape([...ids.shape, table.shape[1]!]);
  }),

  /** The slices of `dim` that the 1-D `ids` name. */
  indexSelect: op("x ids dim", (x: Tensor, ids: Tensor, dim: number): Tensor => {
    check.ids("indexSelect", x, ids);
    check.hasRank("indexSelect", ids, 1, "ids");
    const d = normalizeDim(dim, x.rank, "indexSelect");
    return compute(x.backend, "indexSelect", x.shape.with(d, ids.numel), x, ids, d);
  }),

  /** out[i][j][k] = this[i][ids[i][j][k]][k] for dim 1; ids may be smaller than this tensor on the other dims. */
  gather: op("x ids dim", (x: Tensor, ids: Tensor, dim: number): Tensor => {
    check.ids("gather", x, ids);
    const d = normalizeDim(dim, x.rank, "gather");
    if (ids.rank !== x.rank || ids.shape.some((n, i) => i !== d && n > x.shape[i]!)) {
      fail(
        "ShapeMismatch",
        `gather on dim ${d}: ids ${formatShape(ids.shape)} must have ${x.rank} dims, none but dim ${d} larger than in ${formatShape(x.shape)}`,
      );
    }
    return result(call(x.backend, "gather", x, ids, d), ids.shape);
  }),

  /** A copy in which out[i][ids[i][j][k]][k] = src[i][j][k] for dim 1; of several writes to one place the last stays. */
  scatter: op("x ids src dim", (x: Tensor, ids: Tensor, src: Tensor, dim: number): Tensor => {
    return scatter("scatter", x, ids, src, dim, false);
  }),

  /** As `scatter`, adding to what is there. */
  scatterAdd: op("x ids src dim", (x: Tensor, ids: Tensor, src: Tensor, dim: number): Tensor => {
    return scatter("scatterAdd", x, ids, src, dim, true);
  }),

  /** A copy with the slices of `src` added to the slices of `dim` that the 1-D `ids` name. */
  indexAdd: op("x ids src dim", (x: Tensor, ids: Tensor, src: Tensor, dim: number): Tensor => {
    check.ids("indexAdd", x, ids);
    check.compatible("indexAdd", x, src);
    check.hasRank("indexAdd", ids, 1, "ids");
    const d = normalizeDim(dim, x.rank, "indexAdd");
    if (!sameShape(src.shape, x.shape.with(d, ids.numel))) {
      fail(
        "ShapeMismatch",
        `indexAdd: src must have shape ${formatShape(x.shape.with(d, ids.numel))}, not ${formatShape(src.shape)}`,
      );
    }
    return accumulate(x, src, true, (out, values) => {
      if (call(x.backend, "indexAdd", out, ids, values, d) === null) composed.indexAdd(out, ids, values, d);
    });
  }),

  /** Writes `src` IN PLACE at `offset` along `dim`; every view of this storage sees it. For caches. */
  sliceSet: op("x src dim offset", (x: Tensor, src: Tensor, dim: number, offset: number): void => {
    check.compatible("sliceSet", x, src);
    const d = normalizeDim(dim, x.rank, "sliceSet");
    if (src.storage === x.storage)
      fail("InvalidArgument", "sliceSet: source and target share their storage; copy() one first");
    if (src.rank !== x.rank || !sameShape(src.shape, x.shape.with(d, src.shape[d] ?? 0))) {
      fail(
        "ShapeMismatch",
        `sliceSet on dim ${d}: src ${formatShape(src.shape)} does not fit into ${formatShape(x.shape)}`,
      );
    }
    if (x.layout.overlapsItself())
      fail("RequiresContiguous", "sliceSet: the target is broadcast, so its elements share places; copy() it first");
    using place = x.narrow(d, offset, src.shape[d]!);
    call(x.backend, "copy", src, place);
  }),

  /** A copy with `src` written at `offset` along `dim`. */
  sliceScatter: op("x src dim offset", (x: Tensor, src: Tensor, dim: number, offset: number): Tensor => {
    return writeCopy(x, (out) => out.sliceSet(src, dim, offset));
  }),

  /** A copy with `src` written into the ranges [start, end) of the dims, one per dim. */
  sliceAssign: op("x ranges src", (x: Tensor, ranges: readonly (readonly [number, number])[], src: Tensor): Tensor => {
    check.compatible("sliceAssign", x, src);
    if (ranges.length !== x.rank) {
      fail(
        "UnexpectedNumberOfDims",
        `sliceAssign: ${ranges.length} ranges for a tensor of shape ${formatShape(x.shape)}`,
      );
    }
    const layout = ranges.reduce((l, [start, end], d) => l.narrow(d, start, end - start), x.layout);
    if (!sameShape(layout.shape, src.shape)) {
      fail(
        "ShapeMismatch",
        `sliceAssign: the ranges select ${formatShape(layout.shape)}, src has ${formatShape(src.shape)}`,
      );
    }
    return writeCopy(x, (out) => {
      using place = out.view(ranges.reduce((l, [start, end], d) => l.narrow(d, start, end - start), out.layout));
      call(x.backend, "copy", src, place);
    });
  }),

  /** The order (u32) that sorts the last dim; stable, NaN last. */
  argSortLastDim: op("x ascending?", (x: Tensor, ascending = true): Tensor<"u32"> => {
    if (x.rank === 0) fail("UnexpectedNumberOfDims", "argSortLastDim needs at least one dim");
    return result(call(x.backend, "argsort", x, !ascending), x.shape);
  }),

  /** The last dim sorted, and the order that sorts it. */
  sortLastDim: op("x ascending?", (x: Tensor, ascending = true): [values: Tensor, order: Tensor<"u32">] => {
    const order = x.argSortLastDim(ascending);
    return [x.gather(order, -1), order];
  }),

  /** The k largest elements (or smallest) along a dim in order, and where they were; equal ones in the order they had. */
  topk: op(
    "x k dim? largest?",
    (x: Tensor, k: number, dim = -1, largest = true): [values: Tensor, indices: Tensor<"u32">] => {
      const d = normalizeDim(dim, x.rank, "topk");
      check.positiveInt("topk", "k", k, 0);
      if (k > x.shape[d]!)
        fail("InvalidArgument", `topk: ${k} of the ${x.shape[d]} elements of dim ${d} of ${formatShape(x.shape)}`);
      using last = x.transpose(d, -1);
      const fused = largest ? call(x.backend, "topk", last, k, false) : null;
      if (fused) {
        const shape = last.shape.with(-1, k);
        using best = result(fused.values, shape);
        using places = result(fused.ids, shape) as Tensor<"u32">;
        return [best.transpose(d, -1), places.transpose(d, -1)];
      }
      using order = last.argSortLastDim(!largest);
      using some = order.narrow(-1, 0, k);
      using values = last.gather(some, -1);
      using indices = some.contiguous();
      return [values.transpose(d, -1), indices.transpose(d, -1)];
    },
  ),
});
