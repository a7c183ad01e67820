/** The server of the API in this process, over models and an engine that a test chooses. */
import { Device } from "../../src/index.ts";
import { ChatTemplate, loadModel, Model } from "../../src/models/index.ts";
import { Log } from "../../src/serving/http/log.ts";
import { Registry, type RegistryOptions } from "../../src/serving/http/registry.ts";
import { ApiServer, type ServerOptions } from "../../src/serving/http/server.ts";
import type { Engine } from "../../src/serving/request.ts";
import { fable } from "./model-folders.ts";

export interface TestServerOptions extends Omit<ServerOptions, "registry" | "device" | "log" | "version"> {
  readonly engine: (model: Model) => Engine;
  /** In place of the model's own. */
  readonly template?: string;
  readonly registry?: Partial<RegistryOptions>;
}

export interface TestServer extends AsyncDisposable {
  readonly address: string;
  readonly registry: Registry;
  readonly server: ApiServer;
  /** What was logged, a line each. */
  readonly lines: string[];
  post(path: string, body: unknown, init?: RequestInit): Promise<Response>;
  get(path: string, init?: RequestInit): Promise<Response>;
}

export const json = async (response: Response): Promise<Record<string, never>> =>
  (await response.json()) as Record<string, never>;

/** The data of server-sent events, parsed. */
export const eventsOf = (text: string): unknown[] =>
  [...text.matchAll(/^data: (.*)$/gm)].map(([, data]) => (data === "[DONE]" ? data : JSON.parse(data!)));

export async function openTestServer({ engine, template, registry: own, ...options }: TestServerOptions) {
  const lines: string[] = [];
  const device = Device.from("cpu");
  const registry = new Registry({
    models: [{ id: "fable-7m", name: fable }],
    device,
    load: async ({ name, memory, signal }) => {
      const model = await loadModel(name, { memory, signal });
      if (template === undefined) return model;
      return new Model(model.transformer, model.tokenizer, new ChatTemplate(template));
    },
    openEngine: engine,
    ...own,
  });
  const log = new Log("json", (line) => lines.push(line));
  const server = new ApiServer({ port: 0, ...options, registry, device, log, version: "0.0.0" });
  const address = await server.listen();
  return {
    address,
    registry,
    server,
    lines,
    post: (path, body, { headers, ...init } = {}) =>
      fetch(`${address}${path}`, {
        method: "POST",
        headers: { "content-type": "application/json", ...headers },
        body: typeof body === "string" ? body : JSON.stringify(body),
        ...init,
      }),
    get: (path, init) => fetch(`${address}${path}`, init),
    [Symbol.asyncDispose]: () => server.close(),
  } satisfies TestServer as TestServer;
}
