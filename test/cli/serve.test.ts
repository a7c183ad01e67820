/** `wick serve` as a command: its options, what it prints, and how it ends. */
import { afterEach, expect, it, vi } from "vitest";
import { serveCommand } from "../../src/cli/serve.ts";
import { fable } from "../helpers/model-folders.ts";

afterEach(() => vi.restoreAllMocks());

const serve = (...args: string[]) =>
  serveCommand("1.2.3")
    .exitOverride()
    .configureOutput({ writeErr: () => {} })
    .parseAsync(["--device", "cpu", "--port", "0", ...args], { from: "user" });

it("answers for the models it was given, by the names it was told, until it is to end", async () => {
  const said: string[] = [];
  vi.spyOn(console, "log").mockImplementation((line) => void said.push(String(line)));
  const logged: string[] = [];
  vi.spyOn(process.stderr, "write").mockImplementation((text) => logged.push(String(text)) > 0);
  const before = process.listenerCount("SIGTERM");
  const ended = serve(
    fable,
    fable,
    "--alias",
    "one",
    "--alias",
    "two",
    "--api-key",
    "k",
    "--cache-memory",
    "8M",
    "--log",
    "json",
  );
  await vi.waitFor(() => expect(said).toHaveLength(1), { timeout: 10_000 });
  const address = /^wick: listening on (http:\/\/127\.0\.0\.1:\d+)$/.exec(said[0]!)![1]!;
  const headers = { authorization: "Bearer k", "content-type": "application/json" };
  const models = (await (await fetch(`${address}/v1/models`, { headers })).json()) as { data: { id: string }[] };
  expect(models.data.map(({ id }) => id)).toEqual(["one", "two"]);
  const body = JSON.stringify({ model: "two", prompt: "Once", max_tokens: 2 });
  const answer = await fetch(`${address}/v1/completions`, { method: "POST", headers, body });
  expect(await answer.json()).toMatchObject({ model: "two", system_fingerprint: "wick-1.2.3-llama-f32-cpu" });
  process.emit("SIGTERM", "SIGTERM");
  await ended;
  expect(process.listenerCount("SIGTERM")).toBe(before);
  const events = logged.map((line) => (JSON.parse(line) as { event: string }).event);
  expect(events).toEqual(expect.arrayContaining(["loaded", "request", "draining", "put_aside", "ended"]));
});

it("says what it was called wrongly with", async () => {
  await expect(serve("--alias", "a", "--alias", "b")).rejects.toThrow(/more aliases than models/);
  await expect(serve(fable, fable)).rejects.toThrow(/two models are called/);
  await expect(serve("--host", "0.0.0.0")).rejects.toThrow(/give a key/);
  await expect(serve("--memory", "much")).rejects.toThrow(/number of bytes/);
  await expect(serve("/no/such/model.gguf", "--log", "none")).rejects.toThrow(/cannot be opened/);
});
