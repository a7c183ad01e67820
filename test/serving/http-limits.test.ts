/** What the server refuses, and how it says so; what it does not let through, nor tell. */
import { once } from "node:events";
import { request } from "node:http";
import { connect } from "node:net";
import { text } from "node:stream/consumers";
import { setTimeout as delay } from "node:timers/promises";
import { expect, it, onTestFinished } from "vitest";
import { BatchEngine } from "../../src/serving/engine.ts";
import { ApiServer } from "../../src/serving/http/server.ts";
import { eventsOf, json, openTestServer, type TestServer, type TestServerOptions } from "../helpers/api-server.ts";
import { ScriptedEngine } from "../helpers/scripted-engine.ts";
import { alone, POISON, StubRunner } from "./stub-runner.ts";

const messages = [{ role: "user", content: "A secret question" }];
const engines: ScriptedEngine[] = [];
/** An engine that says a word twenty times. */
const slow = (ms: number) => () => {
  const engine = new ScriptedEngine(() => ({ tokens: new Array<number>(20).fill(300), ms }));
  engines.push(engine);
  return engine;
};

/** Answers of the last server that get tokens. */
const untilRunning = (count: number) => expect.poll(() => engines.at(-1)!.stats.running, { interval: 5 }).toBe(count);

async function open(options: Partial<TestServerOptions> = {}): Promise<TestServer> {
  const server = await openTestServer({ engine: slow(1), drainSeconds: 1, ...options });
  onTestFinished(() => server.server.close());
  return server;
}

/** What fetch does not let one send. */
async function raw(
  server: TestServer,
  headers: Record<string, string>,
  path = "/health",
  body?: string,
  method = "GET",
) {
  const { hostname, port } = new URL(server.address);
  const sent = request({ hostname, port, path, method, headers });
  sent.on("error", () => {});
  sent.end(body);
  const [response] = (await once(sent, "response")) as [import("node:http").IncomingMessage];
  return { status: response.statusCode, headers: response.headers, body: await text(response) };
}

const errorOf = async (response: Response) => {
  const { error } = (await json(response)) as unknown as {
    error: { message: string; code: string; param: string | null };
  };
  return { status: response.status, code: error.code, param: error.param };
};

it("refuses bodies that are malformed, too large, too deep or of another kind", async () => {
  const server = await open({ limits: { bodyBytes: 10_000 } });
  const post = async (body: string, headers = {}) =>
    errorOf(await server.post("/v1/chat/completions", body, { headers }));
  for (const body of ["{", "", "[]", "null", '"text"', "\u0000"])
    expect(await post(body)).toMatchObject({ status: 400 });
  expect(await post("{")).toMatchObject({ code: "invalid_json" });
  expect(await post("x".repeat(10_001))).toMatchObject({ status: 413, code: "request_too_large" });
  expect(await post(`{"a":${"[".repeat(100)}${"]".repeat(100)}}`)).toMatchObject({ status: 400, code: "invalid_json" });
  expect(await post("{}", { "content-type": "text/plain" })).toMatchObject({ status: 415 });
  expect(await post("{}", { "content-encoding": "gzip" })).toMatchObject({ status: 415 });
  const type = { "content-type": "application/json" };
  const chunked = await raw(
    server,
    { ...type, "transfer-encoding": "chunked" },
    "/v1/completions",
    "x".repeat(20_000),
    "POST",
  );
  expect(chunked.status).toBe(413);
  const broken = await server.post("/v1/completions", "", { body: Buffer.from([0x7b, 0xff, 0x7d]) });
  expect(await errorOf(broken)).toMatchObject({ status: 400, code: "invalid_json" });
});

