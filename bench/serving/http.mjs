// `wick serve` as a process of its own, driven by HTTP, on any device:
//   node bench/serving/http.mjs DEVICE [--model NAME] [--at-once 1,8,32,64] [--tokens 128] [--rounds 2] [--dist PATH] [--json FILE]
//     [--only checks,rates]
// Without --model it is the bundled one. `checks`: in the batch-invariant mode (which the CPU is always in), chats, streams, texts of
// a seed and JSON of a schema, as many as the largest of --at-once, get when they come together what each got alone; clients that leave leave nothing behind;
// SIGTERM lets what runs finish. `rates`: without the mode, so many streams at once: their tokens per second, and the time to the
// first token, as a client sees it; and how many texts are others than alone. Exits 1 where a check fails.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { writeFileSync } from "node:fs";
import { resolve } from "node:path";
import { setTimeout as delay } from "node:timers/promises";

const args = process.argv.slice(2);
const option = (name, otherwise) => (args.includes(name) ? args[args.indexOf(name) + 1] : otherwise);
const device = args[0]?.startsWith("--") ? "cpu" : (args[0] ?? "cpu");
const main = resolve(option("--dist", new URL("../../dist", import.meta.url).pathname), "cli/main.js");
const atOnce = option("--at-once", "1,8,32,64").split(",").map(Number);
const most = Math.max(...atOnce);
const tokens = Number(option("--tokens", "128"));
const rounds = Number(option("--rounds", "2"));
const only = option("--only", "checks,rates").split(",");
const results = { device };
const began = performance.now();

function report(name, values) {
  results[name] = values;
  const text = Object.entries(values).map(
    ([key, value]) => `${key} ${typeof value === "number" ? +value.toPrecision(4) : value}`,
  );
  console.log(
    `${((performance.now() - began) / 1000).toFixed(1).padStart(6)} s  ${name.padEnd(16)} ${text.join("  ")}`,
  );
  if (option("--json")) writeFileSync(option("--json"), JSON.stringify(results, null, 1));
}
function check(name, isRight, values = {}) {
  report(name, { ...values, is: isRight ? "right" : "WRONG" });
  if (!isRight) process.exitCode = 1;
}

/** A server that listens; `stop` tells it to end and gives its exit code. */
async function start(...more) {
  const model = option("--model") ? [option("--model")] : [];
  const child = spawn(
    process.execPath,
    [main, "serve", ...model, "--port", "0", "--device", device, "--log", "none", "--batch", String(most), ...more],
    { stdio: ["ignore", "pipe", "inherit"] },
  );
  const exited = once(child, "exit");
  const address = await new Promise((listening, reject) => {
    child.stdout.on("data", (data) => {
      const found = /listening on (\S+)/.exec(String(data))?.[1];
      if (found) listening(found);
    });
    exited.then(([code]) => reject(new Error(`wick serve ended with ${code}; was it built?`)));
  });
  const get = async (path) => (await fetch(`${address}${path}`)).text();
  return {
    address,
    get,
    /** Of /metrics, by its name and labels. */
    async metric(name) {
      const line = (await get("/metrics"))
        .split("\n")
        .find((text) => text.startsWith(`${name} `) || text.startsWith(`${name}{`));
      return Number(line?.split(" ").at(-1));
    },
    async stop() {
      child.kill("SIGTERM");
      return (await exited)[0];
    },
  };
}

const openings = [
  "Once upon a time",
  "The princess",
  "A wolf",
  "In the forest",
  "The old king said",
  "There was a boy who",
];
const schema = {
  type: "object",
  properties: { name: { type: "string", maxLength: 12 }, age: { type: "integer" } },
  required: ["name", "age"],
};
const format = { type: "json_schema", json_schema: { name: "person", schema } };
/** Questions of every kind, each other than the ones before it. */
function question(i) {
  const content = `${openings[i % openings.length]} ${i}`;
  const settings = { seed: i, temperature: i % 2 === 0 ? 0 : 0.9, max_tokens: 8 + (i % 5) * 12 };
  if (i % 4 === 0) return ["completions", { prompt: content, ...settings }];
  const chat = { messages: [{ role: "user", content }], ...settings, stream: i % 4 === 2 };
  return ["chat/completions", i % 4 === 3 ? { ...chat, max_tokens: 60, response_format: format } : chat];
}

const post = ({ address }, [route, body], init = {}) =>
  fetch(`${address}/v1/${route}`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
    ...init,
  });

/** The parts of a stream as they come; `onPart` gets each. */
async function streamed(response, onPart) {
  let rest = "";
  let ended = false;
  const decoder = new TextDecoder();
  for await (const bytes of response.body) {
    const lines = (rest + decoder.decode(bytes, { stream: true })).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ")) continue;
      if (line === "data: [DONE]") ended = true;
      else onPart(JSON.parse(line.slice(6)));
    }
  }
  if (!ended) throw new Error("the stream was cut short");
}
const textOf = ({ choices }) =>
  choices.map(({ text, message, delta }) => text ?? (message ?? delta).content ?? "").join("");

