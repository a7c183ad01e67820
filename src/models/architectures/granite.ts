import type { GgufTyped } from "../../formats/index.ts";
import type { Architecture } from "./architecture.ts";
import { llama } from "./llama.ts";

const real = (value: number): GgufTyped => ({ type: "f32", value });

export const granite: Architecture = {
  ...llama,
  huggingFace: {
    ...llama.huggingFace,
    adjust: (fields) => ({
      attentionScale: fields.positiveOr("attention_multiplier", 1),
      embeddingScale: fields.positiveOr("embedding_multiplier", 1),
      residualScale: fields.positiveOr("residual_multiplier", 1),
      logitScale: 1 / fields.positiveOr("logits_scaling", 1),
    }),
  },
  gguf: {
    ...llama.gguf,
    name: "granite",
    adjust: (own) => ({
      embeddingScale: own.positiveOr("embedding_scale", 1),
      residualScale: own.positiveOr("residual_scale", 1),
      logitScale: 1 / own.positiveOr("logit_scale", 1),
    }),
    metadata: ({ embeddingScale, residualScale, logitScale }) => ({
      embedding_scale: real(embeddingScale),
      residual_scale: real(residualScale),
      logit_scale: real(1 / logitScale),
    }),
  },
};
