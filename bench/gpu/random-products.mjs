// Random sizes, layouts, batches and dtypes of products by Wick's own kernels, against the same in f32, or in
// f64 those of f32, on the same device:
// node bench/gpu/random-products.mjs DEVICE [--dist DIR] [--runs N] [--seed S] [--seconds S]
// Exits 1 on a difference, with the seed that gives the case again.
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { draws } from "./draws.mjs";

process.env.WICK_BLAS = "none";
const args = process.argv.slice(2);
const option = (name, otherwise) => (args.includes(name) ? args[args.indexOf(name) + 1] : otherwise);
const dist = pathToFileURL(resolve(option("--dist", new URL("../../dist", import.meta.url).pathname))).href;
const { Device, Tensor, scope } = await import(`${dist}/index.js`);
const device = Device.from(args[0]?.startsWith("--") ? "cuda:0" : (args[0] ?? "cuda:0"));
const first = Number(option("--seed", 1));
const runs = Number(option("--runs", 300));
const deadline = performance.now() + 1000 * Number(option("--seconds", 60));

/** What a product of each dtype is compared with, and how much may be between them: rounding the result is all but a little of it. */
const dtypes = {
  bf16: { reference: "f32", bound: 3e-3 },
  f16: { reference: "f32", bound: 4e-4 },
  f32: { reference: "f64", bound: 1e-5 },
};

/** Sizes around those of tiles, and any: whole, cut, and of odd rows. */
const drawSize = ({ int, pick, chance }, most) =>
  chance(2) ? Math.max(1, pick([64, 128, 192, 256, 512, 1024]) + pick([-8, -1, 0, 0, 0, 1, 8])) : int(1, most);
function drawCase(d) {
  const [m, n] = [drawSize(d, 1200), drawSize(d, 1200)];
  const k = d.chance(3) ? d.int(2048, 6000) : drawSize(d, 1500);
  const lies = () => d.pick(["rows", "columns", "cut"]);
  return { dtype: d.pick(Object.keys(dtypes)), batch: d.chance(4) ? d.int(2, 3) : 1, m, n, k, a: lies(), b: lies() };
}

/** (batch, rows, cols), row by row, column by column, or inside of a larger one. */
function matrix({ dtype, batch }, rows, cols, lie, seed) {
  const random = (shape) => Tensor.randn(shape, { dtype, device, seed });
  if (lie === "columns") return random([batch, cols, rows]).transpose(1, 2);
  return lie === "rows"
    ? random([batch, rows, cols])
    : random([batch, rows + 3, cols + 9])
        .narrow(1, 2, rows)
        .narrow(2, 8, cols);
}

/** ‖own − wanted‖ / ‖wanted‖ */
function errorOf(c, seed) {
  const [a, b] = [matrix(c, c.m, c.k, c.a, seed), matrix(c, c.k, c.n, c.b, seed + 1)];
  const { reference } = dtypes[c.dtype];
  const wanted = a.toDType(reference).matmul(b.toDType(reference));
  const difference = a.matmul(b).toDType(reference).sub(wanted);
  return Math.sqrt(difference.sqr().sumAll().toScalarSync() / wanted.sqr().sumAll().toScalarSync());
}

let failures = 0;
let done = 0;
for (let seed = first; seed < first + runs && performance.now() < deadline; seed++, done++) {
  const c = drawCase(draws(seed));
  let problem;
  try {
    const error = scope(() => errorOf(c, seed));
    if (!(error < dtypes[c.dtype].bound)) problem = `an error of ${error}`;
  } catch (error) {
    problem = error.message;
  }
  if (problem) {
    failures++;
    console.log(`WRONG --seed ${seed} --runs 1: ${problem}\n  ${JSON.stringify(c)}`);
  }
  device.backend.trim();
}
console.log(`${device.name}: ${done} of ${runs} cases from seed ${first}, ${failures} wrong`);
process.exit(failures > 0 || done === 0 ? 1 : 0);