/** The whole text of an answer; an error's code where there is one instead. */
async function answer(server, asked) {
  const response = await post(server, asked);
  if (!response.ok) return (await response.json()).error.code;
  if (!asked[1].stream) return textOf(await response.json());
  const parts = [];
  await streamed(response, (part) => parts.push(textOf(part)));
  return parts.join("");
}

async function checks() {
  const server = await start("--batch-invariant");
  check("health", JSON.parse(await server.get("/health")).status === "ok", {
    models: JSON.parse(await server.get("/v1/models"))
      .data.map(({ id }) => id)
      .join(),
  });
  const questions = Array.from({ length: most }, (_, i) => question(i));
  const alone = [];
  for (const asked of questions) alone.push(await answer(server, asked));
  const together = await Promise.all(questions.map((asked) => answer(server, asked)));
  const others = together.filter((text, i) => text !== alone[i]).length;
  check("same texts", others === 0 && new Set(alone).size > most / 2, { requests: most, others });
  const objects = alone.filter((_, i) => i % 4 === 3).map((text) => JSON.parse(text));
  check(
    "json_schema",
    objects.every(({ name, age }) => typeof name === "string" && Number.isInteger(age)),
    {
      objects: objects.length,
    },
  );
  await Promise.all(
    questions.map(async ([, body], i) => {
      const leave = new AbortController();
      const long = [
        "completions",
        { prompt: `${openings[i % 6]} ${i}`, max_tokens: 200, stream: body.stream ?? false },
      ];
      setTimeout(() => leave.abort(), 20 + i);
      await post(server, long, { signal: leave.signal })
        .then((response) => response.text())
        .catch(() => {});
    }),
  );
  // The client has gone before the server knows.
  for (let i = 0; i < 50 && (await server.metric("wick_requests_active")) > 1; i++) await delay(20);
  const again = await answer(server, questions[1]);
  const [active, running] = [await server.metric("wick_requests_active"), await server.metric("wick_running")];
  check("aborts", active === 1 && running === 0 && again === alone[1], { "left behind": running });
  const answers = questions.map((asked) => answer(server, asked));
  await delay(10);
  const code = await server.stop();
  const drained = await Promise.all(answers.map((text) => text.catch(() => null)));
  const finished = drained.filter((text, i) => text === alone[i]).length;
  const lost = drained.filter((text, i) => text !== alone[i] && text !== "server_closing" && text !== null).length;
  check("SIGTERM", code === 0 && lost === 0 && finished > 0, {
    finished,
    refused: most - finished - lost,
    "mixed up": lost,
  });
}

const quantile = (values, q) =>
  values.toSorted((a, b) => a - b)[Math.min(values.length - 1, Math.floor(q * values.length))];

/** A stream's text, when its first and its last part came, and how many tokens it has. */
async function timed(server, i) {
  const start = performance.now();
  const prompt = `${openings[i % openings.length]} ${i}`;
  const settings = { max_tokens: tokens, stream: true, stream_options: { include_usage: true }, ignore_eos: true };
  const response = await post(server, ["completions", { prompt, temperature: 0, ...settings }]);
  let [first, text, said] = [0, "", 0];
  await streamed(response, (part) => {
    if (part.choices.length > 0) first ||= performance.now() - start;
    text += textOf(part);
    said = part.usage?.completion_tokens ?? said;
  });
  return { first, text, said };
}

async function rates() {
  const server = await start();
  await timed(server, 0);
  const alone = [];
  for (let i = 0; i < most; i++) alone.push(await timed(server, i));
  let single = 0;
  for (const count of atOnce) {
    const runs = [];
    for (let round = 0; round <= rounds; round++) {
      const from = performance.now();
      const answers = await Promise.all(Array.from({ length: count }, (_, i) => timed(server, i)));
      const seconds = (performance.now() - from) / 1000;
      // The first may compile and record.
      if (round > 0) runs.push({ seconds, answers });
    }
    const { seconds, answers } = runs.toSorted((a, b) => a.seconds - b.seconds)[0];
    const rate = answers.reduce((sum, { said }) => sum + said, 0) / seconds;
    single ||= rate / count;
    const firsts = answers.map(({ first }) => first);
    report(`× ${count}`, {
      "tokens/s": rate,
      gain: rate / single,
      "first token ms p50": quantile(firsts, 0.5),
      p99: quantile(firsts, 0.99),
      "other texts than alone": answers.filter(({ text }, i) => text !== alone[i].text).length,
    });
  }
  check("end", (await server.stop()) === 0);
}

if (only.includes("checks")) await checks();
if (only.includes("rates")) await rates();
