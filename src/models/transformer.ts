/** The one transformer that every architecture is: embedding, layers of attention and feed-forward, head. */
import type { Device } from "../backend/device.ts";
import type { DType } from "../core/dtype.ts";
import { fail } from "../core/errors.ts";
import { formatShape } from "../core/layout.ts";
import { rmsNorm } from "../nn/index.ts";
import { scope, type Tensor } from "../tensor/index.ts";
import { traits } from "./architectures.ts";
import { Attention, type Step } from "./attention.ts";
import type { ModelCache } from "./cache.ts";
import type { ModelConfig } from "./config.ts";
import { type FeedForward, loadFeedForward } from "./mlp.ts";
import { Rotary } from "./rotary.ts";
import type { EmbeddingTable, NormRole, Weights } from "./weights.ts";

interface Layer {
  readonly attentionNorm: Tensor;
  readonly attention: Attention;
  readonly postAttentionNorm: Tensor | null;
  readonly mlpNorm: Tensor;
  readonly mlp: FeedForward;
  readonly postMlpNorm: Tensor | null;
}

export interface TransformerOptions {
  readonly cache?: ModelCache | undefined;
  /** Logits of the last position only. */
  readonly last?: boolean;
  /** The positions the sequence will have, where this call feeds a part of it. Default: those fed so far. */
  readonly extent?: number | undefined;
}

/** Rows whose temporary tensors are small beside the weights. */
const FEW_ROWS = 16;

export class Transformer implements Disposable {
  readonly config: ModelConfig;
  readonly device: Device;
  /** What it computes in. */
  readonly dtype: DType;
  readonly #embedding: EmbeddingTable;
  readonly #layers: readonly Layer[];
  readonly #finalNorm: Tensor;
  readonly #head: (x: Tensor) => Tensor;
  readonly #rotary: Rotary;
  readonly #owned: readonly Disposable[];

  private constructor(
    config: ModelConfig,
    device: Device,
    dtype: DType,
    parts: { embedding: EmbeddingTable; layers: Layer[]; finalNorm: Tensor; head: (x: Tensor) => Tensor },
    owned: readonly Disposable[],
  ) {
    this.config = config;
    this.device = device;
    this.dtype = dtype;
    this.#embedding = parts.embedding;
    this.#layers = parts.layers;
    this.#finalNorm = parts.finalNorm;
    this.#head = parts.head;
    this.#rotary = new Rotary(config.rope, device, dtype);
    this.#owned = owned;
  }

  /** Takes everything the config names from `weights`; where that fails, what was read is freed. */
  static async load(config: ModelConfig, weights: Weights, device: Device, dtype: DType): Promise<Transformer> {
    try {
      const { vocabSize, hiddenSize } = config;
      const embedding = await weights.embedding(vocabSize, hiddenSize);
      const layers: Layer[] = [];
      for (let i = 0; i < config.layers; i++) layers.push(await loadLayer(config, weights, i));
      const finalNorm = await weights.norm("finalNorm", hiddenSize, {});
      const head = await loadHead(config, weights, embedding);
      return new Transformer(config, device, dtype, { embedding, layers, finalNorm, head }, weights.owned);
    } catch (error) {
      for (const resource of weights.owned) resource[Symbol.dispose]();
      throw error;
    }
  }

  /** Logits in f32 for ids (b, t): (b, t, vocab), or (b, vocab) of the last position. */
  forward(ids: Tensor, { cache, last = false, extent = 0 }: TransformerOptions = {}): Tensor {
    const [batch, length] = this.#checkIds(ids, cache);
    const { vocabSize, hiddenSize } = this.config;
    return scope(() => {
      const hidden = this.#hidden(ids, batch, length, cache, extent);
      if (!last) return this.#logits(hidden).reshape([batch, length, vocabSize]);
      const ends = hidden.reshape([batch, length, hiddenSize]).narrow(1, length - 1, 1);
      return this.#logits(ends.reshape([batch, hiddenSize]));
    });
  }

