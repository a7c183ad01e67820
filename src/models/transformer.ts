/** The one transformer that every architecture is: embedding, layers of attention and feed-forward, head. */
import type { Device } from "../backend/device.ts";
import type { DType } from "../core/dtype.ts";
import { fail } from "../core/errors.ts";
import { formatShape } from "../core/layout.ts";
import { scope, type Tensor } from "../ops/index.ts";
import { architectureOf } from "./architectures/index.ts";
import { ModelCache, type ModelCacheOptions } from "./cache.ts";
import { endsOf, type ModelConfig, type RopeConfig } from "./config.ts";
import { type Layer, loadLayer } from "./layer.ts";
import { loadNorm, normalize } from "./norm.ts";
import type { Packed } from "./packed.ts";
import { PagedBatch, type PagedSequence } from "./paged/batch.ts";
import { PagedCache } from "./paged/cache.ts";
import type { DevicePlaces, PagedTable } from "./paged/steps.ts";
import { Passage } from "./passage.ts";
import { devicesOf, type Sites, sitesOf, stretchesOf } from "./placement/sites.ts";
import { positionIds } from "./positions.ts";
import type { SharedTable } from "./rotary.ts";
import { type Fed, invariantlyOn, Segment } from "./segment.ts";
import type { Pipeline } from "./sharding/pipeline.ts";
import type { EmbeddingTable, Norm, Projection, Weights } from "./weights/weights.ts";

/** A stage of a pipeline has its ends only where it is the first or the last. */
interface Parts {
  readonly embedding: EmbeddingTable | null;
  /** Learned vectors of the positions, where it has them. */
  readonly positions: EmbeddingTable | null;
  readonly layers: readonly Layer[];
  readonly output: { readonly norm: Norm; readonly head: Projection } | null;
}

export interface TransformerOptions {
  readonly cache?: ModelCache | undefined;
  /** Logits of the last position only. */
  readonly last?: boolean;
  /** The positions the sequence will have, where this call feeds a part of it. Default: those fed so far. */
  readonly extent?: number | undefined;
}

/** What a pass over a part of a sequence is told. */
export interface PassOptions {
  readonly cache?: ModelCache | undefined;
  /** Positions before the part; they may still be on their way. */
  readonly start: number;
  readonly extent?: number | undefined;
}

export class Transformer implements Disposable {
  readonly config: ModelConfig;
  /** How many processes it is split over, all of which must make the same calls; 1 where it is whole. */
  readonly ranks: number;
  /** Where its parts lie. */
  readonly sites: Sites;
  /** What it computes in. */
  readonly dtype: DType;
  /** What keys and values are kept as. */
  readonly cacheDType: DType;
  /** Whether what it says of a sequence does not depend, bit by bit, on what else is in a call or how a prompt is cut. */
  readonly batchInvariant: boolean;
  /** The layers, by the devices they lie on. */
  readonly segments: readonly Segment[];
  readonly #parts: Omit<Parts, "layers">;
  readonly #pipeline: Pipeline | undefined;
  readonly #owned: readonly Disposable[];

  private constructor(
    config: ModelConfig,
    sites: Sites,
    dtype: DType,
    batchInvariant: boolean,
    cacheDType: DType,
    { layers, ...parts }: Parts,
    { owned, shard }: Weights,
    pipeline: Pipeline | undefined,
  ) {
    this.config = config;
    this.ranks = (shard?.ranks ?? 1) * (pipeline?.stages ?? 1);
    this.#pipeline = pipeline;
    this.sites = sites;
    this.dtype = dtype;
    this.cacheDType = cacheDType;
    this.batchInvariant = batchInvariant || devicesOf(sites).every(({ backend }) => backend.invariantly === undefined);
    this.segments = stretchesOf(sites.layers).map(({ device, first, count }) => {
      const own = layers.slice(first, first + count);
      const common = { config, device, dtype, cacheDType, batchInvariant: this.batchInvariant };
      const isLast = first + count === config.layers;
      const handOn = isLast && pipeline ? (states: Tensor) => pipeline.send(states) : undefined;
      return new Segment({ ...common, mayExpand: !batchInvariant, first, layers: own, handOn });
    });
    this.#parts = parts;
    this.#owned = owned;
  }

