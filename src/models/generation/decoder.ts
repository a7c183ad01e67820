/** Where the tokens behind a prompt come from: chosen by the host step by step, or by the device ahead of the host. */
import { call } from "../../backend/call.ts";
import { type Graph, NO_TOKEN, type TokenSampler } from "../../backend/transformers.ts";
import { fail } from "../../core/errors.ts";
import { Layout } from "../../core/layout.ts";
import { Tensor } from "../../ops/index.ts";
import type { ModelCache } from "../cache.ts";
import { Counts, type RecordedStepOptions, recordStep } from "../recorded-step.ts";
import type { Transformer } from "../transformer.ts";
import { noToken } from "./row-sampler.ts";
import { acceptTokens, chooseTokens, type Sampler } from "./sampling.ts";

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
  const { backend } = model.device;
  if (backend.recorder?.problem === null && model.recordsSome) {
    const sampler = backend.transformers?.sampler(model.config.vocabSize, samplers.length);
    if (sampler) return new DeviceDecoder(logits, sampler, options);
  }
  return model.recordsSome ? new SteppingDecoder(logits, options) : new HostDecoder(logits, options);
}

/** Every step is computed op by op. */
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

/** Positions that a recording has room for beyond its first, where so many are asked for: recording takes a few steps' time. */
const ROOM = 256;

/** What becomes of a step's logits. */
type StepEnd = Pick<RecordedStepOptions, "finish" | "kind" | "asComputed">;

/** Steps of one position, recorded once for a cache's capacity and replayed for each token. */
class Steps implements Disposable {
  readonly #options: DecoderOptions;
  /** The newest token of each sequence. */
  readonly #ids: Tensor;
  readonly #end: StepEnd;
  readonly #counts: Counts;
  /** Those before the last may still be running. */
  readonly #recorded: Graph[] = [];
  /** Positions that the enqueued steps fill, and up to which the last recording is right. */
  #filled: number;
  #valid = 0;

  constructor(options: DecoderOptions, ids: Tensor, end: StepEnd) {
    const { model, cache } = options;
    this.#options = options;
    this.#ids = ids;
    this.#end = end;
    this.#filled = cache.length;
    this.#counts = new Counts(model, cache.batch, cache.length);
  }

  /** `left` more are asked for, with this one. */
  run(left: number): void {
    if (this.#filled < this.#valid) this.#recorded.at(-1)!.replay();
    else this.#record(left);
    this.#filled++;
  }

  [Symbol.dispose](): void {
    for (const graph of this.#recorded) graph[Symbol.dispose]();
    this.#counts[Symbol.dispose]();
  }

  /** Recording a step runs it, too. */
  #record(left: number): void {
    const { model, cache } = this.#options;
    const extent = this.#filled + 1;
    const room = cache.reserve(extent + Math.min(left, ROOM));
    this.#valid = Math.min(room, model.recordedUntil(extent));
    const own = { model, cache, ids: this.#ids, counts: this.#counts, extent, counting: true };
    this.#recorded.push(recordStep({ ...own, ...this.#end }));
  }
}

/** The host chooses tokens from logits, or hears which ones are likeliest, wherever the steps are recorded. */
class SteppingDecoder implements Decoder {
  readonly #options: DecoderOptions;
  readonly #ids: Tensor;
  readonly #steps: Steps;
  readonly #isGreedy: boolean;
  /** Logits (b, vocab), or the likeliest tokens (b). Of a recorded step they stay where they are. */
  #said: Tensor;
  #left: number;

  constructor(logits: Tensor, options: DecoderOptions) {
    const { model, cache, limit, samplers } = options;
    this.#options = options;
    this.#left = limit;
    this.#isGreedy = samplers.every((sampler) => sampler.isGreedy);
    this.#said = logits;
    this.#say(logits);
    this.#ids = Tensor.zeros([cache.batch], { dtype: "u32", device: model.device }).keep();
    const kind = this.#isGreedy ? "likeliest" : "logits";
    this.#steps = new Steps(options, this.#ids, { finish: (next) => this.#say(next), kind });
  }

  async next(ended: readonly boolean[]): Promise<number[]> {
    const samplers = this.#options.samplers.map((sampler, i) => (ended[i] ? null : sampler));
    return await (this.#isGreedy ? acceptTokens : chooseTokens)(this.#said, samplers);
  }

  accept(tokens: readonly number[]): void {
    this.#ids.storage.write(0, new Uint8Array(Uint32Array.from(tokens).buffer));
    this.#steps.run(this.#left--);
    this.#options.cache.accept(1);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#said.dispose();
    this.#steps[Symbol.dispose]();
    this.#ids.dispose();
  }

  #say(logits: Tensor): void {
    const said = this.#isGreedy ? logits.argmax(-1) : logits.view(logits.layout);
    this.#said.dispose();
    this.#said = said.keep();
  }
}

/** Steps enqueued beyond the one whose tokens are waited for, so that the device never waits for the host. */
const AHEAD = 3;

/**
 * The step goes from ids to ids, which are read some steps later. Steps that ran ahead in vain have written behind the
 * cache's length, where it counts for nothing. No step runs ahead where some layers are not recorded, or keep the host.
 */
class DeviceDecoder implements Decoder {
  readonly #options: DecoderOptions;
  readonly #sampler: TokenSampler;
  readonly #draws: boolean;
  readonly #ids: Tensor;
  readonly #steps: Steps;
  readonly #runsAhead: boolean;
  readonly #pending: Promise<Uint32Array>[] = [];
  #left: number;

  constructor(logits: Tensor, sampler: TokenSampler, options: DecoderOptions) {
    const { model, cache, limit, samplers } = options;
    this.#options = options;
    this.#sampler = sampler;
    this.#left = limit;
    this.#runsAhead = model.recordable && model.worksByItself;
    this.#draws = samplers.some(({ spec }) => spec.temperature !== 0);
    for (const [row, { spec }] of samplers.entries()) sampler.assign(row, spec);
    sampler.place([...samplers.keys()]);
    this.#ids = new Tensor(sampler.tokens, Layout.contiguous([cache.batch])).keep();
    const finish = (next: Tensor): void => void call(sampler, "sample", next, this.#draws);
    this.#steps = new Steps(options, this.#ids, { finish, kind: this.#draws ? "drawn" : "chosen", asComputed: true });
    call(sampler, "sample", logits, this.#draws);
    logits.dispose();
    this.#read();
  }

  async next(ended: readonly boolean[]): Promise<Uint32Array> {
    while (this.#runsAhead && this.#pending.length <= AHEAD && this.#left > 0) this.#step();
    const tokens = await this.#pending.shift()!;
    if (tokens.some((token, i) => token === NO_TOKEN && !ended[i])) {
      fail("ValueOutOfRange", noToken(null, false));
    }
    return tokens;
  }

  accept(): void {
    if (!this.#runsAhead) this.#step();
    this.#options.cache.accept(1);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.allSettled(this.#pending);
    this.#steps[Symbol.dispose]();
    this.#ids.dispose();
    this.#sampler[Symbol.dispose]();
  }

  #step(): void {
    this.#steps.run(this.#left);
    this.#read();
  }

  #read(): void {
    const read = this.#sampler.read().then(({ tokens }) => tokens);
    // Of what ran ahead in vain nobody hears.
    read.catch(() => {});
    this.#pending.push(read);
    this.#left--;
  }
}
