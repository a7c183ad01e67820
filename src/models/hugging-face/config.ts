/** Hugging Face's config.json, in its older and newer spellings, as a `ModelConfig`. */
import type { DType } from "../../core/dtype.ts";
import { fail } from "../../core/errors.ts";
import type { Architecture, HuggingFaceForm } from "../architectures/architecture.ts";
import { architectureNamed, architectures } from "../architectures/index.ts";
import { type Activation, type ModelConfig, type RopeConfig, type RopeScaling, usefulWindow } from "../config.ts";
import { JsonFields } from "../json-fields.ts";

/** `generation` is generation_config.json, whose end-of-text tokens go before the config's. */
export function parseHuggingFaceConfig(json: unknown, source: string, generation?: JsonFields): ModelConfig {
  const fields = new JsonFields(json, source);
  const architecture = architectureNamed(fields.text("model_type"), source);
  const row: Architecture = architectures[architecture];
  const { keys, hasWindow, tiedByDefault, adjust } = row.huggingFace;
  const hiddenSize = fields.count(keys.hiddenSize);
  const heads = fields.count(keys.heads);
  const kvHeads = fields.countOr(keys.kvHeads, heads);
  if (heads % kvHeads !== 0) {
    fail("InvalidFile", `${source}: ${heads} attention heads are not a multiple of ${kvHeads} key-value heads`);
  }
  const headDim = fields.countOr(keys.headDim, hiddenSize / heads);
  if (!Number.isInteger(headDim)) {
    fail(
      "InvalidFile",
      `${source}: ${keys.hiddenSize} ${hiddenSize} does not divide by ${heads} heads; ${keys.headDim} is missing`,
    );
  }
  const layers = fields.count(keys.layers);
  const contextLength = fields.count(keys.contextLength);
  const eos = [...(generation?.tokens("eos_token_id") ?? []), ...fields.tokens("eos_token_id")];
  const config: ModelConfig = {
    architecture,
    vocabSize: fields.count("vocab_size"),
    hiddenSize,
    intermediateSize: fields.count(keys.intermediateSize),
    layers,
    heads,
    kvHeads,
    headDim,
    contextLength,
    normEps: fields.positiveOr(keys.normEps, 1e-6),
    activation: fields.has(keys.activation) ? activationNamed(fields.text(keys.activation), source) : row.activation,
    rope: parseRope(fields, row.ropeTheta, headDim, contextLength),
    attentionScale: 1 / Math.sqrt(headDim),
    attentionSoftcap: fields.positiveOr("attn_logit_softcapping", 0),
    windows: parseWindows(fields, hasWindow, layers).map((window) => usefulWindow(window, contextLength)),
    logitScale: 1,
    logitSoftcap: fields.positiveOr("final_logit_softcapping", 0),
    embeddingScale: 1,
    residualScale: 1,
    tiedEmbeddings: fields.flagOr("tie_word_embeddings", tiedByDefault),
    experts: null,
    bosToken: fields.tokens("bos_token_id")[0] ?? null,
    eosTokens: [...new Set(eos)],
    dtype: dtypes[fields.textOr("dtype", fields.textOr("torch_dtype", ""))] ?? null,
  };
  return { ...config, ...adjust?.(fields, config) };
}

const dtypes: Readonly<Record<string, DType>> = { float32: "f32", float16: "f16", bfloat16: "bf16" };

const activationNames: Readonly<Record<string, Activation>> = {
  silu: "silu",
  swish: "silu",
  gelu: "geluErf",
  gelu_new: "gelu",
  gelu_pytorch_tanh: "gelu",
  relu: "relu",
};

function activationNamed(name: string, source: string): Activation {
  const known = Object.keys(activationNames).join(", ");
  return (
    activationNames[name] ??
    fail("InvalidFile", `${source}: unknown activation ${JSON.stringify(name)}; known are ${known}`)
  );
}

