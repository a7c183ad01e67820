/** Self-attention with grouped heads, rotary positions and a cache. */
import type { Tensor } from "../ops/index.ts";
import { architectureOf } from "./architectures/index.ts";
import type { ModelConfig } from "./config.ts";
import { LatentAttention } from "./latent-attention.ts";
import { loadNorm, normalize } from "./norm.ts";
import { normalizeOver, reducedAttention } from "./sharding/reduced.ts";
import type { Shard } from "./sharding/shard.ts";
import type { AttentionParams, LayerCache, Step } from "./steps.ts";
import type { Around, Norm, Projection, Weights } from "./weights/weights.ts";

/** The attention of a layer: x (batch · length, hidden) → the same; `around` is the norm before and the residual after. */
export interface SelfAttention {
  forward(x: Tensor, step: Step, cache: LayerCache | undefined, around: Around): Tensor;
}

export async function loadAttention(config: ModelConfig, weights: Weights, layer: number): Promise<SelfAttention> {
  const own = await (config.latent ? LatentAttention : Attention).load(config, weights, layer);
  return weights.shard ? reducedAttention(own, weights.shard) : own;
}

class Attention implements SelfAttention {
  readonly #config: ModelConfig;
  readonly #params: AttentionParams;
  readonly #qkv: Projection;
  readonly #out: Projection;
  /** Of other kinds than those of each head, which are part of the attention. */
  readonly #qNorm: Norm | null;
  readonly #kNorm: Norm | null;
  readonly #normalize: (x: Tensor, norm: Norm) => Tensor;

  private constructor(
    config: ModelConfig,
    layer: number,
    qkv: Projection,
    out: Projection,
    qNorm: Norm | null,
    kNorm: Norm | null,
    sinks: Tensor | null,
    shard: Shard | undefined,
  ) {
    const { headDim, attentionScale: scale, attentionSoftcap: softcap, windows, ropes } = config;
    this.#config = config;
    const ofHeads =
      architectureOf(config).qkNorm === "head" &&
      [qNorm, kNorm].every((norm) => norm?.kind === "rms" && norm.weight.numel === headDim);
    const norms = ofHeads ? { q: qNorm!.weight, k: kNorm!.weight, eps: qNorm!.eps } : null;
    this.#params = {
      headDim,
      scale,
      softcap,
      window: windows[layer]!,
      rope: ropes[layer]!,
      sinks,
      norms,
      next: out.type,
    };
    this.#qkv = qkv;
    this.#out = out;
    this.#qNorm = norms ? null : qNorm;
    this.#kNorm = norms ? null : kNorm;
    this.#normalize = shard && architectureOf(config).qkNorm === "all" ? normalizeOver(shard) : normalize;
  }

  static async load(config: ModelConfig, weights: Weights, layer: number): Promise<Attention> {
    const { hiddenSize, heads, kvHeads, headDim } = config;
    const { qkvBias: needsBias, qkNorm, sinks } = architectureOf(config);
    const [qSize, kvSize] = [heads * headDim, kvHeads * headDim];
    const parts = [
      { role: "q", outputs: qSize, needsBias },
      { role: "k", outputs: kvSize, needsBias },
      { role: "v", outputs: kvSize, needsBias },
    ] as const;
    const norm = async (role: "qNorm" | "kNorm", size: number): Promise<Norm | null> =>
      qkNorm === "none" ? null : loadNorm(config, weights, role, qkNorm === "all" ? size : headDim, { layer });
    return new Attention(
      config,
      layer,
      await weights.linear(parts, hiddenSize, { layer }),
      await weights.linear([{ role: "o", outputs: hiddenSize }], qSize, { layer }),
      await norm("qNorm", qSize),
      await norm("kNorm", kvSize),
      sinks ? await weights.vector("sinks", heads, { layer }) : null,
      weights.shard,
    );
  }

  /** x (batch · length, hidden); `around` is the norm before and the residual after. */
  forward(x: Tensor, step: Step, cache: LayerCache | undefined, { norm, ...after }: Around): Tensor {
    const { heads, headDim } = this.#config;
    const rows = step.batch * step.length;
    const normed = (y: Tensor, own: Norm | null): Tensor =>
      own ? this.#normalize(y.reshape([rows, -1, own.weight.numel]), own).reshape(y.shape) : y;
    const [q, k, v] = this.#qkv.parts(x, norm) as [Tensor, Tensor, Tensor];
    const y = step.attend(normed(q, this.#qNorm), normed(k, this.#kNorm), v, cache, this.#params);
    const mixed = step.length === 1 ? y : y.transpose(1, 2);
    return this.#out.forward(mixed.reshape([rows, heads * headDim]), after);
  }
}
