/**
 * From logits to the next token. In this order: repetition penalty; logit bias less presence and frequency penalty; what a
 * mask forbids; temperature, top-k, top-p, min-p; then a draw. The random numbers depend on the seed, the sequence and the
 * step alone, so a run can be repeated.
 */
import { MOST_LOGPROBS, type SamplerSpec } from "../../backend/transformers.ts";
import { fail } from "../../core/errors.ts";
import type { Tensor } from "../../ops/index.ts";
import { mix } from "./random-bits.ts";
import { RowSampler } from "./row-sampler.ts";

export interface SamplingOptions {
  /** Divides the logits; 0 always takes the likeliest token. Default 0. */
  readonly temperature?: number | undefined;
  /** Only the k likeliest tokens; 0 is all. Default 0. */
  readonly topK?: number | undefined;
  /** Only the likeliest tokens that together reach this probability. Default 1. */
  readonly topP?: number | undefined;
  /** Only tokens at least this share as likely as the likeliest. Default 0. */
  readonly minP?: number | undefined;
  /** Above 1, makes tokens that are in the text already less likely. Default 1. */
  readonly repetitionPenalty?: number | undefined;
  /** Subtracted from the logits of tokens that the answer has already. Default 0. */
  readonly presencePenalty?: number | undefined;
  /** Subtracted from them as often as the answer has them. Default 0. */
  readonly frequencyPenalty?: number | undefined;
  /** Added to the logits of tokens, by their ids; −Infinity forbids one. Default: to none. */
  readonly logitBias?: ReadonlyMap<number, number> | undefined;
  /** Default: a new one each time. */
  readonly seed?: number | bigint | undefined;
}

/** What is asked beside the token, and of its choice by others. */
export interface SamplerExtras {
  /** The log-probability of the token, and of so many of the likeliest beside it, 20 at most. Default: of none. */
  readonly logprobs?: number | undefined;
  /** Masks will say which tokens may come. Default false. */
  readonly masked?: boolean | undefined;
}

export class Sampler extends RowSampler {
  /** `prompt` counts for the repetition penalty; `sequence` separates the sequences of a batch. */
  constructor(options: SamplingOptions, prompt: readonly number[] = [], sequence = 0, extras: SamplerExtras = {}) {
    super(samplerSpec(options, prompt, sequence, extras));
  }
}

/** Options, checked, as every way to sample reads them. */
export function samplerSpec(
  options: SamplingOptions,
  prompt: readonly number[] = [],
  sequence = 0,
  extras: SamplerExtras = {},
): SamplerSpec {
  const { temperature = 0, topK = 0, topP = 1, minP = 0, repetitionPenalty = 1, seed } = options;
  const { presencePenalty = 0, frequencyPenalty = 0, logitBias = new Map<number, number>() } = options;
  const { logprobs, masked = false } = extras;
  check("temperature", temperature, temperature >= 0, "a number from 0 up");
  check("topK", topK, isCount(topK), "a whole number from 0 up");
  check("topP", topP, topP > 0 && topP <= 1, "above 0 and at most 1");
  check("minP", minP, minP >= 0 && minP <= 1, "from 0 to 1");
  check("repetitionPenalty", repetitionPenalty, repetitionPenalty > 0, "a positive number");
  check("presencePenalty", presencePenalty, true, "a number");
  check("frequencyPenalty", frequencyPenalty, true, "a number");
  if (typeof seed === "number" && !Number.isInteger(seed)) check("seed", seed, false, "a whole number");
  if (logprobs !== undefined) {
    check("logprobs", logprobs, isCount(logprobs) && logprobs <= MOST_LOGPROBS, `from 0 to ${MOST_LOGPROBS}`);
  }
  // In one piece: spreading takes longer than all of the above, and a first token waits for it.
  return {
    temperature,
    topK,
    topP,
    minP,
    repetitionPenalty,
    presencePenalty,
    frequencyPenalty,
    logitBias: checkBias(logitBias),
    seed: seed === undefined ? anySeed() : mix(BigInt.asUintN(64, BigInt(seed)) ^ mix(BigInt(sequence))),
    prompt,
    answer: [],
    logprobs: logprobs ?? null,
    masked,
  };
}

/**
 * The next token of each sequence from logits (b, vocab). Where every sequence is greedy only the ids leave the
 * device. A `null` sampler is a sequence that has ended.
 */
export async function chooseTokens(logits: Tensor, samplers: readonly (Sampler | null)[]): Promise<number[]> {
  if (samplers.every((sampler) => !sampler || sampler.isGreedy)) {
    using best = logits.argmax(-1);
    return await acceptTokens(best, samplers);
  }
  const values = (await logits.data()) as Float32Array;
  const width = logits.shape[1]!;
  return samplers.map((sampler, i) => sampler?.sample(values.subarray(i * width, (i + 1) * width)) ?? 0);
}

/** Tokens (b) that are the likeliest, where that is what all sequences ask for. */
export async function acceptTokens(best: Tensor, samplers: readonly (Sampler | null)[]): Promise<number[]> {
  const ids = Array.from((await best.data()) as Uint32Array);
  for (const [i, sampler] of samplers.entries()) sampler?.accept(ids[i]!);
  return ids;
}

const anySeed = (): bigint => BigInt(Math.floor(Math.random() * 2 ** 53));

const isCount = (value: number): boolean => Number.isInteger(value) && value >= 0;

function check(name: string, value: unknown, ok: boolean, what: string): void {
  const finite = typeof value !== "number" || Number.isFinite(value);
  if (!ok || !finite) fail("InvalidArgument", `sampling: ${name} must be ${what}, not ${String(value)}`);
}

/** As f32 numbers, which is what devices keep. */
function checkBias(bias: ReadonlyMap<number, number>): ReadonlyMap<number, number> {
  if (bias.size === 0) return bias;
  for (const [token, value] of bias) {
    check("a token of logitBias", token, isCount(token), "a token's id");
    const finite = Math.fround(value) === Number.NEGATIVE_INFINITY ? 0 : Math.fround(value);
    check(`logitBias of token ${token}`, finite, true, "a number, or −Infinity");
  }
  return new Map(Array.from(bias, ([token, value]) => [token, Math.fround(value)]));
}
