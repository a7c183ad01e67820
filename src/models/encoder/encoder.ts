/** A transformer whose positions all see each other: texts in, a state for each of their tokens out. */
import type { Device } from "../../backend/device.ts";
import type { DType } from "../../core/dtype.ts";
import { scope, Tensor } from "../../ops/index.ts";
import { architectureOf } from "../architectures/index.ts";
import type { ModelConfig, RopeConfig } from "../config.ts";
import { loadNorm, normalize } from "../norm.ts";
import { type Packed, PackedStep } from "../packed.ts";
import { type Sites, sitesOf, stretchesOf } from "../placement/sites.ts";
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
  /** Where its parts lie. */
  readonly sites: Sites;
  /** What it computes in. */
  readonly dtype: DType;
  readonly #parts: Parts;
  /** What turns heads on each device. */
  readonly #rotaries: ReadonlyMap<Device, ReadonlyMap<RopeConfig, Rotary>>;
  readonly #owned: readonly Disposable[];

  private constructor(config: ModelConfig, sites: Sites, dtype: DType, parts: Parts, owned: readonly Disposable[]) {
    this.config = config;
    this.sites = sites;
    this.dtype = dtype;
    this.#parts = parts;
    const ropes = [...new Set(config.ropes)];
    this.#rotaries = new Map(
      [...new Set(sites.layers)].map((device) => [
        device,
        new Map(ropes.map((rope) => [rope, new Rotary(rope, device, dtype)])),
      ]),
    );
    this.#owned = owned;
  }

  /** Takes everything the config names from `weights`; where that fails, what was read is freed. */
  static async load(config: ModelConfig, weights: Weights, where: Device | Sites, dtype: DType): Promise<Encoder> {
    try {
      const parts = await loadEncoderParts(config, weights);
      return new Encoder(config, sitesOf(where, config.layers), dtype, parts, weights.owned);
    } catch (error) {
      for (const resource of weights.owned) resource[Symbol.dispose]();
      throw error;
    }
  }

  /** Where its states are. */
  get device(): Device {
    return this.sites.output;
  }

  /** What classifies texts, where the model has it. */
  get head(): ClassificationHead | null {
    return this.#parts.head;
  }

  /** The state of each token, (rows, hidden). */
  forward(packed: Packed): Tensor {
    return scope(() => {
      const { layers, finalNorm } = this.#parts;
      let x = this.#embed(packed);
      for (const { device, first, count } of stretchesOf(this.sites.layers)) {
        x = x.toDeviceSync(device);
        const step = this.#step(packed, device);
        for (const layer of layers.slice(first, first + count)) {
          using before = x;
          x = scope(() => runEncoderLayer(layer, before, step));
        }
      }
      const states = x.toDeviceSync(this.device);
      return finalNorm ? normalize(states, finalNorm) : states;
    });
  }

  [Symbol.dispose](): void {
    for (const own of this.#rotaries.values()) for (const rotary of own.values()) rotary[Symbol.dispose]();
    for (const resource of this.#owned) resource[Symbol.dispose]();
  }

  #step(packed: Packed, device: Device): PackedStep {
    const rotationsAt = (positions: Positions) =>
      new Map([...this.#rotaries.get(device)!].map(([rope, rotary]) => [rope, rotary.at(positions, packed.longest)]));
    return new PackedStep(packed, false, rotationsAt, device);
  }

  #embed(packed: Packed): Tensor {
    const { tokens, positions, types, embeddingNorm } = this.#parts;
    const { config } = this;
    const { input: device } = this.sites;
    let x = tokens.lookup(packed.ids(device));
    if (types) x = x.add(types.lookup(typesOf(packed, config, device)));
    if (positions) x = x.add(positions.lookup(packed.numbers(({ ids }, out) => writePlaces(ids, config, out), device)));
    return normalize(x, embeddingNorm);
  }
}

/** Everything the config names. */
export async function loadEncoderParts(config: ModelConfig, weights: Weights): Promise<Parts> {
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
  return { ...parts, finalNorm: last, head };
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
