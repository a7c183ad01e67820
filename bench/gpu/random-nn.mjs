// Random shapes, dtypes, layouts and options for the fused NN kernels, against the formulas op by op on the same device, and
// small ones against the CPU: node bench/gpu/random-nn.mjs DEVICE [--dist DIR] [--runs N] [--seed S] [--small] [--seconds S]
// Exits 1 on a difference, with the seed that gives the case again.
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { draws } from "./draws.mjs";
import { checkCase, drawCase, sizes } from "./nn-cases.mjs";

const args = process.argv.slice(2);
const option = (name, otherwise) => (args.includes(name) ? args[args.indexOf(name) + 1] : otherwise);
const dist = pathToFileURL(resolve(option("--dist", new URL("../../dist", import.meta.url).pathname))).href;
const { Device, Tensor, scope } = await import(`${dist}/index.js`);
const nn = await import(`${dist}/nn/index.js`);
const { composed } = await import(`${dist}/ops/composed/index.js`);
const sdpaReference = composed.sdpa;

const device = Device.from(args[0]?.startsWith("--") ? "cuda:0" : (args[0] ?? "cuda:0"));
const cpu = Device.from("cpu");
const first = Number(option("--seed", 1));
const runs = Number(option("--runs", 200));
const deadline = performance.now() + 1000 * Number(option("--seconds", 60));

let failures = 0;
let done = 0;
const counts = {};
for (let seed = first; seed < first + runs && performance.now() < deadline; seed++, done++) {
  const againstCpu = seed % 8 === 0;
  const c = drawCase(draws(seed), againstCpu || args.includes("--small") ? sizes.small : sizes.large);
  counts[c.kind] = (counts[c.kind] ?? 0) + 1;
  let problem;
  try {
    problem = checkCase({ Tensor, scope, nn, sdpaReference }, device, c, againstCpu ? cpu : device);
  } catch (error) {
    problem = error.message;
  }
  if (problem) {
    failures++;
    console.log(`WRONG --seed ${seed} --runs 1${againstCpu ? " (CPU)" : ""}: ${problem}\n  ${JSON.stringify(c)}`);
  }
  device.backend.trim();
}
const kinds = Object.entries(counts).map(([kind, n]) => `${kind} ${n}`);
console.log(`${device.name}: ${done} of ${runs} cases from seed ${first}, ${failures} wrong (${kinds.join(", ")})`);
process.exit(failures > 0 || done === 0 ? 1 : 0);
