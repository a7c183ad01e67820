/** A `ModelConfig` as the metadata of a GGUF file; what GGUF cannot say is refused. */
import { fail } from "../../core/errors.ts";
import type { GgufTyped } from "../../formats/index.ts";
import { architectureOf } from "../architectures/index.ts";
import type { ModelConfig } from "../config.ts";
import { epsilonKeys, yarnMagnitude } from "./config.ts";

type Metadata = Map<string, GgufTyped>;

const count = (value: number): GgufTyped => ({ type: "u32", value });
const real = (value: number): GgufTyped => ({ type: "f32", value });
const text = (value: string): GgufTyped => ({ type: "string", value });

export function ggufMetadata(config: ModelConfig, name: string, source: string): Metadata {
  const { activation, gguf, normKind } = architectureOf(config);
  const { name: architecture } = gguf;
  const cannot = (what: string): never => fail("InvalidFile", `${source}: GGUF's ${architecture} cannot hold ${what}`);
  const special = gguf.metadata?.(config) ?? {};
  if (config.activation !== activation && !special.hidden_activation) cannot(`the activation ${config.activation}`);
  const own: Record<string, GgufTyped | undefined> = {
    context_length: count(config.contextLength),
    embedding_length: count(config.hiddenSize),
    block_count: count(config.layers),
    feed_forward_length: count(config.intermediateSize),
    vocab_size: count(config.vocabSize),
    "attention.head_count": count(config.heads),
    "attention.head_count_kv": count(config.kvHeads),
    "attention.key_length": count(config.headDim),
    "attention.value_length": count(config.headDim),
    [epsilonKeys[normKind]]: real(config.normEps),
    "attention.scale": usualScale(config) ? undefined : real(config.attentionScale),
    "attention.sliding_window": special["attention.sliding_window_pattern"]
      ? undefined
      : optional(windowOf(config) ?? cannot(`windows of ${config.windows.join(", ")}`)),
    attn_logit_softcapping: config.attentionSoftcap > 0 ? real(config.attentionSoftcap) : undefined,
    final_logit_softcapping: config.logitSoftcap > 0 ? real(config.logitSoftcap) : undefined,
    expert_count: config.experts ? count(config.experts.count) : undefined,
    expert_used_count: config.experts ? count(config.experts.perToken) : undefined,
    ...(config.rope.dims > 0 && {
      "rope.dimension_count": count(config.rope.dims),
      "rope.freq_base": real(config.rope.theta),
    }),
    ...ropeScaling(config),
    ...special,
  };
  const metadata: Metadata = new Map([
    ["general.architecture", text(architecture)],
    ["general.name", text(name)],
  ]);
  for (const [key, value] of Object.entries(own)) if (value) metadata.set(`${architecture}.${key}`, value);
  return metadata;
}

const optional = (value: number): GgufTyped | undefined => (value > 0 ? count(value) : undefined);

const usualScale = ({ attentionScale, headDim }: ModelConfig): boolean =>
  Math.abs(attentionScale * Math.sqrt(headDim) - 1) < 1e-6;

/** The window of the layers that have one, if they are those that GGUF's readers give it to. */
function windowOf(config: ModelConfig): number | undefined {
  const { windows } = config;
  const { gguf } = architectureOf(config);
  const window = Math.max(...windows);
  const fits = windows.every((own, layer) => own === (gguf.hasWindow(layer) ? window : 0));
  return fits ? window : undefined;
}

/** Llama 3's blend is in a tensor instead. */
function ropeScaling({ rope: { scaling } }: ModelConfig): Record<string, GgufTyped> {
  const named = (type: string, values: Record<string, GgufTyped>): Record<string, GgufTyped> =>
    Object.fromEntries(Object.entries({ type: text(type), ...values }).map(([key, v]) => [`rope.scaling.${key}`, v]));
  switch (scaling.type) {
    case "none":
    case "llama3":
      return {};
    case "linear":
      return named("linear", { factor: real(scaling.factor) });
    case "yarn":
      return named("yarn", {
        factor: real(scaling.factor),
        original_context_length: count(scaling.originalContext),
        attn_factor: real(scaling.attentionFactor / yarnMagnitude(scaling.factor)),
        yarn_beta_fast: real(scaling.betaFast),
        yarn_beta_slow: real(scaling.betaSlow),
      });
    case "longrope":
      return named("longrope", {
        original_context_length: count(scaling.originalContext),
        attn_factor: real(scaling.attentionFactor),
      });
    default:
      return scaling satisfies never;
  }
}
