/** DeepSeek's models in GGUF files, where all versions have one name. */
import { fail } from "../../core/errors.ts";
import type { GgufTyped } from "../../formats/index.ts";
import type { ModelConfig } from "../config.ts";
import { ggufExperts } from "../experts/read.ts";
import type { Routing } from "../experts/routing.ts";
import type { JsonFields } from "../json-fields.ts";
import { groupsOf, latentSizes, leadingDense } from "./deepseek-sizes.ts";

const count = (value: number): GgufTyped => ({ type: "u32", value });
const real = (value: number): GgufTyped => ({ type: "f32", value });

function ggufRouting(own: JsonFields, scoring: Routing["scoring"]): Routing {
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
  const { scaling } = rope;
  // What predicts further tokens lies behind the layers.
  const layers = config.layers - own.countOr("nextn_predict_layers", 0, 0);
  const width = own.count("expert_feed_forward_length");
  const shared = own.countOr("expert_shared_count", 0, 0);
  // With the multiplier it is the scores of all dims that grow, and not cos and sin.
  const log = own.positiveOr("rope.scaling.yarn_log_multiplier", 0);
  const attentionFactor = own.positiveOr("rope.scaling.attn_factor", 1);
  const turned = scaling.type === "yarn" && log > 0 ? { ...rope, scaling: { ...scaling, attentionFactor } } : rope;
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
  const { width, shared, routing, layers } = experts!;
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
