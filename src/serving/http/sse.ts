/**
 * Server-sent events, written as fast as the client reads: the next event is asked for when the last one has been taken, so a
 * slow reader costs no memory here. A comment goes out while nothing comes, so that nobody between takes the line for dead.
 */
import { setTimeout as delay } from "node:timers/promises";
import type { ApiError } from "./errors.ts";
import type { Exchange } from "./exchange.ts";

/** One event as it is written: its `data`, and its name where it has one. */
export interface ServerEvent {
  readonly event?: string | undefined;
  readonly data: string;
}

const PING_SECONDS = 10;
const encoder = new TextEncoder();
const written = ({ event, data }: ServerEvent): Uint8Array =>
  encoder.encode(`${event === undefined ? "" : `event: ${event}\n`}data: ${data}\n\n`);

export interface StreamOptions {
  readonly exchange: Exchange;
  /** What an error is in this stream, once it has begun. */
  readonly onError?: ((error: ApiError) => ServerEvent) | undefined;
  /** Is told what the client is not. */
  readonly onFailure: (error: unknown) => void;
  readonly pingSeconds?: number | undefined;
}

/** Failures before the first event, or the first comment, throw here and become a status. */
export async function streamed(
  events: AsyncIterator<ServerEvent>,
  { exchange, onError, onFailure, pingSeconds = PING_SECONDS }: StreamOptions,
): Promise<Response> {
  let next: Promise<IteratorResult<ServerEvent>> | undefined;
  const nextOrPing = async (): Promise<IteratorResult<ServerEvent> | null> => {
    next ??= events.next();
    const timer = new AbortController();
    try {
      const ping = delay(pingSeconds * 1000, null, { signal: timer.signal, ref: false }).catch(() => null);
      const found = await Promise.race([next, ping]);
      if (found) next = undefined;
      return found;
    } finally {
      timer.abort();
    }
  };
  let first: IteratorResult<ServerEvent> | null | undefined = await nextOrPing();
  exchange.isStreaming = true;
  exchange.status = 200;
  const leave = () => {
    exchange.end();
    // It may wait for a reader that never comes.
    events.return?.()?.catch(() => {});
  };
  if (exchange.isGone) leave();
  else exchange.signal.addEventListener("abort", leave, { once: true });
  const body = new ReadableStream<Uint8Array>(
    {
      async pull(controller) {
        try {
          const found = first === undefined ? await nextOrPing() : first;
          first = undefined;
          if (found === null) controller.enqueue(encoder.encode(": ping\n\n"));
          else if (!found.done) controller.enqueue(written(found.value));
          else {
            controller.close();
            exchange.end();
          }
        } catch (error) {
          const failure = exchange.failure(error);
          if (failure.status >= 500) onFailure(error);
          exchange.code = failure.code;
          controller.enqueue(written(onError?.(failure) ?? { data: JSON.stringify(failure.body) }));
          controller.close();
          exchange.end();
        }
      },
      cancel: leave,
    },
    { highWaterMark: 0 },
  );
  return new Response(body, {
    headers: {
      "content-type": "text/event-stream; charset=utf-8",
      "cache-control": "no-cache, no-transform",
      // Proxies that gather answers would hold the stream back.
      "x-accel-buffering": "no",
    },
  });
}
