/** A `ModelConfig` as the metadata of a GGUF file; what GGUF cannot say is refused. */
import { isDeepStrictEqual } from "node:util";
import { fail } from "../../core/errors.ts";
import type { GgufTyped } from "../../formats/index.ts";
import { architectureOf } from "../architectures/index.ts";
import type { ModelConfig, RopeConfig } from "../config.ts";
import { expertMetadata } from "../experts/read.ts";
import { epsilonKeys, layerRopes, localLayers, TURNED_LAYERS, usuallyTurned, yarnMagnitude } from "./config.ts";

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
  const own: Fields = {
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
    "attention.scale": gguf.fixedScale || usualScale(config) ? undefined : real(config.attentionScale),
    ...(windowFields(config) ?? cannot(`windows of ${config.windows.join(", ")}`)),
    attn_logit_softcapping: config.attentionSoftcap > 0 ? real(config.attentionSoftcap) : undefined,
    final_logit_softcapping: config.logitSoftcap > 0 ? real(config.logitSoftcap) : undefined,
    ...expertMetadata(config),
    ...(ropeFields(config) ?? cannot("the rotary embeddings of its layers")),
    ...special,
  };
  const metadata: Metadata = new Map([
    ["general.architecture", text(architecture)],
    ["general.name", text(name)],
  ]);
  for (const [key, value] of Object.entries(own)) if (value) metadata.set(`${architecture}.${key}`, value);
  return metadata;
}

const usualScale = ({ attentionScale, headDim }: ModelConfig): boolean =>
  Math.abs(attentionScale * Math.sqrt(headDim) - 1) < 1e-6;

type Fields = Record<string, GgufTyped | undefined>;

/** The window of the layers that have one, if a period tells which those are. */
function windowFields(config: ModelConfig): Fields | undefined {
  const { windows } = config;
  const { gguf } = architectureOf(config);
  const { windowPeriod } = gguf;
  const window = Math.max(...windows);
  if (window === 0) return {};
  const fits = (period: number): boolean =>
    localLayers(windows.length, period, gguf).every((local, layer) => windows[layer] === (local ? window : 0));
  // A period of the file's own is read only where the architecture has one.
  const periods = windowPeriod === 0 ? [0] : [windowPeriod, 0, ...windows.map((_, i) => i + 1)];
  const period = periods.find(fits);
  if (period === undefined) return undefined;
  return {
    "attention.sliding_window": count(window),
    "attention.sliding_window_pattern": period === windowPeriod ? undefined : count(period),
  };
}

/** The rotary embedding, if there is no more than another theta for local layers. */
function ropeFields(config: ModelConfig): Fields | undefined {
  const { architecture, rope, ropes, windows } = config;
  const { gguf, positions } = architectureOf(config);
  if (positions !== "rotary") return {};
  const local = windows.map((window) => window > 0);
  const localTheta = ropes.find((own, layer) => local[layer] && own.dims > 0)?.theta ?? null;
  const named = gguf.localTheta === undefined ? null : localTheta;
  const turned = ropes.map(({ dims }) => dims > 0);
  const fits = isDeepStrictEqual(layerRopes(apart(rope), named, local, turned), ropes.map(apart));
  if (!fits) return undefined;
  const usual = isDeepStrictEqual(turned, usuallyTurned(architecture, local));
  if (rope.scaling.type === "yarn" && rope.scaling.truncate === (gguf.blendsExactly ?? false)) return undefined;
  return {
    "rope.dimension_count": count(rope.dims),
    "rope.freq_base": real(rope.theta),
    "rope.freq_base_swa": named === null ? undefined : real(named),
    [TURNED_LAYERS]: usual ? undefined : { type: "i32[]", value: Int32Array.from(turned, Number) },
    ...ropeScaling(config),
  };
}

/** Which dims are pairs is told by the architecture. */
const apart = (rope: RopeConfig): RopeConfig => ({ ...rope, interleaved: false });

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
