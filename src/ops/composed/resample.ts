/** Pooling and upsampling: windows as views, and rows and columns by their ids. */
import { call } from "../../backend/call.ts";
import type { PoolParams, Size2d } from "../../backend/fused-ops.ts";
import { type DType, isInt } from "../../core/dtype.ts";
import { Layout } from "../../core/layout.ts";
import { scope } from "../../tensor/scope.ts";
import { result, Tensor } from "../../tensor/tensor.ts";
import { widen } from "./elements.ts";

export const pool2d = (kind: "avg" | "max", x: Tensor, { kernel, stride, size }: PoolParams): Tensor =>
  scope(() => {
    // Integers are summed where nothing overflows, and divided towards zero.
    const source = kind === "max" ? x : isInt(x.dtype) ? x.toDType("i64") : widen(x);
    const [b, c] = source.shape as [number, number, number, number];
    const [sb, sc, sh, sw] = source.layout.strides as [number, number, number, number];
    const windows = source.view(
      new Layout([b, c, ...size, ...kernel], [sb, sc, sh * stride[0], sw * stride[1], sh, sw], source.layout.offset),
    );
    const reduced = result(
      call(x.backend, "reduce", kind === "max" ? "max" : "sum", windows, 2),
      windows.shape.slice(0, 4),
    );
    return kind === "max" ? reduced : reduced.div(kernel[0] * kernel[1]).toDType(x.dtype);
  });

const idsOf = (ids: readonly number[], { device }: Tensor): Tensor => Tensor.from(Uint32Array.from(ids), { device });
const outputs = (size: number): number[] => Array.from({ length: size }, (_, i) => i);

export const upsampleNearest2d = (x: Tensor, size: Size2d): Tensor =>
  scope(() =>
    size.reduce((rows, count, i) => {
      const from = x.shape[2 + i]!;
      // The step is rounded to f32 before it is multiplied, as PyTorch does.
      const step = Math.fround(from / count);
      const ids = outputs(count).map((o) => Math.min(Math.floor(Math.fround(o * step)), from - 1));
      return rows.indexSelect(idsOf(ids, x), 2 + i);
    }, x),
  );

/** Where an output lies between two inputs: the first, the second, and how near to the second. */
function between(from: number, to: number, alignCorners: boolean, given: number | undefined, dtype: DType) {
  const round = dtype === "f64" ? (n: number) => n : Math.fround;
  const step = round(alignCorners ? (to > 1 ? (from - 1) / (to - 1) : 0) : (given ?? from / to));
  const places = outputs(to).map((i) => {
    const at = alignCorners ? round(step * i) : Math.max(0, round(round(step * (i + 0.5)) - 0.5));
    return Math.min(at, from - 1);
  });
  const first = places.map(Math.floor);
  return {
    first,
    second: first.map((i) => Math.min(i + 1, from - 1)),
    near: places.map((at, i) => round(at - first[i]!)),
  };
}

export const upsampleBilinear2d = (x: Tensor, size: Size2d, alignCorners: boolean, scale: Size2d | null): Tensor =>
  scope(() => {
    const wide = widen(x);
    // Columns first, then rows, each a mean of two weighted by distance.
    const mixed = ([1, 0] as const).reduce((image, i) => {
      const dim = 2 + i;
      const { first, second, near } = between(x.shape[dim]!, size[i], alignCorners, scale?.[i], wide.dtype);
      const options = { dtype: wide.dtype, device: x.device, shape: i === 0 ? [size[0], 1] : [1, size[1]] };
      const weight = Tensor.from(near, options);
      const rest = Tensor.from(
        near.map((n) => 1 - n),
        options,
      );
      const [a, b] = [first, second].map((ids) => image.indexSelect(idsOf(ids, x), dim)) as [Tensor, Tensor];
      return a.mul(rest).add(b.mul(weight));
    }, wide);
    return mixed.toDType(x.dtype);
  });
