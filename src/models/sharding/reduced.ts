/** The halves of a layer that is split: each rank has a part of a sum, and all of them have the sum. */
import type { Tensor } from "../../ops/index.ts";
import type { SelfAttention } from "../attention.ts";
import type { FeedForward } from "../mlp.ts";
import type { LayerCache, Step } from "../steps.ts";
import type { Around, Norm } from "../weights/weights.ts";
import type { Shard } from "./shard.ts";

/** The residual is a part of one rank's. */
const ownPart = ({ norm, ...after }: Around, { rank }: Shard): Around => ({
  norm,
  ...(rank === 0 && after),
});

export const reducedAttention = (own: SelfAttention, shard: Shard): SelfAttention => ({
  forward: (x: Tensor, step: Step, cache: LayerCache | undefined, around: Around) =>
    shard.sum(own.forward(x, step, cache, ownPart(around, shard))),
});

/** The RMS norm of rows of which each rank has a part, all as long as each other: their squares are added up. */
export const normalizeOver =
  (shard: Shard) =>
  (x: Tensor, { weight, eps }: Norm): Tensor => {
    const wide = x.toDType("f32");
    const squares = shard.sum(wide.sqr().sumKeepdim(-1));
    const scale = squares
      .affine(1 / (weight.numel * shard.ranks), eps)
      .sqrt()
      .recip();
    return wide.mul(scale).mul(weight.toDType("f32")).toDType(x.dtype);
  };

export const reducedFeedForward = (own: FeedForward, shard: Shard): FeedForward => ({
  forward: (x: Tensor, around: Around) => shard.sum(own.forward(x, ownPart(around, shard))),
});
