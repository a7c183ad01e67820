/** A GGUF file's metadata as a `ModelConfig`. */
import type { DType } from "../../core/dtype.ts";
import { fail } from "../../core/errors.ts";
import { type ArchitectureName, traits } from "../architectures/index.ts";
import { type ModelConfig, type RopeConfig, type RopeScaling, usefulWindow } from "../config.ts";
import type { JsonFields } from "../json-fields.ts";
import { ggufArchitecture } from "./architectures.ts";
import { endTokens } from "./tokenizer.ts";

/** What the config takes from the file's tensors. */
export interface TensorFacts {
  readonly vocabSize: number;
  /** Without an output head of its own the embedding table is one. */
  readonly hasHead: boolean;
  readonly dtype: DType | "quantized" | null;
  /** Divisors of the rotary frequencies, where there are any. */
  readonly ropeFactors?: readonly number[] | undefined;
  readonly longRopeFactors?: { readonly short: readonly number[]; readonly long: readonly number[] } | undefined;
}

/** Gemma 2's largest model scales q·k by the width of a head of the hidden size; its files do not say so. */
const GEMMA2_27B_LAYERS = 46;

export function parseGgufConfig(fields: JsonFields, facts: TensorFacts): ModelConfig {
  const { source } = fields;
  const name = fields.text("general.architecture");
  const known = ggufArchitecture(name, source);
  const own = fields.under(`${name}.`);
  const expertCount = known.withExperts ? own.countOr("expert_count", 0, 0) : 0;
  const architecture = expertCount > 0 && known.withExperts ? known.withExperts : known.architecture;
  const trait = traits(architecture);
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
      `${source}: width ${hiddenSize} does not divide by ${heads} heads; ${name}.attention.key_length is missing`,
    );
  }
  const valueDim = own.countOr("attention.value_length", headDim);
  if (valueDim !== headDim) {
    fail("InvalidFile", `${source}: keys of ${headDim} and values of ${valueDim} dims; models with both alike are run`);
  }
  const contextLength = own.count("context_length");
  const window = usefulWindow(own.countOr("attention.sliding_window", 0, 0), contextLength);
  const everyOther = trait.windowed === "even";
  return {
    architecture,
    vocabSize: facts.vocabSize,
    hiddenSize,
    intermediateSize: own.uniformCount("feed_forward_length", layers),
    layers,
    heads,
    kvHeads,
    headDim,
    contextLength,
    normEps: own.positiveOr("attention.layer_norm_rms_epsilon", 1e-5),
    activation: known.activation,
    rope: parseRope(own, facts, { headDim, contextLength, interleaved: known.interleaved, theta: trait.ropeTheta }),
    attentionScale: own.positiveOr(
      "attention.scale",
      1 / Math.sqrt(queryScalar(architecture, layers, hiddenSize / heads, headDim)),
    ),
    attentionSoftcap: own.positiveOr("attn_logit_softcapping", 0),
    windows: Array.from({ length: layers }, (_, layer) => (everyOther && layer % 2 === 1 ? 0 : window)),
    logitSoftcap: own.positiveOr("final_logit_softcapping", 0),
    embeddingScale: trait.scaledEmbeddings ? Math.sqrt(hiddenSize) : 1,
    tiedEmbeddings: !facts.hasHead,
    experts: expertCount > 0 ? parseExperts(own, expertCount) : null,
    bosToken: fields.tokens("tokenizer.ggml.bos_token_id")[0] ?? null,
    eosTokens: endTokens(fields),
    dtype: computeType(facts.dtype, trait.scaledEmbeddings),
  };
}

const queryScalar = (name: ArchitectureName, layers: number, hiddenPerHead: number, headDim: number): number =>
  name === "gemma2" && layers === GEMMA2_27B_LAYERS ? hiddenPerHead : headDim;

function parseExperts(own: JsonFields, count: number): NonNullable<ModelConfig["experts"]> {
  const perToken = own.count("expert_used_count");
  if (perToken > count) fail("InvalidFile", `${own.source}: ${perToken} experts per token of ${count}`);
  return { count, perToken };
}

/** Quantized weights are multiplied with halves; activations as large as Gemma's need the range of bf16. */
function computeType(stored: TensorFacts["dtype"], large: boolean): DType | null {
  if (stored === "quantized") return large ? "bf16" : "f16";
  return stored;
}

interface RopeDefaults {
  readonly headDim: number;
  readonly contextLength: number;
  readonly interleaved: boolean;
  readonly theta: number;
}

function parseRope(own: JsonFields, facts: TensorFacts, given: RopeDefaults): RopeConfig {
  const { headDim, interleaved } = given;
  const dims = own.countOr("rope.dimension_count", headDim);
  if (dims % 2 !== 0 || dims > headDim) {
    fail("InvalidFile", `${own.source}: ${dims} rotary dims of ${headDim}; they must be even and no more than that`);
  }
  const scaling = parseScaling(own, facts, given.contextLength);
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

function parseScaling(own: JsonFields, facts: TensorFacts, contextLength: number): RopeScaling {
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
