import { ggufExperts } from "../experts/read.ts";
import { softmaxRouting } from "../experts/routing.ts";
import type { Architecture } from "./architecture.ts";
import { qwen2Moe, qwenExperts, refuseOtherExperts } from "./qwen2-moe.ts";
import { qwen3 } from "./qwen3.ts";

export const qwen3Moe: Architecture = {
  ...qwen3,
  huggingFace: {
    ...qwen3.huggingFace,
    names: qwen2Moe.huggingFace.names,
    hasWindow: (_, fields) => fields.flagOr("use_sliding_window", false),
    adjust: (fields, config) => qwenExperts(fields, config, false),
  },
  gguf: {
    ...qwen3.gguf,
    name: "qwen3moe",
    adjust: (own, config) => ggufExperts(own, config, { routing: softmaxRouting(true) }),
    metadata: (config) => {
      refuseOtherExperts(config, "qwen3moe", true);
      return {};
    },
  },
};
