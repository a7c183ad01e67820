// A model with random weights, of a shape in shapes.mjs (Llama 3.2 1B's where none is named), generating on one device:
//   node bench/gpu/llama.mjs DEVICE [--shape 8b|qwen3-30b-a3b|…] [--dist PATH] [--json FILE] [--only bf16,Q8_0,…]
//     [--dtype f16] [--sequences 1,2,…] [--prompt ROWS] [--profile] [--tiny]
// Decode rates are what a user of generate() sees, from the 16th token to the last; `share` is that of the limit set by
// reading the weights once per token, of experts those that it goes through, at the copy rate measured first. --profile
// adds the time per kernel of a step; --dtype is what quantized models compute in (bf16 where it is not given, f16 where
// `wick bench` reads a GGUF file); "speculation" among --only adds generation by guesses, --prompt a prompt by weights of
// every type.
import { writeFileSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { randomWeights } from "./random-weights.mjs";
import { configOf, shapeNames } from "./shapes.mjs";

const args = process.argv.slice(2);
const option = (name) => (args.includes(name) ? args[args.indexOf(name) + 1] : undefined);
const dist = pathToFileURL(resolve(option("--dist") ?? new URL("../../dist", import.meta.url).pathname)).href;
const { Device, Tensor, scope } = await import(`${dist}/index.js`);
const { QTensor } = await import(`${dist}/quantized/index.js`);
const { Model, Speculation } = await import(`${dist}/models/index.js`);
const { Transformer } = await import(`${dist}/models/transformer.js`);
const { Sampler } = await import(`${dist}/models/generation/sampling.js`);
const { call } = await import(`${dist}/backend/call.js`);
const { Layout } = await import(`${dist}/core/layout.js`);
const { quantTypeNames, quantTypes } = await import(`${dist}/core/quant-types.js`);
const { Matrices } = await import(`${dist}/models/projections.js`);
const { Stack } = await import(`${dist}/models/stacks.js`);

const device = Device.from(args[0] ?? "cuda:0");
const gpu = device.backend;
const { recorder, transformers } = gpu;
const tiny = args.includes("--tiny");
const only = option("--only")?.split(",") ?? ["bf16", "Q8_0", "Q4_K", "prefill", "batch"];
const began = performance.now();
// A kernel's first launch compiles its program.
const { launch: ownLaunch } = gpu;
const seen = new Set();
let compiling = 0;
gpu.launch = (kernel, values) => {
  const start = performance.now();
  ownLaunch.call(gpu, kernel, values);
  if (seen.has(kernel)) return;
  seen.add(kernel);
  const ms = performance.now() - start;
  compiling += ms;
  if (ms > 300) console.log(`         (${kernel}: first launch ${(ms / 1000).toFixed(1)} s)`);
};
const results = { device: gpu.context.properties.name };

const shapeName = option("--shape") ?? "1b";
if (!shapeNames.includes(shapeName)) throw new Error(`--shape is one of ${shapeNames.join(", ")}`);
const shape = configOf(shapeName, tiny);
const { config } = shape;
const sequences = (option("--sequences") ?? "1")
  .split(",")
  .map(Number)
  .filter((count) => count > 0);
const sizes = tiny
  ? { prompt: 9, tokens: 24, batch: 3, prefill: 20, rounds: 2 }
  : { prompt: 128, tokens: 384, batch: 16, prefill: Number(option("--prompt") ?? 2048), rounds: 28 };
const modules = { Tensor, QTensor, Matrices, Stack, quantTypes };

async function withModel(type, run) {
  const dtype = (type && option("--dtype")) ?? "bf16";
  const weights = randomWeights(modules, device, shape, type, dtype);
  const transformer = await Transformer.load(config, weights, device, dtype);
  const model = new Model(transformer, null, null);
  await device.synchronize();
  await run(model, weights.bytes);
  model.dispose();
}

const ids = (n, from = 0) => Array.from({ length: n }, (_, i) => (from + i * 7919) % config.vocabSize);
const seconds = () => `${((performance.now() - began) / 1000).toFixed(1)} s`;

function report(name, values) {
  results[name] = values;
  const text = Object.entries(values).map(
    ([k, v]) => `${k} ${typeof v === "number" ? +v.toPrecision(Number.isInteger(v) ? 12 : 5) : v}`,
  );
  console.log(`${seconds().padStart(7)}  ${name.padEnd(24)} ${text.join("  ")}`);
  const file = option("--json");
  if (file) writeFileSync(file, JSON.stringify(results, null, 1));
}

async function attempt(name, run) {
  try {
    await run();
  } catch (error) {
    report(name, { error: error.message.split("\n")[0] });
  }
}

/**
 * Tokens per second of all sequences together, the best of two runs; the same of the first 64 steps, whose texts are as long
 * as those of a replayed step; and a number that tells texts apart.
 */
async function decodeRate(model, batch) {
  let best = 0;
  let near = 0;
  let text = 0;
  for (let round = 0; round < 2; round++) {
    const prompts = Array.from({ length: batch }, (_, i) => ids(sizes.prompt, i));
    let count = 0;
    let from = 0;
    text = 0;
    for await (const piece of model.generateBatch(prompts, { maxTokens: sizes.tokens, ignoreEos: true })) {
      text = (Math.imul(text, 31) + piece.token) >>> 0;
      if (piece.sequence !== batch - 1) continue;
      if (++count === 16) from = performance.now();
      if (count === 80) near = Math.max(near, (batch * 64 * 1000) / (performance.now() - from));
    }
    best = Math.max(best, (batch * (count - 16) * 1000) / (performance.now() - from));
  }
  return { "tokens/s": best, ...(near && { "first 64": near }), text };
}

/** Tokens per second of one text, from the first token to the last, the best of two runs. */
async function textRate(model, speculation) {
  const { prompt, tokens } = sizes;
  let rate = 0;
  const text = [];
  for (let round = 0; round < 2; round++) {
    text.length = 0;
    let from = 0;
    const options = { maxTokens: tokens, ignoreEos: true, speculation: speculation?.() };
    for await (const { token } of model.generate(ids(prompt), options)) {
      if (text.push(token) === 1) from = performance.now();
    }
    rate = Math.max(rate, ((text.length - 1) * 1000) / (performance.now() - from));
  }
  return { rate, text };
}

/** What guesses gain where 7 of 8 are right, as on a text that repeats itself; tokens that differ from those alone. */
async function speculate(name, model) {
  const alone = await textRate(model);
  const propose = (fed, most) => {
    const at = fed.length - sizes.prompt;
    return alone.text
      .slice(at, at + most)
      .map((token, i) => ((at + i) % 8 === 7 ? (token + 1) % config.vocabSize : token));
  };
  const guessed = await textRate(model, () => new Speculation({ propose }));
  const differing = guessed.text.filter((token, i) => token !== alone.text[i]).length;
  report(`${name} speculation`, { "tokens/s": guessed.rate, gain: guessed.rate / alone.rate, differing });
}

/** What the cache of a text takes, for each position that it has room for. */
function cacheSize(model) {
  const before = device.memory().live;
  const cache = model.newCache();
  const room = cache.reserve(1);
  const bytes = (device.memory().live - before) / room;
  cache.dispose();
  return { "cache bytes/token": bytes };
}

async function prefill(model) {
  const prompt = [ids(sizes.prefill)];
  const times = [];
  let enqueued = Infinity;
  for (let round = 0; round < sizes.rounds + 2; round++) {
    const cache = model.newCache();
    await device.synchronize();
    const start = performance.now();
    model.logits(prompt, { cache }).dispose();
    enqueued = Math.min(enqueued, performance.now() - start);
    await device.synchronize();
    times.push(performance.now() - start);
    cache.dispose();
  }
  const sorted = times.slice(2).sort((a, b) => a - b);
  return {
    ms: sorted[0],
    median: sorted[sorted.length >> 1],
    "enqueued ms": enqueued,
    "first eight": times.slice(0, 8).sort((a, b) => a - b)[4],
  };
}

/** The device's time for a prompt's kernels, by kind. */
async function profilePrefill(name, model) {
  const cache = model.newCache();
  const run = () => {
    cache.rewind(0);
    model.logits([ids(sizes.prefill)], { cache }).dispose();
  };
  run();
  report(`${name} device`, { ms: await gpu.milliseconds(run) });
  await kernelTimes(name, run);
  cache.dispose();
}

/** A step of one sequence in the middle of a text, as generate() records it. */
function stepOf(model, cache) {
  const lengths = Tensor.full([cache.batch], cache.length, { dtype: "i64", device }).keep();
  const sampler = transformers.sampler(config.vocabSize, cache.batch);
  const rows = Array.from({ length: cache.batch }, (_, row) => row);
  for (const row of rows) sampler.assign(row, new Sampler({ temperature: 0 }, [], row).spec);
  sampler.place(rows);
  const tokens = new Tensor(sampler.tokens, Layout.contiguous([cache.batch])).keep();
  cache.reserve(cache.length + 1);
  const { transformer } = model;
  const [segment] = transformer.segments;
  return () =>
    scope(() => {
      device.backend.advance(lengths, 1);
      const step = segment.recordedStep(1, cache, cache.reserve(0), lengths, cache.length + 1);
      const positions = () => cache.on(device).lastPositions(lengths, 1);
      const states = segment.run(transformer.embed(tokens, positions), step, cache.layers);
      call(sampler, "sample", transformer.logits(states, true), false);
    });
}

/** The device's time for `times` replays of what `run` enqueues, in milliseconds each. */
async function replayed(run, times) {
  const graph = recorder.capture(run);
  const measure = () =>
    gpu.milliseconds(() => {
      for (let i = 0; i < times; i++) graph.replay();
    });
  await measure();
  const ms = await measure();
  graph[Symbol.dispose]();
  return ms / times;
}

/** The device's time for a step without the host, and, with --profile, for those of its kernels that are of one kind. */
async function profile(name, model, batch) {
  if (!model.transformer.recordable) return;
  const cache = model.newCache({ batch });
  model
    .logits(
      Array.from({ length: batch }, () => ids(sizes.prompt)),
      { cache },
    )
    .dispose();
  const step = stepOf(model, cache);
  step();
  await device.synchronize();
  const start = performance.now();
  recorder.capture(step)[Symbol.dispose]();
  const record = performance.now() - start;
  const ms = await replayed(step, tiny ? 2 : 25);
  report(`${name} replay`, { ms, "tokens/s": (batch * 1000) / ms, "recording ms": record });
  if (args.includes("--profile")) await kernelTimes(name, step);
  cache.dispose();
}

/** What those of a step's kernels take that are of one kind, replayed without the others. */
async function kernelTimes(name, step) {
  for (const [what, runs] of callsOf(step)) {
    const all = () => {
      for (const run of runs) run();
    };
    const us = 1000 * (await replayed(all, tiny ? 1 : 10));
    report(`${name}: ${what}`, { count: runs.length, us: +us.toFixed(1), each: +(us / runs.length).toFixed(2) });
  }
}

/** What a step launches, by kernel and size, to be launched again on the same memory. */
function callsOf(step) {
  const calls = new Map();
  const note = (what, run) => {
    calls.set(what, [...(calls.get(what) ?? []), run]);
    return run();
  };
  const { launch, blas } = gpu;
  const gemm = blas?.gemm;
  gpu.launch = (kernel, values) =>
    note(kernel.startsWith("linear") ? `${kernel} ${values.n}×${values.k}` : kernel, () =>
      launch.call(gpu, kernel, values),
    );
  if (blas) blas.gemm = (p) => note(`gemm ${p.m}×${p.k}×${p.n}`, () => gemm.call(blas, p));
  step();
  gpu.launch = launch;
  if (blas) blas.gemm = gemm;
  return calls;
}

let ceiling = 0;
scope(() => {
  const x = Tensor.zeros([tiny ? 1024 : 2 ** 28], { device });
  const { context } = gpu;
  const time = () => {
    const [start, end] = [context.createEvent(), context.createEvent()];
    context.recordEvent(start);
    for (let i = 0; i < 4; i++) x.copy().dispose();
    context.recordEvent(end);
    context.synchronizeSync();
    return context.elapsed(start, end) / 4;
  };
  time();
  ceiling = (x.numel * 8) / time() / 1e6;
  report("copy", { "GB/s": ceiling, blas: gpu.blas?.library ?? gpu.blasProblem });
});
device.backend.trim();

for (const type of ["bf16", ...quantTypeNames]) {
  const parts = only.filter((what) => what === type || (type === "bf16" && ["prefill", "batch"].includes(what)));
  if (parts.length === 0) continue;
  if (type !== "bf16" && option("--prompt")) parts.push("prefill");
  await attempt(type, () =>
    withModel(type === "bf16" ? null : type, async (model, bytes) => {
      const limit = (ceiling * 1e9) / bytes;
      report(`${type} weights`, { "MiB read": bytes / 2 ** 20, "limit tokens/s": limit, ...cacheSize(model) });
      if (only.includes(type)) {
        for (const count of sequences) {
          const name = count === 1 ? type : `${type} × ${count}`;
          await attempt(`${name} decode`, async () => {
            const rate = await decodeRate(model, count);
            report(`${name} decode`, { ...rate, share: rate["tokens/s"] / limit });
            await profile(name, model, count);
          });
        }
        if (only.includes("speculation")) await attempt(`${type} speculation`, () => speculate(type, model));
      }
      if (parts.includes("prefill")) {
        await attempt(`${type} prefill`, async () => {
          const times = await prefill(model);
          report(`${type} prefill`, { tokens: sizes.prefill, ...times, "tokens/s": (sizes.prefill * 1000) / times.ms });
          if (args.includes("--profile")) await profilePrefill(`${type} prefill`, model);
        });
      }
      if (parts.includes("batch")) {
        await attempt("bf16 batch", async () => {
          const rate = await decodeRate(model, sizes.batch);
          report("bf16 batch", { sequences: sizes.batch, ...rate });
          await profile("bf16 batch", model, sizes.batch);
        });
      }
      const { free, total } = gpu.context.memoryInfo();
      report(`${type} memory`, { "live MiB": device.memory().live / 2 ** 20, "used MiB": (total - free) / 2 ** 20 });
    }),
  );
  device.backend.trim();
}
console.log(`done after ${seconds()}, ${(compiling / 1000).toFixed(1)} s of it in first launches`);
