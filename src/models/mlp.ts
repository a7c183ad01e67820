/** The feed-forward half of a layer: an MLP with a gate or without, or a router with several of them. */
import { Tensor } from "../ops/index.ts";
import { architectureOf } from "./architectures/index.ts";
import type { Activation, ModelConfig } from "./config.ts";
import { normalize } from "./norm.ts";
import type { Fusion, Place, Projection, Weights } from "./weights/weights.ts";

export interface FeedForward {
  /** x (n, hidden) → (n, hidden); `around` is the norm before and the residual after. */
  forward(x: Tensor, around: Pick<Fusion, "norm" | "residual">): Tensor;
}

export async function loadFeedForward(config: ModelConfig, weights: Weights, layer: number): Promise<FeedForward> {
  if (!config.experts) {
    return architectureOf(config).mlp === "gated"
      ? GatedMlp.load(config, weights, { layer })
      : PlainMlp.load(config, weights, { layer });
  }
  const { count, perToken } = config.experts;
  const router = await weights.linear([{ role: "router", outputs: count }], config.hiddenSize, { layer });
  const experts: GatedMlp[] = [];
  for (let expert = 0; expert < count; expert++) {
    experts.push(await GatedMlp.load(config, weights, { layer, expert }));
  }
  return new Experts(router, experts, perToken);
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

  static async load(config: ModelConfig, weights: Weights, place: Place): Promise<GatedMlp> {
    const { hiddenSize, intermediateSize, activation } = config;
    const parts = [
      { role: "gate", outputs: intermediateSize },
      { role: "up", outputs: intermediateSize },
    ] as const;
    return new GatedMlp(
      await weights.linear(parts, hiddenSize, place),
      await weights.linear([{ role: "down", outputs: hiddenSize }], intermediateSize, place),
      activation,
    );
  }

  forward(x: Tensor, { norm, residual }: Pick<Fusion, "norm" | "residual"> = {}): Tensor {
    return this.#down.forward(this.#gateUp.forward(x, { norm, glu: this.#activation }), { residual });
  }
}

/** down(activation(up(x))). */
class PlainMlp implements FeedForward {
  readonly #up: Projection;
  readonly #down: Projection;
  readonly #activation: Activation;

  private constructor(up: Projection, down: Projection, activation: Activation) {
    this.#up = up;
    this.#down = down;
    this.#activation = activation;
  }

  static async load(config: ModelConfig, weights: Weights, place: Place): Promise<PlainMlp> {
    const { hiddenSize, intermediateSize, activation } = config;
    return new PlainMlp(
      await weights.linear([{ role: "up", outputs: intermediateSize }], hiddenSize, place),
      await weights.linear([{ role: "down", outputs: hiddenSize }], intermediateSize, place),
      activation,
    );
  }

  forward(x: Tensor, { norm, residual }: Pick<Fusion, "norm" | "residual"> = {}): Tensor {
    return this.#down.forward(this.#up.forward(x, { norm, activation: this.#activation }), { residual });
  }
}

/** Each row goes through its `perToken` best experts; their results are mixed by the softmax of the router's scores. */
class Experts implements FeedForward {
  readonly #router: Projection;
  readonly #experts: readonly GatedMlp[];
  readonly #perToken: number;

  constructor(router: Projection, experts: readonly GatedMlp[], perToken: number) {
    this.#router = router;
    this.#experts = experts;
    this.#perToken = perToken;
  }

  forward(input: Tensor, { norm, residual }: Pick<Fusion, "norm" | "residual">): Tensor {
    const x = norm ? normalize(input, norm) : input;
    const rows = x.shape[0]!;
    const scores = this.#router.forward(x).toDType("f32");
    const [best, order] = scores.sortLastDim(false);
    const mix = best.narrow(1, 0, this.#perToken).softmax(1).toDType(x.dtype);
    const chosen = order.narrow(1, 0, this.#perToken).dataSync() as Uint32Array;
    // Rows in the order of their experts, so that each expert runs once over all that chose it.
    const slots = Uint32Array.from(chosen, (_, slot) => slot).sort((a, b) => chosen[a]! - chosen[b]! || a - b);
    const outputs: Tensor[] = [];
    for (let from = 0; from < slots.length; ) {
      const expert = chosen[slots[from]!]!;
      let to = from;
      while (to < slots.length && chosen[slots[to]!] === expert) to++;
      const ids = slots.slice(from, to).map((slot) => Math.floor(slot / this.#perToken));
      outputs.push(this.#experts[expert]!.forward(x.indexSelect(Tensor.from(ids, { device: x.device }), 0)));
      from = to;
    }
    const back = new Uint32Array(slots.length);
    for (const [i, slot] of slots.entries()) back[slot] = i;
    const mixed = Tensor.cat(outputs, 0)
      .indexSelect(Tensor.from(back, { device: x.device }), 0)
      .reshape([rows, this.#perToken, x.shape[1]!])
      .mul(mix.unsqueeze(2))
      .sum(1);
    return residual ? residual.add(mixed) : mixed;
  }
}
