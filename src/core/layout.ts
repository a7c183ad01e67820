/**
 * A `Layout` maps a tensor's indices to elements of its storage: shape, strides and offset, counted in elements.
 * All view logic lives here and is pure, so that a backend only ever sees "these elements, in this order".
 */
import { fail, shown } from "./errors.ts";

export type Shape = readonly number[];
export const MAX_RANK = 8;

export const numel = (shape: Shape): number => shape.reduce((a, b) => a * b, 1);
export const formatShape = (shape: Shape): string => `[${shape.join(", ")}]`;
export const sameShape = (a: Shape, b: Shape): boolean => a.length === b.length && a.every((d, i) => d === b[i]);

export function contiguousStrides(shape: Shape): number[] {
  const strides = new Array<number>(shape.length);
  let step = 1;
  for (let i = shape.length - 1; i >= 0; i--) {
    strides[i] = step;
    step *= shape[i]!;
  }
  return strides;
}

export function checkShape(shape: Shape): Shape {
  if (!Array.isArray(shape)) {
    fail("InvalidShape", `a shape is an array of sizes such as [2, 3] (a number alone: []), not ${shown(shape)}`);
  }
  if (shape.length > MAX_RANK) {
    fail("InvalidShape", `shape ${formatShape(shape)} has rank ${shape.length}; the largest rank is ${MAX_RANK}`);
  }
  for (const d of shape) {
    if (!Number.isSafeInteger(d) || d < 0) {
      fail("InvalidShape", `shape ${formatShape(shape)}: ${d} is not a size; sizes are whole numbers from 0 up`);
    }
  }
  if (!Number.isSafeInteger(numel(shape))) fail("InvalidShape", `shape ${formatShape(shape)} has too many elements`);
  return shape;
}

/** A dim counted from the front (0 …) or the back (−1 …) as an index into a shape of `rank` dims. */
export function normalizeDim(dim: number, rank: number, op: string): number {
  if (!Number.isInteger(dim)) fail("DimOutOfRange", `${op}: a dim is a whole number, not ${shown(dim)}`);
  const d = dim < 0 ? dim + rank : dim;
  if (d < 0 || d >= rank) {
    fail("DimOutOfRange", `${op}: dim ${dim} is out of range for a tensor of rank ${rank}`);
  }
  return d;
}

export function normalizeDims(dims: readonly number[], rank: number, op: string): number[] {
  if (!Array.isArray(dims)) {
    fail("InvalidArgument", `${op}: dims come as one array: ${op}([0, 1]), not ${shown(dims)}`);
  }
  const out = dims.map((d) => normalizeDim(d, rank, op));
  if (new Set(out).size !== out.length) fail("DuplicateDim", `${op}: dims ${formatShape(dims)} name a dim twice`);
  return out;
}

/** NumPy's rule: align at the end, sizes equal or 1. */
export function broadcastShapes(a: Shape, b: Shape, op: string): number[] {
  const rank = Math.max(a.length, b.length);
  const out = new Array<number>(rank);
  for (let i = 1; i <= rank; i++) {
    const x = a[a.length - i] ?? 1;
    const y = b[b.length - i] ?? 1;
    if (x !== y && x !== 1 && y !== 1) {
      fail("BroadcastIncompatible", `${op}: shapes ${formatShape(a)} and ${formatShape(b)} do not broadcast`);
    }
    out[rank - i] = x === 1 ? y : x;
  }
  return out;
}

export class Layout {
  readonly shape: Shape;
  readonly strides: readonly number[];
  readonly offset: number;

  constructor(shape: Shape, strides: readonly number[], offset = 0) {
    this.shape = shape;
    this.strides = strides;
    this.offset = offset;
  }

  static contiguous(shape: Shape, offset = 0): Layout {
    return new Layout(shape, contiguousStrides(shape), offset);
  }

  get rank(): number {
    return this.shape.length;
  }

  get numel(): number {
    return numel(this.shape);
  }

  /** Whether the elements lie in row-major order without gaps, starting at `offset`. */
  isContiguous(): boolean {
    if (this.shape.includes(0)) return true;
    let step = 1;
    for (let i = this.rank - 1; i >= 0; i--) {
      const d = this.shape[i]!;
      if (d !== 1 && this.strides[i] !== step) return false;
      step *= d;
    }
    return true;
  }

  transpose(a: number, b: number): Layout {
    const dims = this.shape.map((_, i) => i);
    [dims[a], dims[b]] = [b, a];
    return this.permute(dims);
  }

  permute(dims: readonly number[]): Layout {
    return new Layout(
      dims.map((d) => this.shape[d]!),
      dims.map((d) => this.strides[d]!),
      this.offset,
    );
  }

