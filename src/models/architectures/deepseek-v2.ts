/** DeepSeek-V2, of which V3 differs in its routing only. */
import { fail } from "../../core/errors.ts";
import { expertsOf, type ModelConfig } from "../config.ts";
import type { Routing } from "../experts/routing.ts";
import type { JsonFields } from "../json-fields.ts";
import { withHeadsApart } from "../weights/latent-heads.ts";
import type { Architecture } from "./architecture.ts";
import { deepseekGguf, deepseekMetadata } from "./deepseek-gguf.ts";
import { groupsOf, latentSizes, leadingDense } from "./deepseek-sizes.ts";
import { llama } from "./llama.ts";

const { names } = llama.huggingFace;

/** How config.json says what differs from version to version. */
export interface DeepseekVersion {
  readonly sharedByDefault: number;
  readonly denseByDefault: number;
  routing(fields: JsonFields): Routing;
}

export function deepseekConfig(
  fields: JsonFields,
  config: ModelConfig,
  version: DeepseekVersion,
): Partial<ModelConfig> {
  const { layers, rope } = config;
  const keyDim = fields.count("qk_nope_head_dim");
  const width = fields.count("moe_intermediate_size");
  const shared = fields.countOr("n_shared_experts", version.sharedByDefault, 0);
  if (fields.countOr("moe_layer_freq", 1) !== 1) {
    fail("InvalidFile", `${fields.source}: moe_layer_freq is not 1; models with experts in all later layers are run`);
  }
  const dense = fields.countOr("first_k_dense_replace", version.denseByDefault, 0);
  const experts = {
    count: fields.count("n_routed_experts"),
    perToken: fields.count("num_experts_per_tok"),
    width,
    routing: version.routing(fields),
    shared: shared > 0 ? { width: shared * width, gated: false } : null,
    layers: leadingDense(layers, dense),
  };
  const own = fields.object("rope_parameters") ?? fields.object("rope_scaling");
  const isScaled = own !== undefined && own.textOr("rope_type", own.textOr("type", "default")) !== "default";
  const scaleFactor = isScaled ? own.positiveOr("factor", 1) : 1;
  return {
    ...latentSizes(config, scaleFactor, own?.positiveOr("mscale_all_dim", 0) ?? 0, {
      queryRank: fields.countOr("q_lora_rank", 0),
      rank: fields.count("kv_lora_rank"),
      keyDim,
      valueDim: fields.count("v_head_dim"),
      // The norms of latents have an eps of their own.
      normEps: 1e-6,
    }),
    rope,
    experts: expertsOf(experts, fields.source),
  };
}

function v2Routing(fields: JsonFields): Routing {
  const method = fields.textOr("topk_method", "greedy");
  if (method !== "greedy" && method !== "group_limited_greedy") {
    fail(
      "InvalidFile",
      `${fields.source}: unknown topk_method ${JSON.stringify(method)}; known are greedy, group_limited_greedy`,
    );
  }
  const groups = method === "greedy" ? null : groupsOf(fields.count("n_group"), fields.count("topk_group"), 1);
  // norm_topk_prob is true in none of them, and not looked at.
  const scale = fields.positiveOr("routed_scaling_factor", 1);
  return { scoring: "softmax", normalize: false, scale, groups, biased: false };
}

const v2: DeepseekVersion = { sharedByDefault: 2, denseByDefault: 0, routing: v2Routing };

export const deepseekV2: Architecture = {
  ...llama,
  huggingFace: {
    ...llama.huggingFace,
    // What turns is a part of a head, and what is told of rotary embeddings is told of that part.
    keys: { ...llama.huggingFace.keys, headDim: "qk_rope_head_dim" },
    interleaved: true,
    rearrange: withHeadsApart,
    names: {
      ...names,
      shared: {
        gate: "mlp.shared_experts.gate_proj",
        up: "mlp.shared_experts.up_proj",
        down: "mlp.shared_experts.down_proj",
      },
    },
    adjust: (fields, config) => deepseekConfig(fields, config, v2),
  },
  gguf: {
    ...llama.gguf,
    name: "deepseek2",
    halves: "bf16",
    adjust: (own, config) => deepseekGguf(own, config, "softmax"),
    metadata: deepseekMetadata,
  },
};
