import type { ModelConfig } from "../config.ts";
import type { JsonFields } from "../json-fields.ts";
import type { Architecture } from "./architecture.ts";
import { gemma2 } from "./gemma2.ts";
import { refuse } from "./refuse.ts";

/** The largest model scales q·k by the width of a head of the hidden size. */
const LAYERS_OF_27B = 62;

const ggufScale = ({ hiddenSize, heads, headDim, layers }: ModelConfig): number =>
  1 / Math.sqrt(layers === LAYERS_OF_27B ? hiddenSize / heads : headDim);

/** Files from before `layer_types` name the period of the layers that attend to everything. */
const period = (fields: JsonFields): number =>
  fields.countOr("sliding_window_pattern", fields.countOr("_sliding_window_pattern", 6));

export const gemma3: Architecture = {
  ...gemma2,
  qkNorm: "head",
  ropeTheta: 1_000_000,
  huggingFace: {
    ...gemma2.huggingFace,
    // Models that see, too, name little of their language model.
    defaults: () => ({
      ...{ vocab_size: 262_208, num_attention_heads: 8, num_key_value_heads: 4, head_dim: 256 },
      ...{ max_position_embeddings: 131_072, query_pre_attn_scalar: 256, sliding_window: 4096 },
      rope_local_base_freq: 10_000,
    }),
    hasWindow: (layer, fields) => (layer + 1) % period(fields) !== 0,
    adjust: (fields, config) => {
      refuse(fields, "use_bidirectional_attention");
      return gemma2.huggingFace.adjust!(fields, config);
    },
  },
  gguf: {
    ...gemma2.gguf,
    name: "gemma3",
    windowPeriod: 6,
    localTheta: 10_000,
    fixedScale: ggufScale,
    adjust: (own, config) => ({
      attentionScale: own.positiveOr("attention.scale", ggufScale(config)),
      embeddingScale: Math.sqrt(config.hiddenSize),
    }),
  },
};
