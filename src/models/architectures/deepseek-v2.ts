/** DeepSeek-V2, of which V3 differs in its routing only. */
import { fail } from "../../core/errors.ts";
import type { GgufTyped } from "../../formats/index.ts";
import { expertsOf, type Latent, type ModelConfig } from "../config.ts";
import { ggufExperts } from "../experts/read.ts";
import type { Routing, RoutingGroups } from "../experts/routing.ts";
import { yarnMagnitude } from "../gguf/config.ts";
import type { JsonFields } from "../json-fields.ts";
import { withHeadsApart } from "../weights/latent-heads.ts";
import type { Architecture } from "./architecture.ts";
import { llama } from "./llama.ts";

const { names } = llama.huggingFace;
const count = (value: number): GgufTyped => ({ type: "u32", value });
const real = (value: number): GgufTyped => ({ type: "f32", value });

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

const leadingDense = (layers: number, dense: number): boolean[] =>
  Array.from({ length: layers }, (_, layer) => layer >= dense);

/** Where yarn is told `all`, the scores of all dims grow as cos and sin would have made those of the turned ones. */
function latentSizes(config: ModelConfig, factor: number, all: number, latent: Latent): Partial<ModelConfig> {
  const headDim = latent.keyDim + config.rope.dims;
  const magnitude = factor > 1 ? 1 + 0.1 * all * Math.log(factor) : 1;
  return { latent, headDim, attentionScale: magnitude ** 2 / Math.sqrt(headDim) };
}

/** Null where there is but one. */
export const groupsOf = (
  groups: number,
  perToken: number,
  scoredBy: RoutingGroups["scoredBy"],
): RoutingGroups | null => (groups > 1 ? { count: groups, perToken, scoredBy } : null);

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

/** The groups that a GGUF file names. */
export function ggufRouting(own: JsonFields, scoring: Routing["scoring"]): Routing {
  const isSigmoid = scoring === "sigmoid";
  const groups = own.countOr("expert_group_count", 1, 0);
  return {
    scoring,
    normalize: own.flagOr("expert_weights_norm", false),
    scale: own.positiveOr("expert_weights_scale", 1),
    groups: groups > 1 ? groupsOf(groups, own.count("expert_group_used_count"), isSigmoid ? 2 : 1) : null,
    biased: isSigmoid,
  };
}

export function deepseekGguf(own: JsonFields, config: ModelConfig, scoring: Routing["scoring"]): Partial<ModelConfig> {
  if (!own.has("attention.key_length_mla")) {
    return fail(
      "InvalidFile",
      `${own.source}: deepseek2.attention.key_length_mla is missing: a file from before 2025-04, without latents of its own for each head; convert the model again`,
    );
  }
  const { rope } = config;
  // What predicts further tokens lies behind the layers.
  const layers = config.layers - own.countOr("nextn_predict_layers", 0, 0);
  const width = own.count("expert_feed_forward_length");
  const shared = own.countOr("expert_shared_count", 0, 0);
  const log = own.positiveOr("rope.scaling.yarn_log_multiplier", 0);
  const { scaling } = rope;
  // With the multiplier, cos and sin have nothing to grow by: it is in the scores of all dims.
  const magnitude = own.positiveOr("rope.scaling.attn_factor", 1) * (log > 0 ? 1 : yarnMagnitude(1));
  const turned =
    scaling.type === "yarn" && log > 0 ? { ...rope, scaling: { ...scaling, attentionFactor: magnitude } } : rope;
  const experts = ggufExperts(
    own,
    { ...config, layers },
    {
      routing: ggufRouting(own, scoring),
      shared: shared > 0 ? { width: shared * width, gated: false } : null,
      layers: leadingDense(layers, own.countOr("leading_dense_block_count", 0, 0)),
    },
  );
  return {
    ...latentSizes(config, scaling.type === "yarn" ? scaling.factor : 1, 10 * log, {
      queryRank: own.countOr("attention.q_lora_rank", 0),
      rank: own.count("attention.kv_lora_rank"),
      keyDim: own.count("attention.key_length_mla") - rope.dims,
      valueDim: own.count("attention.value_length_mla"),
      normEps: config.normEps,
    }),
    ...experts,
    layers,
    kvHeads: config.heads,
    windows: config.windows.slice(0, layers),
    rope: turned,
    ropes: new Array<typeof turned>(layers).fill(turned),
  };
}

export function deepseekMetadata(config: ModelConfig): Record<string, GgufTyped | undefined> {
  const { latent, experts, rope, headDim, attentionScale } = config;
  const cannot = (what: string): never => fail("InvalidFile", `GGUF's deepseek2 cannot hold ${what}`);
  const { queryRank, rank, valueDim } = latent!;
  const { count: all, width, shared, routing, layers } = experts!;
  if (!rope.interleaved) cannot("rotary pairs that are no neighbours (rope_interleave: false)");
  const dense = layers.indexOf(true);
  const { scaling } = rope;
  const magnitude = Math.sqrt(attentionScale * Math.sqrt(headDim));
  const log = scaling.type === "yarn" ? (magnitude - 1) / Math.log(scaling.factor) : 0;
  if (scaling.type === "yarn" && log > 0 && Math.abs(scaling.attentionFactor - 1) > 1e-6) {
    cannot("a yarn whose mscale is not its mscale_all_dim");
  }
  return {
    "attention.head_count_kv": count(1),
    "attention.key_length": count(rank + rope.dims),
    "attention.value_length": count(rank),
    "attention.key_length_mla": count(headDim),
    "attention.value_length_mla": count(valueDim),
    "attention.kv_lora_rank": count(rank),
    "attention.q_lora_rank": queryRank > 0 ? count(queryRank) : undefined,
    "attention.scale": undefined,
    leading_dense_block_count: count(dense < 0 ? layers.length : dense),
    expert_count: count(all),
    expert_shared_count: count(shared ? shared.width / width : 0),
    expert_weights_scale: real(routing.scale),
    expert_weights_norm: { type: "bool", value: routing.normalize },
    expert_gating_func: count(routing.scoring === "sigmoid" ? 2 : 1),
    expert_group_count: routing.groups ? count(routing.groups.count) : undefined,
    expert_group_used_count: routing.groups ? count(routing.groups.perToken) : undefined,
    ...(log > 0 && {
      "rope.scaling.yarn_log_multiplier": real(log),
      "rope.scaling.attn_factor": undefined,
    }),
  };
}

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
      experts: {
        ...names.experts,
        gate: ["mlp.experts.{expert}.gate_proj"],
        up: ["mlp.experts.{expert}.up_proj"],
        down: ["mlp.experts.{expert}.down_proj", "mlp.experts.down_proj"],
        "gate,up": ["mlp.experts.gate_up_proj"],
      },
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
