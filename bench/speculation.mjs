// What speculation gains: tokens per second with and without, the same tokens checked, on a text with repetition:
//   node bench/speculation.mjs [DEVICE] [--dist PATH] [--model NAME] [--draft NAME] [--tokens N] [--rounds N] [--json FILE]
// The prompt is a text twice over, so that the model goes on with it again, as in summaries, edits and code.
import { writeFileSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

const args = process.argv.slice(2);
const option = (name, usual) => (args.includes(name) ? args[args.indexOf(name) + 1] : usual);
const here = new URL("..", import.meta.url).pathname;
const dist = pathToFileURL(resolve(option("--dist", `${here}dist`))).href;
const { draftModel, loadModel, promptLookup } = await import(`${dist}/models/index.js`);

const device = args[0]?.startsWith("--") ? "cpu" : (args[0] ?? "cpu");
const name = option("--model", `${here}models/fable-7m.Q8_0.gguf`);
const maxTokens = Number(option("--tokens", "128"));
const rounds = Number(option("--rounds", "5"));

const model = await loadModel(name, { device });
const draft = args.includes("--draft") ? await loadModel(option("--draft"), { device }) : undefined;
const ways = [
  ["alone", () => undefined],
  ["prompt lookup", () => promptLookup()],
  ...(draft ? [["draft model", () => draftModel(draft)]] : []),
];

/** The model's own continuation, told twice and begun once more: it is likely to tell it again. */
async function repetition() {
  const start = model.tokenizer?.encode("Once upon a time") ?? [1, 2, 3, 4];
  const told = [...start, ...(await run(start, undefined, Math.min(96, maxTokens))).tokens];
  return [...told, ...told, ...told.slice(0, 8)];
}

async function run(prompt, speculation, count = maxTokens) {
  const tokens = [];
  let first = 0;
  for await (const { token } of model.generate(prompt, { maxTokens: count, ignoreEos: true, speculation })) {
    if (tokens.push(token) === 1) first = performance.now();
  }
  return { tokens, rate: ((tokens.length - 1) * 1000) / (performance.now() - first) };
}

const median = (values) => values.toSorted((a, b) => a - b)[values.length >> 1];
const prompt = await repetition();
const rates = new Map(ways.map(([way]) => [way, []]));
const guesses = new Map();
let expected;
for (let round = 0; round <= rounds; round++) {
  for (const [way, open] of ways) {
    const speculation = open();
    const { tokens, rate } = await run(prompt, speculation);
    expected ??= tokens;
    if (tokens.some((token, i) => token !== expected[i])) {
      const at = tokens.findIndex((token, i) => token !== expected[i]);
      console.error(`${way}: token ${at} is not that of the model alone`);
      process.exitCode = 1;
    }
    if (round > 0) rates.get(way).push(rate);
    guesses.set(way, speculation ? `${speculation.accepted} of ${speculation.drafted} guesses right` : "");
    speculation?.[Symbol.dispose]?.();
  }
}
const alone = median(rates.get("alone"));
const rows = ways.map(([way]) => ({
  way,
  tokensPerSecond: median(rates.get(way)),
  gain: median(rates.get(way)) / alone,
}));
console.log(`${model}; prompt ${prompt.length} tokens, ${maxTokens} generated, median of ${rounds}`);
for (const { way, tokensPerSecond, gain } of rows) {
  console.log(
    `${way.padEnd(16)}${tokensPerSecond.toFixed(1).padStart(9)} tokens/s  ${gain.toFixed(2)}×  ${guesses.get(way)}`,
  );
}
if (args.includes("--json")) writeFileSync(option("--json"), `${JSON.stringify({ device, rows }, null, 1)}\n`);
