/** Counts and times of one answer, or of several to one request, as they come. */
import type { CompletionEvent } from "../completion.ts";
import type { Exchange } from "./exchange.ts";
import type { ServerMetrics } from "./metrics.ts";

export class Meter {
  readonly #exchange: Exchange;
  readonly #metrics: ServerMetrics;
  readonly #model: string;
  readonly #started = performance.now();
  /** When each answer's last token came. */
  readonly #last = new Map<number, number>();
  readonly #cached = new Map<number, number>();
  #first: number | undefined;
  promptTokens = 0;
  tokens = 0;
  reasoningTokens = 0;

  constructor(exchange: Exchange, metrics: ServerMetrics, model: string, promptTokens: number) {
    this.#exchange = exchange;
    this.#metrics = metrics;
    this.#model = model;
    this.promptTokens = promptTokens;
    exchange.promptTokens = promptTokens;
    exchange.tokens = 0;
    metrics.promptTokens.add({ model }, promptTokens);
  }

  /** `prompt` is which of the prompts is answered: answers to one share what was there of it. */
  token(index: number, { cachedTokens }: CompletionEvent, prompt = 0): void {
    const now = performance.now();
    const model = this.#model;
    this.tokens++;
    const last = this.#last.get(index);
    if (last === undefined) this.#metrics.firstToken.observe({ model }, (now - this.#started) / 1000);
    else this.#metrics.betweenTokens.observe({ model }, (now - last) / 1000);
    this.#last.set(index, now);
    if (!this.#cached.has(prompt)) {
      this.#cached.set(prompt, cachedTokens);
      this.#metrics.cachedTokens.add({ model }, cachedTokens);
    }
    this.#metrics.generatedTokens.add({ model });
    this.#first ??= now;
    this.#exchange.firstMs ??= now - this.#exchange.started;
    this.#exchange.tokens = this.tokens;
    this.#exchange.cachedTokens = this.cachedTokens;
  }

  get cachedTokens(): number {
    return [...this.#cached.values()].reduce((sum, count) => sum + count, 0);
  }

  get usage() {
    return {
      prompt_tokens: this.promptTokens,
      completion_tokens: this.tokens,
      total_tokens: this.promptTokens + this.tokens,
      prompt_tokens_details: { cached_tokens: this.cachedTokens },
      completion_tokens_details: { reasoning_tokens: this.reasoningTokens },
    };
  }

  /** As llama-server tells them. */
  get timings() {
    const first = this.#first ?? performance.now();
    const predicted = Math.max(first, ...this.#last.values()) - first;
    // The first token of each answer belongs to the prompt's time.
    const rest = this.tokens - this.#last.size;
    return {
      prompt_n: this.promptTokens - this.cachedTokens,
      cache_n: this.cachedTokens,
      prompt_ms: rounded(first - this.#started),
      predicted_n: this.tokens,
      predicted_ms: rounded(predicted),
      predicted_per_second: rest > 0 && predicted > 0 ? rounded((rest * 1000) / predicted) : null,
    };
  }
}

const rounded = (value: number): number => Math.round(value * 1000) / 1000;
