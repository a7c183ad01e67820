/** Views and rearrangements. Those that can share storage do: no element moves until an operation needs it. */
import { call } from "../backend/call.ts";
import type { DType } from "../core/dtype.ts";
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
import { Tensor } from "../tensor/tensor.ts";
import * as check from "./check.ts";
import { group, op } from "./op.ts";

/** One entry of `index`: a position (drops the dim), [start, end), or null for the whole dim. */
export type IndexSpec = number | readonly [start: number, end: number] | null;

export const shaping = group("shape", {
  /** The elements under another shape; one size may be −1. A view where the strides allow it. */
  reshape: op("x shape", (x: Tensor, shape: Shape): Tensor => {
    const target = fillHole(shape, x.shape);
    if (numel(target) !== x.numel) {
      fail(
        "ShapeMismatch",
        `reshape: ${formatShape(x.shape)} has ${x.numel} elements, ${formatShape(target)} would have ${numel(target)}`,
      );
    }
    const layout = x.layout.reshape(target);
    if (layout) return x.view(layout);
    using packed = x.contiguous();
    return packed.view(Layout.contiguous(target, packed.layout.offset));
  }),

  /** Removes a dim of size 1; other sizes are left alone. */
  squeeze: op("x dim", (x: Tensor, dim: number): Tensor => {
    const d = normalizeDim(dim, x.rank, "squeeze");
    return x.view(x.shape[d] === 1 ? x.layout.squeeze([d]) : x.layout);
  }),

  /** Removes the given dims, all of size 1. */
  squeezeDims: op("x dims", (x: Tensor, dims: readonly number[]): Tensor => {
    const over = normalizeDims(dims, x.rank, "squeezeDims");
    for (const d of over) {
      if (x.shape[d] !== 1) fail("ShapeMismatch", `squeezeDims: dim ${d} of ${formatShape(x.shape)} is not 1`);
    }
    return x.view(x.layout.squeeze(over));
  }),

  /** Inserts a dim of size 1 before `dim`; −1 appends it. */
  unsqueeze: op("x dim", (x: Tensor, dim: number): Tensor => {
    const d = normalizeDim(dim, x.rank + 1, "unsqueeze");
    checkShape([...x.shape, 1]);
    return x.view(x.layout.unsqueeze(d));
  }),

  /** Two dims swapped. */
  transpose: op("x a b", (x: Tensor, a: number, b: number): Tensor => {
    return x.view(x.layout.transpose(normalizeDim(a, x.rank, "transpose"), normalizeDim(b, x.rank, "transpose")));
  }),

  /** The last two dims swapped. */
  t: op("x", (x: Tensor): Tensor => {
    if (x.rank < 2) fail("UnexpectedNumberOfDims", `t needs at least 2 dims; the shape is ${formatShape(x.shape)}`);
    return x.transpose(-2, -1);
  }),

  /** The dims in another order. */
  permute: op("x dims", (x: Tensor, dims: readonly number[]): Tensor => {
    const order = normalizeDims(dims, x.rank, "permute");
    if (order.length !== x.rank) {
      fail(
        "UnexpectedNumberOfDims",
        `permute: ${formatShape(dims)} must name all ${x.rank} dims of ${formatShape(x.shape)}`,
      );
    }
    return x.view(x.layout.permute(order));
  }),

  /** Merges the dims start … end into one; all of them where none are given. */
  flatten: op("x start? end?", (x: Tensor, start = 0, end = -1): Tensor => {
    if (x.rank === 0) return x.reshape([1]);
    const [a, b] = [normalizeDim(start, x.rank, "flatten"), normalizeDim(end, x.rank, "flatten")];
    if (a > b) fail("InvalidArgument", `flatten: dim ${start} lies after dim ${end}`);
    return x.reshape([...x.shape.slice(0, a), numel(x.shape.slice(a, b + 1)), ...x.shape.slice(b + 1)]);
  }),

  /** All dims merged into one. */
  flattenAll: op("x", (x: Tensor): Tensor => {
    return x.reshape([x.numel]);
  }),

  /** Repeats dims of size 1, and new leading dims, without moving data. */
  broadcastAs: op("x shape", (x: Tensor, shape: Shape): Tensor => {
    return x.view(x.layout.broadcastTo(checkShape(shape)));
  }),

  /** Candle's other name for `broadcastAs`. */
  expand: op("x shape", (x: Tensor, shape: Shape): Tensor => {
    return x.broadcastAs(shape);
  }),

  /** Elements start … start + length − 1 of a dim. */
  narrow: op("x dim start length", (x: Tensor, dim: number, start: number, length: number): Tensor => {
    const d = normalizeDim(dim, x.rank, "narrow");
    const from = start < 0 ? start + x.shape[d]! : start;
    return x.view(x.layout.narrow(d, from, length, start));
  }),

  /** Splits a dim into `count` parts, the first ones longer by one where it does not divide. */
  chunk: op("x count dim", (x: Tensor, count: number, dim: number): Tensor[] => {
    check.positiveInt("chunk", "the count", count);
    const d = normalizeDim(dim, x.rank, "chunk");
    const size = x.shape[d]!;
    const parts = Math.min(count, Math.max(size, 1));
    let start = 0;
    return Array.from({ length: parts }, (_, i) => {
      const length = Math.floor(size / parts) + (i < size % parts ? 1 : 0);
      start += length;
      return x.narrow(d, start - length, length);
    });
  }),

  /** Splits a dim (the first by default) into parts of `size`, the last one shorter where it does not divide, or of given sizes. */
  split: op("x size dim?", (x: Tensor, size: number | readonly number[], dim = 0): Tensor[] => {
    const d = normalizeDim(dim, x.rank, "split");
    const total = x.shape[d]!;
    if (typeof size === "number") check.positiveInt("split", "the size", size);
    const sizes =
      typeof size === "number"
        ? Array.from({ length: Math.max(1, Math.ceil(total / size)) }, (_, i) => Math.min(size, total - i * size))
        : size;
    if (sizes.reduce((sum, n) => sum + n, 0) !== total) {
      fail(
        "ShapeMismatch",
        `split: the sizes ${formatShape(sizes)} do not add up to dim ${d} of ${formatShape(x.shape)}`,
      );
    }
    let start = 0;
    return sizes.map((length) => {
      start += length;
      return x.narrow(d, start - length, length);
    });
  }),

  /** The i-th slice of the first dim. */
  get: op("x i", (x: Tensor, i: number): Tensor => {
    return x.index(i);
  }),

  /** `x.index(0, [1, 3], null)`: NumPy's x[0, 1:3, :]. Negative positions count from the end. */
  index: op("x specs*", (x: Tensor, ...specs: IndexSpec[]): Tensor => {
    if (specs.length > x.rank) {
      fail("UnexpectedNumberOfDims", `index: ${specs.length} positions for a tensor of shape ${formatShape(x.shape)}`);
    }
    let layout = x.layout;
    const dropped: number[] = [];
    for (const [d, spec] of specs.entries()) {
      if (spec === null) continue;
      const size = x.shape[d]!;
      const fromEnd = (i: number) => (i < 0 ? i + size : i);
      if (typeof spec === "number") {
        const i = fromEnd(spec);
        if (!Number.isInteger(i) || i < 0 || i >= size)
          fail("InvalidIndex", `index: ${spec} is out of range for dim ${d} of ${formatShape(x.shape)}`);
        layout = layout.narrow(d, i, 1);
        dropped.push(d);
      } else {
        layout = layout.narrow(d, fromEnd(spec[0]), fromEnd(spec[1]) - fromEnd(spec[0]));
      }
    }
    return x.view(layout.squeeze(dropped));
  }),

  /** Tiles the tensor `counts[i]` times along each dim; extra counts add leading dims. */
  repeat: op("x counts", (x: Tensor, counts: Shape): Tensor => {
    checkShape(counts);
    const rank = Math.max(counts.length, x.rank);
    const times = [...new Array<number>(rank - counts.length).fill(1), ...counts];
    const shape = [...new Array<number>(rank - x.rank).fill(1), ...x.shape];
    let tiled = x.reshape(shape);
    for (const [d, n] of times.entries()) {
      if (n === 1) continue;
      using part = tiled;
      tiled = n === 0 ? part.narrow(d, 0, 0) : cat(new Array<Tensor>(n).fill(part), d);
    }
    return tiled;
  }),

  /** Shifts the elements along a dim; those that leave at the end come back at the start. */
  roll: op("x shift dim", (x: Tensor, shift: number, dim: number): Tensor => {
    const d = normalizeDim(dim, x.rank, "roll");
    const size = x.shape[d]!;
    if (!Number.isInteger(shift)) fail("InvalidArgument", `roll: the shift ${shift} is not a whole number`);
    const s = size === 0 ? 0 : ((shift % size) + size) % size;
    if (s === 0) return x.view(x.layout);
    using tail = x.narrow(d, size - s, s);
    using head = x.narrow(d, 0, size - s);
    return cat([tail, head], d);
  }),

  /** Reverses the order along the dims; a view. */
  flip: op("x dims", (x: Tensor, dims: readonly number[]): Tensor => {
    return x.view(normalizeDims(dims, x.rank, "flip").reduce((layout, d) => layout.step(d, -1), x.layout));
  }),

  /** Windows of `size` elements every `step` along a dim, as a view with the window as a new last dim. */
  unfold: op("x dim size step", (x: Tensor, dim: number, size: number, step: number): Tensor => {
    const d = normalizeDim(dim, x.rank, "unfold");
    check.positiveInt("unfold", "the size", size);
    check.positiveInt("unfold", "the step", step);
    checkShape([...x.shape, size]);
    const length = x.shape[d]!;
    if (size > length)
      fail("InvalidArgument", `unfold: windows of ${size} do not fit dim ${d} of ${formatShape(x.shape)}`);
    const { shape, strides, offset } = x.layout;
    const count = Math.floor((length - size) / step) + 1;
    return x.view(
      new Layout([...shape.with(d, count), size], [...strides.with(d, strides[d]! * step), strides[d]!], offset),
    );
  }),

  /** Adds `left` zeros before and `right` zeros after a dim. */
  padWithZeros: op("x dim left right", (x: Tensor, dim: number, left: number, right: number): Tensor => {
    const d = normalizeDim(dim, x.rank, "padWithZeros");
    check.positiveInt("padWithZeros", "the left padding", left, 0);
    check.positiveInt("padWithZeros", "the right padding", right, 0);
    const out = Tensor.zeros(x.shape.with(d, x.shape[d]! + left + right), {
      dtype: x.dtype,
      device: x.device,
    });
    using middle = out.narrow(d, left, x.shape[d]!);
    call(x.backend, "copy", x, middle);
    return out;
  }),

  /** Repeats the first element `left` times before and the last `right` times after a dim. */
  padWithSame: op("x dim left right", (x: Tensor, dim: number, left: number, right: number): Tensor => {
    const d = normalizeDim(dim, x.rank, "padWithSame");
    check.positiveInt("padWithSame", "the left padding", left, 0);
    check.positiveInt("padWithSame", "the right padding", right, 0);
    const size = x.shape[d]!;
    if (size === 0 && left + right > 0)
      fail("EmptyTensor", `padWithSame: dim ${d} of ${formatShape(x.shape)} has no element to repeat`);
    if (left + right === 0) return x.view(x.layout);
    using first = x.narrow(d, 0, 1);
    using last = x.narrow(d, size - 1, 1);
    using before = first.broadcastAs(x.shape.with(d, left));
    using after = last.broadcastAs(x.shape.with(d, right));
    return cat([before, x, after], d);
  }),
});

