/** Tokens on their way to the one that asked for them: they wait for it, and it can leave. */
import type { TokenEvent } from "./request.ts";

type Result = IteratorResult<TokenEvent, void>;
interface Reader {
  readonly resolve: (result: Result) => void;
  readonly reject: (error: unknown) => void;
}

export class TokenStream implements AsyncIterableIterator<TokenEvent, void, undefined> {
  readonly #events: TokenEvent[] = [];
  readonly #readers: Reader[] = [];
  readonly #left: () => void;
  #ended = false;
  #error: { readonly reason: unknown } | null = null;

  /** `left` is told when the reader goes before the end. */
  constructor(left: () => void) {
    this.#left = left;
  }

  push(event: TokenEvent): void {
    const reader = this.#readers.shift();
    if (reader) reader.resolve({ done: false, value: event });
    else this.#events.push(event);
  }

  /** Nothing comes any more; what waits can still be read. */
  end(): void {
    this.#ended = true;
    for (const reader of this.#readers.splice(0)) reader.resolve({ done: true, value: undefined });
  }

  /** As `end`, with an error behind what waits, or at once in place of it. */
  fail(reason: unknown, atOnce = false): void {
    if (this.#ended) return;
    if (atOnce) this.#events.length = 0;
    const reader = this.#readers.shift();
    if (reader) reader.reject(reason);
    else this.#error = { reason };
    this.end();
  }

  next(): Promise<Result> {
    const value = this.#events.shift();
    if (value) return Promise.resolve({ done: false, value });
    const error = this.#error;
    this.#error = null;
    if (error) return Promise.reject(error.reason);
    if (this.#ended) return Promise.resolve({ done: true, value: undefined });
    return new Promise((resolve, reject) => this.#readers.push({ resolve, reject }));
  }

  return(): Promise<Result> {
    this.#events.length = 0;
    this.#error = null;
    if (!this.#ended) {
      this.end();
      this.#left();
    }
    return Promise.resolve({ done: true, value: undefined });
  }

  [Symbol.asyncIterator](): this {
    return this;
  }
}
