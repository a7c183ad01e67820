/** A layer of an encoder: norms before attention and MLP, as in newer ones, or behind each residual, as in BERT. */
import type { Tensor } from "../../ops/index.ts";
import type { LayerNormRole } from "../architectures/architecture.ts";
import { architectureOf } from "../architectures/index.ts";
import { loadAttention, type SelfAttention } from "../attention.ts";
import type { ModelConfig } from "../config.ts";
import { type FeedForward, loadFeedForward } from "../mlp.ts";
import { loadNorm, normalize } from "../norm.ts";
import type { Step } from "../steps.ts";
import type { Norm, Weights } from "../weights/weights.ts";

export interface EncoderLayer {
  readonly attentionNorm: Norm | undefined;
  readonly attention: SelfAttention;
  /** Of the sum with the residual. */
  readonly attentionSumNorm: Norm | undefined;
  readonly mlpNorm: Norm | undefined;
  readonly mlp: FeedForward;
  readonly mlpSumNorm: Norm | undefined;
}

export async function loadEncoderLayer(config: ModelConfig, weights: Weights, layer: number): Promise<EncoderLayer> {
  const { norms, encoder } = architectureOf(config);
  const norm = async (role: LayerNormRole): Promise<Norm | undefined> =>
    norms.includes(role) && !(role === "attentionNorm" && layer === 0 && encoder!.skipsFirstNorm)
      ? loadNorm(config, weights, role, config.hiddenSize, { layer })
      : undefined;
  return {
    attentionNorm: await norm("attentionNorm"),
    attention: await loadAttention(config, weights, layer),
    attentionSumNorm: await norm("postAttentionNorm"),
    mlpNorm: await norm("mlpNorm"),
    mlp: await loadFeedForward(config, weights, layer),
    mlpSumNorm: await norm("postMlpNorm"),
  };
}

export function runEncoderLayer(layer: EncoderLayer, x: Tensor, step: Step): Tensor {
  const { attention, attentionNorm, attentionSumNorm, mlp, mlpNorm, mlpSumNorm } = layer;
  const attended = attention.forward(x, step, undefined, { norm: attentionNorm, residual: x });
  const middle = attentionSumNorm ? normalize(attended, attentionSumNorm) : attended;
  const fed = mlp.forward(middle, { norm: mlpNorm, residual: middle });
  return mlpSumNorm ? normalize(fed, mlpSumNorm) : fed;
}
