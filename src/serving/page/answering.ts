/** One answer on its way: the request, the wait for a model that is loaded first, another try at a busy server. */
import { ApiError, type Delta, listModels, streamAnswer } from "./api.ts";
import type { Message } from "./conversation.ts";
import type { Model } from "./model.ts";
import type { Question } from "./question.ts";

export type Phase =
  | { readonly at: "asking" }
  | { readonly at: "loading"; readonly phase: Model["phase"]; readonly progress: number }
  | { readonly at: "waiting"; readonly seconds: number; readonly reason: string }
  | { readonly at: "thinking" }
  | { readonly at: "writing" };

export interface AnsweringOptions {
  readonly message: Message;
  readonly model: Model;
  readonly question: (share: number) => Question;
  readonly key: () => string | null;
  /** Asks the user for a key; null where there is none. */
  readonly needKey: (reason: string) => Promise<string | null>;
  readonly onModels: (models: readonly Model[]) => void;
  readonly onChange: () => void;
}

const TRIES = 5;
const POLL_MS = 400;

const pause = (ms: number, signal: AbortSignal): Promise<void> =>
  new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal.removeEventListener("abort", stop);
      resolve();
    }, ms);
    signal.addEventListener("abort", stop, { once: true });
  });

export class Answering {
  phase: Phase = { at: "asking" };
  /** Pieces that came: about as many as tokens. */
  pieces = 0;
  firstAt: number | null = null;
  readonly message: Message;
  readonly #options: AnsweringOptions;
  readonly #abort = new AbortController();
  #askedAt = performance.now();
  #told: Delta = {};

  constructor(options: AnsweringOptions) {
    this.#options = options;
    this.message = options.message;
  }

  stop(): void {
    this.#abort.abort();
  }

  get piecesPerSecond(): number | null {
    const seconds = this.firstAt === null ? 0 : (performance.now() - this.firstAt) / 1000;
    return seconds > 0.3 && this.pieces > 1 ? (this.pieces - 1) / seconds : null;
  }

  /** Resolves when the message is as complete as it gets; what went wrong is written into it. */
  async run(): Promise<void> {
    const { message } = this;
    try {
      await this.#ask();
      message.finish ??= "stop";
    } catch (error) {
      if (this.#abort.signal.aborted) message.finish = "stopped";
      else {
        const { code, message: text } = error instanceof ApiError ? error : new ApiError(0, "page", String(error));
        message.finish = "failed";
        message.failure = { code, message: text };
      }
    }
    if (this.phase.at === "thinking") this.#endThinking();
    this.#count();
  }

  async #ask(): Promise<void> {
    const { question, key, needKey } = this.#options;
    const { signal } = this.#abort;
    let share = 1;
    for (let attempt = 1; ; attempt++) {
      const polling = new AbortController();
      try {
        this.#askedAt = performance.now();
        const { path, body } = question(share);
        void this.#watchModel(AbortSignal.any([signal, polling.signal]));
        for await (const delta of streamAnswer(path, body, key(), signal)) {
          polling.abort();
          this.#take(delta);
        }
        return;
      } catch (error) {
        polling.abort();
        if (!(error instanceof ApiError) || this.firstAt !== null || attempt >= TRIES) throw error;
        if (error.status === 401) {
          if ((await needKey(error.message)) === null) throw error;
        } else if (error.code === "context_length_exceeded" && this.#shrinks(share)) share /= 2;
        else if (error.isBusy) await this.#wait(error.retryAfterMs ?? 1000 * 2 ** (attempt - 1), error.message);
        else throw error;
        this.#to({ at: "asking" });
      } finally {
        polling.abort();
      }
    }
  }

  /** Whether less can be asked: a story's end in place of all of it. */
  #shrinks(share: number): boolean {
    const { question } = this.#options;
    return share > 0.2 && JSON.stringify(question(share / 2)) !== JSON.stringify(question(share));
  }

  async #wait(ms: number, reason: string): Promise<void> {
    for (let seconds = Math.ceil(Math.min(ms, 30_000) / 1000); seconds > 0; seconds--) {
      this.#to({ at: "waiting", seconds, reason });
      await pause(1000, this.#abort.signal);
    }
  }

  /** Until the first piece comes, tells how far the model is loaded. */
  async #watchModel(signal: AbortSignal): Promise<void> {
    try {
      for (;;) {
        await pause(POLL_MS, signal);
        const models = await listModels(this.#options.key(), signal);
        this.#options.onModels(models);
        const own = models.find(({ id }) => id === this.#options.model.id);
        if (own?.state === "loading") this.#to({ at: "loading", phase: own.phase, progress: own.progress });
        else if (own?.state === "ready" && this.phase.at === "loading") this.#to({ at: "asking" });
      }
    } catch {
      // The answer came, or the request itself will tell what is wrong.
    }
  }

  #to(phase: Phase): void {
    this.phase = phase;
    this.#options.onChange();
  }

  #take(delta: Delta): void {
    const { message } = this;
    const now = performance.now();
    const { content, reasoning, toolCalls = [], finish } = delta;
    this.#told = { ...this.#told, ...delta };
    if (content !== undefined || reasoning !== undefined || toolCalls.length > 0) {
      this.pieces++;
      this.firstAt ??= now;
    }
    if (reasoning !== undefined) {
      message.reasoning = (message.reasoning ?? "") + reasoning.replaceAll("\r", "");
      if (this.phase.at !== "thinking") this.phase = { at: "thinking" };
    }
    if (content !== undefined) {
      if (this.phase.at === "thinking") this.#endThinking();
      message.content += content.replaceAll("\r", "");
      this.phase = { at: "writing" };
    }
    for (const { index, name, arguments: piece } of toolCalls) {
      message.toolCalls ??= [];
      const begun = message.toolCalls[index] ?? { name: "", arguments: "" };
      message.toolCalls[index] = { name: begun.name + name, arguments: begun.arguments + piece };
      this.phase = { at: "writing" };
    }
    if (finish !== undefined) message.finish = finish;
    this.#options.onChange();
  }

  #endThinking(): void {
    this.message.reasoningMs = performance.now() - this.firstAt!;
  }

  #count(): void {
    const { promptTokens, completionTokens, promptMs, tokensPerSecond } = this.#told;
    if (this.pieces === 0 && completionTokens === undefined) return;
    this.message.stats = {
      promptTokens: promptTokens ?? null,
      completionTokens: completionTokens ?? this.pieces,
      tokensPerSecond: tokensPerSecond ?? this.piecesPerSecond,
      firstMs: promptMs ?? (this.firstAt === null ? null : this.firstAt - this.#askedAt),
      counted: completionTokens === undefined,
    };
  }
}
