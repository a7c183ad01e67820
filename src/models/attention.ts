/** Self-attention with grouped heads, rotary positions and a cache. */
import { type KvCache, type RotatingKvCache, rmsNorm } from "../nn/index.ts";
import type { Tensor } from "../tensor/index.ts";
import { architectureOf } from "./architectures/index.ts";
import type { ModelConfig } from "./config.ts";
import type { Step } from "./steps.ts";
import type { Fusion, Projection, Weights } from "./weights/weights.ts";

export class Attention {
  readonly #config: ModelConfig;
  readonly #window: number;
  readonly #qkv: Projection;
  readonly #out: Projection;
  readonly #qNorm: Tensor | null;
  readonly #kNorm: Tensor | null;

  private constructor(
    config: ModelConfig,
    window: number,
    qkv: Projection,
    out: Projection,
    qNorm: Tensor | null,
    kNorm: Tensor | null,
  ) {
    this.#config = config;
    this.#window = window;
    this.#qkv = qkv;
    this.#out = out;
    this.#qNorm = qNorm;
    this.#kNorm = kNorm;
  }

  static async load(config: ModelConfig, weights: Weights, layer: number): Promise<Attention> {
    const { hiddenSize, heads, kvHeads, headDim } = config;
    const { qkvBias: needsBias, qkNorm } = architectureOf(config);
    const parts = [
      { role: "q", outputs: heads * headDim, needsBias },
      { role: "k", outputs: kvHeads * headDim, needsBias },
      { role: "v", outputs: kvHeads * headDim, needsBias },
    ] as const;
    return new Attention(
      config,
      config.windows[layer]!,
      await weights.linear(parts, hiddenSize, { layer }),
      await weights.linear([{ role: "o", outputs: hiddenSize }], heads * headDim, { layer }),
      qkNorm ? await weights.norm("qNorm", headDim, { layer }) : null,
      qkNorm ? await weights.norm("kNorm", headDim, { layer }) : null,
    );
  }

  /** x (batch · length, hidden); `around` is the norm before and the residual after. */
  forward(
    x: Tensor,
    step: Step,
    cache: KvCache | RotatingKvCache | undefined,
    { norm, residual }: Pick<Fusion, "norm" | "residual">,
  ): Tensor {
    const { heads, headDim, normEps, attentionScale: scale, attentionSoftcap: softcap } = this.#config;
    const rows = step.batch * step.length;
    const perHead = (y: Tensor, weight: Tensor | null): Tensor =>
      weight ? rmsNorm(y.reshape([rows, -1, headDim]), weight, normEps).reshape(y.shape) : y;
    const [q, k, v] = this.#qkv.parts(x, norm) as [Tensor, Tensor, Tensor];
    const params = { headDim, scale, softcap, window: this.#window };
    const y = step.attend(perHead(q, this.#qNorm), perHead(k, this.#kNorm), v, cache, params);
    const mixed = step.length === 1 ? y : y.transpose(1, 2);
    return this.#out.forward(mixed.reshape([rows, heads * headDim]), { residual });
  }
}
