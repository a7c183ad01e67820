import type { GgufTyped } from "../../formats/index.ts";
import type { Activation } from "../config.ts";
import { encoderConfig } from "../encoder/config.ts";
import { activationNamed } from "../hugging-face/config.ts";
import type { Architecture, EncoderForm } from "./architecture.ts";
import { llama } from "./llama.ts";

const encoder: EncoderForm = {
  skipsFirstNorm: true,
  finalNorm: true,
  classifierNorm: true,
  classifierActivation: "geluErf",
  ggufClassifierPooling: "mean",
};

/** One layer in three attends to everything, the first of them first. */
const USUAL_PERIOD = 3;

/** As config.json has them. */
const activationNames: Readonly<Partial<Record<Activation, string>>> = {
  geluErf: "gelu",
  gelu: "gelu_pytorch_tanh",
  silu: "silu",
  relu: "relu",
};

const { huggingFace, gguf } = llama;
const count = (value: number): GgufTyped => ({ type: "u32", value });

export const modernbert: Architecture = {
  ...llama,
  normKind: "layer",
  activation: "geluErf",
  encoder,
  huggingFace: {
    ...huggingFace,
    keys: { ...huggingFace.keys, normEps: "norm_eps", activation: "hidden_activation" },
    tiedByDefault: true,
    // A file's window is as wide as both its sides.
    defaults: (own) => ({
      norm_eps: 1e-5,
      sliding_window: Math.floor(own.countOr("local_attention", 128) / 2),
      rope_theta: own.positiveOr("global_rope_theta", 160_000),
      rope_local_base_freq: own.positiveOr("local_rope_theta", 10_000),
    }),
    hasWindow: (layer, fields) => layer % fields.countOr("global_attn_every_n_layers", USUAL_PERIOD) !== 0,
    names: {
      ...huggingFace.names,
      embedding: { ...huggingFace.names.embedding, token: "embeddings.tok_embeddings" },
      layer: "layers.{layer}.",
      linear: {
        ...huggingFace.names.linear,
        o: "attn.Wo",
        down: "mlp.Wo",
        classifier: "head.dense",
        labels: "classifier",
      },
      fused: { "q,k,v": "attn.Wqkv", "gate,up": "mlp.Wi" },
      norm: {
        ...huggingFace.names.norm,
        embeddingNorm: "embeddings.norm",
        attentionNorm: "attn_norm",
        mlpNorm: "mlp_norm",
        finalNorm: "final_norm",
        classifierNorm: "head.norm",
      },
      others: /^decoder\./,
    },
    plainName: (name) => name.replace(/^model\./, ""),
    adjust: (fields) => {
      const own = encoderConfig(fields, encoder);
      const pooling = fields.textOr("classifier_pooling", "cls");
      const activation = fields.textOr("classifier_activation", "gelu");
      return {
        encoder: {
          ...own,
          types: 0,
          classifierPooling: pooling === "mean" ? "mean" : "cls",
          classifierActivation: activationNamed(activation, fields.source),
        },
      };
    },
  },
  gguf: {
    ...gguf,
    name: "modern-bert",
    interleaved: false,
    writesFused: true,
    windowPeriod: USUAL_PERIOD,
    isGlobalFirst: true,
    localTheta: 10_000,
    names: { ...gguf.names, fused: { ...gguf.names.fused, "gate,up": "ffn_up" } },
    adjust: (own, { rope, ropes, contextLength }) => {
      const reach = Math.floor(own.countOr("attention.sliding_window", 0, 0) / 2);
      return {
        activation: activationNamed(own.textOr("hidden_activation", "gelu"), own.source),
        windows: ropes.map((of) => (of !== rope && reach < contextLength ? reach : 0)),
      };
    },
    metadata: ({ windows, activation }) => ({
      hidden_activation: { type: "string", value: activationNames[activation]! },
      ...(windows.some((reach) => reach > 0) && { "attention.sliding_window": count(2 * Math.max(...windows)) }),
    }),
  },
};
