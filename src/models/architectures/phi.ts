import type { Architecture } from "./architecture.ts";
import { llama } from "./llama.ts";
import { refuse } from "./refuse.ts";

const { names, keys } = llama.huggingFace;

/** Phi 1, 1.5 and 2. */
export const phi: Architecture = {
  ...llama,
  norms: ["attentionNorm"],
  normKind: "layer",
  mlp: "plain",
  qkvBias: true,
  activation: "gelu",
  huggingFace: {
    ...llama.huggingFace,
    keys: { ...keys, normEps: "layer_norm_eps" },
    defaults: () => ({ partial_rotary_factor: 0.5 }),
    names: {
      ...names,
      linear: { ...names.linear, o: "self_attn.dense", up: "mlp.fc1", down: "mlp.fc2" },
      norm: { ...names.norm, finalNorm: "model.final_layernorm" },
    },
    adjust: (fields) => {
      refuse(fields, "qk_layernorm");
      return { parallelResidual: true };
    },
  },
  gguf: {
    ...llama.gguf,
    name: "phi2",
    interleaved: false,
    adjust: () => ({ parallelResidual: true }),
  },
};
