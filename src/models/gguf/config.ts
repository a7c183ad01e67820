/** A GGUF file's metadata as a `ModelConfig`. */
import type { DType } from "../../core/dtype.ts";
import { fail } from "../../core/errors.ts";
import type { GgufForm } from "../architectures/architecture.ts";
import type { ArchitectureName } from "../architectures/index.ts";
import { architectureOf } from "../architectures/index.ts";
import { adjusted, type ModelConfig, type RopeConfig, type RopeScaling, windowsOf } from "../config.ts";
import type { JsonFields } from "../json-fields.ts";
import { ggufEncoder } from "./encoder.ts";
import type { RopeFactors } from "./rope-factors.ts";
import { endTokens } from "./tokenizer.ts";

/** What the config takes from the file's tensors. */
export interface TensorFacts extends RopeFactors {
  readonly vocabSize: number;
  /** Without an output head of its own the embedding table is one. */
  readonly hasHead: boolean;
  readonly dtype: DType | "quantized" | null;
  /** Rows of the table of segments, 0 without one. */
  readonly types: number;
  /** Scores that a classification head gives, 0 without one. */
  readonly labels: number;
  readonly classifierDense: boolean;
}

/** `own` are the fields under the architecture's name in the file. */
export function parseGgufConfig(
  architecture: ArchitectureName,
  fields: JsonFields,
  own: JsonFields,
  facts: TensorFacts,
): ModelConfig {
  const { source } = fields;
  const { activation, ropeTheta, gguf, normKind, positions, encoder } = architectureOf({ architecture });
  const { interleaved } = gguf;
  const hiddenSize = own.count("embedding_length");
  const layers = own.count("block_count");
  const heads = own.uniformCount("attention.head_count", layers);
  const kvHeads = own.has("attention.head_count_kv") ? own.uniformCount("attention.head_count_kv", layers) : heads;
  if (heads % kvHeads !== 0) {
    fail("InvalidFile", `${source}: ${heads} attention heads are not a multiple of ${kvHeads} key-value heads`);
  }
  const headDim = own.countOr("attention.key_length", hiddenSize / heads);
  if (!Number.isInteger(headDim)) {
    fail(
      "InvalidFile",
      `${source}: width ${hiddenSize} does not divide by ${heads} heads; ${gguf.name}.attention.key_length is missing`,
    );
  }
  const valueDim = own.countOr("attention.value_length", headDim);
  // Where both are made of latents, the architecture reads their sizes.
  if (valueDim !== headDim && !own.has("attention.kv_lora_rank")) {
    fail("InvalidFile", `${source}: keys of ${headDim} and values of ${valueDim} dims; models with both alike are run`);
  }
  const contextLength = own.count("context_length");
  const window = own.countOr("attention.sliding_window", 0, 0);
  const local = localLayers(layers, window > 0 ? windowPeriod(own, gguf) : 1, gguf);
  const truncate = !gguf.blendsExactly;
  const rope = parseRope(own, facts, { headDim, contextLength, interleaved, truncate, theta: ropeTheta });
  const localTheta = own.positiveOr("rope.freq_base_swa", gguf.localTheta ?? null);
  const config: ModelConfig = {
    architecture,
    vocabSize: facts.vocabSize,
    hiddenSize,
    intermediateSize: own.uniformCount("feed_forward_length", layers),
    layers,
    heads,
    kvHeads,
    headDim,
    contextLength,
    normEps: own.positiveOr(epsilonKeys[normKind], 1e-5),
    activation,
    rope: positions === "rotary" ? rope : unturned(rope),
    ropes: layerRopes(rope, localTheta, local, turnedLayers(own, architecture, local)),
    attentionScale: own.positiveOr("attention.scale", 1 / Math.sqrt(headDim)),
    attentionSoftcap: own.positiveOr("attn_logit_softcapping", 0),
    windows: windowsOf(local, () => window, contextLength),
    logitScale: 1,
    logitSoftcap: own.positiveOr("final_logit_softcapping", 0),
    embeddingScale: 1,
    residualScale: 1,
    parallelResidual: false,
    tiedEmbeddings: !facts.hasHead,
    experts: null,
    encoder: encoder ? ggufEncoder(encoder, fields, own, facts) : null,
    latent: null,
    bosToken: fields.tokens("tokenizer.ggml.bos_token_id")[0] ?? null,
    eosTokens: endTokens(fields),
    dtype: facts.dtype === "quantized" ? gguf.halves : facts.dtype,
  };
  return adjusted(config, gguf.adjust?.(own, config));
}

/** What GGUF calls the eps of each kind of norm. */
export const epsilonKeys = {
  rms: "attention.layer_norm_rms_epsilon",
  layer: "attention.layer_norm_epsilon",
} as const;

const WINDOW_PERIOD = "attention.sliding_window_pattern";

