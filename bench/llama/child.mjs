// One library, one model, one process: prints the rates up to the first token and from there to the last.
import { libraries, timeTokens } from "./libraries.mjs";

const [library, path, threads, promptTokens, tokens] = process.argv.slice(2);
const count = Number(tokens);
const prompt = Array.from({ length: Number(promptTokens) }, (_, i) => 3 + ((7919 * (i + 1)) % 4000));

const load = await libraries[library](Number(threads));
const start = await load(path, Math.min(prompt.length + count + 8, 512));
const runs = [];
for (let run = 0; run < 4; run++) {
  const [from, first, ...rest] = await timeTokens(start, prompt, count);
  // The first run warms up.
  if (run > 0) runs.push({ prompt: prompt.length / (first - from), decode: rest.length / (rest.at(-1) - first) });
}
const best = (key) => Math.max(...runs.map((run) => run[key])) * 1000;
process.stdout.write(JSON.stringify({ prompt: best("prompt"), decode: best("decode") }));
process.exit(0);
