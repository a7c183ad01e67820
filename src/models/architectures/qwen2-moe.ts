import { fail } from "../../core/errors.ts";
import { expertsOf, type ModelConfig } from "../config.ts";
import { ggufExperts } from "../experts/read.ts";
import { softmaxRouting } from "../experts/routing.ts";
import type { JsonFields } from "../json-fields.ts";
import type { Architecture } from "./architecture.ts";
import { qwen2 } from "./qwen2.ts";

const { names } = qwen2.huggingFace;

/** What Qwen's mixtures say in config.json; they differ in whether there is a shared expert. */
export function qwenExperts(fields: JsonFields, { layers }: ModelConfig, hasShared: boolean): Partial<ModelConfig> {
  const step = fields.countOr("decoder_sparse_step", 1);
  const dense = fields.counts("mlp_only_layers");
  const experts = {
    count: fields.countOr("num_experts", null) ?? fields.count("num_local_experts"),
    perToken: fields.count("num_experts_per_tok"),
    width: fields.count("moe_intermediate_size"),
    routing: softmaxRouting(fields.flagOr("norm_topk_prob", false)),
    shared: hasShared ? { width: fields.count("shared_expert_intermediate_size"), gated: true } : null,
    layers: Array.from({ length: layers }, (_, layer) => (layer + 1) % step === 0 && !dense.includes(layer)),
  };
  return { experts: expertsOf(experts, fields.source) };
}

/** Readers of GGUF know whether an architecture divides by the sum of the chosen, and take every layer for a mixture. */
export function refuseOtherExperts({ experts }: ModelConfig, name: string, normalize: boolean): void {
  if (experts!.routing.normalize !== normalize) {
    fail("InvalidFile", `GGUF's ${name} cannot hold norm_topk_prob: ${experts!.routing.normalize}`);
  }
  if (!experts!.layers.every((has) => has)) {
    fail("InvalidFile", `GGUF's ${name} cannot hold layers without experts (mlp_only_layers, decoder_sparse_step)`);
  }
}

export const qwen2Moe: Architecture = {
  ...qwen2,
  // Those that a file has are used.
  qkvBias: false,
  huggingFace: {
    ...qwen2.huggingFace,
    names: {
      ...names,
      shared: {
        gate: "mlp.shared_expert.gate_proj",
        up: "mlp.shared_expert.up_proj",
        down: "mlp.shared_expert.down_proj",
      },
    },
    hasWindow: (layer, fields) =>
      fields.flagOr("use_sliding_window", false) &&
      layer % 2 === 0 &&
      layer < fields.countOr("max_window_layers", 28, 0),
    adjust: (fields, config) => qwenExperts(fields, config, true),
  },
  gguf: {
    ...qwen2.gguf,
    name: "qwen2moe",
    adjust: (own, config) => {
      const width = own.countOr("expert_shared_feed_forward_length", config.intermediateSize);
      return ggufExperts(own, config, { routing: softmaxRouting(false), shared: { width, gated: true } });
    },
    metadata: (config) => {
      refuseOtherExperts(config, "qwen2moe", false);
      return { expert_shared_feed_forward_length: { type: "u32", value: config.experts!.shared!.width } };
    },
  },
};
