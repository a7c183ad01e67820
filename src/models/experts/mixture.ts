/** A mixture of experts in place of an MLP: a router, the experts, and one that every row goes through beside them. */
import { mixExperts } from "../../nn/index.ts";
import type { Tensor } from "../../ops/index.ts";
import type { Experts, ModelConfig } from "../config.ts";
import type { FeedForward } from "../mlp.ts";
import { normalize } from "../norm.ts";
import type { Fusion, Projection, ProjectionStack, Weights } from "../weights/weights.ts";
import { route } from "./routing.ts";

/** What every row goes through besides the experts chosen for it. */
interface Shared {
  readonly mlp: FeedForward;
  /** Its sigmoid multiplies the result. */
  readonly gate: Projection | null;
}

export class Mixture implements FeedForward {
  readonly #experts: Experts;
  readonly #activation: ModelConfig["activation"];
  readonly #router: Projection;
  readonly #bias: Tensor | null;
  readonly #gateUp: ProjectionStack;
  readonly #down: ProjectionStack;
  readonly #shared: Shared | null;

  private constructor(
    { experts, activation }: ModelConfig,
    parts: { router: Projection; bias: Tensor | null; gateUp: ProjectionStack; down: ProjectionStack },
    shared: Shared | null,
  ) {
    this.#experts = experts!;
    this.#activation = activation;
    this.#router = parts.router;
    this.#bias = parts.bias;
    this.#gateUp = parts.gateUp;
    this.#down = parts.down;
    this.#shared = shared;
  }

  /** `loadShared` loads an MLP of that width from what the file calls the shared expert. */
  static async load(
    config: ModelConfig,
    weights: Weights,
    layer: number,
    loadShared: (width: number) => Promise<FeedForward>,
  ): Promise<Mixture> {
    const { hiddenSize } = config;
    const { count, width, routing, shared } = config.experts!;
    const halves = [
      { role: "gate", outputs: width },
      { role: "up", outputs: width },
    ] as const;
    const parts = {
      router: await weights.linear([{ role: "router", outputs: count }], hiddenSize, { layer }),
      bias: routing.biased ? await weights.vector("routerBias", count, { layer }) : null,
      gateUp: await weights.stack(halves, hiddenSize, count, { layer }),
      down: await weights.stack([{ role: "down", outputs: hiddenSize }], width, count, { layer }),
    };
    return new Mixture(
      config,
      parts,
      shared && {
        mlp: await loadShared(shared.width),
        gate: shared.gated ? await weights.linear([{ role: "sharedGate", outputs: 1 }], hiddenSize, { layer }) : null,
      },
    );
  }

  forward(input: Tensor, { norm, residual }: Pick<Fusion, "norm" | "residual">): Tensor {
    const { perToken, routing } = this.#experts;
    const x = norm ? normalize(input, norm) : input;
    const { ids, mix } = route(this.#router.forward(x).toDType("f32"), perToken, routing, this.#bias);
    const y = this.#down.forward(this.#gateUp.forward(x, ids, this.#activation), ids);
    return this.#withShared(x, mixExperts(y, mix, residual));
  }

  #withShared(x: Tensor, mixed: Tensor): Tensor {
    if (!this.#shared) return mixed;
    const { mlp, gate } = this.#shared;
    if (!gate) return mlp.forward(x, { residual: mixed });
    return mixed.add(mlp.forward(x, {}).mul(gate.forward(x).sigmoid()));
  }
}
