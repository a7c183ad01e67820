/** A mixture of experts in place of an MLP: a router, the experts, and one that every row goes through beside them. */
import { type DType, sizeOf } from "../../core/dtype.ts";
import type { Tensor } from "../../ops/index.ts";
import type { Experts, ModelConfig } from "../config.ts";
import type { FeedForward } from "../mlp.ts";
import { normalize } from "../norm.ts";
import type { Around, Norm, Projection, ProjectionStack, Weights } from "../weights/weights.ts";
import { isPlain, route } from "./routing.ts";

/** Rows that the products of a device normalise in passing. */
const FEW_ROWS = 8;

/** What every row goes through besides the experts chosen for it. */
interface Shared {
  readonly mlp: FeedForward;
  /** Its sigmoid multiplies the result. */
  readonly gate: Projection | null;
}

/**
 * Whether a device multiplies by expert without the host, if it does at all: its kernels read rows in pieces of 16 bytes,
 * and what has none of them is sorted by the host, which a recorded step cannot ask.
 */
export const runsOnDevice = ({ experts, hiddenSize }: ModelConfig, dtype: DType): boolean =>
  !experts || [hiddenSize, experts.width].every((size) => (size * sizeOf(dtype)) % 16 === 0);

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

  forward(input: Tensor, { norm, residual }: Around): Tensor {
    // For few rows the products normalise them themselves; of many it is done once.
    if (norm && (norm.kind !== "rms" || input.shape[0]! > FEW_ROWS)) {
      return this.forward(normalize(input, norm), { residual });
    }
    const { perToken, routing } = this.#experts;
    const scores = this.#router.forward(input, { norm });
    if (isPlain(routing, this.#bias) && routing.scale === 1) {
      const fusion = { norm, glu: this.#activation, residual };
      const mixed = this.#gateUp.routed?.(input, scores, perToken, this.#down, fusion);
      if (mixed) return this.#withShared(input, norm, mixed);
    }
    const { ids, mix } = route(scores, perToken, routing, this.#bias);
    const opened = this.#gateUp.forward(input, ids, { norm, glu: this.#activation });
    return this.#withShared(input, norm, this.#down.forward(opened, ids, { mix, residual }));
  }

  #withShared(x: Tensor, norm: Norm | undefined, mixed: Tensor): Tensor {
    if (!this.#shared) return mixed;
    const { mlp, gate } = this.#shared;
    if (!gate) return mlp.forward(x, { norm, residual: mixed });
    return mixed.add(mlp.forward(x, { norm }).mul(gate.forward(x, { norm }).sigmoid()));
  }
}
