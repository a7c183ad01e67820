/** Where the tokens behind a prompt come from: chosen by the host step by step, or by the device ahead of the host. */
import { call } from "../../backend/call.ts";
import { type Graph, NO_TOKEN, type Recorder, type TokenSampler } from "../../backend/transformers.ts";
import { fail } from "../../core/errors.ts";
import { Layout } from "../../core/layout.ts";
import { advance } from "../../ops/counting.ts";
import { scope, Tensor } from "../../ops/index.ts";
import type { ModelCache } from "../cache.ts";
import type { Transformer } from "../transformer.ts";
import { noToken } from "./row-sampler.ts";
import { chooseTokens, type Sampler } from "./sampling.ts";

export interface Decoder extends AsyncDisposable {
  /** The next token of every sequence; what it says of those that have ended does not count. */
  next(ended: readonly boolean[]): Promise<ArrayLike<number>>;
  /** These tokens go into the cache: the next ones come behind them. */
  accept(tokens: readonly number[]): void;
}

export interface DecoderOptions {
  readonly model: Transformer;
  readonly cache: ModelCache;
  readonly samplers: readonly Sampler[];
  /** The most tokens that are asked for. */
  readonly limit: number;
}

/** Goes on from the logits (b, vocab) behind the prompts, which it disposes. */
export function openDecoder(logits: Tensor, options: DecoderOptions): Decoder {
  const { model, samplers } = options;
  const { recorder, transformers } = model.device.backend;
  if (recorder && model.recordable && recorder.problem === null) {
    const sampler = transformers?.sampler(model.config.vocabSize, samplers.length);
    if (sampler) return new DeviceDecoder(logits, recorder, sampler, options);
  }
  return new HostDecoder(logits, options);
}

class HostDecoder implements Decoder {
  readonly #options: DecoderOptions;
  #logits: Tensor;

  constructor(logits: Tensor, options: DecoderOptions) {
    this.#logits = logits;
    this.#options = options;
  }

  async next(ended: readonly boolean[]): Promise<number[]> {
    using logits = this.#logits;
    const samplers = this.#options.samplers.map((sampler, i) => (ended[i] ? null : sampler));
    return await chooseTokens(logits, samplers);
  }

  accept(tokens: readonly number[]): void {
    const { model, cache } = this.#options;
    using ids = Tensor.from(Uint32Array.from(tokens), { shape: [tokens.length, 1], device: model.device });
    this.#logits = model.forward(ids, { cache, last: true });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#logits.dispose();
  }
}

/** Steps enqueued beyond the one whose tokens are waited for, so that the device never waits for the host. */
const AHEAD = 3;
/** Positions that a recording has room for beyond its first, where so many are asked for: recording takes a few steps' time. */
const ROOM = 256;

/**
 * The step from ids to ids is recorded once for a cache's capacity and replayed for each token; the ids are read some
 * steps later. Steps that ran ahead in vain have written behind the cache's length, where it counts for nothing.
 */
class DeviceDecoder implements Decoder {
  readonly #options: DecoderOptions;
  readonly #recorder: Recorder;
  readonly #sampler: TokenSampler;
  readonly #draws: boolean;
  /** The newest token of each sequence, and how many positions there are. */
  readonly #ids: Tensor;
  readonly #lengths: Tensor;
  readonly #pending: Promise<Uint32Array>[] = [];
  /** Those before the last may still be running. */
  readonly #recorded: Graph[] = [];
  /** Positions that the enqueued steps fill, and up to which the last recording is right. */
  #filled: number;
  #valid = 0;
  #left: number;

  constructor(logits: Tensor, recorder: Recorder, sampler: TokenSampler, options: DecoderOptions) {
    const { model, cache, limit, samplers } = options;
    const { device } = model;
    this.#options = options;
    this.#recorder = recorder;
    this.#sampler = sampler;
    this.#filled = cache.length;
    this.#left = limit;
    this.#draws = samplers.some(({ spec }) => spec.temperature !== 0);
    for (const [row, { spec }] of samplers.entries()) sampler.assign(row, spec);
    sampler.place([...samplers.keys()]);
    this.#ids = new Tensor(sampler.tokens, Layout.contiguous([cache.batch])).keep();
    this.#lengths = Tensor.full([cache.batch], this.#filled, { dtype: "i64", device }).keep();
    call(sampler, "sample", logits, this.#draws);
    logits.dispose();
    this.#read();
  }

  async next(ended: readonly boolean[]): Promise<Uint32Array> {
    while (this.#pending.length <= AHEAD && this.#left > 0) this.#step();
    const tokens = await this.#pending.shift()!;
    if (tokens.some((token, i) => token === NO_TOKEN && !ended[i])) {
      fail("ValueOutOfRange", noToken(null, false));
    }
    return tokens;
  }

  accept(): void {
    this.#options.cache.accept(1);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.allSettled(this.#pending);
    for (const graph of this.#recorded) graph[Symbol.dispose]();
    this.#ids.dispose();
    this.#sampler[Symbol.dispose]();
    this.#lengths.dispose();
  }

  #step(): void {
    if (this.#filled < this.#valid) this.#recorded.at(-1)!.replay();
    else this.#record();
    this.#filled++;
    this.#read();
  }

  /** Recording a step runs it, too. */
  #record(): void {
    const { model, cache } = this.#options;
    const extent = this.#filled + 1;
    const room = cache.reserve(extent + Math.min(this.#left, ROOM));
    this.#valid = Math.min(room, model.recordedUntil(extent));
    const graph = this.#recorder.capture(() =>
      scope(() => {
        advance(this.#lengths, 1);
        const logits = model.recordedStep(this.#ids, cache, this.#lengths, extent);
        call(this.#sampler, "sample", logits, this.#draws);
      }),
    );
    this.#recorded.push(graph);
  }

  #read(): void {
    const read = this.#sampler.read().then(({ tokens }) => tokens);
    // Of what ran ahead in vain nobody hears.
    read.catch(() => {});
    this.#pending.push(read);
    this.#left--;
  }
}
