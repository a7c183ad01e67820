/** Passes of a model over a few new tokens of one text, which may be taken back: computed op by op, or recorded. */
import type { Graph } from "../../backend/transformers.ts";
import { Tensor } from "../../ops/index.ts";
import type { ModelCache } from "../cache.ts";
import { Counts, recordStep } from "../recorded-step.ts";
import type { Transformer } from "../transformer.ts";

/** What a pass says of each token that was fed: the likeliest next one, or all logits (rows · vocab). */
export interface Outcome {
  readonly best?: Uint32Array;
  readonly logits?: Float32Array;
}

export interface Passes extends Disposable {
  /** The most tokens of a pass. */
  readonly most: number;
  /** Feeds tokens behind those in the cache. */
  run(tokens: readonly number[]): Promise<Outcome>;
  /** How many of the tokens fed last stay in the cache: said after each pass. */
  keep(count: number): void;
}

export interface PassesOptions {
  readonly model: Transformer;
  readonly cache: ModelCache;
  /** Only the likeliest tokens are asked for. */
  readonly greedy: boolean;
}

export function openPasses(options: PassesOptions): Passes {
  const { recordable, worksByItself } = options.model;
  return recordable && worksByItself ? new RecordedPasses(options) : new ComposedPasses(options);
}

class ComposedPasses implements Passes {
  readonly most = Number.POSITIVE_INFINITY;
  readonly #options: PassesOptions;
  #fed = 0;

  constructor(options: PassesOptions) {
    this.#options = options;
  }

  async run(tokens: readonly number[]): Promise<Outcome> {
    const { model, cache, greedy } = this.#options;
    this.#fed = tokens.length;
    using input = Tensor.from(Uint32Array.from(tokens), { shape: [1, tokens.length], device: model.device });
    using logits = model.forward(input, { cache });
    if (!greedy) return { logits: (await logits.data()) as Float32Array };
    using best = logits.argmax(-1);
    return { best: (await best.data()) as Uint32Array };
  }

  keep(count: number): void {
    const { cache } = this.#options;
    if (count < this.#fed) cache.rewind(cache.length - this.#fed + count);
  }

  [Symbol.dispose](): void {}
}

/**
 * Recording takes the time of a few passes, so there are two lengths: others are filled up with tokens that count for
 * nothing, where the context has room for them.
 */
const LENGTHS = [1, 8] as const;
const MOST = LENGTHS.at(-1)!;
/** Positions that recordings have room for beyond their first. */
const ROOM = 256;

/** One recording for each length of a pass. Tokens and positions are written into device memory before each replay. */
class RecordedPasses implements Passes {
  readonly most = MOST;
  readonly #options: PassesOptions;
  readonly #ids: Tensor;
  readonly #counts: Counts;
  /** What the last pass said: ids (rows), or logits (rows, vocab). */
  readonly #said: Tensor;
  readonly #recorded = new Map<number, Graph>();
  /** Positions that the recordings have room for, and up to which their rotary tables are right. */
  #room = 0;
  #until = 0;

  constructor(options: PassesOptions) {
    const { model, greedy } = options;
    const { device, config } = model;
    this.#options = options;
    this.#ids = Tensor.zeros([MOST], { dtype: "u32", device }).keep();
    this.#counts = new Counts(model, 1, 0);
    this.#said = greedy
      ? Tensor.zeros([MOST], { dtype: "u32", device }).keep()
      : Tensor.zeros([MOST, config.vocabSize], { dtype: "f32", device }).keep();
  }

  async run(tokens: readonly number[]): Promise<Outcome> {
    const { model, cache, greedy } = this.#options;
    const usual = LENGTHS.find((length) => length >= tokens.length)!;
    const rows = cache.length + usual <= model.config.contextLength ? usual : tokens.length;
    this.#makeRoom(cache.length + rows);
    const fed = Uint32Array.from({ length: rows }, (_, i) => tokens[i] ?? 0);
    this.#ids.storage.write(0, new Uint8Array(fed.buffer));
    this.#counts.write(cache.length + rows);
    const known = this.#recorded.get(rows);
    if (known) known.replay();
    else this.#recorded.set(rows, this.#record(rows));
    const { storage } = this.#said;
    const bytes = await storage.read(0, (storage.byteLength / MOST) * tokens.length);
    return greedy ? { best: new Uint32Array(bytes.buffer) } : { logits: new Float32Array(bytes.buffer) };
  }

  /** What is behind counts for nothing, and is written over. */
  keep(count: number): void {
    this.#options.cache.accept(count);
  }

  [Symbol.dispose](): void {
    this.#forget();
    this.#ids.dispose();
    this.#counts[Symbol.dispose]();
    this.#said.dispose();
  }

  /** Recording a pass runs it, too. */
  #record(rows: number): Graph {
    const { model, cache, greedy } = this.#options;
    using ids = this.#ids.narrow(0, 0, rows);
    const finish = (logits: Tensor): void => this.#said.sliceSet(greedy ? logits.argmax(-1) : logits, 0, 0);
    const extent = cache.length + 1;
    const kind = greedy ? "likeliest" : "logits";
    return recordStep({ model, cache, ids, counts: this.#counts, counting: false, extent, finish, kind });
  }

  /** Buffers that move, or rotary tables that change, make recordings worthless. */
  #makeRoom(positions: number): void {
    const { model, cache } = this.#options;
    const until = model.recordedUntil(cache.length + 1);
    if (positions <= this.#room && until === this.#until) return;
    this.#forget();
    this.#room = cache.reserve(positions + ROOM);
    this.#until = until;
  }

  #forget(): void {
    for (const graph of this.#recorded.values()) graph[Symbol.dispose]();
    this.#recorded.clear();
  }
}
