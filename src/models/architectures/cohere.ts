import type { Architecture } from "./architecture.ts";
import { llama } from "./llama.ts";
import { refuse } from "./refuse.ts";

/** Command R. */
export const cohere: Architecture = {
  ...llama,
  norms: ["attentionNorm"],
  normKind: "layer",
  huggingFace: {
    ...llama.huggingFace,
    keys: { ...llama.huggingFace.keys, normEps: "layer_norm_eps" },
    interleaved: true,
    tiedByDefault: true,
    adjust: (fields) => {
      refuse(fields, "use_qk_norm");
      return { parallelResidual: true, logitScale: fields.positiveOr("logit_scale", 0.0625) };
    },
  },
  gguf: {
    ...llama.gguf,
    name: "command-r",
    adjust: (own) => ({ parallelResidual: true, logitScale: own.positiveOr("logit_scale", 1) }),
    metadata: ({ logitScale }) => ({ logit_scale: { type: "f32", value: logitScale } }),
  },
};
