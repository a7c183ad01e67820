/** A server with OpenAI's API that says what it is told to, at the pace and with the faults it is told, and the page. */
import { readdirSync, readFileSync } from "node:fs";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { extname, join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";

export interface FakeModel {
  readonly id: string;
  state: "unloaded" | "loading" | "ready";
  progress: number;
  readonly context_length: number;
  readonly kind: "chat" | "completion" | "embedding";
}

export interface FakeAnswer {
  readonly reasoning?: string;
  readonly text?: string;
  /** Between two pieces. */
  readonly pauseMs?: number;
  readonly finish?: string;
  /** Answered instead. */
  readonly status?: number;
  readonly code?: string;
  readonly message?: string;
  readonly headers?: Readonly<Record<string, string>>;
  /** The connection is cut after so many pieces. */
  readonly cutAfter?: number;
  /** The model is loaded first, for so long. */
  readonly loadMs?: number;
}

/** Words with their spaces: about what tokens are. */
const piecesOf = (text: string): string[] => text.match(/\s*\S+|\s+$/g) ?? [];
const types: Readonly<Record<string, string>> = {
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript; charset=utf-8",
  ".css": "text/css; charset=utf-8",
  ".svg": "image/svg+xml",
};

export interface Asked {
  readonly path: string;
  readonly body: Readonly<Record<string, unknown>>;
  /** Whether the client has left before the end. */
  left: boolean;
}

export class FakeOpenAi {
  models: FakeModel[] = [];
  /** Only with this key. */
  key: string | null = null;
  readonly asked: Asked[] = [];
  readonly #answers: FakeAnswer[] = [];
  readonly #files: ReadonlyMap<string, Buffer>;
  readonly #server: Server = createServer((request, response) => void this.#handle(request, response));

  /** `page` is the folder of the built page. */
  constructor(page: string) {
    this.#files = new Map(readdirSync(page).map((name) => [name, readFileSync(join(page, name))]));
    this.reset();
  }

  reset(): void {
    this.models = [{ id: "sage-8b", state: "ready", progress: 1, context_length: 8192, kind: "chat" }];
    this.key = null;
    this.asked.length = 0;
    this.#answers.length = 0;
  }

  /** The answers to the next questions; without one, it says what it was told. */
  next(...answers: FakeAnswer[]): void {
    this.#answers.push(...answers);
  }

  async open(): Promise<void> {
    await new Promise<void>((done) => this.#server.listen(0, "127.0.0.1", done));
  }

  async close(): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((done) => this.#server.close(done));
  }

  /** As if the process had died: what runs is cut, and nothing is answered until it is back. */
  async down(while_: () => Promise<void>): Promise<void> {
    const { port } = this.#server.address() as AddressInfo;
    await this.close();
    await while_();
    await new Promise<void>((done) => this.#server.listen(port, "127.0.0.1", done));
  }

  get address(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  async #handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const path = new URL(request.url!, this.address).pathname;
    const file = this.#files.get(path === "/" ? "index.html" : path.slice(1));
    if (file !== undefined) {
      const type = types[extname(path === "/" ? ".html" : path)] ?? "text/html; charset=utf-8";
      response.writeHead(200, { "content-type": type }).end(file);
    } else if (this.key !== null && request.headers.authorization !== `Bearer ${this.key}`) {
      refuse(response, { status: 401, code: "invalid_api_key", message: "The key is not one of this server's." });
    } else if (path === "/v1/models") {
      const data = this.models.map(({ id, ...wick }) => ({ id, object: "model", wick }));
      response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify({ object: "list", data }));
    } else if (path === "/v1/chat/completions" || path === "/v1/completions") {
      let text = "";
      for await (const chunk of request) text += String(chunk);
      const asked: Asked = { path, body: JSON.parse(text) as Record<string, unknown>, left: false };
      this.asked.push(asked);
      await this.#answer(asked, response);
    } else refuse(response, { status: 404, code: "not_found", message: `There is no ${path}.` });
  }

  async #answer(asked: Asked, response: ServerResponse): Promise<void> {
    const answer = this.#answers.shift() ?? { text: "Certainly." };
    if (answer.status !== undefined) {
      refuse(response, answer);
      return;
    }
    response.on("close", () => {
      asked.left = !response.writableEnded;
    });
    await this.#load(answer.loadMs ?? 0, String(asked.body.model));
    response.writeHead(200, { "content-type": "text/event-stream" });
    const chat = asked.path.endsWith("chat/completions");
    const send = (value: object) => response.write(`data: ${JSON.stringify(value)}\n\n`);
    const pieces = [
      ...piecesOf(answer.reasoning ?? "").map((piece) => ({ delta: { reasoning_content: piece } })),
      ...piecesOf(answer.text ?? "").map((piece) => (chat ? { delta: { content: piece } } : { text: piece })),
    ];
    for (const [i, piece] of pieces.entries()) {
      if (answer.cutAfter === i) {
        // What was written is on its way.
        await pause(50);
        response.destroy();
      }
      if (response.destroyed) return;
      send({ choices: [{ index: 0, ...piece, finish_reason: null }] });
      if (answer.pauseMs !== undefined) await pause(answer.pauseMs);
    }
    send({ choices: [{ index: 0, ...(chat ? { delta: {} } : { text: "" }), finish_reason: answer.finish ?? "stop" }] });
    send({
      choices: [],
      usage: { prompt_tokens: 21, completion_tokens: pieces.length, total_tokens: 21 + pieces.length },
      timings: { prompt_ms: 84, predicted_ms: pieces.length * 18, predicted_per_second: 55.5 },
    });
    response.end("data: [DONE]\n\n");
  }

  async #load(ms: number, id: string): Promise<void> {
    const model = this.models.find((one) => one.id === id);
    if (ms === 0 || model === undefined) return;
    model.state = "loading";
    for (let step = 1; step <= 10; step++) {
      await pause(ms / 10);
      model.progress = step / 10;
    }
    model.state = "ready";
  }
}

function refuse(
  response: ServerResponse,
  { status = 500, code = "server_error", message = "", headers = {} }: FakeAnswer,
) {
  response.writeHead(status, { "content-type": "application/json", ...headers });
  response.end(JSON.stringify({ error: { message, type: "error", code, param: null } }));
}
