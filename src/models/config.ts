/** What a transformer is made of, whatever file it came from. */
import type { EpilogueActivation } from "../backend/fused-ops.ts";
import type { DType } from "../core/dtype.ts";
import { fail } from "../core/errors.ts";
import type { ArchitectureName } from "./architectures/index.ts";
import type { Pooling } from "./embeddings/settings.ts";
import type { Routing } from "./experts/routing.ts";

/** How the rotary frequencies differ from theta^(−2i/d). */
export type RopeScaling =
  | { readonly type: "none" }
  | { readonly type: "linear"; readonly factor: number }
  | {
      /** Llama 3.1: low frequencies are divided, high ones kept, those between blended. */
      readonly type: "llama3";
      readonly factor: number;
      readonly lowFrequencyFactor: number;
      readonly highFrequencyFactor: number;
      readonly originalContext: number;
    }
  | {
      readonly type: "yarn";
      readonly factor: number;
      readonly betaFast: number;
      readonly betaSlow: number;
      readonly originalContext: number;
      /** Multiplies cos and sin. */
      readonly attentionFactor: number;
      /** The frequencies between which it blends are taken to whole indices, away from each other. */
      readonly truncate: boolean;
    }
  | {
      /** A divisor per frequency: one set up to the original context, another beyond it. */
      readonly type: "longrope";
      readonly short: readonly number[];
      readonly long: readonly number[];
      readonly originalContext: number;
      readonly attentionFactor: number;
    };

export interface RopeConfig {
  readonly theta: number;
  /** How many dims of a head turn; the others pass. 0 where positions are not told by turning. */
  readonly dims: number;
  /** Pairs are neighbours (2i, 2i + 1), as GGUF orders Llama's heads, and not (i, i + d/2). */
  readonly interleaved: boolean;
  readonly scaling: RopeScaling;
}

/** What encoders have besides: positions see those behind them, too. */
export interface EncoderConfig {
  /** Vectors for segments of a text; 0 is none. */
  readonly types: number;
  /** The learned vector of a text's first token. */
  readonly positionOffset: number;
  readonly paddingToken: number | null;
  /** Of the scores that a classification head gives; none without one. */
  readonly labels: readonly string[];
  /** The head has a layer of its own before the one that gives the scores. */
  readonly classifierDense: boolean;
  readonly classifierPooling: Pooling;
  readonly classifierActivation: PlainActivation | "tanh";
}

/** A mixture of experts in place of MLPs. */
export interface Experts {
  readonly count: number;
  readonly perToken: number;
  /** Of each expert. */
  readonly width: number;
  readonly routing: Routing;
  /** What every row goes through besides; gated by the sigmoid of a score of its own. */
  readonly shared: { readonly width: number; readonly gated: boolean } | null;
  /** Whether a layer has experts; the others have an MLP. */
  readonly layers: readonly boolean[];
}

/** Keys and values are made of a latent vector per position; besides, all heads share a key, the part that is turned. */
export interface Latent {
  /** Of the latent. */
  readonly rank: number;
  /** Of a vector that queries are made of; 0 where they are made of the hidden state. */
  readonly queryRank: number;
  /** Of a head's key without the shared part. */
  readonly keyDim: number;
  readonly valueDim: number;
  /** Of the norms of both vectors. */
  readonly normEps: number;
}

