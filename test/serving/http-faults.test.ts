/** A real `wick serve` under everything that goes wrong at once: each request ends with its answer or an error that has a code. */
import { once } from "node:events";
import { request as httpRequest } from "node:http";
import { text } from "node:stream/consumers";
import { setTimeout as delay } from "node:timers/promises";
import { afterAll, beforeAll, expect, it } from "vitest";
import { eventsOf } from "../helpers/api-server.ts";
import { buildCli } from "../helpers/built-cli.ts";
import { temporaryFolder } from "../helpers/temporary-folder.ts";
import { type ServeProcess, startServe } from "../helpers/wick-serve.ts";

const folder = temporaryFolder();
const headers = { "content-type": "application/json", authorization: "Bearer key" };
let cli: string;
let server: ServeProcess;

/** Pages of fable-7m's keys and values: fewer than the answers at once want. */
const PAGE_BYTES = 64 * 2 * 4 * 32 * 8 * 4;
beforeAll(async () => {
  cli = await buildCli(folder("cli"));
  const small = ["--cache-memory", String(10 * PAGE_BYTES), "--max-body", "20000", "--threads", "2"];
  server = await startServe(cli, ["--api-key", "key", ...small]);
}, 60_000);
afterAll(() => server?.[Symbol.asyncDispose]());

const openings = [
  "Once upon a time",
  "The princess",
  "A wolf",
  "In the forest",
  "The old king said",
  "There was a boy",
];

interface Ask {
  readonly prompt: string | readonly number[];
  readonly temperature: number;
  readonly seed: number;
  readonly max_tokens: number;
  readonly ignore_eos?: boolean;
}

/** The questions, each with an answer of its own: what is asked before and beside it must not matter. */
const asks: Ask[] = openings.flatMap((prompt, i) =>
  [0, 0.9].map((temperature, j) => ({ prompt, temperature, seed: 10 * i + j, max_tokens: 2 + ((i + j) % 3) })),
);
/** Together these want more pages than there are, after they have begun. */
const longs: Ask[] = Array.from({ length: 8 }, (_, seed) => ({
  prompt: Array.from({ length: 60 }, (_, k) => 300 + k),
  temperature: 0.9,
  seed,
  max_tokens: 75,
  ignore_eos: true,
}));

const post = (body: unknown, init: RequestInit = {}) =>
  fetch(`${server.address}/v1/completions`, { method: "POST", headers, body: JSON.stringify(body), ...init });

/** The text of an answer, or the code of the error in its place. */
async function answerOf(response: Response): Promise<{ text: string } | { code: string }> {
  const body = await response.text();
  const events = body.startsWith("data:") ? eventsOf(body) : [JSON.parse(body)];
  const parts = events.filter((event) => event !== "[DONE]") as {
    error?: { code: string };
    choices?: { text: string }[];
  }[];
  const failed = parts.find(({ error }) => error)?.error;
  if (failed) return { code: failed.code };
  if (body.startsWith("data:") && events.at(-1) !== "[DONE]") return { code: "cut short" };
  return { text: parts.flatMap(({ choices }) => (choices ?? []).map((choice) => choice.text)).join("") };
}

/** A client that reads nothing for a while, and then all. */
async function slowly(body: unknown, ms: number): Promise<string> {
  const sent = httpRequest(`${server.address}/v1/completions`, { method: "POST", headers });
  sent.end(JSON.stringify(body));
  const [response] = (await once(sent, "response")) as [import("node:http").IncomingMessage];
  await delay(ms);
  return text(response);
}

const isQuiet = async (): Promise<boolean> => {
  const metrics = await server.metrics(headers);
  const of = (name: string) => metrics.get(name)!;
  const model = '{model="fable-7m"}';
  return (
    of(`wick_running${model}`) === 0 &&
    of(`wick_waiting${model}`) === 0 &&
    of("wick_requests_active") === 1 &&
    of('wick_cache_pages{model="fable-7m",state="used"}') === 0
  );
};

/** Clients of all kinds, mixed by their number. */
async function crowd(count: number, expected: readonly string[]): Promise<{ right: number; refused: string[] }> {
  let right = 0;
  const refused: string[] = [];
  const one = async (i: number): Promise<void> => {
    const which = i % asks.length;
    const body = { ...asks[which]!, stream: i % 2 === 0 };
    if (i % 3 === 0) {
      // Leaves midway, sooner or later.
      const leave = new AbortController();
      const left = post({ ...body, max_tokens: 50 }, { signal: leave.signal })
        .then((response) => response.text())
        .catch(() => {});
      await delay((i * 7) % 400);
      leave.abort();
      await left;
    } else if (i % 50 === 1) {
      expect([400, 413]).toContain((await post(i % 100 === 1 ? "x".repeat(30_000) : [], {})).status);
    } else if (i % 50 === 2) {
      const wrong = { ...headers, authorization: "Bearer no" };
      expect((await post(body, { headers: wrong })).status).toBe(401);
    } else {
      const answer = await answerOf(await post(body));
      if ("code" in answer) refused.push(answer.code);
      else {
        expect({ i, text: answer.text }).toEqual({ i, text: expected[which] });
        right++;
      }
    }
  };
  await Promise.all(Array.from({ length: count }, (_, i) => one(i)));
  return { right, refused };
}