it("names the field that is wrong", async () => {
  const server = await open();
  const refused = async (fields: object, path = "/v1/chat/completions") =>
    errorOf(await server.post(path, path.includes("chat") ? { messages, ...fields } : fields));
  const tools = [{ type: "function", function: { name: "look" } }];
  const cases: readonly (readonly [object, string | null, string?])[] = [
    [{ messages: "Hello" }, "messages"],
    [{ messages: [] }, "messages"],
    [{ messages: [{ role: "alien", content: "" }] }, "messages[0].role"],
    [{ messages: [{ role: "user" }] }, "messages[0].content"],
    [{ messages: [{ role: "user", content: [{ type: "image_url" }] }] }, "messages[0].content[0]"],
    [{ temperature: 3 }, "temperature"],
    [{ temperature: "hot" }, "temperature"],
    [{ top_p: -1 }, "top_p"],
    [{ max_tokens: 0 }, "max_tokens"],
    [{ max_tokens: 1.5 }, "max_tokens"],
    [{ n: 17 }, "n"],
    [{ stop: "" }, "stop"],
    [{ stop: new Array(17).fill("a") }, "stop"],
    [{ logit_bias: { x: 1 } }, "logit_bias.x"],
    [{ logit_bias: { 5: 101 } }, "logit_bias.5"],
    [{ top_logprobs: 2 }, "top_logprobs"],
    [{ logprobs: true, top_logprobs: 21 }, "top_logprobs"],
    [{ stream_options: {} }, "stream_options"],
    [{ tools: [{ type: "web_search" }] }, "tools[0].type"],
    [{ tools: [{ type: "function", function: { name: "a b" } }] }, "tools[0].function.name"],
    [{ tools: [...tools, ...tools] }, "tools"],
    [{ tools, tool_choice: { type: "function", function: { name: "fly" } } }, "tool_choice"],
    [{ tool_choice: "required" }, "tool_choice"],
    [{ functions: [] }, "functions", "unsupported_parameter"],
    [{ response_format: { type: "xml" } }, "response_format.type"],
    [{ response_format: { type: "json_schema" } }, "response_format.json_schema"],
    [{ regex: "a", grammar: "b" }, null],
    [{ model: 5 }, "model"],
  ];
  for (const [fields, param, code] of cases) {
    const found = await refused(fields);
    expect({ ...found, fields }).toMatchObject({ status: 400, param, fields, ...(code && { code }) });
  }
  const completion = (fields: object) => refused(fields, "/v1/completions");
  expect(await completion({})).toMatchObject({ param: "prompt", code: "missing_required_parameter" });
  expect(await completion({ prompt: [] })).toMatchObject({ param: "prompt" });
  expect(await completion({ prompt: [[-1]] })).toMatchObject({ param: "prompt[0]" });
  expect(await completion({ prompt: [99_999] })).toMatchObject({ param: "prompt" });
  expect(await completion({ prompt: "a", echo: true })).toMatchObject({ param: "echo" });
  expect(await completion({ prompt: "a", best_of: 2 })).toMatchObject({ param: "best_of" });
  expect(await completion({ prompt: "a", suffix: "b" })).toMatchObject({ param: "suffix" });
  expect(await completion({ prompt: new Array(257).fill("a") })).toMatchObject({ param: "prompt" });
  for (const prompt of ["a ".repeat(600), "a".repeat(100_000)])
    expect(await completion({ prompt })).toMatchObject({ code: "context_length_exceeded", param: "prompt" });
  const long = [{ role: "user", content: [{ type: "text", text: "b".repeat(100_000) }] }];
  expect(await refused({ messages: long })).toMatchObject({ code: "context_length_exceeded", param: "messages" });
  const response = (fields: object) => refused(fields, "/v1/responses");
  expect(await response({})).toMatchObject({ param: "input" });
  expect(await response({ input: "a", previous_response_id: "x" })).toMatchObject({ param: "previous_response_id" });
  expect(await response({ input: [{ type: "item_reference" }] })).toMatchObject({ param: "input[0].type" });
  expect(await refused({ input: [] }, "/v1/embeddings")).toMatchObject({ param: "input" });
  expect(await refused({ input: "a", dimensions: 8 }, "/v1/embeddings")).toMatchObject({ param: "dimensions" });
  expect(await refused({ input: "a", model: "other" }, "/v1/embeddings")).toMatchObject({
    status: 404,
    param: "model",
  });
  expect(await errorOf(await server.get("/v1/models/%E0%A4%A"))).toMatchObject({ status: 404 });
  expect(await errorOf(await server.get("/v1/models/other"))).toMatchObject({ status: 404, code: "model_not_found" });
  expect(await errorOf(await server.get("/v1/unknown"))).toMatchObject({ status: 404 });
  expect(await errorOf(await server.get("/v1/completions"))).toMatchObject({ status: 405 });
});

