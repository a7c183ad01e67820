/** Scaling, counting, and ids for whole slices. */
import { asPartOf, call } from "../../backend/call.ts";
import { isInt } from "../../core/dtype.ts";
import type { Shape } from "../../core/layout.ts";
import { scope } from "../../tensor/scope.ts";
import type { Tensor } from "../../tensor/tensor.ts";

/** What halves are computed in. */
export const widen = (x: Tensor): Tensor => x.toDType(x.dtype === "f64" ? "f64" : "f32");

export const affine = (x: Tensor, mul: number, add: number): Tensor =>
  scope(() => (isInt(x.dtype) ? x : widen(x)).mul(mul).add(add).toDType(x.dtype));

/** 1-D ids repeated over every dim of `shape` but `dim`. */
const spread = (ids: Tensor, dim: number, shape: Shape): Tensor =>
  ids.reshape(shape.map((_, i) => (i === dim ? ids.numel : 1))).broadcastAs(shape);

export const indexSelect = (x: Tensor, ids: Tensor, dim: number): Tensor =>
  scope(() => asPartOf("indexSelect", () => x.gather(spread(ids, dim, x.shape.with(dim, ids.numel)), dim)));

export function indexAdd(dst: Tensor, ids: Tensor, src: Tensor, dim: number): void {
  scope(() => {
    asPartOf("indexAdd", () => call(dst.backend, "scatter", dst, spread(ids, dim, src.shape), src, dim, true));
  });
}

export function advance(counts: Tensor, by: number): void {
  scope(() => {
    call(counts.backend, "copy", counts.add(BigInt(by)), counts);
  });
}
