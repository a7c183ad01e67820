import type { Architecture } from "./architecture.ts";
import { llama } from "./llama.ts";
import { refuse } from "./refuse.ts";

export const gemma: Architecture = {
  ...llama,
  activation: "gelu",
  huggingFace: {
    ...llama.huggingFace,
    // The first files' hidden_act names another function than the models were trained with.
    keys: { ...llama.huggingFace.keys, activation: "hidden_activation" },
    normOffset: 1,
    tiedByDefault: true,
    adjust: (fields, { hiddenSize }) => {
      refuse(fields, "use_bidirectional_attention");
      return { embeddingScale: Math.sqrt(hiddenSize) };
    },
  },
  gguf: {
    ...llama.gguf,
    name: "gemma",
    interleaved: false,
    // Its activations need the range.
    halves: "bf16",
    adjust: (_, { hiddenSize }) => ({ embeddingScale: Math.sqrt(hiddenSize) }),
  },
};
