/** Hugging Face's config.json, in its older and newer spellings, as a `ModelConfig`. */
import type { DType } from "../../core/dtype.ts";
import { fail } from "../../core/errors.ts";
import type { Architecture, HuggingFaceForm } from "../architectures/architecture.ts";
import { architectureNamed, architectures } from "../architectures/index.ts";
import {
  adjusted,
  type ModelConfig,
  type PlainActivation,
  type RopeConfig,
  type RopeScaling,
  windowsOf,
} from "../config.ts";
import { JsonFields } from "../json-fields.ts";

/** `generation` is generation_config.json, whose end-of-text tokens go before the config's. */
export function parseHuggingFaceConfig(json: unknown, source: string, generation?: JsonFields): ModelConfig {
  const whole = new JsonFields(json, source);
  // A model that sees or hears has its language model's config as a part.
  const own = whole.object("text_config") ?? whole;
  const architecture = architectureNamed(own.text("model_type"), own.source);
  const row: Architecture = architectures[architecture];
  const { keys, tiedByDefault, adjust, defaults } = row.huggingFace;
  const fields = completed(own, defaults?.(own));
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
  const eos = [generation, whole, fields].flatMap((file) => file?.tokens("eos_token_id") ?? []);
  const types = layerTypes(fields, row.huggingFace, layers);
  const local = types.map((type) => type === "sliding_attention");
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
    normEps: fields.positiveOr(keys.normEps, row.normKind === "rms" ? 1e-6 : 1e-5),
    activation: fields.has(keys.activation) ? activationNamed(fields.text(keys.activation), source) : row.activation,
    ...parseRopes(fields, row, types, { headDim, contextLength }),
    attentionScale: 1 / Math.sqrt(headDim),
    attentionSoftcap: fields.positiveOr("attn_logit_softcapping", 0),
    windows: windowsOf(local, () => fields.count("sliding_window"), contextLength),
    logitScale: 1,
    logitSoftcap: fields.positiveOr("final_logit_softcapping", 0),
    embeddingScale: 1,
    residualScale: 1,
    parallelResidual: false,
    tiedEmbeddings: fields.flagOr("tie_word_embeddings", whole.flagOr("tie_word_embeddings", tiedByDefault)),
    experts: null,
    encoder: null,
    latent: null,
    bosToken: [whole, fields].flatMap((file) => file.tokens("bos_token_id"))[0] ?? null,
    eosTokens: [...new Set(eos)],
    dtype: [fields, whole].map(dtypeOf).find((dtype) => dtype) ?? null,
  };
  return adjusted(config, adjust?.(fields, config));
}

/** Fields that are null are as good as missing. */
const completed = (fields: JsonFields, defaults: Readonly<Record<string, unknown>> = {}): JsonFields => {
  const missing = Object.entries(defaults).filter(([name]) => !fields.has(name));
  return missing.length === 0
    ? fields
    : new JsonFields({ ...fields.values, ...Object.fromEntries(missing) }, fields.source);
};

const dtypeOf = (fields: JsonFields): DType | undefined =>
  dtypes[fields.textOr("dtype", fields.textOr("torch_dtype", ""))];

const dtypes: Readonly<Record<string, DType>> = { float32: "f32", float16: "f16", bfloat16: "bf16" };

const activationNames: Readonly<Record<string, PlainActivation>> = {
  silu: "silu",
  swish: "silu",
  gelu: "geluErf",
  gelu_python: "geluErf",
  gelu_new: "gelu",
  gelu_fast: "gelu",
  gelu_pytorch_tanh: "gelu",
  relu: "relu",
};

export function activationNamed(name: string, source: string): PlainActivation {
  const known = Object.keys(activationNames).join(", ");
  return (
    activationNames[name] ??
    fail("InvalidFile", `${source}: unknown activation ${JSON.stringify(name)}; known are ${known}`)
  );
}

const layerTypeNames = ["full_attention", "sliding_attention"] as const;
type LayerType = (typeof layerTypeNames)[number];

