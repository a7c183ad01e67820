/** Requests that wait their turn, are tried again where that can help, and fail with what to do about it. */
import { setTimeout as pause } from "node:timers/promises";
import { fail, WickError } from "../../core/errors.ts";
import type { HubSettings } from "./settings.ts";

export interface RequestOptions {
  readonly settings: HubSettings;
  /** What is asked for, in messages: `owner/name`, or an address. */
  readonly subject: string;
  readonly method?: "GET" | "HEAD" | undefined;
  readonly headers?: Readonly<Record<string, string>> | undefined;
  readonly redirect?: "follow" | "manual" | undefined;
  readonly signal?: AbortSignal | undefined;
  /** Whether a network that is not there may come back; else what is in the cache is the better answer. */
  readonly patient?: boolean | undefined;
}

/** How often something is tried while nothing comes of it. */
export const ATTEMPTS = 5;
/** Who is asked to wait longer is told so. */
const LONGEST_WAIT_MS = 60_000;

const ABSENT = ["ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ENETUNREACH", "EHOSTUNREACH"];

/** The answer, of any status that is final. */
export async function request(url: string, options: RequestOptions): Promise<Response> {
  const { settings, subject, method = "GET", redirect = "follow", headers, signal, patient = false } = options;
  for (let attempt = 1; ; attempt++) {
    signal?.throwIfAborted();
    const within = new AbortController();
    const timer = setTimeout(() => within.abort(), settings.answerMs);
    try {
      const response = await fetch(url, {
        method,
        redirect,
        // Compressed answers have neither sizes nor ranges.
        headers: { "accept-encoding": "identity", "user-agent": "wick", ...authorization(url, settings), ...headers },
        signal: signal ? AbortSignal.any([signal, within.signal]) : within.signal,
      });
      if (!isPassing(response.status)) return response;
      await response.body?.cancel();
      const wait = waitMs(response, settings.retryMs * 2 ** (attempt - 1));
      if (attempt === ATTEMPTS || wait > LONGEST_WAIT_MS) return busy(url, response, subject);
      await pause(wait, undefined, { signal });
    } catch (error) {
      if (error instanceof WickError) throw error;
      signal?.throwIfAborted();
      const slow = within.signal.aborted;
      const code = codeOf(error);
      if (attempt === ATTEMPTS || isUntrusted(code) || (!patient && (slow || ABSENT.includes(code)))) {
        unreachable(url, subject, slow ? `no answer within ${settings.answerMs / 1000} s` : reasonOf(error), error);
      }
      await pause(settings.retryMs * 2 ** (attempt - 1), undefined, { signal });
    } finally {
      clearTimeout(timer);
    }
  }
}

/** The token goes to the hub alone; `fetch` itself drops it where the hub sends on to another host. */
function authorization(url: string, { endpoint, token }: HubSettings): Record<string, string> {
  return token && url.startsWith(`${endpoint}/`) ? { authorization: `Bearer ${token.value}` } : {};
}

const isPassing = (status: number): boolean => status === 408 || status === 429 || status >= 500;

/** As the server asks, or `otherwise`. */
function waitMs({ headers }: Response, otherwise: number): number {
  const given = headers.get("retry-after");
  if (given === null) return otherwise;
  const seconds = Number(given);
  return Number.isFinite(seconds) ? seconds * 1000 : Math.max(0, Date.parse(given) - Date.now()) || otherwise;
}

function busy(url: string, { status, headers }: Response, subject: string): never {
  const wait = headers.get("retry-after");
  const when = wait === null ? "later" : /^\d+$/.test(wait) ? `in ${wait} s` : `after ${wait}`;
  const why = status === 429 ? "too many requests were sent to it" : "it has a problem of its own";
  return fail(
    "NetworkError",
    `${subject}: ${new URL(url).host} answers ${status}, ${why}; try again ${when}${status === 429 ? ", or set HF_TOKEN, which is allowed more" : ""}`,
  );
}

export const unreachable = (url: string, subject: string, why: string, cause: unknown): never =>
  fail(
    "NetworkError",
    `${subject}: ${new URL(url).host} is not reached: ${why}; look at the network, or set HF_ENDPOINT to a mirror`,
    { cause },
  );

const codeOf = (error: unknown): string => {
  const cause = error instanceof Error && error.cause instanceof Error ? error.cause : error;
  return cause instanceof Error && "code" in cause ? String(cause.code) : "";
};

/** Certificates do not mend by trying again. */
const isUntrusted = (code: string): boolean => /CERT|TLS|SSL|SELF_SIGNED/.test(code);

export function reasonOf(error: unknown): string {
  const { message, cause } = error as Error;
  return cause instanceof Error ? cause.message || codeOf(cause) : message;
}
