/** What is asked of an engine that answers many requests at once, and what it tells of each: tokens in, tokens out. */
import type { Finish } from "../models/generation/generate.ts";
import type { TokenLogprob } from "../models/generation/row-sampler.ts";
import type { SamplingOptions } from "../models/generation/sampling.ts";

/** Says which tokens may come next; it hears of every token that was chosen. */
export interface TokenConstraint extends Disposable {
  /** A bit for each token, 32 to a word, set where it is allowed; null where all are. Valid until the next `accept`. */
  mask(): Uint32Array | null;
  accept(token: number): void;
  /** Whether nothing but the end may come. */
  readonly ended: boolean;
}

export interface EngineRequest {
  /** At least one token, fewer than the context holds. */
  readonly prompt: readonly number[];
  readonly sampling?: SamplingOptions | undefined;
  /** Default: as many as the context holds. */
  readonly maxTokens?: number | undefined;
  /** Tokens that end the answer besides the model's own. */
  readonly stopTokens?: readonly number[] | undefined;
  /** Goes on after the model's end-of-text token. Default false. */
  readonly ignoreEos?: boolean | undefined;
  /** Tell the log-probability of each token, and of so many of the likeliest beside it. Default: of none. */
  readonly logprobs?: number | undefined;
  /** Stays the caller's, who disposes it when the answer has ended; where it ends, so does the answer ("string"). */
  readonly constraint?: TokenConstraint | undefined;
  /** Ends the request at once: its iterator throws the signal's reason. */
  readonly signal?: AbortSignal | undefined;
}

export interface TokenEvent {
  readonly token: number;
  /** Of this token, before temperature and what else shapes the draw; set where it was asked for. */
  readonly logprob?: number | undefined;
  /** The likeliest, by falling probability. */
  readonly top?: readonly TokenLogprob[] | undefined;
  /** Set on the last. */
  readonly finish: Finish | null;
  /** Of the prompt's tokens, those whose keys and values were there already. */
  readonly cachedTokens: number;
}

export interface EngineStats {
  /** Requests that get tokens, and those that wait for their turn. */
  readonly running: number;
  readonly waiting: number;
  /** Pages of the cache: all of them, those that requests hold, and those kept for prompts that start alike. */
  readonly pages: { readonly total: number; readonly used: number; readonly kept: number };
  /** Since the start. */
  readonly promptTokens: number;
  readonly cachedTokens: number;
  readonly generatedTokens: number;
  readonly preemptions: number;
  readonly steps: number;
}

export interface Engine extends AsyncDisposable {
  /**
   * The tokens of an answer as they are chosen. A request that cannot be taken fails here, by a `WickError`; leaving the
   * iteration ends the request. Tokens wait for their reader: a slow one holds up nobody.
   */
  submit(request: EngineRequest): AsyncIterableIterator<TokenEvent, void, undefined>;
  readonly stats: EngineStats;
  /** Readies what requests need of a GPU, kernels and recordings, so that the first need not wait for it. */
  ready(): Promise<void>;
  /** Takes no more requests, and resolves when those that run have ended. */
  drain(): Promise<void>;
}