  /** What the last layer gives for each position: (b · t, hidden). */
  #hidden(ids: Tensor, batch: number, length: number, cache: ModelCache | undefined, extent: number): Tensor {
    const { embeddingScale } = this.config;
    const total = (cache?.length ?? 0) + length;
    const step: Step = {
      batch,
      length,
      rotate: this.#rotary.at(cache?.positions(length) ?? { start: 0, length }, Math.max(extent, total)),
      mask: (keys) => cache?.mask(keys, total) ?? null,
    };
    const embedded = this.#embedding.lookup(ids.reshape([batch * length]));
    let x = embeddingScale === 1 ? embedded : embedded.affine(embeddingScale, 0);
    try {
      for (const [i, layer] of this.#layers.entries()) {
        using before = x;
        const run = () => this.#runLayer(layer, before, step, cache, i);
        // Of a long prompt each layer's tensors are freed at once; those of a single step are not worth the scope.
        x = batch * length > FEW_ROWS ? scope(run) : run();
      }
    } catch (error) {
      cache?.recover();
      throw error;
    }
    cache?.advance(length);
    return x;
  }

  #logits(x: Tensor): Tensor {
    const { normEps, logitSoftcap: cap } = this.config;
    const logits = this.#head(rmsNorm(x, this.#finalNorm, normEps)).toDType("f32");
    if (cap === 0) return logits;
    const squashed = logits.affine(1 / cap, 0).tanh();
    return squashed.affine(cap, 0);
  }

  [Symbol.dispose](): void {
    this.#rotary[Symbol.dispose]();
    for (const resource of this.#owned) resource[Symbol.dispose]();
  }

  #runLayer(layer: Layer, x: Tensor, step: Step, cache: ModelCache | undefined, index: number): Tensor {
    const norm = (y: Tensor, weight: Tensor | null): Tensor => (weight ? rmsNorm(y, weight, this.config.normEps) : y);
    const attended = layer.attention.forward(norm(x, layer.attentionNorm), step, cache?.layers[index]);
    const middle = x.add(norm(attended, layer.postAttentionNorm));
    return middle.add(norm(layer.mlp.forward(norm(middle, layer.mlpNorm)), layer.postMlpNorm));
  }

  #checkIds(ids: Tensor, cache: ModelCache | undefined): [batch: number, length: number] {
    const [batch, length] = ids.shape;
    if (ids.rank !== 2 || !batch || !length) {
      return fail("ShapeMismatch", `token ids must be (batch, length), none of them 0, not ${formatShape(ids.shape)}`);
    }
    if (cache && cache.batch !== batch) {
      return fail(
        "ShapeMismatch",
        `the cache holds ${cache.batch} sequences, the ids ${formatShape(ids.shape)} ${batch}`,
      );
    }
    return [batch, length];
  }
}

async function loadLayer(config: ModelConfig, weights: Weights, layer: number): Promise<Layer> {
  const { postNorms } = traits(config.architecture);
  const norm = (role: NormRole): Promise<Tensor> => weights.norm(role, config.hiddenSize, { layer });
  return {
    attentionNorm: await norm("attentionNorm"),
    attention: await Attention.load(config, weights, layer),
    postAttentionNorm: postNorms ? await norm("postAttentionNorm") : null,
    mlpNorm: await norm("mlpNorm"),
    mlp: await loadFeedForward(config, weights, layer),
    postMlpNorm: postNorms ? await norm("postMlpNorm") : null,
  };
}

async function loadHead(config: ModelConfig, weights: Weights, embedding: EmbeddingTable) {
  if (config.tiedEmbeddings) return (x: Tensor) => embedding.project(x);
  const head = await weights.linear([{ role: "head", outputs: config.vocabSize }], config.hiddenSize, {});
  return (x: Tensor) => head.forward(x)[0]!;
}
