/** Self-attention with grouped heads, rotary positions and a cache. */
import { type KvCache, type RotatingKvCache, rmsNorm } from "../nn/index.ts";
import type { Tensor } from "../ops/index.ts";
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
    const [qSize, kvSize] = [heads * headDim, kvHeads * headDim];
    const parts = [
      { role: "q", outputs: qSize, needsBias },
      { role: "k", outputs: kvSize, needsBias },
      { role: "v", outputs: kvSize, needsBias },
    ] as const;
    const norm = async (role: "qNorm" | "kNorm", size: number): Promise<Tensor | null> =>
      qkNorm === "none" ? null : weights.norm(role, qkNorm === "all" ? size : headDim, { layer });
    return new Attention(
      config,
      config.windows[layer]!,
      await weights.linear(parts, hiddenSize, { layer }),
      await weights.linear([{ role: "o", outputs: hiddenSize }], qSize, { layer }),
      await norm("qNorm", qSize),
      await norm("kNorm", kvSize),
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
    const normed = (y: Tensor, weight: Tensor | null): Tensor =>
      weight ? rmsNorm(y.reshape([rows, -1, weight.numel]), weight, normEps).reshape(y.shape) : y;
    const [q, k, v] = this.#qkv.parts(x, norm) as [Tensor, Tensor, Tensor];
    const params = { headDim, scale, softcap, window: this.#window, sinks: null };
    const y = step.attend(normed(q, this.#qNorm), normed(k, this.#kNorm), v, cache, params);
    const mixed = step.length === 1 ? y : y.transpose(1, 2);
    return this.#out.forward(mixed.reshape([rows, heads * headDim]), { residual });
  }
}
