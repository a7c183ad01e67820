// Runs every workload on every library, round-robin, and prints rates side by side. See README.md.
import { writeFileSync } from "node:fs";
import { availableParallelism, cpus } from "node:os";
import { resolve } from "node:path";
import { parseArgs } from "node:util";
import { Library } from "./library.mjs";
import { median } from "./median.mjs";
import { ceilings } from "./peers/machine.mjs";
import { printHeader, printRow } from "./report.mjs";
import { workloads } from "./workloads.mjs";

const LIBRARIES = ["wick", "tfjs", "jax-js", "onnxruntime-web", "onnxruntime-node"];

const { values: options } = parseArgs({
  options: {
    threads: { type: "string", default: "1" },
    only: { type: "string" },
    libraries: { type: "string", default: LIBRARIES.join(",") },
    quick: { type: "boolean", default: false },
    json: { type: "string" },
  },
});
// Many short turns: what disturbs the machine for a second meets all libraries alike, and no more than a few turns of each.
const pace = { rounds: options.quick ? 2 : 15, ms: 50 };

/** A comma-separated option, each part checked against what exists. */
function chosen(option, known) {
  const names = options[option]?.split(",") ?? known;
  const unknown = names.filter((name) => !known.includes(name));
  if (unknown.length > 0) throw new Error(`--${option} ${unknown}: not among ${known.join(", ")}`);
  return names;
}

const unitOf = (workload) => (workload.flops ? "flops" : "bytes");
/** GFLOP/s or GB/s. */
const rate = (workload, ms) => (workload.flops ?? workload.bytes) / ms / 1e6;

/** One row: each round measures every library once, starting with another one each time, and the ceiling. */
async function measure(workload, libraries, machines) {
  const ceiling = ceilings[unitOf(workload)];
  const samples = new Map(libraries.map((library) => [library, []]));
  const ceilingRates = [];
  const errors = new Map();
  const attempt = async (library, action) => {
    if (errors.has(library)) return;
    try {
      await action();
    } catch (error) {
      errors.set(library, error.message);
    }
  };

  await Promise.all(machines.map((machine) => machine.ask("setup", ceiling)));
  for (const library of libraries) await attempt(library, () => library.ask("setup", workload));
  for (let round = 0; round < pace.rounds; round++) {
    for (let i = 0; i < libraries.length; i++) {
      const library = libraries[(i + round) % libraries.length];
      await attempt(library, async () => samples.get(library).push((await library.ask("measure", pace)).ms));
    }
    const together = await Promise.all(machines.map((machine) => machine.ask("measure", pace)));
    ceilingRates.push(together.reduce((sum, { ms }) => sum + rate(ceiling, ms), 0));
  }
  for (const library of [...libraries, ...machines]) await library.ask("release").catch(() => {});

  const results = libraries.map((library) => {
    if (errors.has(library)) return [library.name, { error: errors.get(library) }];
    const ms = median(samples.get(library));
    return [library.name, { ms, rate: rate(workload, ms), rounds: samples.get(library) }];
  });
  return { ...workload, unit: unitOf(workload), ceiling: median(ceilingRates), results: Object.fromEntries(results) };
}

async function runAll(threads, names, selected) {
  const libraries = names.map((name) => new Library(name, threads));
  const machines = Array.from({ length: threads }, () => new Library("machine", 1));
  for (const library of libraries) await library.greet();
  const run = {
    node: process.version,
    cpu: cpus()[0]?.model ?? "unknown CPU",
    cores: availableParallelism(),
    threads,
    libraries: libraries.map(({ name, version, threads: used, error }) => ({ name, version, threads: used, error })),
    rows: [],
  };
  printHeader(run);
  for (const workload of selected) {
    const row = await measure(workload, libraries, machines);
    printRow(row, run);
    run.rows.push(row);
  }
  for (const library of [...libraries, ...machines]) library.stop();
  return run;
}

try {
  const names = chosen("libraries", LIBRARIES);
  const ops = chosen("only", [...new Set(workloads.map(({ op }) => op))]);
  const counts = options.threads.split(",").map(Number);
  if (!counts.every((n) => Number.isInteger(n) && n > 0)) throw new Error(`--threads ${options.threads}: want counts`);
  const selected = workloads.filter(({ op }) => ops.includes(op));
  const runs = [];
  for (const threads of counts) runs.push(await runAll(threads, names, selected));
  // npm runs this from bench/; the file belongs where the user is.
  if (options.json)
    writeFileSync(resolve(process.env.INIT_CWD ?? "", options.json), `${JSON.stringify(runs, null, 2)}\n`);
} catch (error) {
  console.error(error.message);
  process.exit(1);
}
