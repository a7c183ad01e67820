import type { Architecture } from "./architecture.ts";
import { llama } from "./llama.ts";
import { refuse } from "./refuse.ts";

const { names, keys } = llama.huggingFace;

export const gpt2: Architecture = {
  ...llama,
  normKind: "layer",
  mlp: "plain",
  positions: "learned",
  qkvBias: true,
  activation: "gelu",
  huggingFace: {
    ...llama.huggingFace,
    keys: {
      ...keys,
      hiddenSize: "n_embd",
      intermediateSize: "n_inner",
      layers: "n_layer",
      heads: "n_head",
      contextLength: "n_positions",
      normEps: "layer_norm_epsilon",
      activation: "activation_function",
    },
    defaults: (fields) => ({ n_inner: 4 * fields.count("n_embd") }),
    tiedByDefault: true,
    transposed: true,
    names: {
      ...names,
      embedding: { ...names.embedding, token: "transformer.wte", position: "transformer.wpe" },
      layer: "transformer.h.{layer}.",
      linear: { ...names.linear, o: "attn.c_proj", up: "mlp.c_fc", down: "mlp.c_proj" },
      fused: { "q,k,v": "attn.c_attn" },
      norm: { ...names.norm, attentionNorm: "ln_1", mlpNorm: "ln_2", finalNorm: "transformer.ln_f" },
      // Causal masks.
      others: /\.attn\.(masked_)?bias$/,
    },
    adjust: (fields) => {
      refuse(fields, "scale_attn_by_inverse_layer_idx", "add_cross_attention");
      return fields.flagOr("scale_attn_weights", true) ? {} : { attentionScale: 1 };
    },
  },
  gguf: { ...llama.gguf, name: "gpt2", interleaved: false, writesFused: true },
};
