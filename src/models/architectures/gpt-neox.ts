import type { Architecture } from "./architecture.ts";
import { llama } from "./llama.ts";

const { names, keys } = llama.huggingFace;

/** GPT-NeoX and Pythia. */
export const gptNeox: Architecture = {
  ...llama,
  normKind: "layer",
  mlp: "plain",
  activation: "geluErf",
  huggingFace: {
    ...llama.huggingFace,
    keys: { ...keys, normEps: "layer_norm_eps", ropeTheta: "rotary_emb_base", rotaryShare: "rotary_pct" },
    defaults: () => ({ rotary_pct: 0.25 }),
    fusedByHead: true,
    names: {
      ...names,
      embedding: { ...names.embedding, token: "gpt_neox.embed_in" },
      layer: "gpt_neox.layers.{layer}.",
      linear: {
        ...names.linear,
        o: "attention.dense",
        up: "mlp.dense_h_to_4h",
        down: "mlp.dense_4h_to_h",
        head: "embed_out",
      },
      fused: { "q,k,v": "attention.query_key_value" },
      norm: { ...names.norm, finalNorm: "gpt_neox.final_layer_norm" },
      // Causal masks and frequencies.
      others: /\.attention\.((masked_)?bias|rotary_emb\.inv_freq)$/,
    },
    adjust: (fields) => ({ parallelResidual: fields.flagOr("use_parallel_residual", true) }),
  },
  gguf: {
    ...llama.gguf,
    name: "gptneox",
    interleaved: false,
    writesFused: true,
    adjust: (own) => ({ parallelResidual: own.flagOr("use_parallel_residual", true) }),
    metadata: ({ parallelResidual }) => ({ use_parallel_residual: { type: "bool", value: parallelResidual } }),
  },
};
