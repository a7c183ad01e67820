// Steps of decoding at one rank and at two over MPI, beside what the formulas of `wick plan` make of the first: the time of a
// collective is measured by itself, what the host does for a layer with a model whose matrices are next to nothing.
// Needs mpirun and `npm run build`: node scripts/scaling-measured.mjs MODEL SMALL [--rounds 5] [--json]
// SMALL is a model of the same architecture with small layers, as test/data/models/tiny/llama.
import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";

const args = process.argv.slice(2);
const [model, small] = args;
const rounds = Number(args[args.indexOf("--rounds") + 1] || 5) || 5;
const program = fileURLToPath(new URL("scaling-rank.mjs", import.meta.url));

/** One thread to each rank; the slowest rank's times. */
function measure(ranks, path) {
  const env = { ...process.env, WICK_THREADS: "1", OMPI_ALLOW_RUN_AS_ROOT: "1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM: "1" };
  const { stdout, stderr } = spawnSync("mpirun", ["-n", `${ranks}`, process.execPath, program, path], {
    encoding: "utf8",
    env,
  });
  const line = stdout.trim().split("\n").at(-1);
  if (!line) throw new Error(stderr);
  const { all, library } = JSON.parse(line);
  const most = (field) => Math.max(...all.map((own) => own[field]));
  const { layers, callsPerToken, bytesPerToken } = all[0];
  return {
    library,
    layers,
    callsPerToken,
    bytesPerToken,
    step: most("fastest") / 1e3,
    reduce: most("reduce") / 1e6,
    gather: most("gather") / 1e6,
    weights: most("weights"),
  };
}

/** Of several rounds, taken in turns, the fastest: what else the machine does makes others slower. */
const runs = Array.from({ length: rounds }, () => ({
  one: measure(1, model),
  two: measure(2, model),
  tiny: measure(1, small),
}));
const least = (name) => runs.map((run) => run[name]).reduce((a, b) => (a.step <= b.step ? a : b));
const [one, two, tiny] = ["one", "two", "tiny"].map(least);
const host = (tiny.step / tiny.layers) * one.layers;
const links = (two.callsPerToken - 1) * two.reduce + two.gather;
const simulated = host + (one.step - host) * (two.weights / one.weights) + links;
const result = {
  library: two.library,
  tokensPerSecond: [1 / one.step, 1 / two.step],
  simulated: 1 / simulated,
  off: simulated / two.step - 1,
  bytesPerToken: two.bytesPerToken,
  weights: [one.weights, two.weights],
  microseconds: { host: host * 1e6, links: links * 1e6, reduce: two.reduce * 1e6, gather: two.gather * 1e6 },
};
console.log(
  JSON.stringify(result, (_, value) => (typeof value === "number" ? Number(value.toPrecision(5)) : value), 1),
);
