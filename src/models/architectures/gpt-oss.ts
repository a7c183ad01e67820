import { fail } from "../../core/errors.ts";
import { expertsOf } from "../config.ts";
import { ggufExperts } from "../experts/read.ts";
import { softmaxRouting } from "../experts/routing.ts";
import { withExpertsInOrder } from "../weights/fused-experts.ts";
import type { Architecture } from "./architecture.ts";
import { llama } from "./llama.ts";

const { names } = llama.huggingFace;

const isLocal = (layer: number): boolean => layer % 2 === 0;

export const gptOss: Architecture = {
  ...llama,
  activation: "clampedSwiglu",
  ropeTheta: 150_000,
  sinks: true,
  huggingFace: {
    ...llama.huggingFace,
    hasWindow: isLocal,
    rearrange: withExpertsInOrder,
    names: {
      ...names,
      linear: { ...names.linear, router: "mlp.router" },
      experts: { down: ["mlp.experts.down_proj"], "gate,up": ["mlp.experts.gate_up_proj"] },
    },
    adjust: (fields, config) => {
      const limit = fields.positiveOr("swiglu_limit", 7);
      if (limit !== 7) fail("InvalidFile", `${fields.source}: swiglu_limit is ${limit}; models with 7 are run`);
      const experts = {
        count: fields.count("num_local_experts"),
        perToken: fields.count("num_experts_per_tok"),
        width: config.intermediateSize,
        routing: softmaxRouting(true),
        shared: null,
        layers: new Array<boolean>(config.layers).fill(true),
      };
      // The file says "silu", which is a part of it.
      return { activation: "clampedSwiglu", experts: expertsOf(experts, fields.source) };
    },
  },
  gguf: {
    ...llama.gguf,
    name: "gpt-oss",
    interleaved: false,
    halves: "bf16",
    windowPeriod: 2,
    names: { ...llama.gguf.names, norm: { ...llama.gguf.names.norm, mlpNorm: "post_attention_norm" } },
    blendsExactly: true,
    adjust: (own, config) => ggufExperts(own, config, { routing: softmaxRouting(true) }),
  },
};
