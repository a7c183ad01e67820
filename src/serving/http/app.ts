/** The API as a Hono app: what every request goes through, and the table of routes. */
import { Hono } from "hono";
import { forgetBody } from "./body.ts";
import { ApiError } from "./errors.ts";
import { Exchange } from "./exchange.ts";
import { chatCompletions } from "./routes/chat.ts";
import { completions } from "./routes/completions.ts";
import { embeddings } from "./routes/embeddings.ts";
import { live, ready } from "./routes/health.ts";
import { listModels, showModel } from "./routes/models.ts";
import { type Page, showFile } from "./routes/page.ts";
import { responses } from "./routes/responses.ts";
import { type AppContext, type AppEnv, draining, type ServerContext } from "./server-context.ts";

interface Route {
  readonly method: "GET" | "POST";
  readonly path: string;
  /** Whether it may be asked without a key. */
  readonly isOpen?: boolean;
  readonly handle: (c: AppContext) => Response | Promise<Response>;
}

const routesOf = (server: ServerContext, page: Page): readonly Route[] => [
  { method: "POST", path: "/v1/chat/completions", handle: chatCompletions(server) },
  { method: "POST", path: "/v1/completions", handle: completions(server) },
  { method: "POST", path: "/v1/embeddings", handle: embeddings(server) },
  { method: "POST", path: "/v1/responses", handle: responses(server) },
  { method: "GET", path: "/v1/models", handle: listModels(server) },
  { method: "GET", path: "/v1/models/:id{.+}", handle: showModel(server) },
  {
    method: "GET",
    path: "/metrics",
    handle: (c) =>
      c.body(server.metrics.text(server.registry, server.devices), 200, {
        "content-type": "text/plain; version=0.0.4; charset=utf-8",
      }),
  },
  { method: "GET", path: "/health", isOpen: true, handle: ready(server) },
  { method: "GET", path: "/health/ready", isOpen: true, handle: ready(server) },
  { method: "GET", path: "/health/live", isOpen: true, handle: live() },
  ...[...page].map(([path, file]): Route => ({ method: "GET", path, isOpen: true, handle: showFile(file) })),
];

export function createApp(server: ServerContext, page: Page): Hono<AppEnv> {
  const app = new Hono<AppEnv>();
  const { access, metrics, log, limits } = server;
  app.use(async (c, next) => {
    metrics.active++;
    const exchange = new Exchange(c.req.raw, limits.requestSeconds, (ended) => {
      metrics.active--;
      metrics.ended(ended.record);
      log.request(ended.record);
    });
    c.set("exchange", exchange);
    let origin: string | null = null;
    try {
      access.checkHost(c.req.raw.headers);
      origin = access.checkOrigin(c.req.raw.headers);
      if (c.req.method === "OPTIONS" && origin !== null) c.res = preflight();
      else await next();
    } catch (error) {
      c.res = failed(server, exchange, error);
    }
    if (c.req.method === "POST") await forgetBody(c.req.raw).catch(() => {});
    c.res.headers.set("x-request-id", exchange.id);
    if (origin !== null) {
      c.res.headers.set("access-control-allow-origin", origin);
      c.res.headers.append("vary", "origin");
      c.res.headers.set("access-control-expose-headers", "x-request-id, retry-after");
    }
    // A connection that stays open would keep the server from ending.
    if (server.admission.isClosed) c.res.headers.set("connection", "close");
    if (!exchange.isStreaming) exchange.end(c.res.status);
  });
  const routes = routesOf(server, page);
  for (const { method, path, isOpen, handle } of routes) {
    const route = path.replace(/\{.*\}$/, "");
    app.on(method, path, async (c) => {
      const exchange = c.get("exchange");
      exchange.route = route;
      if (!isOpen) access.checkKey(c.req.raw.headers);
      if (method === "POST" && server.admission.isClosed) throw draining();
      return handle(c);
    });
    app.all(path, (c) => {
      c.get("exchange").route = route;
      throw new ApiError(405, "method_not_allowed", `${route} is asked by ${method}`);
    });
  }
  app.notFound(() => {
    throw new ApiError(404, "not_found", "there is nothing at this address");
  });
  app.onError((error, c) => failed(server, c.get("exchange"), error));
  return app;
}

function failed({ log }: ServerContext, exchange: Exchange, error: unknown): Response {
  const found = exchange.failure(error);
  exchange.code = found.code;
  if (found.status >= 500) log.error(error, exchange.id);
  return found.response;
}

const preflight = (): Response =>
  new Response(null, {
    status: 204,
    headers: {
      "access-control-allow-methods": "GET, POST",
      "access-control-allow-headers": "authorization, content-type, x-request-id",
      "access-control-max-age": "600",
    },
  });