export interface ModelConfig {
  readonly architecture: ArchitectureName;
  readonly vocabSize: number;
  readonly hiddenSize: number;
  /** Width of the MLP. */
  readonly intermediateSize: number;
  readonly layers: number;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  /** The most positions the model was made for. */
  readonly contextLength: number;
  readonly normEps: number;
  readonly activation: Activation;
  /** Of the layers that attend to everything, where others have one of their own. */
  readonly rope: RopeConfig;
  /** Of each layer. Layers that share one share the object. */
  readonly ropes: readonly RopeConfig[];
  /** Multiplies q·k. */
  readonly attentionScale: number;
  /** 0 turns it off. */
  readonly attentionSoftcap: number;
  /** Keys each layer's queries see, counted back from their own; 0 is all. Of encoders: how far on either side. */
  readonly windows: readonly number[];
  /** Multiplies the logits, before they are capped. */
  readonly logitScale: number;
  /** 0 turns it off. */
  readonly logitSoftcap: number;
  readonly embeddingScale: number;
  /** Multiplies what attention and MLP give, before it is added to the residual. */
  readonly residualScale: number;
  /** Attention and MLP of a layer have the same input, and what both give is added to it. */
  readonly parallelResidual: boolean;
  /** The output head is the embedding table. */
  readonly tiedEmbeddings: boolean;
  readonly experts: Experts | null;
  /** Null for decoders. */
  readonly encoder: EncoderConfig | null;
  readonly latent: Latent | null;
  readonly bosToken: number | null;
  /** Any of these ends a text. */
  readonly eosTokens: readonly number[];
  /** What the weights were saved in, where the file says so. */
  readonly dtype: DType | null;
  /** Of a model whose layers several processes have one after the other: which these are. Absent where they are all. */
  readonly stage?: StageLayers;
}

/** Some of a model's layers. */
export interface StageLayers {
  /** The number of the first, and how many the model has. */
  readonly first: number;
  readonly of: number;
}

/** Whether the model's embedding comes before its first layer, and its head behind the last: they need not be here. */
export const endsOf = ({
  layers,
  stage,
}: ModelConfig): { readonly hasInput: boolean; readonly hasOutput: boolean } => ({
  hasInput: !stage || stage.first === 0,
  hasOutput: !stage || stage.first + layers === stage.of,
});

/** A model of `count` of its layers, from `first` on. */
export function stageOf(config: ModelConfig, first: number, count: number): ModelConfig {
  const { experts, layers } = config;
  const own = <T>(of: readonly T[]): T[] => of.slice(first, first + count);
  return {
    ...config,
    layers: count,
    ropes: own(config.ropes),
    windows: own(config.windows),
    experts: experts && { ...experts, layers: own(experts.layers) },
    stage: { first, of: layers },
  };
}

/** Methods of `Tensor`, and one that is of a gate and what it opens. */
export type Activation = PlainActivation | "clampedSwiglu";
/** Those that need no gate. */
export type PlainActivation = EpilogueActivation;

/** `config` with what an architecture says instead; a rotary embedding that it changes is every layer's. */
export function adjusted(config: ModelConfig, change: Partial<ModelConfig> = {}): ModelConfig {
  const { rope, ropes } = change;
  return { ...config, ...change, ...(rope && !ropes && { ropes: config.ropes.map(() => rope) }) };
}

/** The same, if they make sense; `source` opens the error message. */
export function expertsOf(experts: Experts, source: string): Experts {
  const { count, perToken, routing } = experts;
  if (perToken > count) fail("InvalidFile", `${source}: ${perToken} experts per token of ${count}`);
  const { groups } = routing;
  if (!groups) return experts;
  const size = count / groups.count;
  const fits = Number.isInteger(size) && size >= groups.scoredBy && groups.perToken <= groups.count;
  if (!fits || perToken > groups.perToken * size) {
    fail(
      "InvalidFile",
      `${source}: ${perToken} experts per token from ${groups.perToken} of the ${groups.count} groups of ${count} experts`,
    );
  }
  return experts;
}

/**
 * The window of each layer. One as long as the context is none, and would cost a cache of its size; but where some layers
 * alone are local, they may differ in more than that.
 */
export function windowsOf(local: readonly boolean[], window: () => number, contextLength: number): number[] {
  if (!local.includes(true)) return local.map(() => 0);
  const own = Math.min(window(), contextLength);
  const useful = own < contextLength || local.includes(false);
  return local.map((isLocal) => (isLocal && useful ? own : 0));
}