it("gives 1,000 clients of all kinds their own answers, with too small a cache, and keeps nothing", async () => {
  const textsOf = async (asked: readonly Ask[]) => Promise.all(asked.map(async (ask) => answerOf(await post(ask))));
  const expected: string[] = [];
  for (const ask of asks) expected.push(((await answerOf(await post(ask))) as { text: string }).text);
  expect(new Set(expected).size).toBeGreaterThan(6);
  const alone = [
    ...(await textsOf(longs.slice(0, 3))),
    ...(await textsOf(longs.slice(3, 6))),
    ...(await textsOf(longs.slice(6))),
  ];
  const before = await server.metrics(headers);
  expect(await textsOf(longs)).toEqual(alone);
  const preemptions = 'wick_preemptions_total{model="fable-7m"}';
  expect((await server.metrics(headers)).get(preemptions)).toBeGreaterThan(before.get(preemptions)!);
  const slow = slowly({ ...longs[0], stream: true }, 1500);
  const { right, refused } = await crowd(1000, expected);
  expect(right).toBeGreaterThan(600);
  expect(refused.filter((code) => !["too_many_requests", "out_of_memory"].includes(code))).toEqual([]);
  // Who reads slowly gets all of it, and nobody waited for it.
  expect(eventsOf(await slow).at(-1)).toBe("[DONE]");
  await expect.poll(isQuiet, { timeout: 5000 }).toBe(true);
  const after = await server.metrics(headers);
  const live = 'wick_device_memory_bytes{device="cpu",state="live"}';
  expect(after.get(live)).toBe(before.get(live));
  // What a second crowd leaves behind is what JavaScript has not collected yet.
  await crowd(200, expected);
  await expect.poll(isQuiet, { timeout: 5000 }).toBe(true);
  const rss = "process_resident_memory_bytes";
  expect((await server.metrics(headers)).get(rss)! - after.get(rss)!).toBeLessThan(48 * 2 ** 20);
}, 120_000);

it("finishes what runs when it is told to end, and takes no more", async () => {
  const body = { prompt: "Once upon a time", max_tokens: 24, ignore_eos: true, stream: true, temperature: 0 };
  const running = Array.from({ length: 24 }, () => post(body));
  // All have been taken.
  const responses = await Promise.all(running);
  const ended = server.stop("SIGTERM");
  await expect.poll(() => server.log(), { timeout: 10_000 }).toMatch(/"event":"draining"/);
  const late = await post(body).then(answerOf, (error: Error) => ({ code: error.message }));
  expect(late).toMatchObject({ code: expect.stringMatching(/shutting_down|fetch failed/) });
  const texts = await Promise.all(responses.map(answerOf));
  expect(new Set(texts.map((answer) => ("text" in answer ? answer.text : answer.code))).size).toBe(1);
  expect(texts[0]).toHaveProperty("text");
  expect(await ended).toBe(0);
  expect(server.log()).toMatch(/"event":"draining".*"event":"ended"/s);
}, 60_000);

it("ends at once when it is told twice, and says why it cannot start", async () => {
  await using other = await startServe(cli, []);
  const body = { prompt: "Once", max_tokens: 500, ignore_eos: true };
  const left = fetch(`${other.address}/v1/completions`, { method: "POST", headers, body: JSON.stringify(body) });
  left.catch(() => {});
  const running = async () => (await other.metrics()).get('wick_running{model="fable-7m"}');
  await expect.poll(running, { timeout: 10_000 }).toBe(1);
  other.child.kill("SIGINT");
  // Of two signals at once a process hears one.
  await expect.poll(() => other.log(), { timeout: 10_000 }).toMatch(/"event":"draining"/);
  expect(await other.stop("SIGINT")).toBe(130);
  await expect(startServe(cli, ["/no/such/model.gguf"])).rejects.toThrow(/ended with 1: .*cannot be opened/s);
  await expect(startServe(cli, ["--host", "0.0.0.0"])).rejects.toThrow(/ended with 2: .*give a key/s);
});
