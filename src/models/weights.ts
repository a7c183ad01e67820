/**
 * The seam between a model and the file its weights come from. A model asks by role, never by a file's name for it,
 * and gets layers ready to run: fused or separate in the file, plain or quantized, is the implementation's affair.
 */
import type { Tensor } from "../tensor/index.ts";

export type NormRole =
  | "attentionNorm"
  | "postAttentionNorm"
  | "mlpNorm"
  | "postMlpNorm"
  | "qNorm"
  | "kNorm"
  | "finalNorm";
export type LinearRole = "q" | "k" | "v" | "o" | "gate" | "up" | "down" | "router" | "head";

/** Which layer and which expert; neither for what the model has once. */
export interface Place {
  readonly layer?: number;
  readonly expert?: number;
}

/** One of the matrices that are applied to the same input. */
export interface Part {
  readonly role: LinearRole;
  /** Its rows. */
  readonly outputs: number;
  /** Without its bias the file is not valid. Other parts use a bias where the file has one. */
  readonly needsBias?: boolean;
}

/** Matrices applied to the rows of x (n, inputs): a result (n, outputs) for each part. */
export interface Projection {
  forward(x: Tensor): Tensor[];
  /** All results side by side, (n, outputs of all), where one product gives them so. */
  whole?(x: Tensor): Tensor;
}

export interface EmbeddingTable {
  /** The rows that ids (n) name: (n, width). */
  lookup(ids: Tensor): Tensor;
  /** x (n, width) times the table transposed, for models whose output head it is. */
  project(x: Tensor): Tensor;
}

/** Everything handed out stays valid after the file is closed, until it is disposed through `owned`. */
export interface Weights extends AsyncDisposable {
  /** What was handed out so far; whoever builds the model disposes it. */
  readonly owned: readonly Disposable[];
  linear(parts: readonly Part[], inputs: number, place: Place): Promise<Projection>;
  /** The factor per channel, complete: where checkpoints hold it minus one, one has been added. */
  norm(role: NormRole, size: number, place: Place): Promise<Tensor>;
  embedding(rows: number, width: number): Promise<EmbeddingTable>;
}
