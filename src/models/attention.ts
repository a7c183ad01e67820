/** Self-attention with grouped heads, rotary positions and a cache. */
import { type KvCache, type RotatingKvCache, rmsNorm, sdpa } from "../nn/index.ts";
import type { Tensor } from "../tensor/index.ts";
import { traits } from "./architectures.ts";
import type { ModelConfig } from "./config.ts";
import type { Projection, Weights } from "./weights.ts";

/** What a forward pass tells every layer. */
export interface Step {
  readonly batch: number;
  /** New positions per sequence. */
  readonly length: number;
  rotate(x: Tensor): Tensor;
  /** The mask for the last `keys` positions, if one is needed. */
  mask(keys: number): Tensor | null;
}

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
    const { hiddenSize, heads, kvHeads, headDim, architecture } = config;
    const { qkvBias: needsBias, qkNorm } = traits(architecture);
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

  /** x (batch · length, hidden). */
  forward(x: Tensor, step: Step, cache: KvCache | RotatingKvCache | undefined): Tensor {
    const { heads, headDim, attentionScale: scale, attentionSoftcap: softcap } = this.#config;
    const { batch, length } = step;
    const { q, ...own } = this.#project(x, step);
    const { k, v } = cache ? cache.append(own.k, own.v) : own;
    const mask = step.mask(k.shape[2]!);
    const y = sdpa(q, k, v, { scale, softcap, causal: true, window: this.#window, ...(mask && { mask }) });
    const rows = length === 1 ? y : y.transpose(1, 2);
    return this.#out.forward(rows.reshape([batch * length, heads * headDim]))[0]!;
  }

  /** Queries, keys and values (b, h, t, headDim), the first two turned. */
  #project(x: Tensor, step: Step): { q: Tensor; k: Tensor; v: Tensor } {
    const { heads, kvHeads, headDim, normEps } = this.#config;
    const { batch, length } = step;
    const split = (rows: Tensor, count: number): Tensor =>
      length === 1
        ? rows.reshape([batch, count, 1, headDim])
        : rows.reshape([batch, length, count, headDim]).transpose(1, 2);
    if (this.#qkv.whole && !this.#qNorm && !this.#kNorm) {
      // One rotation for queries and keys, which lie side by side.
      const all = split(this.#qkv.whole(x), heads + 2 * kvHeads);
      const turned = step.rotate(all.narrow(1, 0, heads + kvHeads));
      return {
        q: turned.narrow(1, 0, heads),
        k: turned.narrow(1, heads, kvHeads),
        v: all.narrow(1, heads + kvHeads, kvHeads),
      };
    }
    const turn = (rows: Tensor, count: number, norm: Tensor | null): Tensor => {
      const each = split(rows, count);
      return step.rotate(norm ? rmsNorm(each, norm, normEps) : each);
    };
    const [q, k, v] = this.#qkv.forward(x) as [Tensor, Tensor, Tensor];
    return { q: turn(q, heads, this.#qNorm), k: turn(k, kvHeads, this.#kNorm), v: split(v, kvHeads) };
  }
}
