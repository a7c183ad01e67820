/** The API on a socket: listening, limits of connections, and an end that lets answers finish. */
import { createServer, type Server } from "node:http";
import type { AddressInfo, Socket } from "node:net";
import { setTimeout as delay } from "node:timers/promises";
import { getRequestListener } from "@hono/node-server";
import type { Device } from "../../backend/device.ts";
import { fail } from "../../core/errors.ts";
import { Access, isLoopback } from "./access.ts";
import { createApp } from "./app.ts";
import { ApiError, toApiError } from "./errors.ts";
import type { Log } from "./log.ts";
import { ServerMetrics } from "./metrics.ts";
import type { Registry } from "./registry.ts";
import { type Page, readPage } from "./routes/page.ts";
import { Admission, type Limits, type ServerContext } from "./server-context.ts";

export const defaultLimits: Limits = {
  bodyBytes: 4 * 2 ** 20,
  promptTokens: Number.MAX_SAFE_INTEGER,
  answers: 2048,
  choices: 16,
  requestSeconds: 600,
};

export interface ServerOptions {
  readonly registry: Registry;
  readonly device: Device | readonly Device[];
  readonly log: Log;
  readonly version: string;
  /** Default 127.0.0.1. */
  readonly host?: string | undefined;
  /** Default 8080; 0 is any that is free. */
  readonly port?: number | undefined;
  readonly apiKeys?: readonly string[] | undefined;
  /** Listens elsewhere than on this machine, although everybody may ask. */
  readonly allowNoKey?: boolean | undefined;
  readonly allowedHosts?: readonly string[] | undefined;
  readonly corsOrigins?: readonly string[] | undefined;
  readonly limits?: Partial<Limits> | undefined;
  readonly connections?: number | undefined;
  /** How long a client may take to send its headers, and the whole request. */
  readonly headersSeconds?: number | undefined;
  readonly receiveSeconds?: number | undefined;
  /** How long answers may go on once the server is to end. Default 30. */
  readonly drainSeconds?: number | undefined;
  /** The folder with the page's files. */
  readonly page?: string | undefined;
}

export class ApiServer implements AsyncDisposable {
  readonly #options: ServerOptions;
  readonly #context: ServerContext;
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  /** Those with a request whose answer has not been written. */
  readonly #busy = new Set<Socket>();
  #closing: Promise<void> | null = null;

  constructor(options: ServerOptions) {
    const { host = "127.0.0.1", apiKeys = [], allowedHosts = [], corsOrigins = [], allowNoKey = false } = options;
    if (apiKeys.length === 0 && !isLoopback(host) && !allowNoKey) {
      fail(
        "InvalidArgument",
        `serve: on ${host} others than this machine can ask: give a key (--api-key, WICK_API_KEY), or say --allow-no-key`,
      );
    }
    this.#options = options;
    const limits = { ...defaultLimits, ...options.limits };
    const access = new Access({ apiKeys, host, allowedHosts, corsOrigins });
    const { registry, device, log, version } = options;
    const admission = new Admission(limits.answers);
    this.#context = {
      registry,
      devices: [device].flat(),
      log,
      version,
      limits,
      access,
      admission,
      metrics: new ServerMetrics(),
    };
    const page: Page = options.page === undefined ? new Map() : readPage(options.page);
    this.#server = this.#createServer(createApp(this.#context, page).fetch);
  }

  #createServer(fetch: (request: Request) => Response | Promise<Response>): Server {
    const { headersSeconds = 15, receiveSeconds = 60, connections = 4096, host } = this.#options;
    const listener = getRequestListener(fetch, {
      overrideGlobalObjects: false,
      hostname: host ?? "127.0.0.1",
      // Addresses and Hosts that are none.
      errorHandler: (error) => {
        const isRequest = (error as Error | undefined)?.name === "RequestError";
        return (
          isRequest ? new ApiError(400, "invalid_request", "the request's address is malformed") : toApiError(error)
        ).response;
      },
    });
    const server = createServer(
      {
        headersTimeout: headersSeconds * 1000,
        requestTimeout: receiveSeconds * 1000,
        connectionsCheckingInterval: 1000,
        keepAliveTimeout: 15_000,
        maxHeaderSize: 16 * 1024,
      },
      listener,
    );
    server.maxConnections = connections;
    server.on("connection", (socket) => {
      this.#sockets.add(socket);
      socket.once("close", () => this.#sockets.delete(socket));
    });
    server.on("request", ({ socket }, response) => {
      this.#busy.add(socket);
      response.once("close", () => this.#busy.delete(socket));
    });
    server.on("clientError", answerMalformed);
    return server;
  }

  /** The address that it listens on, once it does. */
  async listen(): Promise<string> {
    const { host = "127.0.0.1", port = 8080 } = this.#options;
    await new Promise<void>((resolve, reject) => {
      this.#server.once("error", (cause: NodeJS.ErrnoException) => {
        try {
          const why = cause.code === "EADDRINUSE" ? "something else listens there; take another --port" : cause.message;
          fail("InvalidArgument", `serve: cannot listen on ${host}:${port}: ${why}`, { cause });
        } catch (error) {
          reject(error);
        }
      });
      this.#server.listen({ port, host, backlog: this.#server.maxConnections }, resolve);
    });
    const { address, family, port: found } = this.#server.address() as AddressInfo;
    return `http://${family === "IPv6" ? `[${address}]` : address}:${found}`;
  }

  /** Takes no more requests, lets those that run end, and closes; at the latest when `drainSeconds` are over. */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    const { admission, log, registry, metrics } = this.#context;
    const until = performance.now() + (this.#options.drainSeconds ?? 30) * 1000;
    const isLate = () => performance.now() >= until;
    admission.isClosed = true;
    log.event("draining", `ending: ${metrics.active} requests are under way`, { active: metrics.active });
    // Who comes meanwhile is told so.
    while (metrics.active > 0 && !isLate()) await delay(10);
    const closed = this.#server.listening && new Promise<void>((resolve) => this.#server.close(() => resolve()));
    // The last answers are on their way to the sockets; connections without one are closed at once.
    for (const socket of this.#sockets) if (!this.#busy.has(socket)) socket.destroySoon();
    while (this.#busy.size > 0 && !isLate()) await delay(10);
    for (const socket of this.#sockets) socket.destroySoon();
    if (isLate()) for (const socket of this.#sockets) socket.destroy();
    await closed;
    await registry[Symbol.asyncDispose]();
    log.event("ended", "ended");
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

/** Bytes that are no request, or come too late: these never reach the app. */
function answerMalformed(error: NodeJS.ErrnoException, socket: import("node:stream").Duplex): void {
  if (error.code === "ECONNRESET" || !socket.writable) {
    socket.destroy();
    return;
  }
  const isLate = error.code === "ERR_HTTP_REQUEST_TIMEOUT";
  const failure = isLate
    ? new ApiError(408, "request_timeout", "the request did not arrive in time")
    : new ApiError(400, "invalid_request", "this is no HTTP request that the server understands");
  const body = JSON.stringify(failure.body);
  const status = isLate ? "408 Request Timeout" : "400 Bad Request";
  socket.end(
    `HTTP/1.1 ${status}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: ${Buffer.byteLength(body)}\r\n\r\n${body}`,
  );
}
