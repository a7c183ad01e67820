import type { Architecture } from "./architecture.ts";
import { llama } from "./llama.ts";

const { huggingFace, gguf } = llama;

export const glm4: Architecture = {
  ...llama,
  norms: ["attentionNorm", "postAttentionNorm", "mlpNorm", "postMlpNorm"],
  huggingFace: {
    ...huggingFace,
    interleaved: true,
    defaults: () => ({ partial_rotary_factor: 0.5 }),
    names: {
      ...huggingFace.names,
      norm: {
        ...huggingFace.names.norm,
        postAttentionNorm: "post_self_attn_layernorm",
        postMlpNorm: "post_mlp_layernorm",
      },
    },
  },
  gguf: {
    ...gguf,
    name: "glm4",
    writesFused: true,
    // The gate lies over the up projection, under the name of the latter.
    names: { ...gguf.names, fused: { "gate,up": "ffn_up" } },
  },
};
