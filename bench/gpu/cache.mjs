// Decoding behind long texts with keys and values as what is computed in, and in 8 bits: a model of random weights, of a shape in
// shapes.mjs, in bf16:
//   node bench/gpu/cache.mjs DEVICE [--shape 1b|8b|…] [--dist PATH] [--contexts 1024,16384,…] [--sequences 1,8,…]
// The cache is filled by chunks of a prompt; rates are of the tokens behind it, and bytes those of all caches.
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { randomWeights } from "./random-weights.mjs";
import { configOf } from "./shapes.mjs";

const args = process.argv.slice(2);
const option = (name) => (args.includes(name) ? args[args.indexOf(name) + 1] : undefined);
const dist = pathToFileURL(resolve(option("--dist") ?? new URL("../../dist", import.meta.url).pathname)).href;
const { Device, Tensor } = await import(`${dist}/index.js`);
const { QTensor } = await import(`${dist}/quantized/index.js`);
const { Model } = await import(`${dist}/models/index.js`);
const { Transformer } = await import(`${dist}/models/transformer.js`);
const { quantTypes } = await import(`${dist}/core/quant-types.js`);
const { Matrices } = await import(`${dist}/models/projections.js`);
const { Stack } = await import(`${dist}/models/stacks.js`);
const { bytesPerPosition } = await import(`${dist}/models/cache.js`);

const device = Device.from(args[0] ?? "cuda:0");
const numbers = (name, usual) => (option(name) ?? usual).split(",").map(Number);
const contexts = numbers("--contexts", "1024,16384,65536");
const sequences = numbers("--sequences", "1,8");
const shape = configOf(option("--shape") ?? "1b", args.includes("--tiny"));
const config = { ...shape.config, contextLength: Math.max(...contexts) + 1024, eosTokens: [] };
const CHUNK = 4096;
const TOKENS = 96;

const modules = { Tensor, QTensor, Matrices, Stack, quantTypes };
const models = {};
for (const stored of ["bf16", "f8e4m3"]) {
  const weights = randomWeights(modules, device, { ...shape, config }, null);
  models[stored] = new Model(await Transformer.load(config, weights, device, "bf16", false, stored), null, null);
}

for (const context of contexts) {
  for (const count of sequences) {
    const rates = {};
    for (const [stored, model] of Object.entries(models)) {
      const prompt = Array.from({ length: context }, (_, i) => (i * 31) % config.vocabSize);
      const began = performance.now();
      const times = [];
      let first = 0;
      let tokens = 0;
      const options = { maxTokens: TOKENS, temperature: 0, ignoreEos: true, prefillChunk: CHUNK };
      for await (const { sequence } of model.generateBatch(Array(count).fill(prompt), options)) {
        if (sequence !== count - 1) continue;
        const now = performance.now();
        if (++tokens === 1) first = now - began;
        times.push(now);
      }
      // From the 16th token on, when steps are recorded.
      const seconds = (times.at(-1) - times[16]) / 1000 / (times.length - 17);
      rates[stored] = count / seconds;
      const gib = (config.layers * count * context * bytesPerPosition(config, stored)) / 2 ** 30;
      console.log(
        `${context} tokens, ${count} at once, ${stored}: ${(count / seconds).toFixed(0)} tokens/s, ${gib.toFixed(2)} GiB of keys and values, prompt ${first.toFixed(0)} ms`,
      );
    }
    console.log(`  in 8 bits ${(rates.f8e4m3 / rates.bf16).toFixed(2)} × as fast`);
  }
}
