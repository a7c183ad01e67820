/** What a format calls the tensors of a model. Names of matrices are without ".weight", so that a bias can be looked for. */
import type { StoredWeights } from "../../formats/index.ts";
import { endsOf, type ModelConfig } from "../config.ts";
import type { EmbeddingRole, HeadRole, LinearRole, NormRole, Part, Place, StackPart, VectorRole } from "./weights.ts";

/** Matrices for the same input that files may hold over each other, joined by commas. */
export type FusedRoles = "q,k,v" | "gate,up";

export interface Names {
  readonly embedding: Readonly<Record<EmbeddingRole, string>>;
  /** Stands before the names of a layer's tensors; "{layer}" is its number. */
  readonly layer: string;
  /** The number of the first, where a model has only some of the file's. Default 0. */
  readonly firstLayer?: number;
  readonly linear: Readonly<Record<LinearRole, string>>;
  /**
   * Where the matrix of one of several experts, or heads, may be, the usual place first; "{expert}" is its number, and a
   * name without it is that of a tensor in which those of all are stacked.
   */
  readonly experts: Readonly<Partial<Record<LinearRole | HeadRole | FusedRoles, readonly string[]>>>;
  /** The matrices of the expert that all rows go through. */
  readonly shared: Readonly<Partial<Record<LinearRole, string>>>;
  readonly fused: Readonly<Partial<Record<FusedRoles, string>>>;
  readonly norm: Readonly<Record<NormRole, string>>;
  /** Whole names. */
  readonly vector: Readonly<Record<VectorRole, string>>;
  /** What files hold besides the model's weights. */
  readonly others: RegExp;
}

/** How a format holds the weights of an architecture. */
export interface WeightsForm {
  readonly names: Names;
  /** Norm weights are stored minus this. */
  readonly normOffset: 0 | 1;
  /** The matrices of layers are stored as (inputs, outputs). */
  readonly transposed?: boolean;
  /** The file with some tensors in another order, under other names. */
  rearrange?(file: StoredWeights, config: ModelConfig): StoredWeights;
  /** Where q, k and v are one tensor: the rows of each head's q, k and v follow each other, head by head. */
  readonly fusedByHead?: boolean;
}

const inLayer = (names: Names, { layer }: Place, name: string): string =>
  layer === undefined ? name : names.layer.replace("{layer}", `${layer + (names.firstLayer ?? 0)}`) + name;

export const matrixName = (names: Names, role: LinearRole, place: Place): string =>
  inLayer(names, place, (place.shared ? names.shared[role] : undefined) ?? names.linear[role]);

/** Where the matrices of several experts may be, the usual place first: the name of each, or one for all. */
export function stackNames(names: Names, roles: string, count: number, place: Place): readonly (string | string[])[] {
  return (names.experts[roles as LinearRole] ?? []).map((pattern) => {
    const name = inLayer(names, place, pattern);
    if (!pattern.includes("{expert}")) return name;
    return Array.from({ length: count }, (_, expert) => name.replace("{expert}", `${expert}`));
  });
}

export const rolesOf = (parts: readonly StackPart[]): string => parts.map((part) => part.role).join();

/** What the parts are called as one tensor, where they may be one. */
export function fusedName(names: Names, parts: readonly Part[], place: Place): string | undefined {
  const roles = rolesOf(parts);
  const own = Object.hasOwn(names.fused, roles) ? names.fused[roles as FusedRoles] : undefined;
  return own === undefined || place.shared ? undefined : inLayer(names, place, own);
}

export const vectorName = (names: Names, role: VectorRole, place: Place): string =>
  inLayer(names, place, names.vector[role]);

/** Without ".weight", as those of matrices. */
export const normName = (names: Names, role: NormRole, place: Place): string => inLayer(names, place, names.norm[role]);

const isOfClassifier = ({ linear, norm }: Names, name: string): boolean =>
  [linear.classifier, linear.labels, norm.classifierNorm].some((own) => name.startsWith(`${own}.`));

/** Files may hold more than the model asks for; progress must not count that. */
export function isUsed(names: Names, name: string, config: ModelConfig): boolean {
  const { layers, tiedEmbeddings, encoder } = config;
  const { hasInput, hasOutput } = endsOf(config);
  if (names.others.test(name)) return false;
  const isOf = (own: string): boolean => name.startsWith(`${own}.`);
  if (!hasInput && isOf(names.embedding.position)) return false;
  if (!hasInput && !(hasOutput && tiedEmbeddings) && isOf(names.embedding.token)) return false;
  if (!hasOutput && (isOf(names.norm.finalNorm) || isOf(names.linear.head))) return false;
  if (encoder && encoder.labels.length === 0 && isOfClassifier(names, name)) return false;
  if (tiedEmbeddings && name === `${names.linear.head}.weight`) return false;
  const prefix = names.layer.slice(0, names.layer.indexOf("{layer}"));
  const layer = name.startsWith(prefix) ? /^\d+/.exec(name.slice(prefix.length)) : null;
  if (layer === null) return true;
  const number = Number(layer[0]) - (names.firstLayer ?? 0);
  return number >= 0 && number < layers;
}
