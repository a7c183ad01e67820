/** An engine that answers one request after another: what the server is tried against without a scheduler. */
import { setImmediate } from "node:timers/promises";
import type { Model } from "../../src/models/index.ts";
import type { Engine, EngineRequest, EngineStats, TokenEvent } from "../../src/serving/request.ts";

export class SequentialEngine implements Engine {
  readonly #model: Model;
  #turn: Promise<void> = Promise.resolve();
  readonly stats = {
    running: 0,
    waiting: 0,
    pages: { total: 0, used: 0, kept: 0 },
    promptTokens: 0,
    cachedTokens: 0,
    generatedTokens: 0,
    preemptions: 0,
    steps: 0,
  } satisfies EngineStats;

  constructor(model: Model) {
    this.#model = model;
  }

  submit(request: EngineRequest): AsyncIterableIterator<TokenEvent, void, undefined> {
    return this.#run(request);
  }

  async *#run({ prompt, sampling, logprobs, ...request }: EngineRequest): AsyncGenerator<TokenEvent, void, undefined> {
    const { signal } = request;
    this.stats.waiting++;
    const before = this.#turn;
    let done = () => {};
    this.#turn = new Promise((resolve) => {
      done = resolve;
    });
    await before;
    this.stats.waiting--;
    this.stats.running++;
    try {
      signal?.throwIfAborted();
      for await (const { token, finish } of this.#model.generate(prompt, { ...request, ...sampling })) {
        this.stats.generatedTokens++;
        const told = logprobs === undefined ? {} : { logprob: -1, top: [{ token, logprob: -1 }].slice(0, logprobs) };
        yield { token, finish, cachedTokens: 0, ...told };
        await setImmediate();
      }
    } finally {
      this.stats.running--;
      done();
    }
  }

  async drain(): Promise<void> {
    await this.#turn;
  }

  async [Symbol.asyncDispose](): Promise<void> {}
}
