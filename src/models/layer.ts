/** One layer of a transformer: attention and feed-forward, each with its norms around it and added to its input. */
import type { NextProduct } from "../backend/fused-ops.ts";
import type { Tensor } from "../ops/index.ts";
import type { LayerNormRole } from "./architectures/architecture.ts";
import { architectureOf } from "./architectures/index.ts";
import { loadAttention, type SelfAttention } from "./attention.ts";
import type { ModelConfig } from "./config.ts";
import { type FeedForward, loadFeedForward } from "./mlp.ts";
import { loadNorm, normalize } from "./norm.ts";
import type { LayerCache, Step } from "./steps.ts";
import { type Around, type Norm, nextOf, type Weights } from "./weights/weights.ts";

export interface Layer {
  readonly attentionNorm: Norm | undefined;
  readonly attention: SelfAttention;
  readonly postAttentionNorm: Norm | undefined;
  readonly mlpNorm: Norm | undefined;
  readonly mlp: FeedForward;
  readonly postMlpNorm: Norm | undefined;
}

export async function loadLayer(config: ModelConfig, weights: Weights, layer: number): Promise<Layer> {
  const { norms } = architectureOf(config);
  const norm = async (role: LayerNormRole): Promise<Norm | undefined> =>
    norms.includes(role) ? loadNorm(config, weights, role, config.hiddenSize, { layer }) : undefined;
  return {
    attentionNorm: await norm("attentionNorm"),
    attention: await loadAttention(config, weights, layer),
    postAttentionNorm: await norm("postAttentionNorm"),
    mlpNorm: await norm("mlpNorm"),
    mlp: await loadFeedForward(config, weights, layer),
    postMlpNorm: await norm("postMlpNorm"),
  };
}

/** What a layer begins with. */
export const beginningOf = ({ attention, attentionNorm, mlpNorm }: Layer, { parallelResidual }: ModelConfig) =>
  parallelResidual && !mlpNorm ? null : nextOf(attention.first, attentionNorm);

/** x (rows, hidden) → the same, in the memory of x where that helps; `next` is what it goes into. Disposes x. */
export function runLayer(
  layer: Layer,
  { residualScale: scale, parallelResidual }: ModelConfig,
  x: Tensor,
  step: Step,
  cache: LayerCache | undefined,
  next: NextProduct<Tensor> | null,
): Tensor {
  const { attentionNorm, postAttentionNorm, mlpNorm, postMlpNorm } = layer;
  // One norm for both halves is done once, and is then no part of a product.
  const shared = parallelResidual && !mlpNorm && attentionNorm ? normalize(x, attentionNorm) : null;
  const behind = parallelResidual ? null : nextOf(layer.mlp.first, mlpNorm);
  const middle = residual(x, !parallelResidual, postAttentionNorm, scale, behind, (rest) =>
    layer.attention.forward(shared ?? x, step, cache, { norm: shared ? undefined : attentionNorm, ...rest }),
  );
  const input = shared ?? (parallelResidual ? x : middle);
  // Else two tensors would seem to need the memory that both have.
  if (input !== x) x.dispose();
  return residual(middle, true, postMlpNorm, scale, next, (rest) =>
    layer.mlp.forward(input, { norm: mlpNorm, ...rest }),
  );
}

/** x plus what `run` gives, which adds it itself unless a norm or a scale comes between. */
function residual(
  x: Tensor,
  spends: boolean,
  post: Norm | undefined,
  scale: number,
  next: NextProduct<Tensor> | null,
  run: (rest: Around) => Tensor,
): Tensor {
  if (!post && scale === 1) return run({ residual: x, spendsResidual: spends, next });
  const y = run({});
  const normed = post ? normalize(y, post) : y;
  return x.add(scale === 1 ? normed : normed.affine(scale, 0));
}
