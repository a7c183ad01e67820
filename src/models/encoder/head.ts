/** What makes a classifier or a reranker of an encoder: a layer over one state of the text, and a score for each label. */
import type { Tensor } from "../../ops/index.ts";
import { architectureOf } from "../architectures/index.ts";
import type { EncoderConfig, ModelConfig } from "../config.ts";
import { pool } from "../embeddings/pooling.ts";
import type { Pooling } from "../embeddings/settings.ts";
import { loadNorm, normalize } from "../norm.ts";
import type { Packed } from "../packed.ts";
import type { Norm, Projection, Weights } from "../weights/weights.ts";

export class ClassificationHead {
  readonly #pooling: Pooling;
  readonly #dense: Projection | null;
  readonly #activation: EncoderConfig["classifierActivation"];
  readonly #norm: Norm | null;
  readonly #out: Projection;

  private constructor(config: ModelConfig, dense: Projection | null, norm: Norm | null, out: Projection) {
    const { classifierPooling, classifierActivation } = config.encoder!;
    this.#pooling = classifierPooling;
    this.#activation = classifierActivation;
    this.#dense = dense;
    this.#norm = norm;
    this.#out = out;
  }

  static async load(config: ModelConfig, weights: Weights): Promise<ClassificationHead> {
    const { hiddenSize } = config;
    const { labels, classifierDense } = config.encoder!;
    const { classifierNorm } = architectureOf(config).encoder!;
    return new ClassificationHead(
      config,
      classifierDense ? await weights.linear([{ role: "classifier", outputs: hiddenSize }], hiddenSize, {}) : null,
      classifierNorm && classifierDense ? await loadNorm(config, weights, "classifierNorm", hiddenSize, {}) : null,
      await weights.linear([{ role: "labels", outputs: labels.length }], hiddenSize, {}),
    );
  }

  /** A score per label in f32, (sequences, labels), from the states of all tokens. Call it inside a scope. */
  forward(hidden: Tensor, packed: Packed): Tensor {
    let x = pool(hidden, packed, this.#pooling).toDType(hidden.dtype);
    if (this.#dense) x = this.#dense.forward(x)[this.#activation]();
    if (this.#norm) x = normalize(x, this.#norm);
    return this.#out.forward(x).toDType("f32");
  }
}
