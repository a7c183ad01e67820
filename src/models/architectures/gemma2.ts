import type { Architecture } from "./architecture.ts";
import { llama } from "./llama.ts";

const { names } = llama.huggingFace;

/** The largest model scales q·k by the width of a head of the hidden size; GGUF files do not say so. */
const LAYERS_OF_27B = 46;

const isLocal = (layer: number): boolean => layer % 2 === 0;

export const gemma2: Architecture = {
  ...llama,
  norms: ["attentionNorm", "postAttentionNorm", "mlpNorm", "postMlpNorm"],
  activation: "gelu",
  huggingFace: {
    ...llama.huggingFace,
    keys: { ...llama.huggingFace.keys, activation: "hidden_activation" },
    names: { ...names, norm: { ...names.norm, mlpNorm: "pre_feedforward_layernorm" } },
    normOffset: 1,
    tiedByDefault: true,
    hasWindow: isLocal,
    adjust: (fields, { hiddenSize }) => ({
      attentionScale: 1 / Math.sqrt(fields.positive("query_pre_attn_scalar")),
      embeddingScale: Math.sqrt(hiddenSize),
    }),
  },
  gguf: {
    ...llama.gguf,
    name: "gemma2",
    interleaved: false,
    // Its activations need the range.
    halves: "bf16",
    windowPeriod: 2,
    adjust: (own, { hiddenSize, layers, heads, attentionScale }) => ({
      attentionScale: own.positiveOr(
        "attention.scale",
        layers === LAYERS_OF_27B ? 1 / Math.sqrt(hiddenSize / heads) : attentionScale,
      ),
      embeddingScale: Math.sqrt(hiddenSize),
    }),
  },
};