it("asks for a key, whichever of them", async () => {
  const server = await open({ apiKeys: ["first", "second"] });
  const models = (authorization?: string) =>
    server.get("/v1/models", authorization === undefined ? {} : { headers: { authorization } });
  expect(await errorOf(await models())).toMatchObject({ status: 401, code: "missing_api_key" });
  for (const wrong of ["Bearer third", "Bearer ", "Basic first", "Bearer firstsecond"])
    expect((await models(wrong)).status).toBe(401);
  for (const right of ["Bearer first", "bearer second"]) expect((await models(right)).status).toBe(200);
  expect((await server.post("/v1/chat/completions", { messages })).status).toBe(401);
  expect((await server.get("/metrics")).status).toBe(401);
  expect((await server.get("/health/live")).status).toBe(200);
});

it("answers to its own name only, and to pages of its own", async () => {
  const server = await open({ allowedHosts: ["wick.example"], corsOrigins: ["https://app.example"] });
  const { host } = new URL(server.address);
  const status = async (headers: Record<string, string>) => (await raw(server, headers, "/v1/models")).status;
  for (const name of [host, "localhost", "localhost:1", "a.localhost", "[::1]:80", "127.9.9.9", "WICK.example:80"])
    expect([name, await status({ host: name })]).toEqual([name, 200]);
  for (const name of ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "192.168.0.1", "0.0.0.0"])
    expect([name, await status({ host: name })]).toEqual([name, 403]);
  expect(await status({ host, origin: `http://${host}` })).toBe(200);
  for (const origin of ["http://evil.example", "null", "http://localhost:1", "file://"])
    expect([origin, await status({ host, origin })]).toEqual([origin, 403]);
  const allowed = await raw(server, { host, origin: "https://app.example" }, "/v1/models");
  expect(allowed.headers).toMatchObject({ "access-control-allow-origin": "https://app.example", vary: "origin" });
  const asked = await raw(
    server,
    { host, origin: "https://app.example" },
    "/v1/chat/completions",
    undefined,
    "OPTIONS",
  );
  expect([asked.status, asked.headers["access-control-allow-headers"]]).toEqual([
    204,
    "authorization, content-type, x-request-id",
  ]);
  expect((await raw(server, { host }, "/v1/models", undefined, "OPTIONS")).status).toBe(405);
  expect((await raw(server, { host, origin: "http://evil.example" }, "/v1/models", undefined, "OPTIONS")).status).toBe(
    403,
  );
});

it("listens elsewhere only with a key, or where that is said", async () => {
  const parts = await open();
  const make = (options: object) =>
    new ApiServer({
      registry: parts.registry,
      device: undefined as never,
      log: undefined as never,
      version: "",
      ...options,
    });
  expect(() => make({ host: "0.0.0.0" })).toThrow(/give a key/);
  expect(() => make({ host: "::" })).toThrow(/--allow-no-key/);
  for (const options of [{ host: "::1" }, { host: "0.0.0.0", apiKeys: ["k"] }, { host: "0.0.0.0", allowNoKey: true }])
    expect(() => make(options)).not.toThrow();
  const taken = await openTestServer({ engine: slow(1), port: 0 });
  onTestFinished(() => taken.server.close());
  const again = openTestServer({ engine: slow(1), port: Number(new URL(taken.address).port) });
  await expect(again).rejects.toThrow(/something else listens there/);
});

