/** A transformer whose positions all see each other: texts in, a state for each of their tokens out. */
import type { Device } from "../../backend/device.ts";
import type { DType } from "../../core/dtype.ts";
import { scope, Tensor } from "../../ops/index.ts";
import { architectureOf } from "../architectures/index.ts";
import type { ModelConfig, RopeConfig } from "../config.ts";
import { loadNorm, normalize } from "../norm.ts";
import { type Packed, PackedStep } from "../packed.ts";
import type { Positions } from "../positions.ts";
import { Rotary } from "../rotary.ts";
import type { EmbeddingTable, Norm, Weights } from "../weights/weights.ts";
import { ClassificationHead } from "./head.ts";
import { type EncoderLayer, loadEncoderLayer, runEncoderLayer } from "./layer.ts";

interface Parts {
  readonly tokens: EmbeddingTable;
  readonly positions: EmbeddingTable | null;
  readonly types: EmbeddingTable | null;
  readonly embeddingNorm: Norm;
  readonly layers: readonly EncoderLayer[];
  readonly finalNorm: Norm | null;
  readonly head: ClassificationHead | null;
}

export class Encoder implements Disposable {
  readonly config: ModelConfig;
  readonly device: Device;
  /** What it computes in. */
  readonly dtype: DType;
  readonly #parts: Parts;
  readonly #rotaries: ReadonlyMap<RopeConfig, Rotary>;
  readonly #owned: readonly Disposable[];

  private constructor(config: ModelConfig, device: Device, dtype: DType, parts: Parts, owned: readonly Disposable[]) {
    this.config = config;
    this.device = device;
    this.dtype = dtype;
    this.#parts = parts;
    this.#rotaries = new Map([...new Set(config.ropes)].map((rope) => [rope, new Rotary(rope, device, dtype)]));
    this.#owned = owned;
  }

  /** Takes everything the config names from `weights`; where that fails, what was read is freed. */
  static async load(config: ModelConfig, weights: Weights, device: Device, dtype: DType): Promise<Encoder> {
    try {
      const { vocabSize, hiddenSize, contextLength, layers: count } = config;
      const { positionOffset, types, labels } = config.encoder!;
      const { positions, finalNorm } = encoderRow(config);
      const layers: EncoderLayer[] = [];
      const parts = {
        tokens: await weights.embedding("token", vocabSize, hiddenSize),
        positions: positions ? await weights.embedding("position", contextLength + positionOffset, hiddenSize) : null,
        types: types > 0 ? await weights.embedding("type", types, hiddenSize) : null,
        embeddingNorm: await loadNorm(config, weights, "embeddingNorm", hiddenSize, {}),
        layers,
      };
      for (let i = 0; i < count; i++) layers.push(await loadEncoderLayer(config, weights, i));
      const last = finalNorm ? await loadNorm(config, weights, "finalNorm", hiddenSize, {}) : null;
      const head = labels.length > 0 ? await ClassificationHead.load(config, weights) : null;
      return new Encoder(config, device, dtype, { ...parts, finalNorm: last, head }, weights.owned);
    } catch (error) {
      for (const resource of weights.owned) resource[Symbol.dispose]();
      throw error;
    }
  }

  /** What classifies texts, where the model has it. */
  get head(): ClassificationHead | null {
    return this.#parts.head;
  }

  /** The state of each token, (rows, hidden). */
  forward(packed: Packed): Tensor {
    return scope(() => {
      const { layers, finalNorm } = this.#parts;
      const extent = packed.longest;
      const rotationsAt = (positions: Positions) =>
        new Map([...this.#rotaries].map(([rope, rotary]) => [rope, rotary.at(positions, extent)]));
      const step = new PackedStep(packed, false, rotationsAt, this.device);
      let x = this.#embed(packed);
      for (const layer of layers) {
        using before = x;
        x = scope(() => runEncoderLayer(layer, before, step));
      }
      return finalNorm ? normalize(x, finalNorm) : x;
    });
  }

  [Symbol.dispose](): void {
    for (const rotary of this.#rotaries.values()) rotary[Symbol.dispose]();
    for (const resource of this.#owned) resource[Symbol.dispose]();
  }

  #embed(packed: Packed): Tensor {
    const { tokens, positions, types, embeddingNorm } = this.#parts;
    const { device, config } = this;
    let x = tokens.lookup(packed.ids(device));
    if (types) x = x.add(types.lookup(typesOf(packed, config, device)));
    if (positions) x = x.add(positions.lookup(packed.numbers(({ ids }, out) => writePlaces(ids, config, out), device)));
    return normalize(x, embeddingNorm);
  }
}

const encoderRow = (config: ModelConfig) => {
  const { encoder, positions } = architectureOf(config);
  return { positions: positions === "learned", finalNorm: encoder!.finalNorm };
};

/** The segment of each row, or one for all, where all are alike. A tokenizer may know more segments than the model. */
function typesOf(packed: Packed, { encoder }: ModelConfig, device: Device): Tensor {
  const last = encoder!.types - 1;
  const alike = last === 0 || packed.sequences.every(({ types }) => !types?.some((type) => type !== 0));
  if (alike) return Tensor.zeros([1], { dtype: "u32", device });
  return packed.numbers(({ types }, out) => types && out.set(types.map((type) => Math.min(type, last))), device);
}

/** RoBERTa's positions begin behind that of padding, which stands still at padding in a text. */
function writePlaces(ids: readonly number[], { encoder }: ModelConfig, out: Uint32Array): void {
  const { positionOffset, paddingToken } = encoder!;
  let next = positionOffset;
  for (let i = 0; i < ids.length; i++) {
    const isPadding = positionOffset > 0 && ids[i] === paddingToken;
    out[i] = isPadding ? positionOffset - 1 : next++;
  }
}
