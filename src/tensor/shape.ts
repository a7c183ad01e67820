/** Views and rearrangements. Those that can share storage do: no element moves until an operation needs it. */
import { Storage } from "../backend/storage.ts";
import { fail } from "../core/errors.ts";
import {
  checkShape,
  formatShape,
  Layout,
  normalizeDim,
  normalizeDims,
  numel,
  type Shape,
  sameShape,
} from "../core/layout.ts";
import * as check from "./check.ts";
import { result, Tensor } from "./tensor.ts";

/** One entry of `index`: a position (drops the dim), [start, end), or null for the whole dim. */
export type IndexSpec = number | readonly [start: number, end: number] | null;

export type ShapeMethods = typeof shaping;

export const shaping = {
  /** The elements under another shape; one size may be −1. A view where the strides allow it. */
  reshape(this: Tensor, shape: Shape): Tensor {
    const target = fillHole(shape, this.shape);
    if (numel(target) !== this.numel) {
      fail(
        "ShapeMismatch",
        `reshape: ${formatShape(this.shape)} has ${this.numel} elements, ${formatShape(target)} would have ${numel(target)}`,
      );
    }
    const layout = this.layout.reshape(target);
    if (layout) return this.view(layout);
    using packed = this.contiguous();
    return packed.view(Layout.contiguous(target, packed.layout.offset));
  },

  /** Removes a dim of size 1; other sizes are left alone. */
  squeeze(this: Tensor, dim: number): Tensor {
    const d = normalizeDim(dim, this.rank, "squeeze");
    return this.view(this.shape[d] === 1 ? this.layout.squeeze([d]) : this.layout);
  },

  /** Removes the given dims, all of size 1. */
  squeezeDims(this: Tensor, dims: readonly number[]): Tensor {
    const over = normalizeDims(dims, this.rank, "squeezeDims");
    for (const d of over) {
      if (this.shape[d] !== 1) fail("ShapeMismatch", `squeezeDims: dim ${d} of ${formatShape(this.shape)} is not 1`);
    }
    return this.view(this.layout.squeeze(over));
  },

  /** Inserts a dim of size 1 before `dim`; −1 appends it. */
  unsqueeze(this: Tensor, dim: number): Tensor {
    const d = normalizeDim(dim, this.rank + 1, "unsqueeze");
    checkShape([...this.shape, 1]);
    return this.view(this.layout.unsqueeze(d));
  },

  transpose(this: Tensor, a: number, b: number): Tensor {
    return this.view(
      this.layout.transpose(normalizeDim(a, this.rank, "transpose"), normalizeDim(b, this.rank, "transpose")),
    );
  },

  /** The last two dims swapped. */
  t(this: Tensor): Tensor {
    if (this.rank < 2)
      fail("UnexpectedNumberOfDims", `t needs at least 2 dims; the shape is ${formatShape(this.shape)}`);
    return this.transpose(-2, -1);
  },

  permute(this: Tensor, dims: readonly number[]): Tensor {
    const order = normalizeDims(dims, this.rank, "permute");
    if (order.length !== this.rank) {
      fail(
        "UnexpectedNumberOfDims",
        `permute: ${formatShape(dims)} must name all ${this.rank} dims of ${formatShape(this.shape)}`,
      );
    }
    return this.view(this.layout.permute(order));
  },

  /** Merges the dims start … end into one. */
  flatten(this: Tensor, start: number, end: number): Tensor {
    const [a, b] = [normalizeDim(start, this.rank, "flatten"), normalizeDim(end, this.rank, "flatten")];
    if (a > b) fail("InvalidArgument", `flatten: dim ${start} lies after dim ${end}`);
    return this.reshape([...this.shape.slice(0, a), numel(this.shape.slice(a, b + 1)), ...this.shape.slice(b + 1)]);
  },

  flattenAll(this: Tensor): Tensor {
    return this.reshape([this.numel]);
  },

  /** Repeats dims of size 1, and new leading dims, without moving data. */
  broadcastAs(this: Tensor, shape: Shape): Tensor {
    return this.view(this.layout.broadcastTo(checkShape(shape)));
  },

  /** Candle's other name for `broadcastAs`. */
  expand(this: Tensor, shape: Shape): Tensor {
    return this.broadcastAs(shape);
  },

  /** Elements start … start + length − 1 of a dim. */
  narrow(this: Tensor, dim: number, start: number, length: number): Tensor {
    const d = normalizeDim(dim, this.rank, "narrow");
    const from = start < 0 ? start + this.shape[d]! : start;
    return this.view(this.layout.narrow(d, from, length, start));
  },

  /** Splits a dim into `count` parts, the first ones longer by one where it does not divide. */
  chunk(this: Tensor, count: number, dim: number): Tensor[] {
    check.positiveInt("chunk", "the count", count);
    const d = normalizeDim(dim, this.rank, "chunk");
    const size = this.shape[d]!;
    const parts = Math.min(count, Math.max(size, 1));
    let start = 0;
    return Array.from({ length: parts }, (_, i) => {
      const length = Math.floor(size / parts) + (i < size % parts ? 1 : 0);
      start += length;
      return this.narrow(d, start - length, length);
    });
  },

  /** The i-th slice of the first dim. */
  get(this: Tensor, i: number): Tensor {
    return this.index(i);
  },

  /** `x.index(0, [1, 3], null)`: NumPy's x[0, 1:3, :]. Negative positions count from the end. */
  index(this: Tensor, ...specs: IndexSpec[]): Tensor {
    if (specs.length > this.rank) {
      fail(
        "UnexpectedNumberOfDims",
        `index: ${specs.length} positions for a tensor of shape ${formatShape(this.shape)}`,
      );
    }
    let layout = this.layout;
    const dropped: number[] = [];
    for (const [d, spec] of specs.entries()) {
      if (spec === null) continue;
      const size = this.shape[d]!;
      const fromEnd = (i: number) => (i < 0 ? i + size : i);
      if (typeof spec === "number") {
        const i = fromEnd(spec);
        if (!Number.isInteger(i) || i < 0 || i >= size)
          fail("InvalidIndex", `index: ${spec} is out of range for dim ${d} of ${formatShape(this.shape)}`);
        layout = layout.narrow(d, i, 1);
        dropped.push(d);
      } else {
        layout = layout.narrow(d, fromEnd(spec[0]), fromEnd(spec[1]) - fromEnd(spec[0]));
      }
    }
    return this.view(layout.squeeze(dropped));
  },

  /** Tiles the tensor `counts[i]` times along each dim; extra counts add leading dims. */
  repeat(this: Tensor, counts: Shape): Tensor {
    checkShape(counts);
    const rank = Math.max(counts.length, this.rank);
    const times = [...new Array<number>(rank - counts.length).fill(1), ...counts];
    const shape = [...new Array<number>(rank - this.rank).fill(1), ...this.shape];
    let tiled = this.reshape(shape);
    for (const [d, n] of times.entries()) {
      if (n === 1) continue;
      using part = tiled;
      tiled = n === 0 ? part.narrow(d, 0, 0) : cat(new Array<Tensor>(n).fill(part), d);
    }
    return tiled;
  },

  /** Shifts the elements along a dim; those that leave at the end come back at the start. */
  roll(this: Tensor, shift: number, dim: number): Tensor {
    const d = normalizeDim(dim, this.rank, "roll");
    const size = this.shape[d]!;
    if (!Number.isInteger(shift)) fail("InvalidArgument", `roll: the shift ${shift} is not a whole number`);
    const s = size === 0 ? 0 : ((shift % size) + size) % size;
    if (s === 0) return this.view(this.layout);
    using tail = this.narrow(d, size - s, s);
    using head = this.narrow(d, 0, size - s);
    return cat([tail, head], d);
  },

  /** Reverses the order along the dims; a view. */
  flip(this: Tensor, dims: readonly number[]): Tensor {
    return this.view(normalizeDims(dims, this.rank, "flip").reduce((layout, d) => layout.step(d, -1), this.layout));
  },

  /** Windows of `size` elements every `step` along a dim, as a view with the window as a new last dim. */
  unfold(this: Tensor, dim: number, size: number, step: number): Tensor {
    const d = normalizeDim(dim, this.rank, "unfold");
    check.positiveInt("unfold", "the size", size);
    check.positiveInt("unfold", "the step", step);
    checkShape([...this.shape, size]);
    const length = this.shape[d]!;
    if (size > length)
      fail("InvalidArgument", `unfold: windows of ${size} do not fit dim ${d} of ${formatShape(this.shape)}`);
    const { shape, strides, offset } = this.layout;
    const count = Math.floor((length - size) / step) + 1;
    return this.view(
      new Layout([...shape.with(d, count), size], [...strides.with(d, strides[d]! * step), strides[d]!], offset),
    );
  },

  /** Adds `left` zeros before and `right` zeros after a dim. */
  padWithZeros(this: Tensor, dim: number, left: number, right: number): Tensor {
    const d = normalizeDim(dim, this.rank, "padWithZeros");
    check.positiveInt("padWithZeros", "the left padding", left, 0);
    check.positiveInt("padWithZeros", "the right padding", right, 0);
    const out = Tensor.zeros(this.shape.with(d, this.shape[d]! + left + right), {
      dtype: this.dtype,
      device: this.device,
    });
    using middle = out.narrow(d, left, this.shape[d]!);
    this.backend.copy(this, middle);
    return out;
  },

  /** Repeats the first element `left` times before and the last `right` times after a dim. */
  padWithSame(this: Tensor, dim: number, left: number, right: number): Tensor {
    const d = normalizeDim(dim, this.rank, "padWithSame");
    check.positiveInt("padWithSame", "the left padding", left, 0);
    check.positiveInt("padWithSame", "the right padding", right, 0);
    const size = this.shape[d]!;
    if (size === 0 && left + right > 0)
      fail("EmptyTensor", `padWithSame: dim ${d} of ${formatShape(this.shape)} has no element to repeat`);
    if (left + right === 0) return this.view(this.layout);
    using first = this.narrow(d, 0, 1);
    using last = this.narrow(d, size - 1, 1);
    using before = first.broadcastAs(this.shape.with(d, left));
    using after = last.broadcastAs(this.shape.with(d, right));
    return cat([before, this, after], d);
  },

  /** The tensor itself if its elements are in row-major order, otherwise a copy that is. */
  contiguous(this: Tensor): Tensor {
    return this.isContiguous() ? this.view(this.layout) : this.copy();
  },

  /** A copy with storage of its own. */
  copy(this: Tensor): Tensor {
    const out = result(Storage.alloc(this.backend, this.dtype, this.numel), this.shape);
    this.backend.copy(this, out);
    return out;
  },
};