it("has a limit of answers at once, and of their time", async () => {
  const server = await open({ engine: slow(100), limits: { answers: 2, requestSeconds: 1 } });
  const ask = (fields = {}) => server.post("/v1/chat/completions", { messages, ...fields });
  await server.post("/v1/completions", { prompt: "a", max_tokens: 1 });
  const running = [ask(), ask({ stream: true })];
  await untilRunning(2);
  const third = await ask();
  expect(third.headers.get("retry-after")).toBe("1");
  expect(await errorOf(third)).toMatchObject({ status: 429, code: "too_many_requests" });
  const [whole, streamed] = await Promise.all(running);
  expect(await errorOf(whole!)).toMatchObject({ status: 408, code: "request_timeout" });
  expect(streamed!.status).toBe(200);
  expect(eventsOf(await streamed!.text()).at(-1)).toMatchObject({ error: { code: "request_timeout" } });
  expect((await ask({ max_tokens: 2 })).status).toBe(200);
});

it("ends the work for clients that leave, whether their answer streams or not", async () => {
  const server = await open({ engine: slow(200) });
  await server.post("/v1/completions", { prompt: "a", max_tokens: 1 });
  for (const stream of [true, false]) {
    const leave = new AbortController();
    const answer = server.post("/v1/chat/completions", { messages, stream, n: 2 }, { signal: leave.signal });
    if (stream) await (await answer).body!.getReader().read();
    else answer.catch(() => {});
    await untilRunning(2);
    leave.abort();
    await untilRunning(0);
  }
  await expect.poll(() => server.lines.filter((line) => line.includes('"status":499')).length).toBe(2);
  const metrics = await (await server.get("/metrics")).text();
  expect(metrics).toContain('wick_requests_total{route="/v1/chat/completions",status="499"} 2');
  expect(metrics).toContain("wick_requests_active 1");
});

it("tells errors in a stream, and nothing of what is inside", async () => {
  const engine = new ScriptedEngine(({ maxTokens }) => ({ tokens: [300, 301, 302], failsAt: maxTokens === 1 ? 0 : 2 }));
  const server = await open({ engine: () => engine });
  const ask = (fields: object) => server.post("/v1/chat/completions", { messages, ...fields });
  const early = await ask({ stream: true, max_tokens: 1 });
  expect(early.status).toBe(503);
  expect(early.headers.get("retry-after")).toBe("1");
  const text = await (await ask({ stream: true })).text();
  expect(eventsOf(text).at(-1)).toMatchObject({ error: { code: "out_of_memory", type: "server_error" } });
  expect(text).not.toContain("[DONE]");
  const whole = await (await ask({})).text();
  expect(`${text}${whole}`).not.toMatch(/secret\/place|\.ts:|cuda/);
  const typed = await (await server.post("/v1/responses", { input: "a", stream: true })).text();
  expect(eventsOf(typed).at(-1)).toMatchObject({
    type: "response.failed",
    response: { status: "failed", error: { code: "out_of_memory" } },
  });
  expect(server.lines.join("\n")).toContain("/secret/place");
});

it("goes on when steps run out of memory: each request has its own answer, or hears of it", async () => {
  // Steps of more than six tokens fail, and so does any with the token that no memory is enough for.
  const runner = new StubRunner({ memory: 6, slots: 8, contextLength: 64 });
  const server = await open({ engine: () => new BatchEngine(runner) });
  const asked = Array.from({ length: 24 }, (_, i) => ({
    prompt: i % 6 === 5 ? [7, POISON] : [10 + i, 11, 12 + i, 13],
    max_tokens: 5,
    temperature: 0,
  }));
  const answers = await Promise.all(asked.map((ask) => server.post("/v1/completions", ask)));
  for (const [i, answer] of answers.entries()) {
    const { prompt, max_tokens: maxTokens } = asked[i]!;
    if (prompt.includes(POISON)) expect(await errorOf(answer)).toMatchObject({ status: 503, code: "out_of_memory" });
    else {
      const said = alone({ prompt, maxTokens, sampling: { temperature: 0 } }, 64) as number[];
      const { usage } = (await json(answer)) as unknown as { usage: { completion_tokens: number } };
      expect([i, usage.completion_tokens]).toEqual([i, said.length]);
    }
  }
  expect(runner.openSlots).toBe(0);
});

