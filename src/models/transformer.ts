/** The one transformer that every architecture is: embedding, layers of attention and feed-forward, head. */
import type { Device } from "../backend/device.ts";
import type { DType } from "../core/dtype.ts";
import { fail } from "../core/errors.ts";
import { formatShape } from "../core/layout.ts";
import { scope, Tensor } from "../ops/index.ts";
import type { LayerNormRole } from "./architectures/architecture.ts";
import { architectureOf } from "./architectures/index.ts";
import { loadAttention, type SelfAttention } from "./attention.ts";
import { deviceAttends, type ModelCache } from "./cache.ts";
import type { ModelConfig, RopeConfig } from "./config.ts";
import { runsOnDevice } from "./experts/mixture.ts";
import { expansionPays } from "./latent-attention.ts";
import { type FeedForward, loadFeedForward } from "./mlp.ts";
import { loadNorm, normalize } from "./norm.ts";
import { type Packed, PackedStep } from "./packed.ts";
import { extentOf, lengthOf, PagedBatch, type PagedSequence, type PagedTensors } from "./paged/batch.ts";
import type { PagedCache } from "./paged/cache.ts";
import {
  ComposedPagedStep,
  DevicePagedStep,
  type DevicePlaces,
  deviceAttendsPages,
  type PagedTable,
} from "./paged/steps.ts";
import { type Positions, positionIds } from "./positions.ts";
import { Rotary, type SharedTable } from "./rotary.ts";
import { CachedStep, ComposedStep, type LayerCache, type Step } from "./steps.ts";
import type { EmbeddingTable, Fusion, Norm, Projection, Weights } from "./weights/weights.ts";

interface Layer {
  readonly attentionNorm: Norm | undefined;
  readonly attention: SelfAttention;
  readonly postAttentionNorm: Norm | undefined;
  readonly mlpNorm: Norm | undefined;
  readonly mlp: FeedForward;
  readonly postMlpNorm: Norm | undefined;
}

interface Parts {
  readonly embedding: EmbeddingTable;
  readonly positions: EmbeddingTable | null;
  readonly layers: readonly Layer[];
  readonly finalNorm: Norm;
  readonly head: Projection;
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
  /** What keys and values are kept as. */
  readonly cacheDType: DType;
  /** Whether what it says of a sequence does not depend, bit by bit, on what else is in a call or how a prompt is cut. */
  readonly batchInvariant: boolean;
  /** Whether latents may be expanded where that is faster: for many rows at once. */
  readonly #mayExpand: boolean;
  readonly #embedding: EmbeddingTable;
  /** Learned vectors of the positions, where it has them. */
  readonly #positions: EmbeddingTable | null;
  readonly #layers: readonly Layer[];
  readonly #finalNorm: Norm;
  readonly #head: Projection;
  readonly #rotaries: ReadonlyMap<RopeConfig, Rotary>;
  readonly #owned: readonly Disposable[];

  private constructor(
    config: ModelConfig,
    device: Device,
    dtype: DType,
    batchInvariant: boolean,
    cacheDType: DType,
    parts: Parts,
    owned: readonly Disposable[],
  ) {
    this.config = config;
    this.device = device;
    this.dtype = dtype;
    this.cacheDType = cacheDType;
    this.batchInvariant = batchInvariant || device.backend.invariantly === undefined;
    this.#mayExpand = !batchInvariant;
    this.#embedding = parts.embedding;
    this.#positions = parts.positions;
    this.#layers = parts.layers;
    this.#finalNorm = parts.finalNorm;
    this.#head = parts.head;
    this.#rotaries = new Map([...new Set(config.ropes)].map((rope) => [rope, new Rotary(rope, device, dtype)]));
    this.#owned = owned;
  }

