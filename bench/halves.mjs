// Products of f16 and bf16 beside those of f32, by turns in one process, medians of many short turns:
//   node bench/halves.mjs [--threads N] [--sizes 256,512,…]
import { parseArgs } from "node:util";
import { median } from "./median.mjs";

const { values: options } = parseArgs({
  options: { threads: { type: "string", default: "1" }, sizes: { type: "string", default: "256,512,1024,2048" } },
});
// It is read when the library loads, hence the late import.
process.env.WICK_THREADS = options.threads;
const { Tensor } = await import("../dist/index.js");

const ROUNDS = 21;
const TURN_MS = 50;
const dtypes = ["f32", "f16", "bf16"];

/** Milliseconds of each run within a turn. */
function turn(run, ms) {
  const times = [];
  const until = performance.now() + ms;
  for (let now = performance.now(); now < until || times.length < 3; ) {
    run();
    const end = performance.now();
    times.push(end - now);
    now = end;
  }
  return median(times);
}

console.log(`GFLOP/s, ${options.threads} thread${options.threads === "1" ? "" : "s"}`);
for (const n of options.sizes.split(",").map(Number)) {
  const runs = dtypes.map((dtype) => {
    const [a, b] = [1, 2].map((seed) => Tensor.randn([n, n], { seed, dtype }));
    return () => a.matmul(b).dispose();
  });
  for (const run of runs) turn(run, 200);
  const times = runs.map(() => []);
  for (let round = 0; round < ROUNDS; round++) {
    for (let i = 0; i < runs.length; i++) {
      const which = (i + round) % runs.length;
      times[which].push(turn(runs[which], TURN_MS));
    }
  }
  const rates = times.map((all) => (2 * n ** 3) / median(all) / 1e6);
  const cells = rates.map(
    (rate, i) => `${dtypes[i]} ${rate.toFixed(1)}${i ? ` (${(rate / rates[0]).toFixed(2)}×)` : ""}`,
  );
  console.log(`matmul ${n}³`.padEnd(14), cells.join("  "));
}
process.exit(0);
