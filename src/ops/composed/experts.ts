/** Mixtures of experts by way of the host, which sorts rows by their experts: each then runs once over all that chose it. */
import { call } from "../../backend/call.ts";
import type { ExpertParams, RoutedParams } from "../../backend/fused-ops.ts";
import { fail } from "../../core/errors.ts";
import type { QuantType } from "../../core/quant-types.ts";
import { scope } from "../../tensor/scope.ts";
import { result, Tensor } from "../../tensor/tensor.ts";
import { compute } from "../compute.ts";

/** The id that means "no expert": its rows are zeros. */
const NOTHING = 0xffffffff;

export function topk(x: Tensor, k: number, softmax: boolean): { values: Tensor; ids: Tensor } {
  const order = x.argSortLastDim(false);
  const some = order.narrow(-1, 0, k);
  order.dispose();
  const best = x.gather(some, -1);
  const ids = some.contiguous();
  some.dispose();
  if (!softmax) return { values: best, ids };
  const wide = best.toDType("f32");
  best.dispose();
  const values = wide.softmax(-1);
  wide.dispose();
  return { values, ids };
}

export function expertLinear(
  x: Tensor,
  w: Tensor,
  type: QuantType | null,
  ids: Tensor,
  p: ExpertParams<Tensor>,
): Tensor {
  if (!p.mix) return bySlot(x, w, type, ids, p);
  const y = bySlot(x, w, type, ids, p);
  const mixed = compute(x.backend, "mixExperts", [p.mix.shape[0]!, y.shape[1]!], y, p.mix, p.residual);
  y.dispose();
  return mixed;
}

export const routedExperts = (x: Tensor, scores: Tensor, open: Tensor, down: Tensor, p: RoutedParams<Tensor>): Tensor =>
  scope(() => {
    const { count, type, norm, glu, residual } = p;
    const shape = [1, count];
    const fused = call(x.backend, "topk", scores, count, true);
    const { values: mix, ids } = fused
      ? { values: result(fused.values, shape), ids: result(fused.ids, shape) }
      : topk(scores, count, true);
    const width = open.shape[1]! / 2;
    const gates = { norm, bias: null, glu, mix: null, residual: null };
    const opened = compute(x.backend, "expertLinear", [count, width], x, open, type, ids, gates);
    const sums = { norm: null, bias: null, glu: null, mix, residual };
    return compute(x.backend, "expertLinear", [1, down.shape[1]!], opened, down, type, ids, sums);
  });

/** A row for each slot. */
const bySlot = (x: Tensor, w: Tensor, type: QuantType | null, ids: Tensor, p: ExpertParams<Tensor>): Tensor =>
  scope(() => {
    const chosen = ids.dataSync() as Uint32Array;
    const [experts, outputs] = w.shape as [number, number];
    checkIds(chosen, experts);
    const columns = p.glu ? outputs / 2 : outputs;
    const slots = Uint32Array.from(chosen.keys())
      .filter((slot) => chosen[slot] !== NOTHING)
      .sort((a, b) => chosen[a]! - chosen[b]! || a - b);
    const options = { device: x.device };
    if (slots.length === 0) return Tensor.zeros([chosen.length, columns], { ...options, dtype: x.dtype });
    // Rows of x that are shared by the slots of one token.
    const share = x.shape[0] === chosen.length ? 1 : chosen.length / x.shape[0]!;
    const normed = p.norm ? compute(x.backend, "rmsNorm", x.shape, x, p.norm.weight, p.norm.eps) : x;
    const rows = normed.indexSelect(
      Tensor.from(
        slots.map((slot) => Math.floor(slot / share)),
        options,
      ),
      0,
    );
    const results: Tensor[] = [];
    for (let from = 0; from < slots.length; ) {
      const expert = chosen[slots[from]!]!;
      let to = from;
      while (to < slots.length && chosen[slots[to]!] === expert) to++;
      const own = rows.narrow(0, from, to - from);
      const weight = w.narrow(0, expert, 1).squeeze(0);
      const bias = p.bias ? p.bias.narrow(0, expert, 1).squeeze(0) : null;
      const params = { norm: null, bias, glu: p.glu, residual: null };
      results.push(compute(x.backend, "linear", [to - from, columns], own, weight, type, params));
      from = to;
    }
    const back = new Uint32Array(chosen.length).fill(NOTHING);
    for (const [i, slot] of slots.entries()) back[slot] = i;
    return Tensor.cat(results, 0).indexSelect(Tensor.from(back, options), 0);
  });

function checkIds(chosen: Uint32Array, experts: number): void {
  const bad = chosen.findIndex((id) => id >= experts && id !== NOTHING);
  if (bad >= 0)
    fail("InvalidIndex", `expertLinear: id ${chosen[bad]} at position ${bad} is out of range for ${experts} experts`);
}

/** In f32, so that halves are rounded once. */
export const mixExperts = (y: Tensor, mix: Tensor, residual: Tensor | null): Tensor =>
  scope(() => {
    const wide = y.dtype === "f64" ? "f64" : "f32";
    const [n, k] = mix.shape as [number, number];
    const mixed = y.toDType(wide).reshape([n, k, y.shape[1]!]).mul(mix.toDType(wide).unsqueeze(2)).sum(1);
    return (residual ? residual.toDType(wide).add(mixed) : mixed).toDType(y.dtype);
  });