  /** Takes everything the config names from `weights`; where that fails, what was read is freed. */
  static async load(
    config: ModelConfig,
    weights: Weights,
    where: Device | Sites,
    dtype: DType,
    batchInvariant = false,
    cacheDType: DType = dtype,
    pipeline?: Pipeline,
  ): Promise<Transformer> {
    try {
      const parts = await loadParts(config, weights);
      const sites = sitesOf(where, config.layers);
      return new Transformer(config, sites, dtype, batchInvariant, cacheDType, parts, weights, pipeline);
    } catch (error) {
      for (const resource of weights.owned) resource[Symbol.dispose]();
      throw error;
    }
  }

  /** Where its logits are, and the tokens that are chosen from them; ids may come from anywhere. */
  get device(): Device {
    return this.sites.output;
  }

  newCache(options: ModelCacheOptions = {}): ModelCache {
    // Ranks whose layers have windows must be able to go back as far as those whose have none.
    const rewindable = options.rewindable || this.#pipeline !== undefined;
    const own = { stored: this.cacheDType, ...options, rewindable };
    return new ModelCache(this.config, this.sites.layers, this.dtype, own);
  }

  newPagedCache(pages: number): PagedCache {
    return new PagedCache(this.config, this.sites.layers, this.cacheDType, pages);
  }

  /** Logits in f32 for ids (b, t): (b, t, vocab), or (b, vocab) of the last position. */
  forward(ids: Tensor, { cache, last = false, extent = 0 }: TransformerOptions = {}): Tensor {
    return scope(() => {
      const passage = this.enter(ids, { cache, start: cache?.length ?? 0, extent });
      return this.leave(passage, ids, { cache, last });
    });
  }

  /** A part of a sequence, ids (b, t), on its way: others may follow before it is through. */
  enter(ids: Tensor, { cache, start, extent = 0 }: PassOptions): Passage {
    const [batch, length] = this.#checkIds(ids, cache, start);
    const fed: Fed = { batch, length, start, extent };
    const { input } = this.sites;
    const places = () => positionIds(cache?.positions(start, length) ?? { start, length }, batch, input);
    return new Passage({
      segments: this.segments,
      enter: () => this.embed(ids.reshape([batch * length]), places),
      stepOn: (segment) => segment.step(fed, cache),
      caches: cache?.layers,
    });
  }

  /** The logits of a part that goes to its end, as `forward` has them. Where it fails, the cache is as it was. */
  leave(passage: Passage, ids: Tensor, { cache, last = false }: Pick<TransformerOptions, "cache" | "last">): Tensor {
    const [batch, length] = ids.shape as [number, number];
    const { vocabSize, hiddenSize } = this.config;
    return scope(() => {
      using hidden = this.#through(passage, length, cache);
      if (!last) return this.logits(hidden).reshape([batch, length, vocabSize]);
      const ends = hidden.reshape([batch, length, hiddenSize]).narrow(1, length - 1, 1);
      return this.logits(ends.reshape([batch, hiddenSize]));
    });
  }

