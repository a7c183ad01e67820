/** What the server tells on stderr: a line for each request and event, as JSON or to be read. Prompts and answers never. */
import type { ExchangeRecord } from "./exchange.ts";

export const logForms = ["json", "text", "none"] as const;
export type LogForm = (typeof logForms)[number];

export class Log {
  readonly #form: LogForm;
  readonly #write: (line: string) => void;

  constructor(form: LogForm, write: (line: string) => void = (line) => process.stderr.write(`${line}\n`)) {
    this.#form = form;
    this.#write = write;
  }

  request(record: ExchangeRecord): void {
    const { ms, firstMs, ...others } = record;
    const times = { ms: rounded(ms), firstMs: firstMs === undefined ? undefined : rounded(firstMs) };
    this.#line({ level: record.status >= 500 ? "error" : "info", event: "request", ...others, ...times }, () => {
      const { method, route, status, model, tokens, promptTokens, cachedTokens, code, id } = record;
      const first = times.firstMs === undefined ? "" : `, first token after ${times.firstMs} ms`;
      const cached = cachedTokens ? ` (${cachedTokens} cached)` : "";
      const counts = tokens === undefined ? "" : `, ${promptTokens}${cached} → ${tokens} tokens`;
      const what = [model, code].filter((part) => part !== undefined).join(" ");
      return `${method} ${route} ${status}${what && ` ${what}`}${counts}, ${times.ms} ms${first} [${id}]`;
    });
  }

  /** `fields` are for programs, `text` is for people. */
  event(event: string, text: string, fields: Readonly<Record<string, unknown>> = {}): void {
    this.#line({ level: "info", event, ...fields }, () => text);
  }

  /** A failure that no client is told about in full. */
  error(error: unknown, id?: string): void {
    const { name, message, stack, cause } = error instanceof Error ? error : new Error(String(error));
    const because = cause instanceof Error ? { cause: cause.stack ?? cause.message } : {};
    this.#line({ level: "error", event: "error", id, name, message, stack, ...because }, () =>
      [`error${id === undefined ? "" : ` in ${id}`}: ${stack ?? message}`, ...Object.values(because)].join("\n  "),
    );
  }

  #line(fields: Readonly<Record<string, unknown>>, text: () => string): void {
    if (this.#form === "none") return;
    const time = new Date().toISOString();
    this.#write(this.#form === "json" ? JSON.stringify({ time, ...fields }) : `${time.slice(11, 23)} ${text()}`);
  }
}

const rounded = (ms: number): number => Math.round(ms * 10) / 10;
