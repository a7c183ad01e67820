/**
 * Cuts an op into pieces whose operands and result fit where there is little room. Along an axis the op computes each part
 * of its result from the same part of its operands, or from the whole of those that have no such dim.
 */
import type { Layout } from "../../../core/layout.ts";
import type { View } from "../../backend.ts";

export interface Axis {
  /** Into so many parts it can be cut. */
  readonly units: number;
  /** The dim of each operand that goes along, whose size is a multiple of the units; null for those that stay whole. */
  readonly dims: readonly (number | null)[];
  /** The dim of the result. */
  readonly out: number;
  /** No part is smaller, unless the whole is: a kernel may sum in another order where there are few. Default 1. */
  readonly grain?: number;
}

export interface Piece {
  readonly views: readonly (View | null)[];
  /** Which part of the result it gives. */
  readonly out: Layout;
}

/** The dims that all operands and the result share. */
export const sameDims = (shape: readonly number[], operands: number): Axis[] =>
  shape.map((units, dim) => ({ units, dims: new Array<number>(operands).fill(dim), out: dim }));

/**
 * The pieces, whose cost is at most `limit` where that can be reached by cutting. It is always the axis along which the
 * halves cost least that is cut; of equal ones the first, whose pieces lie in one place.
 */
export function* pieces(
  whole: Piece,
  axes: readonly Axis[],
  cost: (piece: Piece) => number,
  limit: number,
): Generator<Piece> {
  const now = cost(whole);
  if (now <= limit) return yield whole;
  let best: { readonly cost: number; readonly axis: number } | undefined;
  for (const [i, axis] of axes.entries()) {
    if (axis.units < 2 * (axis.grain ?? 1)) continue;
    const half = cost(part(whole, axis, 0, middleOf(axis)));
    if (half < now && (best === undefined || half < best.cost)) best = { cost: half, axis: i };
  }
  if (best === undefined) return yield whole;
  const axis = axes[best.axis]!;
  const middle = middleOf(axis);
  for (const [start, units] of [
    [0, middle],
    [middle, axis.units - middle],
  ] as const) {
    const rest = axes.with(best.axis, { ...axis, units });
    yield* pieces(part(whole, axis, start, units), rest, cost, limit);
  }
}

const middleOf = ({ units, grain = 1 }: Axis): number => Math.max(grain, Math.floor(units / 2 / grain) * grain);

function part({ views, out }: Piece, { units, dims, out: outDim }: Axis, start: number, count: number): Piece {
  const cut = (layout: Layout, dim: number): Layout => {
    const each = layout.shape[dim]! / units;
    return layout.narrow(dim, start * each, count * each);
  };
  return {
    views: views.map((view, i) => {
      const dim = dims[i];
      return view && dim !== null && dim !== undefined
        ? { storage: view.storage, layout: cut(view.layout, dim) }
        : view;
    }),
    out: cut(out, outDim),
  };
}
