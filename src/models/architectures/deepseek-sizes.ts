/** What both formats say of DeepSeek's models, in other words. */
import type { Latent, ModelConfig } from "../config.ts";
import type { RoutingGroups } from "../experts/routing.ts";

/** Layers with experts behind `dense` without. */
export const leadingDense = (layers: number, dense: number): boolean[] =>
  Array.from({ length: layers }, (_, layer) => layer >= dense);

/** Where yarn is told `all`, the scores of all dims grow as cos and sin would have made those of the turned ones. */
export function latentSizes(config: ModelConfig, factor: number, all: number, latent: Latent): Partial<ModelConfig> {
  const headDim = latent.keyDim + config.rope.dims;
  const magnitude = factor > 1 ? 1 + 0.1 * all * Math.log(factor) : 1;
  return { latent, headDim, attentionScale: magnitude ** 2 / Math.sqrt(headDim) };
}

/** Null where there is but one. */
export const groupsOf = (
  groups: number,
  perToken: number,
  scoredBy: RoutingGroups["scoredBy"],
): RoutingGroups | null => (groups > 1 ? { count: groups, perToken, scoredBy } : null);