function fillHole(shape: Shape, from: Shape): Shape {
  const hole = shape.indexOf(-1);
  if (hole < 0) return checkShape(shape);
  const rest = numel(shape.filter((_, i) => i !== hole));
  const total = numel(from);
  if (shape.lastIndexOf(-1) !== hole || rest === 0 || total % rest !== 0) {
    fail("ShapeMismatch", `reshape: ${formatShape(from)} does not determine the −1 in ${formatShape(shape)}`);
  }
  return checkShape(shape.with(hole, total / rest));
}

/** Joins tensors along an existing dim. */
export function cat(tensors: readonly Tensor[], dim: number): Tensor {
  const first = tensors[0] ?? fail("InvalidArgument", "cat needs at least one tensor");
  const d = normalizeDim(dim, first.rank, "cat");
  let total = 0;
  for (const t of tensors) {
    check.compatible("cat", first, t);
    if (t.rank !== first.rank || !sameShape(t.shape.with(d, 0), first.shape.with(d, 0))) {
      fail(
        "ShapeMismatch",
        `cat along dim ${d}: shapes ${formatShape(first.shape)} and ${formatShape(t.shape)} differ elsewhere`,
      );
    }
    total += t.shape[d]!;
  }
  const out = Tensor.empty(first.shape.with(d, total), { dtype: first.dtype, device: first.device });
  let at = 0;
  for (const t of tensors) {
    using place = out.narrow(d, at, t.shape[d]!);
    out.backend.copy(t, place);
    at += t.shape[d]!;
  }
  return out;
}

/** Joins tensors of one shape along a new dim. */
export function stack(tensors: readonly Tensor[], dim: number): Tensor {
  const raised = tensors.map((t) => t.unsqueeze(dim));
  try {
    return cat(raised, dim);
  } finally {
    for (const t of raised) t.dispose();
  }
}
