import { fail } from "../../core/errors.ts";
import type { Architecture } from "./architecture.ts";
import { llama } from "./llama.ts";

export const olmo2: Architecture = {
  ...llama,
  norms: ["postAttentionNorm", "postMlpNorm"],
  qkNorm: "all",
  sharding: { ...llama.sharding, qNorm: "heads", kNorm: "kvHeads" },
  gguf: {
    ...llama.gguf,
    name: "olmo2",
    interleaved: false,
    // GGUF files hold OLMo 3 under this name, too: as OLMo 2 with windows, and with rotary scaling in some layers only.
    adjust: (own) =>
      own.has("attention.sliding_window")
        ? fail("InvalidFile", `${own.source}: a sliding window makes it an OLMo 3, which is not run; OLMo 2 is`)
        : {},
  },
};
