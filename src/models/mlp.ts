/** The feed-forward half of a layer: an MLP with a gate or without, or a mixture of experts. */
import { fail } from "../core/errors.ts";
import type { QuantType } from "../core/quant-types.ts";
import type { Tensor } from "../ops/index.ts";
import { architectureOf } from "./architectures/index.ts";
import type { Activation, ModelConfig, PlainActivation } from "./config.ts";
import { Mixture } from "./experts/mixture.ts";
import { reducedFeedForward } from "./sharding/reduced.ts";
import { type Around, nextOf, type Place, type Projection, type Weights } from "./weights/weights.ts";

export interface FeedForward {
  /** The type of the weights that x goes into first, and that alone. */
  readonly first?: QuantType | null | undefined;
  /** x (n, hidden) → (n, hidden); `around` is the norm before and the residual after. */
  forward(x: Tensor, around: Around): Tensor;
}

export async function loadFeedForward(config: ModelConfig, weights: Weights, layer: number): Promise<FeedForward> {
  const own = await loadWhole(config, weights, layer);
  return weights.shard ? reducedFeedForward(own, weights.shard) : own;
}

async function loadWhole(config: ModelConfig, weights: Weights, layer: number): Promise<FeedForward> {
  if (config.experts?.layers[layer]) {
    return Mixture.load(config, weights, layer, (width) =>
      GatedMlp.load(config, weights, { layer, shared: true }, width),
    );
  }
  return architectureOf(config).mlp === "gated"
    ? GatedMlp.load(config, weights, { layer })
    : PlainMlp.load(config, weights, { layer });
}

/** down(activation(gate(x)) · up(x)). */
class GatedMlp implements FeedForward {
  readonly #gateUp: Projection;
  readonly #down: Projection;
  readonly #activation: Activation;

  private constructor(gateUp: Projection, down: Projection, activation: Activation) {
    this.#gateUp = gateUp;
    this.#down = down;
    this.#activation = activation;
  }

  get first(): QuantType | null | undefined {
    return this.#gateUp.type;
  }

  static async load(
    { hiddenSize, intermediateSize, activation }: ModelConfig,
    weights: Weights,
    place: Place,
    width = intermediateSize,
  ): Promise<GatedMlp> {
    const parts = [
      { role: "gate", outputs: width },
      { role: "up", outputs: width },
    ] as const;
    return new GatedMlp(
      await weights.linear(parts, hiddenSize, place),
      await weights.linear([{ role: "down", outputs: hiddenSize }], width, place),
      activation,
    );
  }

  forward(x: Tensor, { norm, ...after }: Around = {}): Tensor {
    return this.#down.forward(
      this.#gateUp.forward(x, { norm, glu: this.#activation, next: nextOf(this.#down.type) }),
      after,
    );
  }
}

/** down(activation(up(x))). */
class PlainMlp implements FeedForward {
  readonly #up: Projection;
  readonly #down: Projection;
  readonly #activation: PlainActivation;

  private constructor(up: Projection, down: Projection, activation: PlainActivation) {
    this.#up = up;
    this.#down = down;
    this.#activation = activation;
  }

  static async load(config: ModelConfig, weights: Weights, place: Place): Promise<PlainMlp> {
    const { hiddenSize, intermediateSize, activation } = config;
    if (activation === "clampedSwiglu") return fail("InvalidFile", `an MLP without a gate cannot have ${activation}`);
    return new PlainMlp(
      await weights.linear([{ role: "up", outputs: intermediateSize }], hiddenSize, place),
      await weights.linear([{ role: "down", outputs: hiddenSize }], intermediateSize, place),
      activation,
    );
  }

  forward(x: Tensor, { norm, ...after }: Around = {}): Tensor {
    return this.#down.forward(this.#up.forward(x, { norm, activation: this.#activation }), after);
  }
}