  /** `asked` is the start as the user wrote it, for the error. */
  narrow(dim: number, start: number, length: number, asked = start): Layout {
    const size = this.shape[dim]!;
    if (!Number.isInteger(start) || !Number.isInteger(length) || start < 0 || length < 0 || start + length > size) {
      fail(
        "NarrowInvalidArgs",
        `narrow: start ${asked} and length ${length} do not fit dim ${dim} of shape ${formatShape(this.shape)}`,
      );
    }
    return new Layout(this.shape.with(dim, length), this.strides, this.offset + start * this.strides[dim]!);
  }

  /** Adds a dim of size 1 before `dim`. */
  unsqueeze(dim: number): Layout {
    const stride = dim < this.rank ? this.strides[dim]! * this.shape[dim]! : 1;
    return new Layout(this.shape.toSpliced(dim, 0, 1), this.strides.toSpliced(dim, 0, stride), this.offset);
  }

  /** Drops the given dims, whose sizes are 1. */
  squeeze(dims: readonly number[]): Layout {
    const keep = (_: number, i: number) => !dims.includes(i);
    return new Layout(this.shape.filter(keep), this.strides.filter(keep), this.offset);
  }

  /** Takes every `step`-th element of `dim`; a negative step walks backwards from the end. */
  step(dim: number, step: number): Layout {
    const size = this.shape[dim]!;
    const count = Math.ceil(size / Math.abs(step));
    const start = step < 0 && size > 0 ? (size - 1) * this.strides[dim]! : 0;
    return new Layout(
      this.shape.with(dim, count),
      this.strides.with(dim, this.strides[dim]! * step),
      this.offset + start,
    );
  }

  broadcastTo(shape: Shape, op = "broadcastAs"): Layout {
    const lead = shape.length - this.rank;
    const strides = shape.map((d, i) => {
      const own = i < lead ? 1 : this.shape[i - lead]!;
      if (own === d) return i < lead ? 0 : this.strides[i - lead]!;
      if (own === 1) return 0;
      return fail(
        "BroadcastIncompatible",
        `${op}: shape ${formatShape(this.shape)} does not broadcast to ${formatShape(shape)}`,
      );
    });
    if (lead < 0) {
      fail("BroadcastIncompatible", `${op}: shape ${formatShape(this.shape)} has more dims than ${formatShape(shape)}`);
    }
    return new Layout(shape, strides, this.offset);
  }

  /** The same elements under another shape without moving them, or `null` where the strides do not allow it. */
  reshape(shape: Shape): Layout | null {
    if (this.isContiguous()) return Layout.contiguous(shape, this.offset);
    const from = collapse([this]);
    const strides = new Array<number>(shape.length);
    let at = from.shape.length - 1;
    let left = at >= 0 ? from.shape[at]! : 1;
    let stride = at >= 0 ? from.strides[0]![at]! : 1;
    for (let i = shape.length - 1; i >= 0; i--) {
      const d = shape[i]!;
      if (d === 1) {
        strides[i] = 1;
        continue;
      }
      if (left === 1 && at > 0) {
        at--;
        left = from.shape[at]!;
        stride = from.strides[0]![at]!;
      }
      if (left % d !== 0) return null;
      strides[i] = stride;
      stride *= d;
      left /= d;
    }
    return new Layout(shape, strides, this.offset);
  }

  /** The strides of `x` where two of its indices may name the same element make it unfit to be written to. */
  overlapsItself(): boolean {
    const dims = this.shape
      .map((d, i) => ({ d, s: Math.abs(this.strides[i]!) }))
      .filter(({ d }) => d > 1)
      .sort((a, b) => a.s - b.s);
    let reach = 0;
    for (const { d, s } of dims) {
      if (s <= reach) return true;
      reach += (d - 1) * s;
    }
    return false;
  }
}

/** One shape and the strides of several operands over it, as few dims as possible. */
export interface Collapsed {
  readonly shape: number[];
  /** One array of strides per operand, parallel to `shape`. */
  readonly strides: number[][];
}

/**
 * Merges neighbouring dims that every operand walks in one stride and drops those of size 1, so that kernels iterate
 * over few dims. All layouts must have one shape. A contiguous operand alone gives one dim of stride 1.
 */
export function collapse(layouts: readonly Layout[]): Collapsed {
  const shape: number[] = [];
  const strides: number[][] = layouts.map(() => []);
  const first = layouts[0]!;
  for (let i = 0; i < first.rank; i++) {
    const d = first.shape[i]!;
    if (d === 1) continue;
    const last = shape.length - 1;
    if (last >= 0 && layouts.every((l, j) => strides[j]![last] === l.strides[i]! * d)) {
      shape[last]! *= d;
      for (const [j, l] of layouts.entries()) strides[j]![last] = l.strides[i]!;
    } else {
      shape.push(d);
      for (const [j, l] of layouts.entries()) strides[j]!.push(l.strides[i]!);
    }
  }
  return { shape, strides };
}
