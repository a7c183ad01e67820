// Many requests at once over a paged cache, of a model with random weights, of a shape in shapes.mjs (Llama 3.2 1B's):
//   node bench/gpu/serve.mjs DEVICE [--shape 8b|…] [--dist PATH] [--rows 1,8,…] [--budget TOKENS]
//     [--only check,steps,uneven,chunks,leftovers,requests,kernels] [--library] [--tiny]
// steps: the device's time of a recorded step of so many sequences with 640 positions each, over pages and over a cache of
// their own, and its share of the limit, which is reading the weights and all keys and values once, at the copy rate.
// uneven: one sequence of 8,000 positions beside others, with parts by lengths and without. --library: no fused products of
// few rows. check: how far steps over pages are from what the model says of whole texts. kernels: steps by kernel. requests: so many of 512 tokens that say 256 more, all at once, with prompts in parts beside
// those that decode. chunks: a part of a prompt of 512 tokens behind a past of so many. leftovers: the last tokens of a prompt
// of 4,000 whose beginning is known, as recorded, and by kernel.
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { randomWeights } from "./random-weights.mjs";
import { configOf } from "./shapes.mjs";

const args = process.argv.slice(2);
const option = (name) => (args.includes(name) ? args[args.indexOf(name) + 1] : undefined);
const dist = pathToFileURL(resolve(option("--dist") ?? new URL("../../dist", import.meta.url).pathname)).href;
const { Device, Tensor, scope } = await import(`${dist}/index.js`);
const { QTensor } = await import(`${dist}/quantized/index.js`);
const { ModelCache, PagedCache, PagedStepper, Sampler } = await import(`${dist}/models/index.js`);
const { Transformer } = await import(`${dist}/models/transformer.js`);
const { RecordedDecode } = await import(`${dist}/models/paged/decode.js`);
const { BatchSampler } = await import(`${dist}/models/generation/batch-sampler.js`);
const { quantTypes } = await import(`${dist}/core/quant-types.js`);
const { Matrices } = await import(`${dist}/models/projections.js`);
const { Stack } = await import(`${dist}/models/stacks.js`);
const { batchKernels, productKernels, transformerKernels } = await import(`${dist}/backend/gpu/transformer-kernels.js`);

const device = Device.from(args[0] ?? "cuda:0");
const gpu = device.backend;
const tiny = args.includes("--tiny");
const only = option("--only")?.split(",") ?? ["check", "steps", "uneven", "chunks", "leftovers", "requests", "kernels"];
const counts = (option("--rows") ?? (tiny ? "1,3" : "1,8,32,64,128")).split(",").map(Number);
const sizes = tiny
  ? { past: 70, longest: 200, prompt: 40, tokens: 6, budget: 32, replays: 2, pasts: [0, 100], chunk: 16, known: 100 }
  : {
      past: 640,
      longest: 8000,
      prompt: 512,
      tokens: 256,
      budget: 2048,
      replays: 20,
      pasts: [0, 4096],
      chunk: 512,
      known: 4000,
    };
const budget = Number(option("--budget") ?? sizes.budget);
const shape = configOf(option("--shape") ?? "1b", tiny);
const { config } = shape;
const pagesOf = (positions) => PagedCache.pagesFor(positions);
const began = performance.now();
const seconds = () => `${((performance.now() - began) / 1000).toFixed(1)} s`;
const report = (name, values) => {
  const text = Object.entries(values).map(([k, v]) => `${k} ${typeof v === "number" ? +v.toPrecision(5) : v}`);
  console.log(`${seconds().padStart(7)}  ${name.padEnd(34)} ${text.join("  ")}`);
};

const needs = {
  ...{ dtype: "bf16", quantTypes: [], storedTypes: [], hasPlainWeights: true, headDim: config.headDim },
  ...{ hiddenSize: config.hiddenSize, activation: "silu", norm: "rms", mlpsAreGated: true, interleaved: false },
};
await gpu.prepare([
  ...new Set([...transformerKernels(needs), ...batchKernels(needs), ...productKernels(needs, gpu.matrixUnit("bf16"))]),
]);
report("compiled", {});
const weights = randomWeights({ Tensor, QTensor, Matrices, Stack, quantTypes }, device, shape, null);
const model = await Transformer.load(config, weights, device, "bf16");
const ids = (n, from = 0) => Array.from({ length: n }, (_, i) => (from + i * 7919) % config.vocabSize);
if (args.includes("--library")) gpu.linear = () => null;
const kvBytes = PagedCache.pageBytes(config, "bf16") / pagesOf(1) / 64;

