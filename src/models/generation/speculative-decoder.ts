/** Goes on by guesses: one pass of the model checks a whole guess and says what comes behind what was right of it. */
import type { Tensor } from "../../ops/index.ts";
import type { Decoder, DecoderOptions } from "./decoder.ts";
import { type Outcome, openPasses, type Passes } from "./passes.ts";
import { chooseTokens, type Sampler } from "./sampling.ts";
import type { Speculation } from "./speculation.ts";

export class SpeculativeDecoder implements Decoder {
  readonly #options: DecoderOptions;
  readonly #speculation: Speculation;
  readonly #sampler: Sampler;
  readonly #passes: Passes;
  /** The prompt, and every token that was taken from here. */
  readonly #ids: number[];
  /** Chosen, but not taken yet; all but the last are in the cache. */
  #chosen: number[] = [];
  /** Behind the prompt, until the first token is chosen from them. */
  #logits: Tensor | null;
  #left: number;

  /** Disposes `logits`. */
  constructor(logits: Tensor, prompt: readonly number[], speculation: Speculation, options: DecoderOptions) {
    this.#logits = logits;
    this.#ids = [...prompt];
    this.#speculation = speculation;
    this.#options = options;
    this.#sampler = options.samplers[0]!;
    const { model, cache } = options;
    this.#passes = openPasses({ model, cache, greedy: this.#sampler.isGreedy });
    this.#left = options.limit;
  }

  async next(): Promise<number[]> {
    if (this.#chosen.length === 0) this.#chosen = this.#logits ? await this.#first(this.#logits) : await this.#check();
    this.#left--;
    return [this.#chosen.shift()!];
  }

  accept(tokens: readonly number[]): void {
    this.#ids.push(...tokens);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#logits?.dispose();
    this.#passes[Symbol.dispose]();
    // What was guessed rightly but never taken is not part of the text.
    const { cache } = this.#options;
    if (cache.length > this.#ids.length) cache.rewind(this.#ids.length);
  }

  async #first(behindPrompt: Tensor): Promise<number[]> {
    using logits = behindPrompt;
    this.#logits = null;
    return chooseTokens(logits, [this.#sampler]);
  }

  /** The tokens behind the newest one: those of a guess that are right, and the one behind them. */
  async #check(): Promise<number[]> {
    const { model, cache } = this.#options;
    const before = cache.length;
    // Where rotary embeddings change with the length of the text, a pass has to end before they do.
    const until = Math.min(model.config.contextLength, model.recordedUntil(before + 1));
    const room = Math.min(this.#left - 1, until - before - 1, this.#passes.most - 1);
    const guess = await this.#speculation.draft(this.#ids, room);
    const known = guess.filter((id) => id < model.config.vocabSize);
    const chosen = this.#choose(await this.#passes.run([this.#ids.at(-1)!, ...known]), known);
    this.#speculation.learn(known.length, chosen.length - 1);
    this.#passes.keep(chosen.length);
    return chosen;
  }

  /** What the sampler chooses behind each token, up to the first that the guess does not have. */
  #choose({ best, logits }: Outcome, guess: readonly number[]): number[] {
    const { vocabSize } = this.#options.model.config;
    const chosen: number[] = [];
    do {
      const at = chosen.length;
      if (best) this.#sampler.accept(best[at]!);
      chosen.push(best?.[at] ?? this.#sampler.sample(logits!.subarray(at * vocabSize, (at + 1) * vocabSize)));
    } while (chosen.length <= guess.length && chosen.at(-1) === guess[chosen.length - 1]);
    return chosen;
  }
}
