import type { Routing } from "../experts/routing.ts";
import type { JsonFields } from "../json-fields.ts";
import type { Architecture } from "./architecture.ts";
import { deepseekGguf } from "./deepseek-gguf.ts";
import { groupsOf } from "./deepseek-sizes.ts";
import { type DeepseekVersion, deepseekConfig, deepseekV2 } from "./deepseek-v2.ts";

/** The number of the sigmoid among GGUF's gating functions. */
const SIGMOID = 2;

const v3: DeepseekVersion = {
  sharedByDefault: 1,
  denseByDefault: 3,
  routing: (fields: JsonFields): Routing => ({
    scoring: "sigmoid",
    normalize: fields.flagOr("norm_topk_prob", true),
    scale: fields.positiveOr("routed_scaling_factor", 2.5),
    groups: groupsOf(fields.countOr("n_group", 8), fields.countOr("topk_group", 4), 2),
    biased: true,
  }),
};

export const deepseekV3: Architecture = {
  ...deepseekV2,
  huggingFace: {
    ...deepseekV2.huggingFace,
    adjust: (fields, config) => {
      const changed = deepseekConfig(fields, config, v3);
      const interleaved = fields.flagOr("rope_interleave", true);
      return { ...changed, rope: { ...config.rope, interleaved } };
    },
  },
  gguf: {
    ...deepseekV2.gguf,
    fits: (own) => own.countOr("expert_gating_func", 0, 0) === SIGMOID,
    adjust: (own, config) => deepseekGguf(own, config, "sigmoid"),
  },
};
