/** The engine of a model. */
import { setImmediate } from "node:timers/promises";
import type { Model } from "../models/model.ts";
import type { Engine, EngineRequest, TokenEvent } from "./request.ts";

class OneByOne implements Engine {
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
  };

  constructor(model: Model) {
    this.#model = model;
  }

  async *submit({ prompt, sampling, ...request }: EngineRequest): AsyncGenerator<TokenEvent, void, undefined> {
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
        yield { token, finish, cachedTokens: 0 };
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

export const createEngine = (model: Model): Engine => new OneByOne(model);