  /** Takes everything the config names from `weights`; where that fails, what was read is freed. */
  static async load(
    config: ModelConfig,
    weights: Weights,
    device: Device,
    dtype: DType,
    batchInvariant = false,
    cacheDType: DType = dtype,
  ): Promise<Transformer> {
    try {
      const { vocabSize, hiddenSize, contextLength } = config;
      const embedding = await weights.embedding("token", vocabSize, hiddenSize);
      const learned = architectureOf(config).positions === "learned";
      const positions = learned ? await weights.embedding("position", contextLength, hiddenSize) : null;
      const layers: Layer[] = [];
      for (let i = 0; i < config.layers; i++) layers.push(await loadLayer(config, weights, i));
      const finalNorm = await loadNorm(config, weights, "finalNorm", hiddenSize, {});
      const head = config.tiedEmbeddings
        ? embedding.head
        : await weights.linear([{ role: "head", outputs: vocabSize }], hiddenSize, {});
      const parts = { embedding, positions, layers, finalNorm, head };
      return new Transformer(config, device, dtype, batchInvariant, cacheDType, parts, weights.owned);
    } catch (error) {
      for (const resource of weights.owned) resource[Symbol.dispose]();
      throw error;
    }
  }

  /** Logits in f32 for ids (b, t): (b, t, vocab), or (b, vocab) of the last position. */
  forward(ids: Tensor, { cache, last = false, extent = 0 }: TransformerOptions = {}): Tensor {
    const [batch, length] = this.#checkIds(ids, cache);
    const { vocabSize, hiddenSize } = this.config;
    return this.#scoped(() => {
      const step = this.#step(batch, length, cache, extent);
      const places = () => positionIds(cache?.positions(length) ?? { start: 0, length }, batch, this.device);
      const hidden = this.#hidden(this.#embed(ids.reshape([batch * length]), places), step, cache);
      if (!last) return this.#logits(hidden).reshape([batch, length, vocabSize]);
      const ends = hidden.reshape([batch, length, hiddenSize]).narrow(1, length - 1, 1);
      return this.#logits(ends.reshape([batch, hiddenSize]));
    });
  }

  /**
   * Logits in f32 (sequences, vocab) of each sequence's last row. Sequences are of any lengths, some decoding and some with
   * a part of their prompt; each has its place in the cache by its pages. `tokens` is u32 (slots), where sequences take one
   * from there. Where it fails, what `past` counts is untouched.
   */
  paged(sequences: readonly PagedSequence[], cache: PagedCache, tokens: Tensor | null = null): Tensor {
    const batch = new PagedBatch(sequences, cache.pages);
    this.#checkPositions(batch.longest);
    return this.#scoped(() => {
      const tensors = batch.tensors(this.device, tokens);
      const step = this.#pagedStep(batch, tensors);
      const embedded = this.#embed(tensors.ids, () => tensors.positions);
      const hidden = this.#layered(embedded, step, cache.layers);
      return this.#logits(batch.saysAll ? hidden : hidden.indexSelect(tensors.lasts, 0));
    });
  }

  /** Whether steps of decoding over pages can be recorded. */
  get recordsPages(): boolean {
    return (
      deviceAttendsPages(this.config, this.device, this.dtype, this.cacheDType) && runsOnDevice(this.config, this.dtype)
    );
  }

  /** What turns up to `positions` positions of sequences of any extent. */
  pagedTables(positions: number): ReadonlyMap<RopeConfig, SharedTable> {
    return this.#perRope((rotary) => rotary.shared(positions));
  }

  /** Whether rows of prompts can be recorded beside those that decode. */
  get recordsPrompts(): boolean {
    return this.recordsPages && !this.config.latent && !this.#positions;
  }

  /**
   * Logits behind one id for each row (rows), of all rows or of `lasts`, for recording: where the rows stand is in device
   * memory.
   */
  pagedDecode(
    ids: Tensor,
    cache: PagedCache,
    places: DevicePlaces,
    tables: ReadonlyMap<RopeConfig, PagedTable>,
    lasts: Tensor | null = null,
  ): Tensor {
    return this.#scoped(() => {
      const step = new DevicePagedStep(this.device.backend, ids.numel, places, tables, [], false);
      // Rows of nobody have no position, and stand at the first.
      const positions = () => places.lengths.maximum(1n).sub(1n);
      const hidden = this.#layered(this.#embed(ids, positions), step, cache.layers);
      return this.#logits(lasts ? hidden.indexSelect(lasts, 0) : hidden);
    });
  }

  /** Pages are the same only among sequences whose extents agree in this: some models turn long texts otherwise. */
  turnsAsLong(extent: number): boolean {
    return [...this.#rotaries.values()].some((rotary) => rotary.isLong(extent));
  }

  /** What the head would take for each position, (rows, hidden): the states that embed sequences. */
  hidden(packed: Packed): Tensor {
    return this.#scoped(() => {
      const { positions } = packed;
      const rotationsAt = (at: Positions) => this.#perRope((rotary) => rotary.at(at, packed.longest));
      const places = () => positionIds(positions, 1, this.device);
      const embedded = this.#embed(packed.ids(this.device), places);
      const states = this.#layered(embedded, new PackedStep(packed, true, rotationsAt, this.device), undefined);
      return normalize(states, this.#finalNorm);
    });
  }

  /** Whether its steps can be recorded: nothing in them depends on what the host knows. */
  get recordable(): boolean {
    return (
      deviceAttends(this.config, this.device, this.dtype, this.cacheDType) && runsOnDevice(this.config, this.dtype)
    );
  }

  /**
   * Logits (b · t, vocab) behind t more ids per sequence (b · t), for recording: `lengths` counts the positions with these,
   * in device memory. The cache has been given room; that it is longer now is the caller's to say, by `accept`.
   */
  recordedStep(ids: Tensor, cache: ModelCache, lengths: Tensor, extent: number): Tensor {
    return this.#scoped(() => {
      const room = cache.reserve(0);
      const tables = this.#perRope((rotary) => rotary.tables(room, extent));
      const mask = (keys: number) => cache.mask(keys, keys);
      const length = ids.numel / cache.batch;
      const step = new CachedStep(this.device.backend, cache.batch, length, tables, cache.padding, mask, lengths);
      const embedded = this.#embed(ids, () => cache.lastPositions(lengths, length));
      return this.#logits(this.#layered(embedded, step, cache.layers));
    });
  }

  /** How many positions a recorded step stays right for, besides the room in its cache. */
  recordedUntil(extent: number): number {
    return Math.min(...[...this.#rotaries.values()].map((rotary) => rotary.validUntil(extent)));
  }

  #scoped<T>(run: () => T): T {
    const { backend } = this.device;
    return scope(this.batchInvariant && backend.invariantly ? () => backend.invariantly!(run) : run);
  }

  #perRope<T>(of: (rotary: Rotary) => T): ReadonlyMap<RopeConfig, T> {
    return new Map([...this.#rotaries].map(([rope, rotary]) => [rope, of(rotary)]));
  }

  #step(batch: number, length: number, cache: ModelCache | undefined, extent: number): Step {
    const total = (cache?.length ?? 0) + length;
    const most = Math.max(extent, total);
    const mask = (keys: number) => cache?.mask(keys, total) ?? null;
    const { latent } = this.config;
    const itself = cache && deviceAttends(this.config, this.device, this.dtype, this.cacheDType);
    if (!itself || (latent && this.#mayExpand && expansionPays(length, latent))) {
      const positions = cache?.positions(length) ?? { start: 0, length };
      const rotations = this.#perRope((rotary) => rotary.at(positions, most));
      return new ComposedStep(batch, length, rotations, mask, this.#mayExpand);
    }
    const tables = this.#perRope((rotary) => rotary.tables(total, most));
    return new CachedStep(this.device.backend, batch, length, tables, cache.padding, mask, null);
  }

  #pagedStep(batch: PagedBatch, { tables, lengths, offsets }: PagedTensors): Step {
    const rotationsOf = (sequence: PagedSequence) => {
      const positions = { start: sequence.past, length: lengthOf(sequence) };
      return this.#perRope((rotary) => rotary.at(positions, extentOf(sequence)));
    };
    if (!deviceAttendsPages(this.config, this.device, this.dtype, this.cacheDType))
      return new ComposedPagedStep(batch, rotationsOf);
    const { sequences, singles, rows } = batch;
    const turns = this.#perRope((rotary): PagedTable => {
      const { start, ...table } = rotary.shared(batch.longest);
      const starts = start && BigInt64Array.from(sequences, (sequence) => BigInt(start(extentOf(sequence))));
      return { ...table, starts: starts && Tensor.from(starts, { device: this.device }) };
    });
    const chunks = sequences.slice(singles).map((sequence) => ({ sequence, rotations: () => rotationsOf(sequence) }));
    return new DevicePagedStep(
      this.device.backend,
      rows,
      { tables, lengths, offsets, singles },
      turns,
      chunks,
      this.#mayExpand,
    );
  }

  /** What the last layer gives for each position: (b · t, hidden). */
  #hidden(embedded: Tensor, step: Step, cache: ModelCache | undefined): Tensor {
    try {
      const hidden = this.#layered(embedded, step, cache?.layers);
      cache?.advance(step.length);
      return hidden;
    } catch (error) {
      cache?.recover();
      throw error;
    }
  }

  /** `places` are the positions of the ids. */
  #embed(ids: Tensor, places: () => Tensor): Tensor {
    const { embeddingScale } = this.config;
    const tokens = this.#embedding.lookup(ids);
    const scaled = embeddingScale === 1 ? tokens : tokens.affine(embeddingScale, 0);
    return this.#positions ? scaled.add(this.#positions.lookup(places())) : scaled;
  }

  #layered(embedded: Tensor, step: Step, caches: readonly LayerCache[] | undefined): Tensor {
    let x = embedded;
    for (const [i, layer] of this.#layers.entries()) {
      using before = x;
      const run = () => this.#runLayer(layer, before, step, caches?.[i]);
      // Of a long prompt each layer's tensors are freed at once; those of a single step are not worth the scope.
      x = step.batch * step.length > FEW_ROWS ? scope(run) : run();
    }
    return x;
  }

  #logits(x: Tensor): Tensor {
    const { logitScale: scale, logitSoftcap: cap } = this.config;
    const unscaled = this.#head.forward(x, { norm: this.#finalNorm }).toDType("f32");
    const logits = scale === 1 ? unscaled : unscaled.affine(scale, 0);
    if (cap === 0) return logits;
    const squashed = logits.affine(1 / cap, 0).tanh();
    return squashed.affine(cap, 0);
  }

  [Symbol.dispose](): void {
    for (const rotary of this.#rotaries.values()) rotary[Symbol.dispose]();
    for (const resource of this.#owned) resource[Symbol.dispose]();
  }

  #runLayer(layer: Layer, x: Tensor, step: Step, own: LayerCache | undefined): Tensor {
    const { attentionNorm, postAttentionNorm, mlpNorm, postMlpNorm } = layer;
    const { residualScale: scale, parallelResidual } = this.config;
    // One norm for both halves is done once, and is then no part of a product.
    const shared = parallelResidual && !mlpNorm && attentionNorm ? normalize(x, attentionNorm) : null;
    const middle = residual(x, postAttentionNorm, scale, (rest) =>
      layer.attention.forward(shared ?? x, step, own, { norm: shared ? undefined : attentionNorm, ...rest }),
    );
    const input = shared ?? (parallelResidual ? x : middle);
    return residual(middle, postMlpNorm, scale, (rest) => layer.mlp.forward(input, { norm: mlpNorm, ...rest }));
  }

  #checkPositions(total: number): void {
    const { contextLength } = this.config;
    if (this.#positions && total > contextLength) {
      fail("ValueOutOfRange", `${total} positions, but the model has learned vectors for ${contextLength}`);
    }
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
    this.#checkPositions((cache?.length ?? 0) + length);
    return [batch, length];
  }
}

/** x plus what `run` gives, which adds it itself unless a norm or a scale comes between. */
function residual(
  x: Tensor,
  post: Norm | undefined,
  scale: number,
  run: (rest: Pick<Fusion, "residual">) => Tensor,
): Tensor {
  if (!post && scale === 1) return run({ residual: x });
  const y = run({});
  const normed = post ? normalize(y, post) : y;
  return x.add(scale === 1 ? normed : normed.affine(scale, 0));
}

async function loadLayer(config: ModelConfig, weights: Weights, layer: number): Promise<Layer> {
  const { norms } = architectureOf(config);
  const norm = async (role: LayerNormRole): Promise<Norm | undefined> =>
    norms.includes(role) ? loadNorm(config, weights, role, config.hiddenSize, { layer }) : undefined;
  return {
    attentionNorm: await norm("attentionNorm"),
    attention: await loadAttention(config, weights, layer),
    postAttentionNorm: await norm("postAttentionNorm"),
    mlpNorm: await norm("mlpNorm"),
    mlp: await loadFeedForward(config, weights, layer),
    postMlpNorm: await norm("postMlpNorm"),
  };
}
