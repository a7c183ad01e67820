// Prompt and decode rates of Wick beside node-llama-cpp (llama.cpp, native code) on the same GGUF files, on the CPU.
import { execFile } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs, promisify } from "node:util";
import { models } from "./models.mjs";

const { values } = parseArgs({
  options: {
    threads: { type: "string", default: "1" },
    rounds: { type: "string", default: "3" },
    prompt: { type: "string", default: "128" },
    tokens: { type: "string", default: "128" },
    json: { type: "string" },
  },
});
const libraries = ["wick", "node-llama-cpp"];
const child = fileURLToPath(new URL("child.mjs", import.meta.url));

/** A fresh process each time; only one works at a time. */
async function measure(library, path, threads) {
  const args = [child, library, path, threads, values.prompt, values.tokens];
  const { stdout } = await promisify(execFile)(process.execPath, args);
  return JSON.parse(stdout);
}

const median = (numbers) => numbers.toSorted((a, b) => a - b)[numbers.length >> 1];
const folder = await mkdtemp(join(tmpdir(), "wick-bench-"));
const results = [];
try {
  const files = await models(folder);
  for (const threads of values.threads.split(",")) {
    for (const [name, path] of files) {
      const rounds = libraries.map(() => []);
      // The order rotates, so that drift of the machine hits both alike.
      for (let round = 0; round < Number(values.rounds); round++) {
        for (let i = 0; i < libraries.length; i++) {
          const at = (i + round) % libraries.length;
          rounds[at].push(await measure(libraries[at], path, threads));
        }
      }
      for (const [i, library] of libraries.entries()) {
        const of = (key) => median(rounds[i].map((round) => round[key]));
        results.push({ threads: Number(threads), model: name, library, prompt: of("prompt"), decode: of("decode") });
      }
    }
  }
} finally {
  await rm(folder, { recursive: true, force: true });
}

const cells = [
  ["threads", "model", "library", "prompt tokens/s", "decode tokens/s"],
  ...results.map((r) => [`${r.threads}`, r.model, r.library, r.prompt.toFixed(0), r.decode.toFixed(1)]),
];
const widths = cells[0].map((_, c) => Math.max(...cells.map((row) => row[c].length)));
for (const row of cells) {
  console.log(
    row
      .map((cell, c) => cell.padEnd(widths[c]))
      .join("  ")
      .trimEnd(),
  );
}
if (values.json) await writeFile(values.json, JSON.stringify(results, null, 2));
