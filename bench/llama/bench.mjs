// Wick beside node-llama-cpp (llama.cpp, native code) on the same GGUF files, on the CPU: prompt and decode rates of
// models, and the mat-vec of a large quantized layer.
import { execFile } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs, promisify } from "node:util";
import { matrixBytes, WIDTH, writeLayers } from "./layers.mjs";
import { models } from "./models.mjs";
import { median, printTable } from "./tables.mjs";

const { values } = parseArgs({
  options: {
    threads: { type: "string", default: "1" },
    rounds: { type: "string", default: "3" },
    prompt: { type: "string", default: "128" },
    tokens: { type: "string", default: "128" },
    only: { type: "string", default: "models,matvec" },
    json: { type: "string" },
  },
});
const [wick, llama] = ["wick", "node-llama-cpp"];
const libraries = [wick, llama];

/** A fresh process each time; only one works at a time. */
async function measure(script, args) {
  const child = fileURLToPath(new URL(script, import.meta.url));
  const { stdout } = await promisify(execFile)(process.execPath, [child, ...args]);
  return JSON.parse(stdout);
}

/** By library: the medians over the rounds of what `script` prints. */
async function takeTurns(script, args) {
  const rounds = new Map(libraries.map((library) => [library, []]));
  // The order rotates, so that drift of the machine hits both alike.
  for (let round = 0; round < Number(values.rounds); round++) {
    for (let i = 0; i < libraries.length; i++) {
      const library = libraries[(i + round) % libraries.length];
      rounds.get(library).push(await measure(script, [library, ...args]));
    }
  }
  const medians = (all) => Object.keys(all[0]).map((key) => [key, median(all.map((one) => one[key]))]);
  return new Map([...rounds].map(([library, all]) => [library, Object.fromEntries(medians(all))]));
}

async function benchModels(folder, threadCounts) {
  const results = [];
  const files = await models(folder);
  for (const threads of threadCounts) {
    for (const [model, path] of files) {
      const measured = await takeTurns("child.mjs", [path, threads, values.prompt, values.tokens]);
      for (const [library, rates] of measured) results.push({ threads: Number(threads), model, library, ...rates });
    }
  }
  printTable([
    ["threads", "model", "library", "prompt tokens/s", "decode tokens/s"],
    ...results.map((r) => [`${r.threads}`, r.model, r.library, r.prompt.toFixed(0), r.decode.toFixed(1)]),
  ]);
  return results;
}

/** A mat-vec is what a decoded token takes longer with three layers than with one, shared among their matrices. */
async function benchMatvec(folder, threadCounts) {
  const results = [];
  for (const type of ["Q8_0", "Q4_K"]) {
    const files = [];
    for (const layers of [1, 3]) {
      const path = join(folder, `layers-${layers}.${type}.gguf`);
      await writeLayers(path, type, layers);
      files.push(`${layers}`, path);
    }
    for (const threads of threadCounts) {
      const measured = await takeTurns("matvec-child.mjs", [type, threads, ...files]);
      const peer = measured.get(llama).decode;
      const { decode, op, read } = measured.get(wick);
      const row = (library, by, seconds, bytes = matrixBytes(type)) => ({
        threads: Number(threads),
        matvec: `${type} ${WIDTH}×${WIDTH}`,
        library,
        by,
        // A difference may drown in what else the machine does.
        microseconds: seconds > 0 ? seconds * 1e6 : null,
        gigabytesPerSecond: seconds > 0 ? bytes / seconds / 1e9 : null,
        ofLlama: seconds > 0 && peer > 0 ? peer / seconds : null,
      });
      results.push(row(wick, "decoding", decode), row(llama, "decoding", peer), row(wick, "the op", op));
      // What reading that many bytes takes where nothing is computed but their sum.
      results.push(row(wick, "a sum", matrixBytes(type) / read));
    }
    for (const path of files.filter((_, i) => i % 2 === 1)) await rm(path);
  }
  printTable([
    ["threads", "mat-vec", "library", "by", "µs", "GB/s", "speed / llama.cpp's"],
    ...results.map((r) => [
      `${r.threads}`,
      r.matvec,
      r.library,
      r.by,
      r.microseconds?.toFixed(0) ?? "noise",
      r.gigabytesPerSecond?.toFixed(1) ?? "",
      r.ofLlama === null ? "" : `${r.ofLlama.toFixed(2)}×`,
    ]),
  ]);
  return results;
}

const workloads = { models: benchModels, matvec: benchMatvec };
const chosen = values.only.split(",");
const unknown = chosen.find((name) => !Object.hasOwn(workloads, name));
if (unknown !== undefined) throw new Error(`--only ${unknown}: choose from ${Object.keys(workloads).join(", ")}`);

const folder = await mkdtemp(join(tmpdir(), "wick-bench-"));
const results = [];
try {
  for (const name of chosen) results.push(...(await workloads[name](folder, values.threads.split(","))));
} finally {
  await rm(folder, { recursive: true, force: true });
}
if (values.json) await writeFile(values.json, JSON.stringify(results, null, 2));
