/** What a format calls the tensors of a model. `FileWeights` reads any file that has such names. */
import type { ModelConfig } from "../config.ts";
import type { LinearRole, NormRole, Place } from "./weights.ts";

/** Where a matrix is: a tensor of its own, or the one at `index` of those stacked in a tensor. */
export interface MatrixName {
  /** Without ".weight", so that a bias can be looked for. */
  readonly name: string;
  readonly index?: number;
}

export interface Naming {
  readonly embedding: string;
  /** The file holds norm weights minus this. */
  readonly normOffset: 0 | 1;
  /** Where the matrix may be, the usual place first. */
  linear(role: LinearRole, place: Place): readonly MatrixName[];
  /** What several matrices over each other would be called, without ".weight"; `roles` are joined by commas. */
  fused(roles: string, place: Place): string | undefined;
  norm(role: NormRole, place: Place): string;
  /** Files may hold more than the model asks for; progress must not count that. */
  isUsed(name: string): boolean;
}

export type NamingOf = (config: ModelConfig) => Naming;