/** GB/s of a copy, what it reads and writes together. */
function copyRate() {
  return scope(() => {
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
    return (x.numel * 8) / time() / 1e6;
  });
}
const ceiling = copyRate();
gpu.trim();
report("copy", { "GB/s": ceiling, "MiB read": weights.bytes / 2 ** 20, "cache bytes/token": kvBytes });

const spec = (i) => new Sampler({ temperature: 0, seed: i }, []).spec;
const timed = async (run) => {
  const measure = () =>
    gpu.milliseconds(() => {
      for (let i = 0; i < sizes.replays; i++) run();
    });
  await measure();
  return (await measure()) / sizes.replays;
};

/** A step of sequences that are `past` long, over pages: run as recorded, and what it is made of. */
function pagedStep(rows, run, longest = sizes.past) {
  const positions = longest + 64;
  const pages = pagesOf(sizes.past + 64);
  const cache = new PagedCache(config, device, "bf16", rows * pages + pagesOf(longest));
  const sampler = new BatchSampler(device, config.vocabSize, rows);
  const slots = Array.from({ length: rows }, (_, i) => i);
  for (const slot of slots) sampler.assign(slot, spec(slot));
  sampler.place(slots);
  const decode = new RecordedDecode({
    ...{ model, cache, recorder: gpu.recorder, rows, positions, tokens: sampler.tokens, slots: sampler.rows },
    choose: (logits) => sampler.choose(logits),
  });
  decode.arrange(new Set(slots));
  // Pages of a sequence lie apart.
  const own = slots.map((slot) => ({
    ...{ slot, past: sizes.past - 1, extent: sizes.past },
    pages: Array.from({ length: pages }, (_, i) => i * rows + slot),
  }));
  if (longest > sizes.past) {
    const more = Array.from({ length: pagesOf(longest) }, (_, i) => rows * pages + i);
    own[0] = { slot: 0, past: longest - 1, extent: longest, pages: more };
  }
  return run(() => decode.run(own)).finally(() => {
    decode[Symbol.dispose]();
    sampler[Symbol.dispose]();
    cache.dispose();
  });
}

/** The same over a cache of their own, as generate() records it. */
function ownStep(batch, run) {
  const cache = new ModelCache(config, device, "bf16", { batch });
  cache.reserve(sizes.past + 64);
  const lengths = Tensor.full([batch], sizes.past, { dtype: "i64", device }).keep();
  const sampler = new BatchSampler(device, config.vocabSize, batch);
  const slots = Array.from({ length: batch }, (_, i) => i);
  for (const slot of slots) sampler.assign(slot, spec(slot));
  sampler.place(slots);
  const graph = gpu.recorder.capture(() =>
    scope(() => sampler.choose(model.recordedStep(sampler.tokens, cache, lengths, sizes.past))),
  );
  return run(() => graph.replay()).finally(() => {
    graph[Symbol.dispose]();
    lengths.dispose();
    sampler[Symbol.dispose]();
    cache.dispose();
  });
}

/** What `run` launches, by kernel and size, to be launched again on the same memory. */
function callsOf(run) {
  const calls = new Map();
  const note = (what, again) => {
    calls.set(what, [...(calls.get(what) ?? []), again]);
    return again();
  };
  const { launch, blas } = gpu;
  const gemm = blas?.gemm;
  gpu.launch = (kernel, values) =>
    note(/^(linear|product)/.test(kernel) ? `${kernel} ${values.n}×${values.k}` : kernel, () =>
      launch.call(gpu, kernel, values),
    );
  if (blas) blas.gemm = (p) => note(`gemm ${p.m}×${p.k}×${p.n}`, () => gemm.call(blas, p));
  run();
  gpu.launch = launch;
  if (blas) blas.gemm = gemm;
  return calls;
}

