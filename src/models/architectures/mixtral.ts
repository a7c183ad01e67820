import { type Experts, expertsOf } from "../config.ts";
import type { JsonFields } from "../json-fields.ts";
import type { Architecture } from "./architecture.ts";
import { llama } from "./llama.ts";
import { mistral } from "./mistral.ts";

const { names } = mistral.huggingFace;

const experts = (fields: JsonFields, count: string, perToken: string): { experts: Experts } => ({
  experts: expertsOf(fields.count(count), fields.count(perToken), fields.source),
});

export const mixtral: Architecture = {
  ...mistral,
  ropeTheta: 1_000_000,
  huggingFace: {
    ...mistral.huggingFace,
    names: {
      ...names,
      linear: { ...names.linear, router: "block_sparse_moe.gate" },
      experts: {
        gate: ["block_sparse_moe.experts.{expert}.w1"],
        up: ["block_sparse_moe.experts.{expert}.w3"],
        down: ["block_sparse_moe.experts.{expert}.w2"],
      },
    },
    adjust: (fields) => experts(fields, "num_local_experts", "num_experts_per_tok"),
  },
  gguf: {
    ...llama.gguf,
    fits: (own) => own.countOr("expert_count", 0, 0) > 0,
    adjust: (own) => experts(own, "expert_count", "expert_used_count"),
  },
};
