import { fail } from "../../core/errors.ts";
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
    // Its activations need the range.
    halves: "bf16",
    writesFused: true,
    // The gate lies over the up projection, under the name of the latter.
    names: { ...gguf.names, fused: { "gate,up": "ffn_up" } },
    // Those that see have rotary dims in sections; those that read images a layer that guesses, too.
    adjust: (own) =>
      own.has("rope.dimension_sections") || own.countOr("nextn_predict_layers", 0, 0) > 0
        ? fail("InvalidFile", `${own.source} is a GLM-4 for images, which is not run; one for text is`)
        : {},
  },
};
