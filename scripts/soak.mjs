// A server under load for a long time, with the curve of its memory: npm run soak -- --minutes 20
// Clients of all kinds ask without a pause: whole answers, streams, several at once, JSON of a schema, vectors, some that leave
// and some that are wrong. What they get is counted, the server's /metrics are noted, and in the end its memory must not have
// grown: neither all of it nor, by less, what lies outside JavaScript's heap, which has garbage in it that comes and goes. Writes docs/benchmarks/soak.json with --json, from which `npm run charts` draws the curve.
import { spawn } from "node:child_process";
import { writeFileSync } from "node:fs";
import { cpus } from "node:os";
import { setTimeout as delay } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const { values: options } = parseArgs({
  options: {
    minutes: { type: "string", default: "20" },
    clients: { type: "string", default: "16" },
    /** By how many MiB resident memory may grow between the second and the last quarter. */
    growth: { type: "string", default: "32" },
    /** The same of what is outside JavaScript's heap. */
    "native-growth": { type: "string", default: "16" },
    json: { type: "string" },
  },
});
const minutes = Number(options.minutes);
const path = (name) => fileURLToPath(new URL(`../${name}`, import.meta.url));

const child = spawn(
  process.execPath,
  [path("dist/cli/main.js"), "serve", "--port", "0", "--device", "cpu", "--log", "none", "--max-answers", "64"],
  { stdio: ["ignore", "pipe", "inherit"] },
);
const address = await new Promise((resolve, reject) => {
  child.stdout.on("data", (data) => {
    const found = /listening on (\S+)/.exec(String(data))?.[1];
    if (found) resolve(found);
  });
  child.once("exit", (code) => reject(new Error(`wick serve ended with ${code}; was it built?`)));
});

const post = (route, body, init = {}) =>
  fetch(`${address}/v1/${route}`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
    ...init,
  });
const messages = [{ role: "user", content: "Once upon a time there lived a king who had" }];
const schema = {
  type: "object",
  properties: { name: { type: "string", maxLength: 12 }, age: { type: "integer" } },
  required: ["name", "age"],
};

/** Kinds of requests; each gives whether all went as it should. */
const kinds = [
  async (n) => (await post("chat/completions", { messages, max_tokens: 1 + (n % 40) })).ok,
  async (n) => {
    const text = await (await post("completions", { prompt: `Tale ${n}`, max_tokens: 24, stream: true })).text();
    return text.trimEnd().endsWith("[DONE]");
  },
  async () => (await post("chat/completions", { messages, max_tokens: 8, n: 3, logprobs: true, top_logprobs: 3 })).ok,
  async () => {
    const format = { type: "json_schema", json_schema: { name: "person", schema } };
    const response = await post("chat/completions", { messages, max_tokens: 40, response_format: format });
    return typeof JSON.parse((await response.json()).choices[0].message.content).name === "string";
  },
  async () => (await (await post("embeddings", { input: ["a king", "a queen"] })).json()).data.length === 2,
  async (n) => {
    const leave = new AbortController();
    setTimeout(() => leave.abort(), n % 150);
    const body = { messages, max_tokens: 200, stream: n % 2 === 0 };
    return post("chat/completions", body, { signal: leave.signal })
      .then((response) => response.text())
      .then(
        () => true,
        (error) => error.name === "AbortError",
      );
  },
  async () => (await post("chat/completions", { messages, temperature: -1 })).status === 400,
];

const until = Date.now() + minutes * 60_000;
const counts = { requests: 0, wrong: 0 };
async function client(first) {
  for (let n = first; Date.now() < until; n += 7919) {
    const right = await kinds[n % kinds.length](n).catch(() => false);
    counts.requests++;
    if (!right) counts.wrong++;
  }
}

const started = Date.now();
const points = [];
async function note() {
  const text = await (await fetch(`${address}/metrics`)).text();
  const of = (name) =>
    Number(
      text
        .split("\n")
        .find((line) => line.startsWith(name))
        ?.split(" ")
        .at(-1),
    );
  const mib = (bytes) => Math.round((bytes / 2 ** 20) * 10) / 10;
  const resident = of("process_resident_memory_bytes");
  points.push({
    minute: Math.round((Date.now() - started) / 600) / 100,
    resident: mib(resident),
    native: mib(resident - of("nodejs_heap_total_bytes")),
    heap: mib(of("nodejs_heap_used_bytes")),
    tensors: mib(of("wick_device_memory_bytes")),
    tokens: of("wick_generated_tokens_total"),
    pages: of('wick_cache_pages{model="fable-7m",state="used"}'),
    active: of("wick_requests_active"),
  });
}

const clients = Array.from({ length: Number(options.clients) }, (_, i) => client(i));
const every = Math.max(1000, (minutes * 60_000) / 240);
while (Date.now() < until) {
  await note();
  await delay(Math.min(every, Math.max(0, until - Date.now())));
}
await Promise.all(clients);
await delay(500);
await note();
child.kill("SIGTERM");
const [code] = await new Promise((resolve) => child.once("exit", (...ended) => resolve(ended)));

const quarter = (i) => points.slice(Math.floor((i * points.length) / 4), Math.floor(((i + 1) * points.length) / 4));
const most = (i, field) => Math.max(...quarter(i).map((point) => point[field]));
const growth = (field) => most(3, field) - most(1, field);
const last = points.at(-1);
console.log(
  `${counts.requests} requests, ${last.tokens} tokens in ${minutes} minutes; ${counts.wrong} not as they should be`,
);
for (const [name, field] of [
  ["resident memory", "resident"],
  ["outside JavaScript's heap", "native"],
]) {
  console.log(`${name}: at most ${most(1, field)} MiB in the second quarter, ${most(3, field)} MiB in the last`);
}
console.log(`at the end ${last.active - 1} requests and ${last.pages} pages in use; the server ended with ${code}`);
if (options.json) {
  const machine = { cpu: cpus()[0].model, cores: cpus().length, node: process.version };
  writeFileSync(options.json, `${JSON.stringify({ machine, minutes, clients: clients.length, ...counts, points })}\n`);
}
const isFlat = growth("resident") <= Number(options.growth) && growth("native") <= Number(options["native-growth"]);
const isWell = counts.wrong === 0 && isFlat && last.pages === 0 && last.active === 1 && code === 0;
process.exitCode = isWell ? 0 : 1;