  /** A part that others follow goes to its end: nothing is said of it. */
  pass(passage: Passage, ids: Tensor, cache: ModelCache): void {
    scope(() => this.#through(passage, ids.shape[1]!, cache).dispose());
  }

  /**
   * Logits in f32 (sequences, vocab) of each sequence's last row. Sequences are of any lengths, some decoding and some with
   * a part of their prompt; each has its place in the cache by its pages. `tokens` is u32 (slots), where sequences take one
   * from there. Where it fails, what `past` counts is untouched.
   */
  paged(sequences: readonly PagedSequence[], cache: PagedCache, tokens: Tensor | null = null): Tensor {
    const batch = new PagedBatch(sequences, cache.pages);
    this.#checkPositions(batch.longest);
    return scope(() => {
      const on = perDevice((device) => batch.tensors(device));
      const { slots, lasts } = on(this.device);
      const hidden = new Passage({
        segments: this.segments,
        enter: () => this.embed(batch.ids(this.device, slots, tokens), () => on(this.sites.input).positions),
        stepOn: (segment) => segment.pagedStep(batch, on(segment.device)),
        caches: cache.layers,
      }).through();
      return this.logits(batch.saysAll ? hidden : hidden.indexSelect(lasts, 0));
    });
  }

  /** Whether steps of decoding over pages can be recorded. */
  get recordsPages(): boolean {
    return this.#isOnOne && this.segments.every((segment) => segment.recordsPages);
  }

  /** What turns up to `positions` positions of sequences of any extent. */
  pagedTables(positions: number): ReadonlyMap<RopeConfig, SharedTable> {
    return this.segments[0]!.pagedTables(positions);
  }

  /** Whether rows of prompts can be recorded beside those that decode. */
  get recordsPrompts(): boolean {
    return this.recordsPages && !this.config.latent && !this.#parts.positions;
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
    return scope(() => {
      const [segment] = this.segments as [Segment];
      const step = segment.pagedDecodeStep(ids.numel, places, tables);
      // Rows of nobody have no position, and stand at the first.
      const positions = () => places.lengths.maximum(1n).sub(1n);
      const hidden = segment.run(this.embed(ids, positions), step, cache.layers);
      return this.logits(lasts ? hidden.indexSelect(lasts, 0) : hidden);
    });
  }

  /** Pages are the same only among sequences whose extents agree in this: some models turn long texts otherwise. */
  turnsAsLong(extent: number): boolean {
    return this.segments.some((segment) => segment.turnsAsLong(extent));
  }

  /** What the head would take for each position, (rows, hidden): the states that embed sequences. */
  hidden(packed: Packed): Tensor {
    const { input } = this.sites;
    return scope(() => {
      const states = new Passage({
        segments: this.segments,
        enter: () => this.embed(packed.ids(input), () => positionIds(packed.positions, 1, input)),
        stepOn: (segment) => segment.packedStep(packed),
        caches: undefined,
      }).through();
      return normalize(states, this.#parts.output!.norm);
    });
  }

  /** Whether its steps can be recorded: nothing in them depends on what the host knows. */
  get recordable(): boolean {
    const { input, output } = this.sites;
    return this.segments.every((segment) => segment.recordable) && [input, output].every(records);
  }

  /** Whether its devices compute while the host does something else, as many rows at a time as well as one. */
  get worksByItself(): boolean {
    return devicesOf(this.sites).every(({ backend }) => backend.beginRead !== undefined);
  }

  /** Whether steps of some of its layers can be. */
  get recordsSome(): boolean {
    return this.segments.some((segment) => segment.recordable);
  }

  /** How many positions a recorded step stays right for, besides the room in its cache. */
  recordedUntil(extent: number): number {
    return Math.min(...this.segments.map((segment) => segment.recordedUntil(extent)));
  }

  /** Waits for all work given to its devices. */
  async synchronize(): Promise<void> {
    await Promise.all(devicesOf(this.sites).map((device) => device.synchronize()));
  }

  [Symbol.dispose](): void {
    for (const segment of this.segments) segment[Symbol.dispose]();
    for (const resource of this.#owned) resource[Symbol.dispose]();
  }

  get #isOnOne(): boolean {
    return devicesOf(this.sites).length === 1;
  }

  /** What the last layer gives for each position: (b · t, hidden). */
  #through(passage: Passage, length: number, cache: ModelCache | undefined): Tensor {
    try {
      const hidden = passage.through();
      cache?.advance(length);
      return hidden;
    } catch (error) {
      cache?.recover();
      throw error;
    }
  }

  /** The rows of ids (n), where the tables are, with which `places` has their positions. Call it inside a scope. */
  embed(ids: Tensor, places: () => Tensor): Tensor {
    const { embeddingScale, hiddenSize } = this.config;
    const { embedding, positions } = this.#parts;
    const { input } = this.sites;
    if (!embedding) return this.#pipeline!.receive(ids.numel, hiddenSize, this.dtype);
    const tokens = embedding.lookup(ids.device === input ? ids : ids.toDeviceSync(input));
    const scaled = embeddingScale === 1 ? tokens : tokens.affine(embeddingScale, 0);
    return positions ? scaled.add(positions.lookup(places())) : scaled;
  }

  /**
   * Logits of states that the last layer gave, in f32, or, with `asComputed`, in what they may come as; all stages of a pipeline
   * have them. Call it inside a scope.
   */
  logits(hidden: Tensor, asComputed = false): Tensor {
    const { output } = this.#parts;
    const own = output && this.#logitsBy(output, hidden, asComputed && !this.#pipeline);
    return this.#pipeline?.share(own, hidden.shape[0]!, this.config.vocabSize) ?? own!;
  }

  #logitsBy({ norm, head }: NonNullable<Parts["output"]>, hidden: Tensor, asComputed: boolean): Tensor {
    const { logitScale: scale, logitSoftcap: cap } = this.config;
    const { device, batchInvariant } = this;
    const x = hidden.device === device ? hidden : hidden.toDeviceSync(device);
    const computed = invariantlyOn(device, batchInvariant, () => head.forward(x, { norm }));
    if (asComputed && scale === 1 && cap === 0) return computed;
    const unscaled = computed.toDType("f32");
    const logits = scale === 1 ? unscaled : unscaled.affine(scale, 0);
    if (cap === 0) return logits;
    const squashed = logits.affine(1 / cap, 0).tanh();
    return squashed.affine(cap, 0);
  }

