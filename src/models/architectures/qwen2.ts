import type { Architecture } from "./architecture.ts";
import { llama } from "./llama.ts";

export const qwen2: Architecture = {
  ...llama,
  qkvBias: true,
  huggingFace: {
    ...llama.huggingFace,
    hasWindow: (layer, fields) =>
      fields.flagOr("use_sliding_window", false) && layer >= fields.countOr("max_window_layers", 0, 0),
  },
  gguf: { ...llama.gguf, name: "qwen2", interleaved: false },
};
