/** Models are loaded when they are asked for, once for all, and put aside for others, but never while they answer. */
import { setTimeout as delay } from "node:timers/promises";
import { expect, it, onTestFinished } from "vitest";
import { fail } from "../../src/core/errors.ts";
import { Device } from "../../src/index.ts";
import { loadModel } from "../../src/models/index.ts";
import { idOf, Registry, type RegistryOptions } from "../../src/serving/http/registry.ts";
import { json, openTestServer } from "../helpers/api-server.ts";
import { fable, tiny } from "../helpers/model-folders.ts";
import { ScriptedEngine } from "../helpers/scripted-engine.ts";

const device = Device.from("cpu");
const { signal } = new AbortController();

function open(options: Partial<RegistryOptions> = {}): { registry: Registry; events: string[] } {
  const events: string[] = [];
  const registry = new Registry({
    models: ["a", "b"].map((id) => ({ id, name: fable })),
    device,
    load: ({ name, memory }) => {
      events.push("load");
      return loadModel(name, { memory });
    },
    openEngine: () => new ScriptedEngine(() => ({ tokens: [] })),
    onEvent: (event, id) => events.push(`${event} ${id}`),
    ...options,
  });
  onTestFinished(() => registry[Symbol.asyncDispose]());
  return { registry, events };
}

const states = (registry: Registry) => registry.status.map(({ id, state }) => `${id} ${state}`);

it("loads a model once for all who ask for it", async () => {
  const { registry, events } = open();
  expect(states(registry)).toEqual(["a unloaded", "b unloaded"]);
  const asking = [registry.acquire("a", signal), registry.acquire(undefined, signal), registry.acquire("a", signal)];
  expect(states(registry)).toEqual(["a loading", "b unloaded"]);
  const leases = await Promise.all(asking);
  expect([events, new Set(leases.map(({ model }) => model)).size]).toEqual([["load", "loaded a"], 1]);
  await expect(registry.acquire("c", signal)).rejects.toMatchObject({ status: 404, code: "model_not_found" });
});

it("tells those who wait that a load failed, and tries again for the next", async () => {
  let fails = true;
  const { registry, events } = open({
    load: ({ name }) => (fails ? Promise.reject(noFile()) : loadModel(name)),
  });
  const asking = await Promise.allSettled([registry.acquire("a", signal), registry.acquire("a", signal)]);
  for (const { reason } of asking as PromiseRejectedResult[]) {
    expect(reason).toMatchObject({ status: 500, code: "model_load_failed" });
    expect(reason.message).not.toContain("/home");
  }
  expect(registry.status[0]).toMatchObject({ state: "unloaded", error: "model_load_failed" });
  fails = false;
  using lease = await registry.acquire("a", signal);
  expect([lease.id, registry.status[0]!.error]).toEqual(["a", null]);
  expect(events).toEqual(["failed a", "loaded a"]);
});

const noFile = (): unknown => {
  try {
    return fail("InvalidFile", "/home/me/model.gguf is no model");
  } catch (error) {
    return error;
  }
};

it("puts aside what was not asked for the longest where memory is short", async () => {
  const { registry, events } = open({
    memory: 100 * 2 ** 20,
    models: ["a", "b", "c"].map((id) => ({ id, name: fable })),
  });
  for (const id of ["a", "b", "a"]) (await registry.acquire(id, signal))[Symbol.dispose]();
  const before = registry.status.filter(({ state }) => state === "ready").length;
  using held = await registry.acquire("a", signal);
  (await registry.acquire("c", signal))[Symbol.dispose]();
  expect(before).toBe(2);
  expect(states(registry)).toEqual(["a ready", "b unloaded", "c ready"]);
  expect(events).toContain("put_aside b");
  expect(held.model.toString()).toContain("llama");
});

it("waits for a model that answers, and gives up in time", async () => {
  const { registry } = open({ memory: 70 * 2 ** 20, waitSeconds: 0.6 });
  const held = await registry.acquire("a", signal);
  await expect(registry.acquire("b", signal)).rejects.toMatchObject({ status: 503, code: "out_of_memory" });
  const waiting = registry.acquire("b", signal);
  await delay(50);
  held[Symbol.dispose]();
  expect((await waiting).id).toBe("b");
  expect(states(registry)).toEqual(["a unloaded", "b ready"]);
});

it("lets one leave while others wait for a load", async () => {
  const { registry, events } = open();
  const leave = new AbortController();
  const leaving = registry.acquire("a", leave.signal);
  const staying = registry.acquire("a", signal);
  leave.abort(new Error("gone"));
  await expect(leaving).rejects.toThrow("gone");
  expect((await staying).id).toBe("a");
  expect(events).toEqual(["load", "loaded a"]);
});

it("is told by /health and /v1/models", async () => {
  const server = await openTestServer({
    engine: () => new ScriptedEngine(() => ({ tokens: [300] })),
    registry: {
      models: [
        { id: "fable-7m", name: fable },
        { id: "bert", name: tiny("bert") },
      ],
    },
  });
  onTestFinished(() => server.server.close());
  const health = await server.get("/health");
  expect([health.status, await json(health)]).toEqual([503, { status: "loading" }]);
  await server.post("/v1/completions", { prompt: "a" });
  expect(await json(await server.get("/health"))).toEqual({ status: "ok" });
  const embedding = await server.post("/v1/embeddings", { model: "bert", input: [[5, 6]] });
  expect(embedding.status).toBe(200);
  const { data } = (await json(await server.get("/v1/models"))) as unknown as { data: { id: string; wick: object }[] };
  expect(data.map(({ id, wick }) => [id, wick])).toEqual([
    ["fable-7m", expect.objectContaining({ state: "ready", progress: 1, context_length: 512, kind: "completion" })],
    ["bert", expect.objectContaining({ state: "ready", kind: "embedding", default: false })],
  ]);
  const refused = await server.post("/v1/completions", { model: "bert", prompt: [5] });
  expect([refused.status, await json(refused)]).toMatchObject([400, { error: { code: "model_not_supported" } }]);
});

it("names models by nothing that tells where they lie", () => {
  expect(
    [
      "Qwen/Qwen3-0.6B",
      "hf:Qwen/Qwen3-0.6B@main",
      "owner/name:Q4_K_M",
      "/home/me/models/My.Model.gguf",
      "./folder/",
      "../x/y.gguf",
      "https://host/a/b.gguf",
    ].map(idOf),
  ).toEqual(["Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B@main", "owner/name:Q4_K_M", "My.Model", "folder", "y", "b"]);
});
