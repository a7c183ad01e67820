/** What the page asks of the server: OpenAI's API at its own address, and what Wick adds to the list of models. */
import type { Model } from "./model.ts";
import { eventData } from "./sse.ts";

export interface Delta {
  readonly content?: string;
  readonly reasoning?: string;
  readonly toolCalls?: readonly { readonly index: number; readonly name: string; readonly arguments: string }[];
  readonly finish?: string;
  readonly promptTokens?: number;
  readonly completionTokens?: number;
  readonly promptMs?: number;
  readonly tokensPerSecond?: number;
}

/** An answer that is no answer. `code` is the server's, or "unreachable" or "interrupted" where there was none. */
export class ApiError extends Error {
  readonly status: number;
  readonly code: string;
  readonly retryAfterMs: number | null;

  constructor(status: number, code: string, message: string, retryAfterMs: number | null = null) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfterMs = retryAfterMs;
  }

  get isBusy(): boolean {
    return this.status === 429 || this.status === 503;
  }
}

type Json = { readonly [name: string]: Json } | readonly Json[] | string | number | boolean | null | undefined;
const at = (value: Json, ...path: (string | number)[]): Json =>
  path.reduce<Json>(
    (inner, name) => (typeof inner === "object" && inner !== null ? (inner as Record<string, Json>)[name] : undefined),
    value,
  );
const text = (value: Json): string | undefined => (typeof value === "string" && value !== "" ? value : undefined);
const number = (value: Json): number | undefined => (typeof value === "number" ? value : undefined);
const list = (value: Json): readonly Json[] => (Array.isArray(value) ? value : []);

/** Leaves out what is not there, as the types of optional properties want it. */
const present = (entries: { readonly [K in keyof Delta]: Delta[K] | undefined }): Delta =>
  Object.fromEntries(Object.entries(entries).filter(([, value]) => value !== undefined));

function errorFrom(value: Json, status: number, retryAfter: string | null): ApiError {
  const message = text(at(value, "error", "message")) ?? text(at(value, "error")) ?? `The server answered ${status}.`;
  const code = text(at(value, "error", "code")) ?? text(at(value, "error", "type")) ?? `http_${status}`;
  const seconds = Number.parseFloat(retryAfter ?? "");
  return new ApiError(status, code, message, Number.isFinite(seconds) ? seconds * 1000 : null);
}

async function call(path: string, key: string | null, signal: AbortSignal, body?: object): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(path, {
      method: body === undefined ? "GET" : "POST",
      headers: {
        ...(body === undefined ? {} : { "content-type": "application/json" }),
        ...(key === null ? {} : { authorization: `Bearer ${key}` }),
      },
      signal,
      cache: "no-store",
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
  } catch (error) {
    signal.throwIfAborted();
    throw new ApiError(0, "unreachable", `The server cannot be reached (${(error as Error).message}).`);
  }
  if (response.ok) return response;
  const value = (await response.json().catch(() => null)) as Json;
  throw errorFrom(value, response.status, response.headers.get("retry-after"));
}

export async function listModels(key: string | null, signal: AbortSignal): Promise<readonly Model[]> {
  const response = await call("v1/models", key, signal);
  const value = (await response.json().catch(() => null)) as Json;
  return list(at(value, "data")).map((entry) => {
    const own = at(entry, "wick");
    const state = at(own, "state");
    const kind = at(own, "kind");
    return {
      id: text(at(entry, "id")) ?? "",
      state: state === "loading" || state === "ready" ? state : "unloaded",
      progress: number(at(own, "progress")) ?? 0,
      contextLength: number(at(own, "context_length")) ?? null,
      phase: at(own, "phase") === "download" ? "download" : "load",
      error: text(at(own, "error")) ?? null,
      kind: kind === "completion" || kind === "embedding" || kind === "chat" ? kind : null,
      isDefault: at(own, "default") === true,
    };
  });
}

function deltaFrom(value: Json): Delta {
  const choice = at(value, "choices", 0);
  const calls = list(at(choice, "delta", "tool_calls")).map((entry, i) => ({
    index: number(at(entry, "index")) ?? i,
    name: text(at(entry, "function", "name")) ?? "",
    arguments: text(at(entry, "function", "arguments")) ?? "",
  }));
  return present({
    content: text(at(choice, "delta", "content")) ?? text(at(choice, "text")),
    reasoning: text(at(choice, "delta", "reasoning_content")),
    toolCalls: calls.length > 0 ? calls : undefined,
    finish: text(at(choice, "finish_reason")),
    promptTokens: number(at(value, "usage", "prompt_tokens")),
    completionTokens: number(at(value, "usage", "completion_tokens")),
    promptMs: number(at(value, "timings", "prompt_ms")),
    tokensPerSecond: number(at(value, "timings", "predicted_per_second")),
  });
}

/** Streams an answer from `path`. Throws an `ApiError`, also for an answer that ends before its end. */
export async function* streamAnswer(
  path: string,
  body: object,
  key: string | null,
  signal: AbortSignal,
): AsyncGenerator<Delta, void, undefined> {
  const asked = { ...body, stream: true, stream_options: { include_usage: true } };
  const response = await call(path, key, signal, asked);
  let ended = false;
  try {
    for await (const data of eventData(response.body!)) {
      if (data === "[DONE]") return;
      const value = JSON.parse(data) as Json;
      if (at(value, "error") !== undefined) throw errorFrom(value, 200, null);
      const delta = deltaFrom(value);
      ended ||= delta.finish !== undefined;
      yield delta;
    }
  } catch (error) {
    signal.throwIfAborted();
    if (error instanceof ApiError) throw error;
    throw new ApiError(0, "interrupted", "The connection to the server was lost.");
  }
  if (!ended) throw new ApiError(0, "interrupted", "The server ended the answer before its end.");
}
