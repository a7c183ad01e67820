/** What a format calls the tensors of a model. Names of matrices are without ".weight", so that a bias can be looked for. */
import type { ModelConfig } from "../config.ts";
import type { EmbeddingRole, LinearRole, NormRole, Part, Place } from "./weights.ts";

/** Matrices for the same input that files may hold over each other, joined by commas. */
export type FusedRoles = "q,k,v" | "gate,up";

export interface Names {
  readonly embedding: Readonly<Record<EmbeddingRole, string>>;
  /** Stands before the names of a layer's tensors; "{layer}" is its number. */
  readonly layer: string;
  readonly linear: Readonly<Record<LinearRole, string>>;
  /**
   * Where an expert's matrix may be, the usual place first; "{expert}" is its number, and a name without it is that of a
   * tensor in which those of all experts are stacked.
   */
  readonly experts: Readonly<Partial<Record<LinearRole, readonly string[]>>>;
  readonly fused: Readonly<Partial<Record<FusedRoles, string>>>;
  readonly norm: Readonly<Record<NormRole, string>>;
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
  /** Where q, k and v are one tensor: the rows of each head's q, k and v follow each other, head by head. */
  readonly fusedByHead?: boolean;
}

/** Where a matrix is: a tensor of its own, or the one at `index` of those stacked in a tensor. */
export interface MatrixName {
  readonly name: string;
  readonly index?: number;
}

const inLayer = (names: Names, { layer }: Place, name: string): string =>
  layer === undefined ? name : names.layer.replace("{layer}", `${layer}`) + name;

/** Where the matrix may be, the usual place first. */
export function matrixNames(names: Names, role: LinearRole, place: Place): readonly MatrixName[] {
  const { expert } = place;
  if (expert === undefined) return [{ name: inLayer(names, place, names.linear[role]) }];
  return (names.experts[role] ?? []).map((pattern) => {
    const name = inLayer(names, place, pattern.replace("{expert}", `${expert}`));
    return pattern.includes("{expert}") ? { name } : { name, index: expert };
  });
}

/** What the parts are called as one tensor, where they may be one. */
export function fusedName(names: Names, parts: readonly Part[], place: Place): string | undefined {
  const roles = parts.map((part) => part.role).join();
  const own = Object.hasOwn(names.fused, roles) ? names.fused[roles as FusedRoles] : undefined;
  return own === undefined || place.expert !== undefined ? undefined : inLayer(names, place, own);
}

/** Without ".weight", as those of matrices. */
export const normName = (names: Names, role: NormRole, place: Place): string => inLayer(names, place, names.norm[role]);

const isOfClassifier = ({ linear, norm }: Names, name: string): boolean =>
  [linear.classifier, linear.labels, norm.classifierNorm].some((own) => name.startsWith(`${own}.`));

/** Files may hold more than the model asks for; progress must not count that. */
export function isUsed(names: Names, name: string, { layers, tiedEmbeddings, encoder }: ModelConfig): boolean {
  if (names.others.test(name)) return false;
  if (encoder && encoder.labels.length === 0 && isOfClassifier(names, name)) return false;
  if (tiedEmbeddings && name === `${names.linear.head}.weight`) return false;
  const prefix = names.layer.slice(0, names.layer.indexOf("{layer}"));
  const layer = name.startsWith(prefix) ? /^\d+/.exec(name.slice(prefix.length)) : null;
  return layer === null || Number(layer[0]) < layers;
}