  #checkPositions(total: number): void {
    const { contextLength } = this.config;
    if (this.#parts.positions && total > contextLength) {
      fail("ValueOutOfRange", `${total} positions, but the model has learned vectors for ${contextLength}`);
    }
  }

  #checkIds(ids: Tensor, cache: ModelCache | undefined, start: number): [batch: number, length: number] {
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
    this.#checkPositions(start + length);
    return [batch, length];
  }
}

/** What `make` gives for a device, made once. */
function perDevice<T>(make: (device: Device) => T): (device: Device) => T {
  const made = new Map<Device, T>();
  return (device) => {
    const own = made.get(device) ?? make(device);
    made.set(device, own);
    return own;
  };
}

const records = ({ backend }: Device): boolean => backend.recorder?.problem === null;

/** Everything the config names. */
export async function loadParts(config: ModelConfig, weights: Weights): Promise<Parts> {
  const { vocabSize, hiddenSize, contextLength, tiedEmbeddings } = config;
  const { hasInput, hasOutput } = endsOf(config);
  const hasTable = hasInput || (hasOutput && tiedEmbeddings);
  const table = hasTable ? await weights.embedding("token", vocabSize, hiddenSize) : null;
  const learned = hasInput && architectureOf(config).positions === "learned";
  const positions = learned ? await weights.embedding("position", contextLength, hiddenSize) : null;
  const layers: Layer[] = [];
  for (let i = 0; i < config.layers; i++) layers.push(await loadLayer(config, weights, i));
  const embedding = hasInput ? table : null;
  if (!hasOutput) return { embedding, positions, layers, output: null };
  const norm = await loadNorm(config, weights, "finalNorm", hiddenSize, {});
  const head = tiedEmbeddings
    ? table!.head
    : await weights.linear([{ role: "head", outputs: vocabSize }], hiddenSize, {});
  return { embedding, positions, layers, output: { norm, head } };
}