/** What is recorded while `use` is under way, by kernel. */
async function byKernel(name, use) {
  const { recorder } = gpu;
  const { capture } = recorder;
  let recorded = null;
  recorder.capture = (run) => {
    recorded = run;
    return capture.call(recorder, run);
  };
  await use(async (step) => {
    step();
    recorder.capture = capture;
    for (const [what, runs] of callsOf(recorded)) {
      const graph = recorder.capture(() => {
        for (const run of runs) run();
      });
      const us = 1000 * (await timed(() => graph.replay()));
      graph[Symbol.dispose]();
      report(`${name}: ${what}`, { count: runs.length, us, each: us / runs.length });
    }
  });
}

/** The last `rows` tokens of a prompt whose other tokens are in pages, recorded without any that decode. */
async function leftover(rows, run) {
  const pages = pagesOf(sizes.known + rows);
  const cache = new PagedCache(config, device, "bf16", pages);
  const sampler = new BatchSampler(device, config.vocabSize, 4);
  sampler.assign(0, spec(0));
  const decode = new RecordedDecode({
    ...{ model, cache, recorder: gpu.recorder, rows: 1, tokens: sampler.tokens, slots: sampler.rows },
    ...{ positions: 4 * sizes.known, choose: (logits) => sampler.choose(logits) },
  });
  decode.arrange(new Set());
  sampler.place([0]);
  const own = { slot: 0, ids: ids(rows), past: sizes.known, extent: sizes.known + rows };
  const table = Array.from({ length: pages }, (_, i) => pages - 1 - i);
  try {
    await run(() => decode.run([], [{ ...own, pages: table }]));
  } finally {
    decode[Symbol.dispose]();
    sampler[Symbol.dispose]();
    cache.dispose();
  }
}

/** All at once, with prompts fed in parts of a step's budget beside those that decode. */
async function requests(count) {
  const positions = sizes.prompt + sizes.tokens;
  const pages = pagesOf(positions);
  const cache = new PagedCache(config, device, "bf16", count * pages);
  const stepper = new PagedStepper(model, cache, { slots: count, positions });
  const own = Array.from({ length: count }, (_, slot) => ({
    ...{ slot, prompt: ids(sizes.prompt, slot), fed: 0, chosen: 0, firstAt: 0 },
    pages: Array.from({ length: pages }, (_, i) => i * count + slot),
  }));
  for (const { slot } of own) stepper.sampler.assign(slot, spec(slot));
  const start = performance.now();
  const pending = [];
  let [steps, mixed] = [0, 0];
  for (;;) {
    let left = budget;
    const rows = [];
    for (const request of own) {
      if (request.chosen === sizes.tokens) continue;
      const { slot, prompt, fed: past } = request;
      const fresh = past < prompt.length ? prompt.slice(past, past + Math.max(left, 0)) : null;
      if (fresh?.length === 0) continue;
      left -= fresh?.length ?? 1;
      request.fed += fresh?.length ?? 1;
      const samples = request.fed >= prompt.length;
      if (samples) request.chosen++;
      rows.push({ slot, ids: fresh, past, pages: request.pages, extent: request.fed, samples, request });
    }
    if (rows.length === 0) break;
    steps++;
    if (rows.some((row) => row.ids)) mixed++;
    const outcome = stepper.step(rows).then((choices) => {
      const now = performance.now();
      for (const [i, choice] of choices.entries()) {
        if (choice instanceof Error) throw choice;
        if (choice && rows[i].request.firstAt === 0) rows[i].request.firstAt = now - start;
      }
    });
    pending.push(outcome);
    if (pending.length > stepper.ahead) await pending.shift();
  }
  await Promise.all(pending);
  const ms = performance.now() - start;
  await stepper[Symbol.asyncDispose]();
  cache.dispose();
  const first = own.map(({ firstAt }) => firstAt).sort((a, b) => a - b);
  const [mid, last] = [first[Math.floor(count / 2)], first.at(-1)];
  return {
    "tokens/s": (count * sizes.tokens * 1000) / ms,
    ms,
    steps,
    mixed,
    "first token p50 ms": mid,
    "last ms": last,
  };
}

