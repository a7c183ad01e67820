/**
 * How an architecture differs from the others: in its mathematics, and in what either format makes of it. A file in this
 * folder says all of it for one architecture; what a single model's file says goes to its `ModelConfig`.
 */
import type { GgufTyped } from "../../formats/index.ts";
import type { Activation, ModelConfig } from "../config.ts";
import type { JsonFields } from "../json-fields.ts";
import type { WeightsForm } from "../weights/naming.ts";
import type { NormRole } from "../weights/weights.ts";

export interface Architecture {
  /** The norms of a layer; those named "post" are before the residual is added. */
  readonly norms: readonly LayerNormRole[];
  /** q and k are normalised before they are rotated: each head by itself, or all heads as one. */
  readonly qkNorm: "none" | "head" | "all";
  /** q, k and v have biases. Elsewhere a bias is used where the file has one. */
  readonly qkvBias: boolean;
  /** Where the file names none; GGUF files never do. */
  readonly activation: Activation;
  /** Where the file names none. */
  readonly ropeTheta: number;
  readonly huggingFace: HuggingFaceForm;
  readonly gguf: GgufForm;
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
  | "activation";

/** config.json and safetensors. */
export interface HuggingFaceForm extends WeightsForm {
  readonly keys: Readonly<Record<ConfigKey, string>>;
  readonly tiedByDefault: boolean;
  /** Whether a layer has the config's sliding window, where the config does not list the layers. */
  hasWindow(layer: number, fields: JsonFields): boolean;
  /** What `config`, read as Llama's, must say instead. */
  adjust?(fields: JsonFields, config: ModelConfig): Partial<ModelConfig>;
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
  /** Whether a layer has the file's sliding window, if it has one. */
  hasWindow(layer: number): boolean;
  /** What `config`, read as Llama's, must say instead; `own` are the fields under the architecture's name. */
  adjust?(own: JsonFields, config: ModelConfig): Partial<ModelConfig>;
  /** What a file says under the architecture's name besides what Llama's says. */
  metadata?(config: ModelConfig): Readonly<Record<string, GgufTyped>>;
}
