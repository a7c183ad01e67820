import { encoderConfig, requireAbsolutePositions } from "../encoder/config.ts";
import type { Architecture, EncoderForm } from "./architecture.ts";
import { llama } from "./llama.ts";

const encoder: EncoderForm = {
  skipsFirstNorm: false,
  finalNorm: false,
  classifierNorm: false,
  classifierActivation: "tanh",
  ggufClassifierPooling: "cls",
};

/** Heads that fill in masked words or tell what follows what, and buffers of older checkpoints. */
const others = /(^|\.)position_ids$|^cls\.(predictions|seq_relationship)\.|^lm_head\./;

const { huggingFace, gguf } = llama;

export const bert: Architecture = {
  ...llama,
  norms: ["postAttentionNorm", "postMlpNorm"],
  normKind: "layer",
  mlp: "plain",
  positions: "learned",
  activation: "geluErf",
  encoder,
  huggingFace: {
    ...huggingFace,
    keys: { ...huggingFace.keys, normEps: "layer_norm_eps" },
    tiedByDefault: true,
    defaults: () => ({ type_vocab_size: 2, layer_norm_eps: 1e-12 }),
    names: {
      ...huggingFace.names,
      embedding: {
        token: "embeddings.word_embeddings",
        position: "embeddings.position_embeddings",
        type: "embeddings.token_type_embeddings",
      },
      layer: "encoder.layer.{layer}.",
      linear: {
        ...huggingFace.names.linear,
        q: "attention.self.query",
        k: "attention.self.key",
        v: "attention.self.value",
        o: "attention.output.dense",
        up: "intermediate.dense",
        down: "output.dense",
        classifier: "pooler.dense",
        labels: "classifier",
      },
      fused: {},
      norm: {
        ...huggingFace.names.norm,
        embeddingNorm: "embeddings.LayerNorm",
        postAttentionNorm: "attention.output.LayerNorm",
        postMlpNorm: "output.LayerNorm",
      },
      others,
    },
    plainName: (name) =>
      name
        .replace(/^(bert|roberta)\./, "")
        .replace(/\.gamma$/, ".weight")
        .replace(/\.beta$/, ".bias"),
    adjust: (fields) => {
      requireAbsolutePositions(fields);
      return { encoder: encoderConfig(fields, encoder) };
    },
  },
  gguf: {
    ...gguf,
    name: "bert",
    interleaved: false,
    names: {
      ...gguf.names,
      norm: { ...gguf.names.norm, postAttentionNorm: "attn_output_norm", postMlpNorm: "layer_output_norm" },
    },
  },
};