/** Some files list the layers under this name; readers go by the architecture then. */
const windowPeriod = (own: JsonFields, gguf: GgufForm): number =>
  typeof own.values[WINDOW_PERIOD] === "number" ? own.count(WINDOW_PERIOD, 0) : gguf.windowPeriod;

/** Which layers have the window where of `period` layers the last has not, or the first; 0 where every layer has it. */
export const localLayers = (layers: number, period: number, { isGlobalFirst = false }: GgufForm): boolean[] =>
  Array.from({ length: layers }, (_, layer) => period === 0 || layer % period !== (isGlobalFirst ? 0 : period - 1));

const unturned = (rope: RopeConfig): RopeConfig => ({ ...rope, dims: 0 });

/** Which layers turn, where not those that GGUF's readers take for them; a word of ours. */
export const TURNED_LAYERS = "rope.turned_layers";

/** Which layers turn, as readers of GGUF take it from the architecture. */
export function usuallyTurned(architecture: ArchitectureName, local: readonly boolean[]): boolean[] {
  const { positions, gguf } = architectureOf({ architecture });
  return local.map((isLocal, layer) => positions === "rotary" && (gguf.hasRope?.(layer, isLocal) ?? true));
}

const turnedLayers = (own: JsonFields, architecture: ArchitectureName, local: readonly boolean[]): boolean[] =>
  own.has(TURNED_LAYERS)
    ? Array.from(own.numbers(TURNED_LAYERS, local.length), (turned) => turned !== 0)
    : usuallyTurned(architecture, local);

/** The rotary embedding of each layer. */
export function layerRopes(
  rope: RopeConfig,
  localTheta: number | null,
  local: readonly boolean[],
  turned: readonly boolean[],
): RopeConfig[] {
  const none = unturned(rope);
  const own = localTheta === null ? rope : { ...rope, theta: localTheta, scaling: { type: "none" } as const };
  return local.map((isLocal, layer) => (!turned[layer] ? none : isLocal ? own : rope));
}

interface RopeDefaults {
  readonly headDim: number;
  readonly contextLength: number;
  readonly interleaved: boolean;
  readonly truncate: boolean;
  readonly theta: number;
}

function parseRope(own: JsonFields, facts: TensorFacts, given: RopeDefaults): RopeConfig {
  const { headDim, interleaved } = given;
  const dims = own.countOr("rope.dimension_count", headDim);
  if (dims % 2 !== 0 || dims > headDim) {
    fail("InvalidFile", `${own.source}: ${dims} rotary dims of ${headDim}; they must be even and no more than that`);
  }
  const scaling = parseScaling(own, facts, given);
  for (const set of scaling.type === "longrope" ? [scaling.short, scaling.long] : []) {
    if (set.length !== dims / 2) {
      fail(
        "InvalidFile",
        `${own.source}: ${set.length} rotary factors for ${dims} rotary dims; half as many are needed`,
      );
    }
  }
  return { theta: own.positiveOr("rope.freq_base", given.theta), dims, interleaved, scaling };
}

function parseScaling(own: JsonFields, facts: TensorFacts, { contextLength, truncate }: RopeDefaults): RopeScaling {
  const originalContext = own.countOr("rope.scaling.original_context_length", contextLength);
  if (facts.longRopeFactors) {
    const attentionFactor = own.positiveOr("rope.scaling.attn_factor", 1);
    return { type: "longrope", ...facts.longRopeFactors, originalContext, attentionFactor };
  }
  if (facts.ropeFactors) {
    // Llama 3's blend, computed by whoever wrote the file; one set for every position.
    const { ropeFactors: set } = facts;
    return { type: "longrope", short: set, long: set, originalContext: contextLength, attentionFactor: 1 };
  }
  const linear = own.positiveOr("rope.scale_linear", 1);
  const type = own.textOr("rope.scaling.type", linear === 1 ? "none" : "linear");
  const factor = own.positiveOr("rope.scaling.factor", linear);
  switch (type) {
    case "none":
      return { type: "none" };
    case "linear":
      return factor === 1 ? { type: "none" } : { type: "linear", factor };
    case "yarn":
      return {
        type: "yarn",
        factor,
        betaFast: own.positiveOr("rope.scaling.yarn_beta_fast", 32),
        betaSlow: own.positiveOr("rope.scaling.yarn_beta_slow", 1),
        originalContext,
        attentionFactor: own.positiveOr("rope.scaling.attn_factor", 1) * yarnMagnitude(factor),
        truncate,
      };
    default:
      return fail(
        "InvalidFile",
        `${own.source}: unknown rope scaling ${JSON.stringify(type)}; known are none, linear, yarn`,
      );
  }
}

/** What yarn multiplies cos and sin by; files hold a further factor. */
export const yarnMagnitude = (factor: number): number => (factor <= 1 ? 1 : 0.1 * Math.log(factor) + 1);
