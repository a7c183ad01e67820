/** From the hidden states of sequences one after the other to a vector for each. */
import { Tensor } from "../../ops/index.ts";
import type { Packed } from "../packed.ts";
import type { Pooling } from "./settings.ts";

/** hidden (rows, width) → (sequences, width) in f32. Call it inside a scope. */
export function pool(hidden: Tensor, packed: Packed, pooling: Pooling): Tensor {
  if (pooling === "mean") return means(hidden.toDType("f32"), packed);
  const { offsets } = packed;
  const rows = pooling === "cls" ? offsets.slice(0, -1) : offsets.slice(1).map((end) => end - 1);
  const ids = Tensor.from(Uint32Array.from(rows), { device: hidden.device });
  return hidden.indexSelect(ids, 0).toDType("f32");
}

/** Sequences of one length are summed at once. */
function means(hidden: Tensor, { runs, lengths }: Packed): Tensor {
  const width = hidden.shape[1]!;
  const sums = runs.map(({ start, count, length }) =>
    hidden
      .narrow(0, start, count * length)
      .reshape([count, length, width])
      .sum(1),
  );
  const all = sums.length === 1 ? sums[0]! : Tensor.cat(sums, 0);
  const shares = Float32Array.from(lengths, (length) => 1 / length);
  return all.mul(Tensor.from(shares, { shape: [lengths.length, 1], device: hidden.device }));
}

/** Below this a vector's length counts as this. */
const SHORTEST = 1e-12;

/** x (n, width) with each row scaled to length 1. Call it inside a scope. */
export const unitRows = (x: Tensor): Tensor => x.div(x.sqr().sumKeepdim(1).sqrt().maximum(SHORTEST));
