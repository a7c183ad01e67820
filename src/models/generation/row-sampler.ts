/** The tokens of one request, chosen by the host from rows of logits. */
import type { SamplerSpec } from "../../backend/transformers.ts";
import { fail } from "../../core/errors.ts";
import { Likeliest } from "./likeliest.ts";
import { mix, STEP } from "./random-bits.ts";

export interface TokenLogprob {
  readonly token: number;
  readonly logprob: number;
}

export class RowSampler {
  /** What a device needs to choose the same tokens. */
  readonly spec: SamplerSpec;
  #step: bigint;
  /** How often the answer has each token; 0 for those of the prompt. */
  readonly #counts: Map<number, number>;

  /** Goes on behind the spec's answer. */
  constructor(spec: SamplerSpec) {
    this.spec = spec;
    this.#step = 0n;
    this.#counts = new Map(spec.prompt.map((token) => [token, 0]));
    for (const token of spec.answer) this.accept(token);
  }

  /** The likeliest token wins, whatever was said before. */
  get isGreedy(): boolean {
    const { temperature, repetitionPenalty, presencePenalty, frequencyPenalty, logitBias } = this.spec;
    const shaped = repetitionPenalty !== 1 || presencePenalty !== 0 || frequencyPenalty !== 0 || logitBias.size > 0;
    return temperature === 0 && !shaped;
  }

  /** Takes note of a token that was chosen elsewhere. */
  accept(token: number): void {
    this.#counts.set(token, (this.#counts.get(token) ?? 0) + 1);
    this.#step++;
  }

  /** The next token, of those whose bits are set in the mask. `logits` are changed. */
  sample(logits: Float32Array, mask: Uint32Array | null = null): number {
    if (!this.isGreedy) this.#shape(logits);
    if (mask) forbid(logits, mask);
    const token = this.spec.temperature === 0 ? argmax(logits, mask !== null) : this.#draw(logits, mask !== null);
    this.accept(token);
    return token;
  }

  /** Penalties and bias. Each sum is made in f64 and rounded to f32 once, as on GPUs. */
  #shape(logits: Float32Array): void {
    const { repetitionPenalty, presencePenalty, frequencyPenalty, logitBias } = this.spec;
    const penalises = repetitionPenalty !== 1 || presencePenalty !== 0 || frequencyPenalty !== 0;
    const shift = (token: number, penalty: number): void => {
      const by = (logitBias.get(token) ?? 0) - penalty;
      if (token < logits.length && by !== 0) logits[token]! += by;
    };
    if (penalises) {
      for (const [token, count] of this.#counts) {
        const logit = logits[token]!;
        if (token < logits.length && repetitionPenalty !== 1) {
          logits[token] = logit < 0 ? logit * repetitionPenalty : logit / repetitionPenalty;
        }
        shift(token, count > 0 ? presencePenalty + frequencyPenalty * count : 0);
      }
    }
    for (const token of logitBias.keys()) if (!penalises || !this.#counts.has(token)) shift(token, 0);
  }

  #draw(logits: Float32Array, masked: boolean): number {
    const { temperature, topK, topP, minP, seed } = this.spec;
    const best = logits[argmax(logits, masked)]!;
    const shares = new Float64Array(logits.length);
    // A NaN is never drawn, as on GPUs.
    for (let i = 0; i < shares.length; i++) shares[i] = Math.exp((logits[i]! - best) / temperature) || 0;
    const order = topK > 0 || topP < 1 ? this.#likeliest(shares) : null;
    const count = order?.length ?? shares.length;
    const idAt = (rank: number): number => (order ? order[rank]! : rank);
    // The likeliest has share 1, so minP is a threshold as it stands.
    const weightOf = (id: number): number => (shares[id]! >= minP ? shares[id]! : 0);
    let left = 0;
    for (let rank = 0; rank < count; rank++) left += weightOf(idAt(rank));
    left *= uniform(seed, this.#step);
    let last = 0;
    for (let rank = 0; rank < count; rank++) {
      const id = idAt(rank);
      const weight = weightOf(id);
      left -= weight;
      if (left < 0) return id;
      if (weight > 0) last = id;
    }
    return last;
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

/** The log-probability of a token and those of the `count` likeliest, by the logits as they are. */
export function logprobsOf(logits: Float32Array, token: number, count: number): { own: number; top: TokenLogprob[] } {
  // A NaN is no logit, here as on GPUs.
  const values = Float64Array.from(logits, (x) => (Number.isNaN(x) ? Number.NEGATIVE_INFINITY : x));
  const best = values.reduce((a, b) => Math.max(a, b), Number.NEGATIVE_INFINITY);
  const sum = values.reduce((total, x) => total + Math.exp(x - best), 0);
  const whole = best + Math.log(sum);
  const queue = count > 0 ? new Likeliest(values) : null;
  const top = Array.from({ length: Math.min(count, logits.length) }, () => {
    const id = queue!.pop();
    return { token: id, logprob: values[id]! - whole };
  });
  return { own: values[token]! - whole, top };
}

/** Why a row has no token. */
export const noToken = (best: number | null, masked: boolean): string => {
  const what = best === null ? "not finite" : best;
  const why = masked
    ? "either the model computes no probabilities, or no token may come"
    : "the model computes no probabilities";
  return `sampling: the largest logit is ${what}; ${why}`;
};

function argmax(values: Float32Array, masked: boolean): number {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (values[i]! > values[best]!) best = i;
  if (!Number.isFinite(values[best])) fail("ValueOutOfRange", noToken(values[best]!, masked));
  return best;
}

function forbid(logits: Float32Array, mask: Uint32Array): void {
  for (let i = 0; i < logits.length; i++) {
    if (((mask[i >>> 5]! >>> (i & 31)) & 1) === 0) logits[i] = Number.NEGATIVE_INFINITY;
  }
}

/** On [0, 1), with 53 bits. */
function uniform(seed: bigint, step: bigint): number {
  return Number(mix(BigInt.asUintN(64, seed + step * STEP)) >> 11n) / 2 ** 53;
}
