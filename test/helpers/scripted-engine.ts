/** An engine that says what it is told to, token by token: what the server is tried against without a scheduler. */
import { setTimeout as delay, setImmediate } from "node:timers/promises";
import { fail } from "../../src/core/errors.ts";
import type { Engine, EngineRequest, TokenEvent } from "../../src/serving/request.ts";

export interface Script {
  /** The tokens of the answer; it ends as by a token of the model's own, or with `maxTokens`. */
  readonly tokens: readonly number[];
  /** Between tokens. */
  readonly ms?: number;
  /** Fails in place of this token. */
  readonly failsAt?: number;
  readonly cachedTokens?: number;
}

export class ScriptedEngine implements Engine {
  readonly #script: (request: EngineRequest) => Script;
  readonly requests: EngineRequest[] = [];
  readonly stats = {
    running: 0,
    waiting: 0,
    pages: { total: 8, used: 0, kept: 0 },
    promptTokens: 0,
    cachedTokens: 0,
    generatedTokens: 0,
    preemptions: 0,
    steps: 0,
  };
  isDisposed = false;
  #look: ((request: EngineRequest) => void) | null = null;

  constructor(script: (request: EngineRequest) => Script) {
    this.#script = script;
  }

  async ready(): Promise<void> {}

  /** Looks at the next request while it is open, and tells what was wrong with it. */
  holds(look: (request: EngineRequest) => void): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#look = (request) => {
        this.#look = null;
        try {
          resolve(look(request));
        } catch (error) {
          reject(error as Error);
        }
      };
    });
  }

  submit(request: EngineRequest): AsyncIterableIterator<TokenEvent, void, undefined> {
    this.requests.push(request);
    this.#look?.(request);
    return this.#say(request, this.#script(request));
  }

  async *#say(request: EngineRequest, script: Script): AsyncGenerator<TokenEvent, void, undefined> {
    const { maxTokens = 1000, signal, logprobs } = request;
    this.stats.running++;
    try {
      for (const [i, token] of [...script.tokens, 1].slice(0, maxTokens).entries()) {
        if (script.ms !== undefined) await delay(script.ms, undefined, { ...(signal && { signal }) });
        else await setImmediate();
        signal?.throwIfAborted();
        if (i === script.failsAt) fail("OutOfMemory", "cuda:0: 4 GiB at /secret/place cannot be had");
        const finish = i === script.tokens.length ? "token" : i === maxTokens - 1 ? "length" : null;
        const top = [
          { token, logprob: -0.5 },
          { token: 2, logprob: Number.NEGATIVE_INFINITY },
        ].slice(0, logprobs);
        const told = logprobs === undefined ? {} : { logprob: -0.5, top };
        yield { token, finish, cachedTokens: script.cachedTokens ?? 0, ...told };
      }
    } finally {
      this.stats.running--;
    }
  }

  async drain(): Promise<void> {}

  async [Symbol.asyncDispose](): Promise<void> {
    this.isDisposed = true;
  }
}
