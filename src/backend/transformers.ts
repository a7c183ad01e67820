/**
 * What a device may know of transformers beyond its ops, each a capability of its own: recording work, attending over a
 * cache by itself, and what concerns whole models. A device without them decodes all the same, step by step.
 */
import type { DType } from "../core/dtype.ts";
import type { QuantType } from "../core/quant-types.ts";
import type { View } from "./backend.ts";
import type { NextProduct, SdpaParams } from "./fused-ops.ts";
import type { Storage } from "./storage.ts";

/** Work that was recorded, to be run again on the same memory. */
export interface Graph extends Disposable {
  /** Enqueues the work. */
  replay(): void;
}

/** Work that finds all it needs in device memory is recorded once and replayed. */
export interface Recorder {
  /** Why work is not recorded here after all; null where it is. */
  readonly problem: string | null;
  /**
   * Runs `run`, then records it. What the recorded run allocates is reserved until the graph is disposed; all else that
   * it uses must live as long. Moving data between host and device while it records is an error: it would happen once. The
   * CPU, where that is cheap, runs such work anew at every replay.
   * Weights of linear layers that it did not make must not be written by it: they may be read before their turn.
   * Where work like it `hasRun` before, with the same kernels on the same shapes, it is recorded at once and then replayed:
   * the host goes through it once and not twice. Where that does not do after all, it is as if it had not run.
   */
  capture(run: () => void, hasRun?: boolean): Graph;
}

/** Where the rows of a step stand in a cache, and how it attends to what is there. */
/** RMS norms of each head of the queries and the keys before they are turned: contiguous weights (d), of their dtype. */
export interface HeadNorms<V extends View = View> {
  readonly q: V;
  readonly k: V;
  readonly eps: number;
}

export interface CachedAttentionParams extends Omit<SdpaParams, "causal"> {
  /** For a device that `takesNorms`. */
  readonly norms?: HeadNorms | null;
  /** (positions, rotary/2) for every position there may be. */
  readonly cos: View;
  readonly sin: View;
  /** Pairs are neighbours (2i, 2i + 1) and not (i, i + rotary/2). */
  readonly interleaved: boolean;
  /**
   * Positions that the caches (batch, kv heads, capacity, d) hold already; they have room for the new ones. Caches of f8e4m3
   * hold rows in 8 bits (core/cache-rows.ts).
   */
  readonly k: View;
  readonly v: View;
  readonly past: number;
  /** i64 (batch), in place of `past`: the positions there are with the new ones, read when the work runs. */
  readonly lengths: View | null;
  /** i64 (batch): how many positions before a sequence's first one are padding, which counts as position 0. */
  readonly padding: View | null;
  /** Additive, broadcast to (batch, heads, t, keys), for the keys there are, or for the capacity with `lengths`. */
  readonly mask: View | null;
  /** As that of a linear layer. */
  readonly next?: NextProduct | null | undefined;
}

/** What else of a model's heads a device may depend on. */
export interface HeadForms {
  /** Elements of a head that are turned, of each layer that turns otherwise. */
  readonly rotary: readonly number[];
  /** Some layers see only their last positions. */
  readonly windowed: boolean;
}

export interface CachedAttention {
  /** Whether it normalises heads itself. */
  readonly takesNorms?: boolean;
  /** Whether results are (batch, t, heads, d), as products want them. */
  readonly byRows?: boolean;
  /** Whether there are kernels for heads of this size, over caches of `stored`. */
  supports(dtype: DType, headDim: number, stored: DType, forms?: HeadForms): boolean;
  /**
   * One step of attention over a cache: the rows of q (batch · t, heads · d) and k, v (batch · t, kv heads · d), whose
   * last dim is contiguous, are turned by their positions, k and v enter the cache, and each query sees the keys up to
   * its own. The result is (batch, heads, t, d), unless `byRows` is set.
   */
  attend(q: View, k: View, v: View, p: CachedAttentionParams): Storage;
}

/** Rows of caches in 8 bits (core/cache-rows.ts), for a device that does not attend over them by itself. */
export interface CacheRows {
  /** x (…, d), contiguous, of f32, f16 or bf16, as rows (…, f8RowBytes(d)). */
  encode(x: View): Storage;
  /** The d elements of each row, (…, d), of `to`. The last two dims of `rows` are contiguous, those before them as one. */
  decode(rows: View, d: number, to: DType): Storage;
}

/** Where the rows of a step stand in a cache of latents, and how it attends to what is there. */
export interface LatentAttentionParams
  extends Omit<CachedAttentionParams, "k" | "v" | "softcap" | "window" | "sinks" | "causal" | "norms"> {
  /** (batch, 1, capacity, rank + rope), with room for the new positions: a latent, and behind it the key's turned part. */
  readonly cache: View;
}

/** Attention whose heads share one key of each position, of which the first elements are the value, too. */
export interface LatentAttention {
  /** Whether there are kernels for latents of `rank` and turned parts of `rope` elements. */
  supports(dtype: DType, rank: number, rope: number): boolean;
  /**
   * One step over a cache: q (batch · t, heads, rank) are queries as keys are seen by them, qRope (batch · t, heads, rope)
   * their other part, latent (batch · t, rank) and kRope (batch · t, rope) the keys; the last dims are contiguous. qRope
   * and kRope are turned by their positions, keys enter the cache, and each query sees those up to its own. The result is
   * (batch, heads, t, rank): sums of latents.
   */
  attend(q: View, qRope: View, latent: View, kRope: View, p: LatentAttentionParams): Storage;
}

