/** One request and its answer: its id, what ends it, and what is told of it afterwards. */
import { randomUUID } from "node:crypto";
import { ApiError, toApiError } from "./errors.ts";

/** What the log and the metrics say of an exchange; never what was said in it. */
export interface ExchangeRecord {
  readonly id: string;
  readonly method: string;
  readonly route: string;
  readonly status: number;
  readonly ms: number;
  readonly model?: string | undefined;
  readonly code?: string | undefined;
  readonly promptTokens?: number | undefined;
  readonly cachedTokens?: number | undefined;
  readonly tokens?: number | undefined;
  /** Until the first token. */
  readonly firstMs?: number | undefined;
  /** The client went before the answer was complete. */
  readonly isGone?: boolean | undefined;
}

/** Ids of clients are taken over where they cannot do harm in a log. */
const SANE_ID = /^[\w.:-]{1,128}$/;

export class Exchange {
  readonly id: string;
  readonly method: string;
  readonly started = performance.now();
  route = "other";
  status = 0;
  model: string | undefined;
  code: string | undefined;
  promptTokens: number | undefined;
  cachedTokens: number | undefined;
  tokens: number | undefined;
  firstMs: number | undefined;
  /** The answer is still on its way when the handler returns. */
  isStreaming = false;
  readonly #abort = new AbortController();
  readonly #client: AbortSignal;
  readonly #timer: NodeJS.Timeout;
  readonly #onEnd: (exchange: Exchange) => void;
  readonly #leave = () => this.abort(new DOMException("the client is gone", "AbortError"));
  #isOver = false;

  constructor(request: Request, seconds: number, onEnd: (exchange: Exchange) => void) {
    const given = request.headers.get("x-request-id");
    this.id = given !== null && SANE_ID.test(given) ? given : randomUUID();
    this.method = request.method;
    this.#onEnd = onEnd;
    this.#client = request.signal;
    if (this.#client.aborted) this.#leave();
    else this.#client.addEventListener("abort", this.#leave, { once: true });
    const timeout = () => this.abort(new ApiError(408, "request_timeout", `the answer took more than ${seconds} s`));
    this.#timer = setTimeout(timeout, seconds * 1000).unref();
  }

  /** Ends the work when the client goes, time is up, the server ends, or the answer is complete. */
  get signal(): AbortSignal {
    return this.#abort.signal;
  }

  get isGone(): boolean {
    return this.#client.aborted;
  }

  /** What to tell of a failure: where the work was ended from here, why. */
  failure(error: unknown): ApiError {
    const { aborted, reason } = this.signal;
    if (!aborted || error instanceof ApiError) return toApiError(error);
    return reason instanceof ApiError ? reason : new ApiError(408, "client_gone", "the client is gone");
  }

  abort(reason: unknown): void {
    this.#abort.abort(reason);
  }

  /** Nothing more comes. */
  end(status = this.status): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.status = status;
    clearTimeout(this.#timer);
    this.#client.removeEventListener("abort", this.#leave);
    this.#onEnd(this);
    // Whatever still works for it ends with it.
    this.abort(new DOMException("the request has ended", "AbortError"));
  }

  get record(): ExchangeRecord {
    const { id, method, route, model, code, promptTokens, cachedTokens, tokens, firstMs } = this;
    // What nginx notes for clients that leave.
    const status = this.isGone ? 499 : this.status;
    const ms = performance.now() - this.started;
    return {
      id,
      method,
      route,
      status,
      ms,
      model,
      code,
      promptTokens,
      cachedTokens,
      tokens,
      firstMs,
      isGone: this.isGone || undefined,
    };
  }
}
