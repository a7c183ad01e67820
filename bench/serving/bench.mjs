// Many requests at once through wick/serving's engine, on any device:
//   node bench/serving/bench.mjs DEVICE [--model PATH | --shape 1b|8b|…] [--tiny] [--dist PATH] [--json FILE]
//     [--only rates,arrivals,prefix,host] [--at-once 1,8,32,64,128] [--in 512] [--out 256] [--load 0.5] [--seconds 6] [--question 16]
// Without --model the weights are random ones in bf16, of a shape of bench/gpu/shapes.mjs.
// `rates`: so many requests submitted together, each with a prompt of its own; tokens of all answers per second, from the
// submission to the last token, prompts included. `share` is that of a limit: prompts at the rate at which the device
// multiplies large matrices, then as many steps as an answer has tokens, each of which reads the weights and all keys and
// values once at the rate at which it copies. `arrivals`: requests that come at random, `--load` times as many as the
// largest of the rates would bear, and how long each waits for its first token. `prefix`: the first token behind a system
// prompt that is new, and that is known. `host`: what the host does in a step.
import { writeFileSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { randomWeights } from "../gpu/random-weights.mjs";
import { configOf } from "../gpu/shapes.mjs";

const args = process.argv.slice(2);
const option = (name, otherwise) => (args.includes(name) ? args[args.indexOf(name) + 1] : otherwise);
const numbers = (name, otherwise) => option(name, otherwise).split(",").map(Number);
const dist = pathToFileURL(resolve(option("--dist", new URL("../../dist", import.meta.url).pathname))).href;
const { Device, Tensor } = await import(`${dist}/index.js`);
const { loadModel, Model } = await import(`${dist}/models/index.js`);
const { createEngine } = await import(`${dist}/serving/index.js`);

const device = Device.from(args[0]?.startsWith("--") ? "cpu" : (args[0] ?? "cpu"));
const tiny = args.includes("--tiny");
const only = option("--only", "rates,arrivals,prefix,host").split(",");
const atOnce = numbers("--at-once", tiny ? "1,2,4" : device.name === "cpu" ? "1,8" : "1,8,32,64,128");
const sizes = { in: +option("--in", tiny ? 40 : 512), out: +option("--out", tiny ? 12 : 256) };
const began = performance.now();
const results = { device: device.name };

function report(name, values) {
  results[name] = values;
  const text = Object.entries(values).map(
    ([key, value]) => `${key} ${Number.isInteger(value) ? value : +value.toPrecision(4)}`,
  );
  console.log(
    `${((performance.now() - began) / 1000).toFixed(1).padStart(6)} s  ${name.padEnd(14)} ${text.join("  ")}`,
  );
  const file = option("--json");
  if (file) writeFileSync(file, JSON.stringify(results, null, 1));
}

async function randomModel() {
  const { QTensor } = await import(`${dist}/quantized/index.js`);
  const { Transformer } = await import(`${dist}/models/transformer.js`);
  const { quantTypes } = await import(`${dist}/core/quant-types.js`);
  const { Matrices } = await import(`${dist}/models/projections.js`);
  const { Stack } = await import(`${dist}/models/stacks.js`);
  const shape = configOf(option("--shape", "1b"), tiny);
  const weights = randomWeights({ Tensor, QTensor, Matrices, Stack, quantTypes }, device, shape, null);
  const model = new Model(await Transformer.load(shape.config, weights, device, "bf16"), null, null);
  return { model, bytes: weights.bytes };
}

/** A model of a file; its weights are what it added to the device's memory. */
async function modelOf(path) {
  const before = device.memory().live;
  const model = await loadModel(path, { device });
  return { model, bytes: device.memory().live - before };
}

/** Seconds of one run, the best of some. */
async function best(rounds, run) {
  let least = Number.POSITIVE_INFINITY;
  for (let round = 0; round <= rounds; round++) {
    await device.synchronize();
    const start = performance.now();
    run();
    await device.synchronize();
    if (round > 0) least = Math.min(least, (performance.now() - start) / 1000);
  }
  return least;
}

/** Bytes per second of a copy, and operations per second of a large product. */
async function ceilings({ dtype }) {
  const small = tiny || device.name === "cpu";
  const copy = Tensor.zeros([small ? 2 ** 22 : 2 ** 28], { device }).keep();
  const size = small ? 512 : 8192;
  const square = Tensor.ones([size, size], { device, dtype }).keep();
  const copying = await best(4, () => copy.copy().dispose());
  const multiplying = await best(4, () => square.matmul(square).dispose());
  const found = { bytes: (8 * copy.numel) / copying, flops: (2 * size ** 3) / multiplying };
  copy.dispose();
  square.dispose();
  device.backend.trim?.();
  return found;
}

const { model, bytes } = option("--model") ? await modelOf(option("--model")) : await randomModel();
const { config } = model;
await device.synchronize();

let state = 1;
/** Numbers that only look random, on [0, 1). */
const random = () => {
  state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
  return state / 2 ** 32;
};
const promptOf = (length) => Array.from({ length }, () => Math.floor(random() * config.vocabSize));

/** Milliseconds from the submission to each token. */
async function answer(engine, prompt, maxTokens) {
  const start = performance.now();
  const times = [];
  for await (const _ of engine.submit({ prompt, maxTokens, ignoreEos: true })) times.push(performance.now() - start);
  return times;
}

const quantile = (values, q) =>
  values.toSorted((a, b) => a - b)[Math.min(values.length - 1, Math.floor(q * values.length))];

async function together(engine, count) {
  const prompts = Array.from({ length: count }, () => promptOf(sizes.in));
  const { steps } = engine.stats;
  const start = performance.now();
  const answers = await Promise.all(prompts.map((prompt) => answer(engine, prompt, sizes.out)));
  const seconds = (performance.now() - start) / 1000;
  return {
    seconds,
    steps: engine.stats.steps - steps,
    first: quantile(
      answers.map(([first]) => first),
      0.5,
    ),
  };
}

/** Seconds that the device would need if it did nothing but read and multiply. */
function limitOf(count, { bytes: copied, flops }) {
  const parameters = bytes / (device.name === "cpu" ? 4 : 2);
  const position = config.layers * 2 * config.kvHeads * config.headDim * (model.dtype === "f32" ? 4 : 2);
  const prompts = (count * sizes.in * 2 * parameters) / flops;
  return prompts + (sizes.out * (bytes + count * position * (sizes.in + sizes.out / 2))) / copied;
}

const most = Math.max(...atOnce);
const engine = createEngine(model, { batch: most });
await engine.ready();
const limits = await ceilings(model);
report("engine", { pages: engine.stats.pages.total, "GB/s": limits.bytes / 1e9, "TFLOP/s": limits.flops / 1e12 });
let rate = 0;

if (only.includes("rates")) {
  let single = 0;
  for (const count of atOnce) {
    // The first run compiles and records.
    await together(engine, count);
    const runs = [await together(engine, count), await together(engine, count)];
    const { seconds, steps, first } = runs.toSorted((a, b) => a.seconds - b.seconds)[0];
    rate = (count * sizes.out) / seconds;
    single ||= rate / count;
    report(`× ${count}`, {
      "tokens/s": rate,
      gain: rate / single,
      share: limitOf(count, limits) / seconds,
      "ms/step": (1000 * seconds) / steps,
      "first token ms": first,
    });
  }
}

if (only.includes("arrivals")) {
  if (!rate) rate = (most * sizes.out) / (await together(engine, most)).seconds;
  const perSecond = (Number(option("--load", 0.5)) * rate) / sizes.out;
  const until = performance.now() + 1000 * Number(option("--seconds", tiny ? 1 : 6));
  const answers = [];
  let next = performance.now();
  while (next < until) {
    const wait = next - performance.now();
    // What is late is submitted at once.
    if (wait > 0) await new Promise((resolve) => setTimeout(resolve, wait));
    answers.push(answer(engine, promptOf(sizes.in), sizes.out));
    next += (-1000 * Math.log(1 - random())) / perSecond;
  }
  const all = await Promise.all(answers);
  const firsts = all.map(([first]) => first);
  const gaps = all.flatMap((times) => times.slice(1).map((time, i) => time - times[i]));
  report("arrivals", {
    "requests/s": perSecond,
    requests: all.length,
    "first token ms p50": quantile(firsts, 0.5),
    p99: quantile(firsts, 0.99),
    "next token ms p50": quantile(gaps, 0.5),
    "p99 ": quantile(gaps, 0.99),
  });
}

if (only.includes("prefix")) {
  const length = Math.min(tiny ? 140 : 4000, config.contextLength - 64);
  const firstBehind = async (system) =>
    (await answer(engine, [...system, ...promptOf(Number(option("--question", 16)))], 1))[0];
  const pairs = [];
  for (let round = 0; round < 6; round++) {
    const system = promptOf(length);
    pairs.push([await firstBehind(system), await firstBehind(system)]);
  }
  const [fresh, known] = [0, 1].map((which) =>
    quantile(
      pairs.slice(1).map((pair) => pair[which]),
      0.5,
    ),
  );
  report("prefix", { tokens: length, "new ms": fresh, "known ms": known, gain: fresh / known });
}

if (only.includes("host")) {
  // A step's time when the device has nothing to wait for: one request, and as many as there may be.
  for (const count of [1, most]) {
    const { performance: clock } = globalThis;
    const start = clock.eventLoopUtilization();
    const { seconds, steps } = await together(engine, count);
    const busy = clock.eventLoopUtilization(start).active;
    report(`host × ${count}`, { "ms/step": (1000 * seconds) / steps, "of it the host's": busy / steps });
  }
}
await device.synchronize();
await engine[Symbol.asyncDispose]();
model.dispose();