/** How the tokens of one request are chosen; the values are those of `SamplingOptions`, checked. */
export interface SamplerSpec {
  /** 0 takes the likeliest token. */
  readonly temperature: number;
  /** 0 is all. */
  readonly topK: number;
  readonly topP: number;
  readonly minP: number;
  readonly repetitionPenalty: number;
  readonly presencePenalty: number;
  readonly frequencyPenalty: number;
  /** f32 numbers by token. */
  readonly logitBias: ReadonlyMap<number, number>;
  /** Of this request alone: the random number of a step is SplitMix64 of the seed and the step. */
  readonly seed: bigint;
  /** Tokens that count as seen. */
  readonly prompt: readonly number[];
  /** Tokens that were chosen before: as many steps were made. */
  readonly answer: readonly number[];
  /** Of how many tokens beside the chosen one the log-probabilities are told, at most `MOST_LOGPROBS`; null for none. */
  readonly logprobs: number | null;
  /** Masks will say which tokens may come. */
  readonly masked: boolean;
}

/** The most tokens beside the chosen one whose log-probabilities are told. */
export const MOST_LOGPROBS = 20;
/** In place of a token where none could be chosen: no probabilities, or no token that may come. */
export const NO_TOKEN = 0xffffffff;
/** In place of the slot of a row that belongs to nobody. */
export const NO_SLOT = 0xffffffff;

/** What was chosen for each slot; of slots that had no row in the step it says what was chosen before. */
export interface Chosen {
  /** (slots) */
  readonly tokens: Uint32Array;
  /** (slots): log-probabilities of the tokens, where a row asked for them. */
  readonly logprobs: Float32Array | null;
  /** (slots, MOST_LOGPROBS): the likeliest tokens, and their log-probabilities; as many as were asked for. */
  readonly topTokens: Uint32Array | null;
  readonly topLogprobs: Float32Array | null;
}

/**
 * Chooses tokens without the host. What a request asks for and what it has said so far live in a slot of device memory, so
 * that a recorded step serves whichever requests come and go.
 */
export interface TokenSampler extends Disposable {
  /** u32 (slots): the newest token of each slot, for the next step to read; NO_TOKEN where none could be chosen. */
  readonly tokens: Storage;
  /** u32 (slots): the slot of each row of logits, as `place` wrote it; NO_SLOT for rows that belong to nobody. */
  readonly rows: Storage;
  /** From the next step on the slot is this request's. */
  assign(slot: number, spec: SamplerSpec): void;
  /** What the slot held is forgotten; enqueued steps still see it. */
  release(slot: number): void;
  /** Says for the steps to come which slot each row belongs to, no slot twice; rows behind the last belong to nobody. */
  place(slots: readonly number[]): void;
  /** Which tokens may come next in a slot that was assigned as masked: a bit for each, 32 to a word; null: all. */
  restrict(slot: number, mask: Uint32Array | null): void;
  /**
   * Enqueues the choice of one token for each row of logits (rows, vocab) in f32, f16 or bf16, rows being contiguous and at most
   * as many as slots. Each run, or replay, is one step of the slots placed. A slot whose largest logit is not finite gets NO_TOKEN
   * and makes no step. Where no slot that is ever placed has a temperature, `draws` may be false.
   */
  sample(logits: View, draws?: boolean): void;
  /** What the steps enqueued so far have chosen. */
  read(): Promise<Chosen>;
}

/** What a device may ready before a transformer runs. */
export interface TransformerNeeds {
  /** What it computes in. */
  readonly dtype: DType;
  /** The block types of its quantized weights. */
  readonly quantTypes: readonly QuantType[];
  /** The dtypes of its other weights. */
  readonly storedTypes: readonly DType[];
  /** Whether its norms are stored less one. */
  readonly normsAreShifted: boolean;
  /** Whether matrices are not quantized. */
  readonly hasPlainWeights: boolean;
  /** Whether layers are mixtures of experts. */
  readonly hasExperts?: boolean | undefined;
  /** Whether keys and values are made of latents. */
  readonly attendsToLatents?: boolean | undefined;
  /** Whether all positions see each other: texts are embedded, and none is continued. */
  readonly encodes?: boolean | undefined;
  readonly headDim: number;
  /** Whether keys and values are stored in 8 bits. */
  readonly cachesBytes?: boolean | undefined;
  readonly hiddenSize: number;
  readonly activation: "silu" | "gelu" | "geluErf" | "relu" | "clampedSwiglu";
  /** By root mean square, or LayerNorm, which is no part of a linear layer. */
  readonly norm: "rms" | "layer";
  /** The activation of the MLPs opens a gate. */
  readonly mlpsAreGated: boolean;
  /** Vectors of positions are added to the embeddings. */
  readonly positionsAreLearned: boolean;
  /** Rotary pairs are neighbours. */
  readonly interleaved: boolean;
  /** Attention's scores have a cap, or a scale that is not positive. */
  readonly scoresAreShaped: boolean;
  readonly embeddingsAreScaled: boolean;
  readonly logitsAreCapped: boolean;
}

/** Neither is ever rejected: what could not be readied fails where it is used. */
export interface Preparation {
  /** What converts weights as they come. */
  readonly toLoad: Promise<void>;
  readonly toRun: Promise<void>;
}

/** What concerns a whole model. */
export interface TransformerSupport {
  /** Readies what a transformer will need; it works without, too. */
  prepare(needs: TransformerNeeds): Preparation;
  /** Null where there are no kernels for it: the host samples then. */
  sampler(vocab: number, slots: number): TokenSampler | null;
}
