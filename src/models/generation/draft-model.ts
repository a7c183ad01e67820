/** A smaller model of the same vocabulary that guesses for a larger one. */
import { setImmediate } from "node:timers/promises";
import { fail } from "../../core/errors.ts";
import { Tensor } from "../../ops/index.ts";
import type { ModelCache } from "../cache.ts";
import type { Model } from "../model.ts";
import type { Transformer } from "../transformer.ts";
import { type Drafter, Speculation, type SpeculationOptions } from "./speculation.ts";

/** Positions of a prompt that are computed before the event loop has its turn. */
const CHUNK = 512;

/** Guesses by `draft`, greedily; disposing what it returns leaves the model alone. */
export const draftModel = (draft: Model, options: SpeculationOptions = {}): DraftSpeculation =>
  new DraftSpeculation(draft, options);

export class DraftSpeculation extends Speculation implements Disposable {
  readonly #draft: DraftModel;

  constructor(model: Model, options: SpeculationOptions = {}) {
    const draft = new DraftModel(model);
    super(draft, options);
    this.#draft = draft;
  }

  /** Frees the draft's cache. */
  [Symbol.dispose](): void {
    this.#draft[Symbol.dispose]();
  }
}

class DraftModel implements Drafter, Disposable {
  readonly #model: Transformer;
  readonly #cache: ModelCache;
  /** The tokens in the cache. */
  #fed: number[] = [];

  constructor({ transformer }: Model) {
    this.#model = transformer;
    this.#cache = transformer.newCache({ rewindable: true });
  }

  /** Vocabularies of one family are padded to different sizes; others differ by more. */
  check({ config: { vocabSize } }: Transformer): void {
    const own = this.#model.config.vocabSize;
    if (Math.max(own, vocabSize) > 1.02 * Math.min(own, vocabSize)) {
      fail(
        "InvalidArgument",
        `the draft model has ${own} tokens, the model ${vocabSize}: it must have the same vocabulary to guess for it`,
      );
    }
  }

  async propose(ids: readonly number[], most: number): Promise<number[]> {
    const { contextLength } = this.#model.config;
    const room = Math.min(most, contextLength - ids.length + 1);
    if (room < 1) return [];
    let kept = 0;
    const common = Math.min(this.#fed.length, ids.length - 1);
    while (kept < common && this.#fed[kept] === ids[kept]) kept++;
    this.#cache.rewind(kept);
    this.#fed.length = kept;
    let token = 0;
    for (let from = kept; from < ids.length; from += CHUNK) {
      if (from > kept) await setImmediate();
      token = await this.#feed(ids.slice(from, from + CHUNK));
    }
    const guess = [token];
    while (guess.length < room) guess.push(await this.#feed(guess.slice(-1)));
    return guess;
  }

  /** The likeliest token behind these. */
  async #feed(ids: readonly number[]): Promise<number> {
    const { device } = this.#model;
    using input = Tensor.from(Uint32Array.from(ids), { shape: [1, ids.length], device });
    using logits = this.#model.forward(input, { cache: this.#cache, last: true });
    this.#fed.push(...ids);
    using best = logits.argmax(-1);
    return Number((await best.data())[0]);
  }

  [Symbol.dispose](): void {
    this.#cache.dispose();
    this.#fed = [];
  }
}
