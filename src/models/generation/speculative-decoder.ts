/** Goes on by guesses: one pass of the model checks a whole guess and says what comes behind what was right of it. */
import { Tensor } from "../../ops/index.ts";
import type { Decoder, DecoderOptions } from "./decoder.ts";
import { chooseTokens, type Sampler } from "./sampling.ts";
import type { Speculation } from "./speculation.ts";

export class SpeculativeDecoder implements Decoder {
  readonly #options: DecoderOptions;
  readonly #speculation: Speculation;
  readonly #sampler: Sampler;
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
    const guess = await this.#speculation.draft(this.#ids, Math.min(this.#left - 1, until - before - 1));
    const known = guess.filter((id) => id < model.config.vocabSize);
    const fed = [this.#ids.at(-1)!, ...known];
    using input = Tensor.from(Uint32Array.from(fed), { shape: [1, fed.length], device: model.device });
    using logits = model.forward(input, { cache });
    const chosen = await this.#choose(logits, known);
    const right = chosen.length - 1;
    this.#speculation.learn(known.length, right);
    if (right < known.length) cache.rewind(before + 1 + right);
    return chosen;
  }

  /** What the sampler chooses behind each row, up to the first that the guess does not have. */
  async #choose(logits: Tensor, guess: readonly number[]): Promise<number[]> {
    const [, rows, width] = logits.shape as [number, number, number];
    const chosen: number[] = [];
    const isRight = (): boolean => chosen.at(-1) === guess[chosen.length - 1];
    if (this.#sampler.isGreedy) {
      using best = logits.argmax(-1);
      const ids = (await best.data()) as Uint32Array;
      do {
        chosen.push(ids[chosen.length]!);
        this.#sampler.accept(chosen.at(-1)!);
      } while (chosen.length < rows && isRight());
      return chosen;
    }
    const values = (await logits.data()) as Float32Array;
    do {
      const at = chosen.length * width;
      chosen.push(this.#sampler.sample(values.subarray(at, at + width)));
    } while (chosen.length < rows && isRight());
    return chosen;
  }
}
