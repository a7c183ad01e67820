/** Norms as parts of a model: by root mean square, or LayerNorm with a bias or without. */
import { layerNorm, rmsNorm } from "../nn/index.ts";
import type { Tensor } from "../ops/index.ts";
import { architectureOf } from "./architectures/index.ts";
import type { ModelConfig } from "./config.ts";
import type { Norm, NormRole, Place, Weights } from "./weights/weights.ts";

/** The norm of a role, of the kind that the model's architecture has. */
export async function loadNorm(
  config: ModelConfig,
  weights: Weights,
  role: NormRole,
  size: number,
  place: Place,
): Promise<Norm> {
  const { weight, bias } = await weights.norm(role, size, place);
  return { kind: architectureOf(config).normKind, weight, bias, eps: config.normEps };
}

/** Of the last dim of x. */
export const normalize = (x: Tensor, { kind, weight, bias, eps }: Norm): Tensor =>
  kind === "rms" ? rmsNorm(x, weight, eps) : layerNorm(x, weight, bias, eps);