async function chunk(past) {
  const pages = pagesOf(past + sizes.chunk);
  const cache = new PagedCache(config, device, "bf16", pages);
  const own = { ids: ids(sizes.chunk), past, pages: Array.from({ length: pages }, (_, i) => pages - 1 - i) };
  const run = () => model.paged([own], cache).dispose();
  for (let i = 0; i < (tiny ? 1 : 30); i++) run();
  await device.synchronize();
  const from = performance.now();
  for (let i = 0; i < 4; i++) run();
  const enqueued = (performance.now() - from) / 4;
  await device.synchronize();
  const ms = (performance.now() - from) / 4;
  cache.dispose();
  return { ms, "host ms": enqueued };
}

/** The greatest difference of logits between texts fed side by side in parts, and each as a whole, by the greatest of them. */
async function check() {
  const texts = [ids(sizes.chunk, 1), ids(Math.round(sizes.chunk * 1.7), 2), ids(3, 3)];
  const cache = new PagedCache(config, device, "bf16", texts.length * pagesOf(texts[1].length));
  const fed = texts.map(() => 0);
  let [worst, most] = [0, 0];
  for (const parts of [
    [0.5, 0.3, 1],
    [0.5, 0.7, 0],
  ]) {
    const rows = texts.map((text, i) => {
      const past = fed[i];
      fed[i] = Math.min(text.length, past + Math.ceil(text.length * parts[i]));
      const pages = Array.from({ length: pagesOf(text.length) }, (_, j) => j * texts.length + i);
      return { ids: text.slice(past, fed[i]), past, pages, of: i };
    });
    const first = rows.filter((row) => row.ids.length > 0);
    const got = model.paged(first, cache);
    const said = await got.data();
    for (const [at, { of }] of first.entries()) {
      const whole = Tensor.from([texts[of].slice(0, fed[of])], { dtype: "u32", device });
      const want = await model.forward(whole, { last: true }).data();
      for (let i = 0; i < want.length; i++) {
        worst = Math.max(worst, Math.abs(said[at * want.length + i] - want[i]));
        most = Math.max(most, Math.abs(want[i]));
      }
    }
  }
  cache.dispose();
  return { difference: worst, greatest: most };
}

if (only.includes("check")) report("check", await check());
if (only.includes("steps"))
  for (const rows of counts) {
    const paged = await pagedStep(rows, (step) => {
      step();
      return timed(step);
    });
    const own = await ownStep(rows, timed);
    const limit = (weights.bytes + rows * sizes.past * kvBytes) / ceiling / 1e6;
    report(`step of ${rows}`, {
      ms: paged,
      "tokens/s": (rows * 1000) / paged,
      "unpaged ms": own,
      share: limit / paged,
    });
  }
if (only.includes("uneven"))
  for (const rows of counts) {
    const measure = (run) => {
      run();
      return timed(run);
    };
    const step = () => pagedStep(rows, measure, sizes.longest);
    const planned = await step();
    const { planner } = gpu.pagedAttention;
    gpu.pagedAttention.planner = undefined;
    const unplanned = await step();
    gpu.pagedAttention.planner = planner;
    report(`step of ${rows}, one long`, { ms: planned, "without a plan ms": unplanned });
  }
if (only.includes("chunks"))
  for (const past of sizes.pasts) report(`${sizes.chunk} tokens behind ${past}`, await chunk(past));
if (only.includes("leftovers")) {
  for (const rows of tiny ? [3, 16] : [1, 16, 48, 64]) {
    await leftover(rows, async (step) => {
      step();
      report(`last ${rows} behind ${sizes.known}`, { ms: await timed(step) });
    });
  }
  for (const rows of tiny ? [3] : [16, 48]) await byKernel(`last ${rows}`, (use) => leftover(rows, use));
}
if (only.includes("requests"))
  for (const count of counts) {
    await requests(count);
    report(`requests at once: ${count}`, await requests(count));
  }
if (only.includes("kernels")) for (const rows of counts) await byKernel(`${rows} rows`, (use) => pagedStep(rows, use));
console.log(`done after ${seconds()}`);
