/**
 * How an architecture differs from the others: in its mathematics, and in what either format makes of it. A file in this
 * folder says all of it for one architecture; what a single model's file says goes to its `ModelConfig`.
 */
import type { GgufTyped } from "../../formats/index.ts";
import type { Activation, EncoderConfig, ModelConfig } from "../config.ts";
import type { JsonFields } from "../json-fields.ts";
import type { Sharding } from "../sharding/cuts.ts";
import type { WeightsForm } from "../weights/naming.ts";
import type { Norm, NormRole } from "../weights/weights.ts";

export interface Architecture {
  /**
   * The norms of a layer; those named "post" are before the residual is added. Where attention and MLP run side by side,
   * a layer without one for the MLP has one for both.
   */
  readonly norms: readonly LayerNormRole[];
  /** LayerNorm has a bias where the file has one. */
  readonly normKind: Norm["kind"];
  /** down(activation(gate(x)) · up(x)), or down(activation(up(x))). */
  readonly mlp: "gated" | "plain";
  /** Queries and keys are turned by their positions, or a learned vector for each position is added to the embeddings. */
  readonly positions: "rotary" | "learned";
  /** q and k are normalised before they are rotated: each head by itself, or all heads as one. */
  readonly qkNorm: "none" | "head" | "all";
  /** Each head has a logit that takes a share of its weights, and has no value. */
  readonly sinks: boolean;
  /** q, k and v have biases. Elsewhere a bias is used where the file has one. */
  readonly qkvBias: boolean;
  /** Where the file names none; GGUF files never do. */
  readonly activation: Activation;
  /** Where the file names none. */
  readonly ropeTheta: number;
  /** Of encoders: what they have besides. Their norms named "post" are behind the sum with the residual. */
  readonly encoder?: EncoderForm;
  /** What is split over several ranks, and how. Encoders are not. */
  readonly sharding: Sharding;
  readonly huggingFace: HuggingFaceForm;
  readonly gguf: GgufForm;
}

export interface EncoderForm {
  /** The first layer's input is normalised already. */
  readonly skipsFirstNorm: boolean;
  /** The states of the last layer are normalised. */
  readonly finalNorm: boolean;
  /** A classifier's own layer has a norm behind it. */
  readonly classifierNorm: boolean;
  readonly classifierActivation: EncoderConfig["classifierActivation"];
  /** What a classifier in a GGUF file takes, where the file does not say. */
  readonly ggufClassifierPooling: EncoderConfig["classifierPooling"];
}

export type LayerNormRole = Extract<NormRole, "attentionNorm" | "postAttentionNorm" | "mlpNorm" | "postMlpNorm">;

/** What config.json calls the sizes of a model. */
export type ConfigKey =
  | "hiddenSize"
  | "intermediateSize"
  | "layers"
  | "heads"
  | "kvHeads"
  | "headDim"
  | "contextLength"
  | "normEps"
  | "activation"
  | "ropeTheta"
  | "rotaryShare";

/** config.json and safetensors. */
export interface HuggingFaceForm extends WeightsForm {
  readonly keys: Readonly<Record<ConfigKey, string>>;
  readonly tiedByDefault: boolean;
  /** Rotary pairs are neighbours in a head. */
  readonly interleaved: boolean;
  /** What fields stand for that a config may leave out. */
  defaults?(fields: JsonFields): Readonly<Record<string, unknown>>;
  /** Whether a layer has the config's sliding window, where the config does not list the layers. */
  hasWindow(layer: number, fields: JsonFields): boolean;
  /** Whether a layer's queries and keys are turned. Default: in every layer. */
  hasRope?(layer: number, isLocal: boolean, fields: JsonFields): boolean;
  /** What `config`, read as Llama's, must say instead. */
  adjust?(fields: JsonFields, config: ModelConfig): Partial<ModelConfig>;
  /** What a tensor's name is without what some checkpoints put before or into it. */
  plainName?(name: string): string;
}

export interface GgufForm extends WeightsForm {
  /** The file's `general.architecture`. */
  readonly name: string;
  /** Where several architectures share a name: whether a file with this metadata is of this one. The last has none. */
  fits?(own: JsonFields): boolean;
  /** The rows of q and k are ordered so that rotary pairs are neighbours. */
  readonly interleaved: boolean;
  /** Matrices that may be fused are written so. */
  readonly writesFused: boolean;
  /** What quantized weights are multiplied with. */
  readonly halves: "f16" | "bf16";
  /** Of so many layers the last attends to everything, the others have the file's window; 0 where every layer has it. */
  readonly windowPeriod: number;
  /** The first of so many attends to everything, and not the last. */
  readonly isGlobalFirst?: boolean;
  /** Layers with a window turn by this, unscaled, where the file names no other. Default: as all layers. */
  readonly localTheta?: number;
  /** Whether a layer's queries and keys are turned. Default: in every layer. */
  hasRope?(layer: number, isLocal: boolean): boolean;
  /** Where yarn begins and ends to blend need not be whole numbers, which files have no word for. */
  readonly blendsExactly?: boolean;
  /** By what readers multiply q·k, whatever the file says: norms of q make up for the difference. */
  fixedScale?(config: ModelConfig): number;
  /** What `config`, read as Llama's, must say instead; `own` are the fields under the architecture's name. */
  adjust?(own: JsonFields, config: ModelConfig): Partial<ModelConfig>;
  /** What a file says under the architecture's name besides what Llama's says. */
  metadata?(config: ModelConfig): Readonly<Record<string, GgufTyped | undefined>>;
}
