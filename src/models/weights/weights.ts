/**
 * The seam between a model and the file its weights come from. A model asks by role, never by a file's name for it,
 * and gets layers ready to run: fused or separate in the file, plain or quantized, is the implementation's affair.
 */
import type { DType } from "../../core/dtype.ts";
import type { QuantType } from "../../core/quant-types.ts";
import type { Tensor } from "../../ops/index.ts";
import type { Activation, PlainActivation } from "../config.ts";
import type { Shard } from "../sharding/shard.ts";

export type NormRole =
  | "attentionNorm"
  | "postAttentionNorm"
  | "mlpNorm"
  | "postMlpNorm"
  | "qNorm"
  | "kNorm"
  | "qLatentNorm"
  | "latentNorm"
  | "finalNorm"
  | "embeddingNorm"
  | "classifierNorm";
/** Segments of a text ("type") have vectors of their own in some encoders. */
export type EmbeddingRole = "token" | "position" | "type";
/** A classifier is a layer over the state of a text ("classifier"), and one that gives the scores of its labels. */
export type LinearRole =
  | "q"
  | "k"
  | "v"
  | "o"
  | "qDown"
  | "qUp"
  | "kvDown"
  | "gate"
  | "up"
  | "down"
  | "router"
  | "sharedGate"
  | "head"
  | "classifier"
  | "labels";
/** Those of which there is one for each head. */
export type HeadRole = "keyUp" | "valueUp";
/** What is neither a norm nor a bias: a logit of each head, and what is added to the scores of experts to choose them by. */
export type VectorRole = "sinks" | "routerBias";

/** Which layer, and whether it is its shared expert; neither for what the model has once. */
export interface Place {
  readonly layer?: number;
  readonly shared?: boolean;
}

/** One of the matrices that are applied to the same input. */
export interface Part<Role = LinearRole> {
  readonly role: Role;
  /** Its rows. */
  readonly outputs: number;
  /** Without its bias the file is not valid. Other parts use a bias where the file has one. */
  readonly needsBias?: boolean;
}

export type StackPart = Part<LinearRole | HeadRole>;

/** What a norm multiplies by, and what it adds after that, per channel. */
export interface NormWeights {
  readonly weight: Tensor;
  readonly bias: Tensor | null;
}

/** A norm of the input: by its root mean square, or LayerNorm, which takes its mean away first. */
export interface Norm extends NormWeights {
  readonly kind: "rms" | "layer";
  readonly eps: number;
}

/** What a projection does besides its product, in the same kernel where the device has one. */
export interface Fusion {
  readonly norm?: Norm | undefined;
  /** The first half of the outputs opens the second: activation(gate) · up. */
  readonly glu?: Activation | undefined;
  /** Of each output, where none opens another. */
  readonly activation?: PlainActivation | undefined;
  /** Added to the result. */
  readonly residual?: Tensor | undefined;
  /** Nobody reads the residual afterwards: the result may take its memory. Default false. */
  readonly spendsResidual?: boolean | undefined;
  /** The type of the weights that the result is multiplied with next. Default unknown. */
  readonly next?: QuantType | null | undefined;
}

/** What is around half a layer: the norm before, and the residual after. */
export type Around = Pick<Fusion, "norm" | "residual" | "spendsResidual">;

/** Matrices applied to the rows of x (n, inputs). */
export interface Projection {
  /** Of its weights, where all are of one. */
  readonly type?: QuantType | null;
  /** The results of all parts side by side: (n, outputs of all), or half of them with `glu`. */
  forward(x: Tensor, fusion?: Fusion): Tensor;
  /** A result (n, outputs) for each part. */
  parts(x: Tensor, norm?: Norm): Tensor[];
}

/** What is fused with the product of a stack: with a `mix` (n, k) the sum of each row's slots, (n, outputs), and a residual. */
export interface StackFusion extends Pick<Fusion, "norm" | "glu" | "residual"> {
  readonly mix?: Tensor | undefined;
}

export type RoutedFusion = Pick<Fusion, "norm" | "residual"> & { readonly glu: Activation };

/** Matrices of one shape, (count, outputs, inputs), of which each row of x goes through some, or through all. */
export interface ProjectionStack {
  /** x (n or n · k, inputs) through those that ids (n, k) name: (n · k, outputs), or half of them with `glu`. */
  forward(x: Tensor, ids: Tensor, fusion?: StackFusion): Tensor;
  /**
   * One row x (1, inputs) through the `count` of them that its scores choose, gates and what they open, and through those of `down`,
   * summed by the softmax of the scores: (1, outputs of down). Null where the device does not do it in one piece.
   */
  routed?(x: Tensor, scores: Tensor, count: number, down: ProjectionStack, fusion: RoutedFusion): Tensor | null;
  /** Each matrix applied to a row of its own: (n, count, inputs) → (n, count, outputs). */
  each(x: Tensor): Tensor;
  /** All of them in the dtype that the model computes in. */
  dense(): Tensor;
}

export interface EmbeddingTable {
  /** The rows that ids (n) name: (n, width). */
  lookup(ids: Tensor): Tensor;
  /** The table as a layer, for models whose output head it is. */
  readonly head: Projection;
}

/** Everything handed out stays valid after the file is closed, until it is disposed through `owned`. */
export interface Weights extends AsyncDisposable {
  /** The ranks that the model is split over; absent where it is whole. */
  readonly shard?: Shard;
  /** What was handed out so far; whoever builds the model disposes it. */
  readonly owned: readonly Disposable[];
  linear(parts: readonly Part[], inputs: number, place: Place): Promise<Projection>;
  /** A matrix of all parts over each other for each of `count` experts, or heads. */
  stack(parts: readonly StackPart[], inputs: number, count: number, place: Place): Promise<ProjectionStack>;
  /** In the dtype that the model computes in, but for a router's bias, which is f32. */
  vector(role: VectorRole, size: number, place: Place): Promise<Tensor>;
  /** The factor per channel is complete: where checkpoints hold it minus one, one has been added. */
  norm(role: NormRole, size: number, place: Place): Promise<NormWeights>;
  embedding(role: EmbeddingRole, rows: number, width: number): Promise<EmbeddingTable>;
}

/** Weights on their way to a device. What is handed out may be filled later, so that reading never pauses. */
export interface DeviceWeights extends Weights {
  /** Waits until all that was handed out is complete; throws what reading failed by. */
  arrival(): Promise<void>;
  /** What all of them will take there. */
  readonly deviceBytes: number;
  /** The types of the quantized ones. */
  readonly quantTypes: readonly QuantType[];
  /** The dtypes of the others. */
  readonly storedTypes: readonly DType[];
  /** Whether norms are stored less one. */
  readonly normsAreShifted: boolean;
  /** Whether there are matrices that are not quantized. */
  readonly hasPlainMatrices: boolean;
}
