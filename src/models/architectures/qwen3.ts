import type { Architecture } from "./architecture.ts";
import { qwen2 } from "./qwen2.ts";

export const qwen3: Architecture = {
  ...qwen2,
  qkvBias: false,
  qkNorm: "head",
  gguf: { ...qwen2.gguf, name: "qwen3" },
};
