/** The keys and values of one conversation, so that each turn computes only what is new. */
import type { ModelCache } from "../cache.ts";
import type { Transformer } from "../transformer.ts";

export class PromptCache implements Disposable {
  #cache: ModelCache | undefined;
  /** The tokens the cache holds. */
  #ids: number[] = [];

  /** Tokens held. */
  get length(): number {
    return this.#ids.length;
  }

  /** One that cannot be rewound is given up where it must be. */
  open(model: Transformer, rewindable = false): ModelCache {
    if (rewindable && this.#cache?.rewindable === false) this.dispose();
    this.#cache ??= model.newCache({ rewindable });
    return this.#cache;
  }

  /** Keeps what `prompt` starts with and forgets the rest; says how much is kept. One token is always left to feed. */
  reuse(prompt: readonly number[]): number {
    const most = Math.min(this.#ids.length, this.#cache?.length ?? 0, prompt.length - 1);
    let same = 0;
    while (same < most && this.#ids[same] === prompt[same]) same++;
    if (!this.#cache?.rewind(same)) {
      this.#cache?.rewind(0);
      same = 0;
    }
    this.#ids.length = same;
    return same;
  }

  /** Takes note of tokens that have entered the cache. */
  fed(ids: readonly number[]): void {
    this.#ids.push(...ids);
  }

  reset(): void {
    this.#cache?.rewind(0);
    this.#ids = [];
  }

  dispose(): void {
    this.#cache?.dispose();
    this.#cache = undefined;
    this.#ids = [];
  }

  [Symbol.dispose](): void {
    this.dispose();
  }

  toString(): string {
    return `PromptCache(${this.length} tokens)`;
  }

  [Symbol.for("nodejs.util.inspect.custom")](): string {
    return this.toString();
  }
}
