import { expertsOf } from "../config.ts";
import { ggufExperts } from "../experts/read.ts";
import { softmaxRouting } from "../experts/routing.ts";
import type { Architecture } from "./architecture.ts";
import { llama } from "./llama.ts";
import { mistral } from "./mistral.ts";

const { names } = mistral.huggingFace;

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
    adjust: (fields, { intermediateSize, layers }) => {
      const experts = {
        count: fields.count("num_local_experts"),
        perToken: fields.count("num_experts_per_tok"),
        width: intermediateSize,
        routing: softmaxRouting(true),
        shared: null,
        layers: new Array<boolean>(layers).fill(true),
      };
      return { experts: expertsOf(experts, fields.source) };
    },
  },
  gguf: {
    ...llama.gguf,
    fits: (own) => own.countOr("expert_count", 0, 0) > 0,
    adjust: (own, config) => ggufExperts(own, config, { routing: softmaxRouting(true) }),
  },
};
