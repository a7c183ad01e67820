/** A transformer whose positions all see each other: texts in, a state for each of their tokens out. */
import type { Device } from "../../backend/device.ts";
import type { DType } from "../../core/dtype.ts";
import { scope, type Tensor } from "../../ops/index.ts";
import { architectureOf } from "../architectures/index.ts";
import type { ModelConfig, RopeConfig } from "../config.ts";
import { loadNorm, normalize } from "../norm.ts";
import { type Packed, PackedStep } from "../packed.ts";
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
      const rotations = new Map(
        [...this.#rotaries].map(([rope, rotary]) => [rope, rotary.at(packed.positions, extent)] as const),
      );
      const step = new PackedStep(packed, false, rotations, this.device);
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
    const { types: kinds } = config.encoder!;
    let x = tokens.lookup(packed.numbers(({ ids }) => ids, device));
    if (types) {
      // A tokenizer may know more segments than the model.
      const own = packed.numbers(
        ({ ids, types: given }) => ids.map((_, i) => Math.min(given?.[i] ?? 0, kinds - 1)),
        device,
      );
      x = x.add(types.lookup(own));
    }
    if (positions) x = x.add(positions.lookup(packed.numbers(({ ids }) => places(ids, config), device)));
    return normalize(x, embeddingNorm);
  }
}

const encoderRow = (config: ModelConfig) => {
  const { encoder, positions } = architectureOf(config);
  return { positions: positions === "learned", finalNorm: encoder!.finalNorm };
};

/** RoBERTa's positions begin behind that of padding, which stands still at padding in a text. */
function places(ids: readonly number[], { encoder }: ModelConfig): number[] {
  const { positionOffset, paddingToken } = encoder!;
  if (positionOffset === 0) return ids.map((_, i) => i);
  let next = positionOffset;
  return ids.map((id) => (id === paddingToken ? positionOffset - 1 : next++));
}