function fillHole(shape: Shape, from: Shape): Shape {
  if (!Array.isArray(shape)) return checkShape(shape);
  const hole = shape.indexOf(-1);
  if (hole < 0) return checkShape(shape);
  const rest = numel(shape.filter((_, i) => i !== hole));
  const total = numel(from);
  if (shape.lastIndexOf(-1) !== hole || rest === 0 || total % rest !== 0) {
    fail("ShapeMismatch", `reshape: ${formatShape(from)} does not determine the −1 in ${formatShape(shape)}`);
  }
  return checkShape(shape.with(hole, total / rest));
}

function cat<D extends DType>(tensors: readonly Tensor<D>[], dim: number): Tensor<D> {
  const first =
    (Array.isArray(tensors) ? (tensors as Tensor<D>[])[0] : undefined) ??
    fail("InvalidArgument", "cat takes an array of at least one tensor: cat([a, b], 0)");
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
    call(out.backend, "copy", t, place);
    at += t.shape[d]!;
  }
  return out;
}

function stack<D extends DType>(tensors: readonly Tensor<D>[], dim: number): Tensor<D> {
  const raised = tensors.map((t) => t.unsqueeze(dim));
  try {
    return cat(raised, dim);
  } finally {
    for (const t of raised) t.dispose();
  }
}

/** What joins several tensors. */
export const joining = group("shape", {
  cat: op("tensors dim", cat),
  stack: op("tensors dim", stack),
});
