/**
 * From logits to the next token. In this order: repetition penalty, temperature, top-k, top-p, min-p, then a draw.
 * The random numbers depend on the seed, the sequence and the step alone, so a run can be repeated.
 */
import type { SamplerSpec } from "../../backend/transformers.ts";
import { fail } from "../../core/errors.ts";
import type { Tensor } from "../../ops/index.ts";

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
  /** Default: a new one each time. */
  readonly seed?: number | bigint | undefined;
}

export class Sampler {
  /** What a device needs to choose the same tokens from here on. */
  readonly spec: SamplerSpec;
  #step = 0n;
  #seen: Set<number>;

  /** `prompt` counts for the repetition penalty; `sequence` separates the sequences of a batch. */
  constructor(options: SamplingOptions, prompt: readonly number[] = [], sequence = 0) {
    const { temperature = 0, topK = 0, topP = 1, minP = 0, repetitionPenalty = 1, seed } = options;
    check("temperature", temperature, temperature >= 0, "a number from 0 up");
    check("topK", topK, Number.isInteger(topK) && topK >= 0, "a whole number from 0 up");
    check("topP", topP, topP > 0 && topP <= 1, "above 0 and at most 1");
    check("minP", minP, minP >= 0 && minP <= 1, "from 0 to 1");
    check("repetitionPenalty", repetitionPenalty, repetitionPenalty > 0, "a positive number");
    if (typeof seed === "number" && !Number.isInteger(seed)) check("seed", seed, false, "a whole number");
    const base = seed === undefined ? BigInt(Math.floor(Math.random() * 2 ** 48)) : BigInt(seed);
    const own = mix(BigInt.asUintN(64, base) ^ mix(BigInt(sequence)));
    this.spec = { temperature, topK, topP, minP, repetitionPenalty, seed: own, prompt };
    this.#seen = new Set(prompt);
  }

  /** The likeliest token wins, whatever was said before. */
  get isGreedy(): boolean {
    return this.spec.temperature === 0 && this.spec.repetitionPenalty === 1;
  }

  /** Takes note of a token that was chosen elsewhere. */
  accept(token: number): void {
    this.#seen.add(token);
    this.#step++;
  }

  /** The next token. `logits` are changed. */
  sample(logits: Float32Array): number {
    const { temperature, repetitionPenalty } = this.spec;
    if (repetitionPenalty !== 1) for (const t of this.#seen) penalise(logits, t, repetitionPenalty);
    const token = temperature === 0 ? argmax(logits) : this.#draw(logits);
    this.accept(token);
    return token;
  }

  #draw(logits: Float32Array): number {
    const { temperature, topK, topP, minP, seed } = this.spec;
    const best = logits[argmax(logits)]!;
    // A NaN is never drawn, as on GPUs.
    const shares = Float64Array.from(logits, (l) => Math.exp((l - best) / temperature) || 0);
    const truncated = topK > 0 || topP < 1;
    const candidates = Uint32Array.from(truncated ? this.#likeliest(shares) : shares.keys());
    // The likeliest has share 1, so minP is a threshold as it stands.
    const weight = (i: number): number => (shares[i]! >= minP ? shares[i]! : 0);
    let left = candidates.reduce((sum, i) => sum + weight(i), 0) * uniform(seed, this.#step);
    for (const i of candidates) {
      left -= weight(i);
      if (left < 0) return i;
    }
    return candidates.findLast((i) => weight(i) > 0)!;
  }

  /** Ids by falling share, as many as top-k and then top-p leave. */
  #likeliest(shares: Float64Array): number[] {
    const { topK, topP } = this.spec;
    const queue = new Likeliest(shares);
    const order: number[] = [];
    const share = (rank: number): number => {
      if (rank === order.length) order.push(queue.pop());
      return shares[order[rank]!]!;
    };
    const most = topK > 0 ? Math.min(topK, shares.length) : shares.length;
    let total = 0;
    if (topK > 0) for (let rank = 0; rank < most; rank++) total += share(rank);
    else total = shares.reduce((sum, s) => sum + s, 0);
    let missing = topP < 1 ? total * topP : Number.POSITIVE_INFINITY;
    let count = 0;
    while (count < most && missing > 0) missing -= share(count++);
    return order.slice(0, count);
  }
}

/** A heap of ids: taking the few likeliest of a large vocabulary costs less than sorting it. Equal shares: lower id. */
class Likeliest {
  readonly #shares: Float64Array;
  readonly #heap: Uint32Array;
  #size: number;

  constructor(shares: Float64Array) {
    this.#shares = shares;
    this.#heap = Uint32Array.from(shares.keys());
    this.#size = shares.length;
    for (let i = (this.#size >> 1) - 1; i >= 0; i--) this.#sink(i);
  }

  pop(): number {
    const top = this.#heap[0]!;
    this.#heap[0] = this.#heap[--this.#size]!;
    this.#sink(0);
    return top;
  }

  #sink(start: number): void {
    const heap = this.#heap;
    const id = heap[start]!;
    let at = start;
    for (let child = 2 * at + 1; child < this.#size; child = 2 * at + 1) {
      if (child + 1 < this.#size && this.#before(heap[child + 1]!, heap[child]!)) child++;
      if (!this.#before(heap[child]!, id)) break;
      heap[at] = heap[child]!;
      at = child;
    }
    heap[at] = id;
  }

  #before(a: number, b: number): boolean {
    const [x, y] = [this.#shares[a]!, this.#shares[b]!];
    return x > y || (x === y && a < b);
  }
}

/**
 * The next token of each sequence from logits (b, vocab). Where every sequence is greedy only the ids leave the
 * device. A `null` sampler is a sequence that has ended.
 */
export async function chooseTokens(logits: Tensor, samplers: readonly (Sampler | null)[]): Promise<number[]> {
  if (samplers.every((sampler) => !sampler || sampler.isGreedy)) {
    using best = logits.argmax(-1);
    const ids = Array.from((await best.data()) as Uint32Array);
    for (const [i, sampler] of samplers.entries()) sampler?.accept(ids[i]!);
    return ids;
  }
  const values = (await logits.data()) as Float32Array;
  const width = logits.shape[1]!;
  return samplers.map((sampler, i) => sampler?.sample(values.subarray(i * width, (i + 1) * width)) ?? 0);
}

function check(name: string, value: unknown, ok: boolean, what: string): void {
  const finite = typeof value !== "number" || Number.isFinite(value);
  if (!ok || !finite) fail("InvalidArgument", `sampling: ${name} must be ${what}, not ${String(value)}`);
}

function penalise(logits: Float32Array, token: number, penalty: number): void {
  const logit = logits[token];
  if (logit !== undefined) logits[token] = logit < 0 ? logit * penalty : logit / penalty;
}

function argmax(values: Float32Array): number {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (values[i]! > values[best]!) best = i;
  if (!Number.isFinite(values[best]))
    fail("ValueOutOfRange", `sampling: the largest logit is ${values[best]}; the model computes no probabilities`);
  return best;
}

/** SplitMix64: the counter's bits stirred until each depends on all. */
function mix(x: bigint): bigint {
  let z = BigInt.asUintN(64, x + 0x9e3779b97f4a7c15n);
  z = BigInt.asUintN(64, (z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n);
  z = BigInt.asUintN(64, (z ^ (z >> 27n)) * 0x94d049bb133111ebn);
  return z ^ (z >> 31n);
}

/** On [0, 1), with 53 bits. */
function uniform(seed: bigint, step: bigint): number {
  return Number(mix(BigInt.asUintN(64, seed + step * 0x9e3779b97f4a7c15n)) >> 11n) / 2 ** 53;
}