function parseWindows(fields: JsonFields, hasWindow: HuggingFaceForm["hasWindow"], layers: number): number[] {
  const window = fields.countOr("sliding_window", 0);
  if (fields.has("layer_types")) {
    return fields.texts("layer_types", layers).map((type, i) => {
      if (type === "full_attention") return 0;
      if (type === "sliding_attention") return fields.count("sliding_window");
      return fail("InvalidFile", `${fields.source}: layer ${i} has the unknown type ${JSON.stringify(type)}`);
    });
  }
  return Array.from({ length: layers }, (_, layer) => (hasWindow(layer, fields) ? window : 0));
}

/** Newer files keep everything in rope_parameters; older ones have rope_theta beside rope_scaling. */
function parseRope(fields: JsonFields, usualTheta: number, headDim: number, contextLength: number): RopeConfig {
  const own = fields.object("rope_parameters") ?? fields.object("rope_scaling");
  const theta = own?.positiveOr("rope_theta", null) ?? fields.positiveOr("rope_theta", usualTheta);
  const share = own?.positiveOr("partial_rotary_factor", null) ?? fields.positiveOr("partial_rotary_factor", 1);
  const dims = Math.floor(headDim * share);
  if (dims % 2 !== 0 || dims > headDim) {
    fail("InvalidFile", `${fields.source}: ${dims} rotary dims of ${headDim}; they must be even and no more than that`);
  }
  const scaling: RopeScaling = own ? parseScaling(own, fields, dims, contextLength) : { type: "none" };
  return { theta, dims, interleaved: false, scaling };
}

type ScalingParser = (own: JsonFields, fields: JsonFields, dims: number, contextLength: number) => RopeScaling;

const longrope: ScalingParser = (own, fields, dims, contextLength) => {
  const originalContext = originalContextOf(own, fields, contextLength);
  const factor = own.positiveOr("factor", contextLength / originalContext);
  const grown = factor <= 1 ? 1 : Math.sqrt(1 + Math.log(factor) / Math.log(originalContext));
  return {
    type: "longrope",
    short: own.positives("short_factor", dims / 2),
    long: own.positives("long_factor", dims / 2),
    originalContext,
    attentionFactor: own.positiveOr("attention_factor", grown),
  };
};

const scalings: Readonly<Record<string, ScalingParser>> = {
  default: () => ({ type: "none" }),
  linear: (own) => ({ type: "linear", factor: own.positive("factor") }),
  llama3: (own, fields, _, contextLength) => ({
    type: "llama3",
    factor: own.positive("factor"),
    lowFrequencyFactor: own.positive("low_freq_factor"),
    highFrequencyFactor: own.positive("high_freq_factor"),
    originalContext: originalContextOf(own, fields, contextLength),
  }),
  yarn: (own, fields, _, contextLength) => {
    const factor = own.positive("factor");
    return {
      type: "yarn",
      factor,
      betaFast: own.positiveOr("beta_fast", 32),
      betaSlow: own.positiveOr("beta_slow", 1),
      originalContext: originalContextOf(own, fields, contextLength),
      attentionFactor: own.positiveOr("attention_factor", factor <= 1 ? 1 : 0.1 * Math.log(factor) + 1),
    };
  },
  longrope,
  su: longrope,
};

const originalContextOf = (own: JsonFields, fields: JsonFields, contextLength: number): number =>
  own.countOr("original_max_position_embeddings", null) ??
  fields.countOr("original_max_position_embeddings", contextLength);

function parseScaling(own: JsonFields, fields: JsonFields, dims: number, contextLength: number): RopeScaling {
  const type = own.textOr("rope_type", own.textOr("type", "default"));
  const parse = Object.hasOwn(scalings, type) ? scalings[type] : undefined;
  if (parse) return parse(own, fields, dims, contextLength);
  const known = Object.keys(scalings).join(", ");
  return fail("InvalidFile", `${own.source}: unknown rope type ${JSON.stringify(type)}; known are ${known}`);
}
