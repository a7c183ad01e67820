/** How large a model's parts are: its own loading code asks for everything, and what it asks for is counted. */
import { fail } from "../../core/errors.ts";
import { scope, Tensor } from "../../ops/index.ts";
import type { ModelConfig } from "../config.ts";
import { loadEncoderParts } from "../encoder/encoder.ts";
import { loadParts } from "../transformer.ts";
import type { WeightSizes } from "../weights/weight-sizes.ts";
import type {
  EmbeddingRole,
  EmbeddingTable,
  LinearRole,
  NormRole,
  NormWeights,
  Part,
  Place,
  Projection,
  ProjectionStack,
  StackPart,
  VectorRole,
  Weights,
} from "../weights/weights.ts";

/** Bytes of weights, by how they are used. */
export interface Tally {
  /** Matrices that every row goes through; ranks of tensor parallelism have a part of them each. */
  readonly matrices: number;
  /** Matrices of experts, of which a row goes through some. */
  readonly experts: number;
  /** What every rank has whole: norms, routers, and what latents are made by. */
  readonly rest: number;
}

export interface ModelSizes {
  /** The tables that tokens and positions are looked up in. */
  readonly input: Tally;
  readonly layers: readonly Tally[];
  /** The final norm, and the head where it is not the table of the tokens. */
  readonly output: Tally;
  /** The part of all bytes that a device may show from the file. */
  readonly stored: number;
}

export const tallyBytes = ({ matrices, experts, rest }: Tally): number => matrices + experts + rest;
export const weightBytes = ({ input, layers, output }: ModelSizes): number =>
  [input, ...layers, output].reduce((sum, tally) => sum + tallyBytes(tally), 0);

export const measureModel = (config: ModelConfig, sizes: WeightSizes): Promise<ModelSizes> =>
  scope(async () => {
    const counted = new CountedWeights(config.layers, sizes);
    await (config.encoder ? loadEncoderParts : loadParts)(config, counted);
    return { ...counted.sizes, stored: sizes.stored };
  });

/** Roles whose matrices are no larger for being many: each rank has them whole. */
const replicated: ReadonlySet<LinearRole> = new Set(["router", "sharedGate", "qDown", "kvDown"]);

type Mutable = { -readonly [K in keyof Tally]: Tally[K] };

/** Hands out what cannot compute, and counts. */
class CountedWeights implements Weights {
  readonly owned: readonly Disposable[] = [];
  readonly sizes: { readonly input: Mutable; readonly layers: readonly Mutable[]; readonly output: Mutable };
  readonly #of: WeightSizes;
  /** Of no memory to speak of; vectors are views of it. */
  readonly #zero = Tensor.zeros([1]);

  constructor(layers: number, of: WeightSizes) {
    const empty = (): Mutable => ({ matrices: 0, experts: 0, rest: 0 });
    this.sizes = { input: empty(), layers: Array.from({ length: layers }, empty), output: empty() };
    this.#of = of;
  }

  async linear(parts: readonly Part[], inputs: number, place: Place): Promise<Projection> {
    const kind = parts.some(({ role }) => replicated.has(role)) ? "rest" : "matrices";
    this.#at(place)[kind] += this.#of.linear(parts, inputs, place);
    return uncomputed;
  }

  async stack(parts: readonly StackPart[], inputs: number, count: number, place: Place): Promise<ProjectionStack> {
    const ofHeads = parts.some(({ role }) => role === "keyUp" || role === "valueUp");
    this.#at(place)[ofHeads ? "matrices" : "experts"] += this.#of.stack(parts, inputs, count, place);
    return uncomputed;
  }

  async vector(role: VectorRole, size: number, place: Place): Promise<Tensor> {
    this.#at(place).rest += this.#of.vector(role, size, place);
    return this.#zero.broadcastAs([size]);
  }

  async norm(role: NormRole, size: number, place: Place): Promise<NormWeights> {
    const at = role === "embeddingNorm" ? this.sizes.input : this.#at(place);
    at.rest += this.#of.norm(role, size, place);
    return { weight: this.#zero.broadcastAs([size]), bias: null };
  }

  async embedding(role: EmbeddingRole, rows: number, width: number): Promise<EmbeddingTable> {
    this.sizes.input[role === "token" ? "matrices" : "rest"] += this.#of.embedding(role, rows, width);
    return { lookup: notLoaded, head: uncomputed };
  }

  async [Symbol.asyncDispose](): Promise<void> {}

  #at({ layer }: Place): Mutable {
    return layer === undefined ? this.sizes.output : this.sizes.layers[layer]!;
  }
}

const notLoaded = (): never => fail("InvalidArgument", "weights that were only counted cannot compute");
const uncomputed = { forward: notLoaded, parts: notLoaded, each: notLoaded, dense: notLoaded };
