import type { Architecture } from "./architecture.ts";
import { llama } from "./llama.ts";
import { mistral } from "./mistral.ts";

const { names } = llama.gguf;

export const phi3: Architecture = {
  ...llama,
  huggingFace: mistral.huggingFace,
  gguf: {
    ...llama.gguf,
    name: "phi3",
    interleaved: false,
    writesFused: true,
    // The gate lies over the up projection, under the name of the latter.
    names: { ...names, fused: { ...names.fused, "gate,up": "ffn_up" } },
  },
};
