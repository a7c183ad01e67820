import type { Architecture } from "./architecture.ts";
import { llama } from "./llama.ts";

/** Every so many layers the last one's heads are not turned. */
const PERIOD = 4;

export const smollm3: Architecture = {
  ...llama,
  ropeTheta: 2_000_000,
  huggingFace: {
    ...llama.huggingFace,
    tiedByDefault: true,
    hasWindow: (_, fields) => fields.flagOr("use_sliding_window", false),
    // The field names the layers that are turned, in spite of its name.
    hasRope: (layer, _, fields) => {
      if (!fields.has("no_rope_layers")) return (layer + 1) % fields.countOr("no_rope_layer_interval", PERIOD) !== 0;
      return fields.numbers("no_rope_layers", fields.count("num_hidden_layers"))[layer] !== 0;
    },
  },
  gguf: { ...llama.gguf, name: "smollm3", hasRope: (layer) => (layer + 1) % PERIOD !== 0 },
};
