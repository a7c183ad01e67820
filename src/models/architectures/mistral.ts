import type { Architecture } from "./architecture.ts";
import { llama } from "./llama.ts";

export const mistral: Architecture = {
  ...llama,
  huggingFace: { ...llama.huggingFace, hasWindow: () => true },
  // GGUF files hold it as a Llama, and as that it is run.
  gguf: { ...llama.gguf, fits: () => false },
};
