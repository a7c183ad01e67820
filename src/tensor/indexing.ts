/** Reading and writing by ids, writing into slices, and sorting. */
import { isFloat, sizeOf } from "../core/dtype.ts";
import { fail } from "../core/errors.ts";
import { formatShape, normalizeDim, sameShape } from "../core/layout.ts";
import * as check from "./check.ts";
import { result, type Tensor } from "./tensor.ts";

export type IndexMethods = typeof indexing;

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
  return accumulate(x, src, add, (out, values) => x.backend.scatter(out, ids, values, d, add));
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

export const indexing = {
  /** The rows of this table (n, width) that `ids` of any shape name: shape (…ids, width). */
  embedding(this: Tensor, ids: Tensor): Tensor {
    check.hasRank("embedding", this, 2, "the table");
    using flat = ids.flattenAll();
    using rows = this.indexSelect(flat, 0);
    return rows.reshape([...ids.shape, this.shape[1]!]);
  },

  /** The slices of `dim` that the 1-D `ids` name. */
  indexSelect(this: Tensor, ids: Tensor, dim: number): Tensor {
    check.ids("indexSelect", this, ids);
    check.hasRank("indexSelect", ids, 1, "ids");
    const d = normalizeDim(dim, this.rank, "indexSelect");
    return result(this.backend.indexSelect(this, ids, d), this.shape.with(d, ids.numel));
  },

  /** out[i][j][k] = this[i][ids[i][j][k]][k] for dim 1; ids may be smaller than this tensor on the other dims. */
  gather(this: Tensor, ids: Tensor, dim: number): Tensor {
    check.ids("gather", this, ids);
    const d = normalizeDim(dim, this.rank, "gather");
    if (ids.rank !== this.rank || ids.shape.some((n, i) => i !== d && n > this.shape[i]!)) {
      fail(
        "ShapeMismatch",
        `gather on dim ${d}: ids ${formatShape(ids.shape)} must have ${this.rank} dims, none but dim ${d} larger than in ${formatShape(this.shape)}`,
      );
    }
    return result(this.backend.gather(this, ids, d), ids.shape);
  },

  /** A copy in which out[i][ids[i][j][k]][k] = src[i][j][k] for dim 1; of several writes to one place the last stays. */
  scatter(this: Tensor, ids: Tensor, src: Tensor, dim: number): Tensor {
    return scatter("scatter", this, ids, src, dim, false);
  },

  /** As `scatter`, adding to what is there. */
  scatterAdd(this: Tensor, ids: Tensor, src: Tensor, dim: number): Tensor {
    return scatter("scatterAdd", this, ids, src, dim, true);
  },

  /** A copy with the slices of `src` added to the slices of `dim` that the 1-D `ids` name. */
  indexAdd(this: Tensor, ids: Tensor, src: Tensor, dim: number): Tensor {
    check.ids("indexAdd", this, ids);
    check.compatible("indexAdd", this, src);
    check.hasRank("indexAdd", ids, 1, "ids");
    const d = normalizeDim(dim, this.rank, "indexAdd");
    if (!sameShape(src.shape, this.shape.with(d, ids.numel))) {
      fail(
        "ShapeMismatch",
        `indexAdd: src must have shape ${formatShape(this.shape.with(d, ids.numel))}, not ${formatShape(src.shape)}`,
      );
    }
    return accumulate(this, src, true, (out, values) => this.backend.indexAdd(out, ids, values, d));
  },

  /** Writes `src` IN PLACE at `offset` along `dim`; every view of this storage sees it. For caches. */
  sliceSet(this: Tensor, src: Tensor, dim: number, offset: number): void {
    check.compatible("sliceSet", this, src);
    const d = normalizeDim(dim, this.rank, "sliceSet");
    if (src.storage === this.storage)
      fail("InvalidArgument", "sliceSet: source and target share their storage; copy() one first");
    if (src.rank !== this.rank || !sameShape(src.shape, this.shape.with(d, src.shape[d] ?? 0))) {
      fail(
        "ShapeMismatch",
        `sliceSet on dim ${d}: src ${formatShape(src.shape)} does not fit into ${formatShape(this.shape)}`,
      );
    }
    if (this.layout.overlapsItself())
      fail("RequiresContiguous", "sliceSet: the target is broadcast, so its elements share places; copy() it first");
    using place = this.narrow(d, offset, src.shape[d]!);
    this.backend.copy(src, place);
  },

  /** A copy with `src` written at `offset` along `dim`. */
  sliceScatter(this: Tensor, src: Tensor, dim: number, offset: number): Tensor {
    return writeCopy(this, (out) => out.sliceSet(src, dim, offset));
  },

  /** A copy with `src` written into the ranges [start, end) of the dims, one per dim. */
  sliceAssign(this: Tensor, ranges: readonly (readonly [number, number])[], src: Tensor): Tensor {
    check.compatible("sliceAssign", this, src);
    if (ranges.length !== this.rank) {
      fail(
        "UnexpectedNumberOfDims",
        `sliceAssign: ${ranges.length} ranges for a tensor of shape ${formatShape(this.shape)}`,
      );
    }
    const layout = ranges.reduce((l, [start, end], d) => l.narrow(d, start, end - start), this.layout);
    if (!sameShape(layout.shape, src.shape)) {
      fail(
        "ShapeMismatch",
        `sliceAssign: the ranges select ${formatShape(layout.shape)}, src has ${formatShape(src.shape)}`,
      );
    }
    return writeCopy(this, (out) => {
      using place = out.view(ranges.reduce((l, [start, end], d) => l.narrow(d, start, end - start), out.layout));
      this.backend.copy(src, place);
    });
  },

  /** The order (u32) that sorts the last dim; stable, NaN last. */
  argSortLastDim(this: Tensor, ascending = true): Tensor {
    if (this.rank === 0) fail("UnexpectedNumberOfDims", "argSortLastDim needs at least one dim");
    return result(this.backend.argsort(this, !ascending), this.shape);
  },

  /** The last dim sorted, and the order that sorts it. */
  sortLastDim(this: Tensor, ascending = true): [values: Tensor, order: Tensor] {
    const order = this.argSortLastDim(ascending);
    return [this.gather(order, -1), order];
  },
};