function layerTypes(fields: JsonFields, { hasWindow }: HuggingFaceForm, layers: number): LayerType[] {
  if (fields.has("layer_types")) {
    return fields.texts("layer_types", layers).map((type, i) => {
      const known = layerTypeNames.find((name) => name === type);
      return known ?? fail("InvalidFile", `${fields.source}: layer ${i} has the unknown type ${JSON.stringify(type)}`);
    });
  }
  const window = fields.countOr("sliding_window", 0, 0);
  return Array.from({ length: layers }, (_, layer) =>
    window > 0 && hasWindow(layer, fields) ? "sliding_attention" : "full_attention",
  );
}

interface Sizes {
  readonly headDim: number;
  readonly contextLength: number;
}

type Ropes = Pick<ModelConfig, "rope" | "ropes">;

/** The rotary embedding of each layer: one for all, one for each type of layer, or none. */
function parseRopes(fields: JsonFields, row: Architecture, types: readonly LayerType[], sizes: Sizes): Ropes {
  const byType = ropesByType(fields, row, sizes);
  const none = { ...byType.full_attention, dims: 0 };
  if (row.positions !== "rotary") return { rope: none, ropes: types.map(() => none) };
  const turns = row.huggingFace.hasRope ?? (() => true);
  return {
    rope: byType.full_attention,
    ropes: types.map((type, i) => (turns(i, type === "sliding_attention", fields) ? byType[type] : none)),
  };
}

/** rope_parameters may have an entry for each type of layer; older files name another theta for the local ones. */
function ropesByType(fields: JsonFields, row: Architecture, sizes: Sizes): Readonly<Record<LayerType, RopeConfig>> {
  const all = fields.object("rope_parameters");
  if (all && layerTypeNames.some((type) => all.has(type))) {
    const [full, sliding] = layerTypeNames.map((type) => parseRope(fields, all.object(type), row, sizes));
    return { full_attention: full!, sliding_attention: sliding! };
  }
  const full = parseRope(fields, all ?? fields.object("rope_scaling"), row, sizes);
  const localTheta = fields.positiveOr("rope_local_base_freq", null);
  const local = localTheta === null ? full : { ...full, theta: localTheta, scaling: { type: "none" } as const };
  return { full_attention: full, sliding_attention: local };
}

/** Newer files keep everything in rope_parameters, `own`; older ones have rope_theta beside rope_scaling. */
function parseRope(fields: JsonFields, own: JsonFields | undefined, row: Architecture, sizes: Sizes): RopeConfig {
  const { headDim, contextLength } = sizes;
  const { keys, interleaved } = row.huggingFace;
  const theta = own?.positiveOr("rope_theta", null) ?? fields.positiveOr(keys.ropeTheta, row.ropeTheta);
  const share = own?.positiveOr("partial_rotary_factor", null) ?? fields.positiveOr(keys.rotaryShare, 1);
  const dims = Math.floor(headDim * share);
  if (dims % 2 !== 0 || dims > headDim) {
    fail("InvalidFile", `${fields.source}: ${dims} rotary dims of ${headDim}; they must be even and no more than that`);
  }
  const scaling: RopeScaling = own ? parseScaling(own, fields, dims, contextLength) : { type: "none" };
  return { theta, dims, interleaved, scaling };
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
    const originalContext = originalContextOf(own, fields, contextLength);
    const factor = own.positiveOr("factor", contextLength / originalContext);
    const [mscale, all] = [own.positiveOr("mscale", 0), own.positiveOr("mscale_all_dim", 0)];
    const grown = (by: number): number => (factor <= 1 ? 1 : 0.1 * by * Math.log(factor) + 1);
    return {
      type: "yarn",
      factor,
      betaFast: own.positiveOr("beta_fast", 32),
      betaSlow: own.positiveOr("beta_slow", 1),
      originalContext,
      attentionFactor: own.positiveOr("attention_factor", mscale && all ? grown(mscale) / grown(all) : grown(1)),
      truncate: own.flagOr("truncate", true),
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