it("keeps nothing of requests that have ended", async () => {
  const engine = new ScriptedEngine(() => ({ tokens: [300] }));
  const server = await open({ engine: () => engine });
  const ask = async (count: number) => {
    for (let i = 0; i < count; i++) {
      await (await server.post("/v1/chat/completions", { messages, stream: i % 3 === 0 })).text();
      await (await server.post("/v1/chat/completions", { messages, temperature: -1 })).text();
    }
    server.lines.length = 0;
    engine.requests.length = 0;
    await delay(50);
    globalThis.gc!();
    return process.memoryUsage().heapUsed;
  };
  await ask(30);
  const before = await ask(30);
  // A request with all that belongs to it takes 25 KB.
  expect((await ask(100)) - before).toBeLessThan(200 * 8_000);
});

it("gives every request an id, and logs it without what was said", async () => {
  const server = await open();
  const headers = { "x-request-id": "my-id.1" };
  const own = await server.post("/v1/chat/completions", { messages, max_tokens: 2 }, { headers });
  expect(own.headers.get("x-request-id")).toBe("my-id.1");
  const insane = await server.get("/v1/models", { headers: { "x-request-id": '"}, {"a": "b' } });
  expect(insane.headers.get("x-request-id")).toMatch(/^[\da-f-]{36}$/);
  const records = server.lines.map((line) => JSON.parse(line) as Record<string, unknown>);
  expect(records.find(({ id }) => id === "my-id.1")).toMatchObject({
    level: "info",
    event: "request",
    method: "POST",
    route: "/v1/chat/completions",
    model: "fable-7m",
    status: 200,
    tokens: 2,
    firstMs: expect.any(Number),
  });
  expect(server.lines.join("\n")).not.toContain("secret");
});

it("answers bytes that are no request, and those that come too late", async () => {
  const server = await open({ headersSeconds: 0.5, receiveSeconds: 0.5 });
  const { hostname, port } = new URL(server.address);
  const say = async (bytes: string) => {
    const socket = connect(Number(port), hostname);
    socket.write(bytes);
    return text(socket);
  };
  expect(await say("NONSENSE\r\n\r\n")).toMatch(/^HTTP\/1.1 400 .*"code":"invalid_request"/s);
  expect(await say(`GET / HTTP/1.1\r\nHost: a b\r\nConnection: close\r\n\r\n`)).toMatch(/^HTTP\/1.1 400/);
  const head = `POST /v1/completions HTTP/1.1\r\nHost: ${hostname}\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{`;
  expect(await say(head)).toMatch(/^HTTP\/1.1 408 .*"code":"request_timeout"/s);
});

it("lets answers finish when it is to end, and takes no more", async () => {
  const server = await open({ engine: slow(40), drainSeconds: 10 });
  await server.post("/v1/completions", { prompt: "a", max_tokens: 1 });
  const ask = (fields = {}) => server.post("/v1/chat/completions", { messages, max_tokens: 20, ...fields });
  const running = [ask(), ask({ stream: true })];
  await untilRunning(2);
  const closed = server.server.close();
  const late = await ask();
  expect([late.headers.get("retry-after"), await errorOf(late)]).toMatchObject([
    "5",
    { status: 503, code: "shutting_down" },
  ]);
  const health = await server.get("/health");
  expect([health.status, await health.json()]).toEqual([503, { status: "draining" }]);
  const [whole, streamed] = await Promise.all(running);
  expect(await json(whole!)).toMatchObject({ choices: [{ finish_reason: "length" }] });
  expect(eventsOf(await streamed!.text()).at(-1)).toBe("[DONE]");
  await closed;
  expect(engines.at(-1)!.isDisposed).toBe(true);
  await expect(ask()).rejects.toThrow();
});
