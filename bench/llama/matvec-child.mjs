// One library, one block type, one process: prints the seconds of a mat-vec as the difference that more layers make, and
// for Wick those of the op by itself and of reading memory.

import { MATRICES, matrixBytes, randomBlocks, WIDTH } from "./layers.mjs";
import { libraries, timeTokens } from "./libraries.mjs";
import { median } from "./tables.mjs";

const [library, type, threads, fewLayers, few, manyLayers, many] = process.argv.slice(2);
const prompt = [5, 17, 99, 140];
const [TOKENS, TURNS] = [12, 9];
/** Weights that the op takes in turn: more than caches hold. */
const ROTATED_BYTES = 2 ** 27;

/** The models take turns, so that each difference is of neighbours in time. */
async function byDecoding() {
  const load = await libraries[library](Number(threads));
  const starts = [await load(few, 64), await load(many, 64)];
  const differences = [];
  for (let turn = 0; turn < TURNS; turn++) {
    const perToken = [];
    for (const start of starts) {
      const times = (await timeTokens(start, prompt, TOKENS)).slice(1);
      perToken.push(median(times.slice(1).map((time, i) => time - times[i])));
    }
    // The first turn warms up.
    if (turn > 0) differences.push(perToken[1] - perToken[0]);
  }
  return median(differences) / 1000 / ((manyLayers - fewLayers) * MATRICES);
}

/** The median time of one call. */
function timeCalls(calls) {
  const times = calls.map((call) => {
    const from = performance.now();
    call().dispose();
    return performance.now() - from;
  });
  return median(times) / 1000;
}

async function byItself() {
  const { Tensor } = await import("../../dist/index.js");
  const { QMatMul, QTensor, quantTypes } = await import("../../dist/quantized/index.js");
  const count = Math.ceil(ROTATED_BYTES / matrixBytes(type));
  const layers = Array.from({ length: count }, (_, seed) => {
    const bytes = Buffer.concat([...randomBlocks(type, WIDTH ** 2 / quantTypes[type].size, seed)]);
    return new QMatMul(QTensor.fromBytes(bytes, [WIDTH, WIDTH], type));
  });
  const x = Tensor.randn([1, WIDTH], { seed: 1 });
  const calls = Array.from({ length: 16 }, () => layers.map((layer) => () => layer.forward(x))).flat();
  timeCalls(calls.slice(0, 2 * count));
  return timeCalls(calls);
}

async function bytesPerSecond() {
  const { Tensor } = await import("../../dist/index.js");
  const x = Tensor.ones([ROTATED_BYTES / 4]);
  const calls = new Array(16).fill(() => x.sumAll());
  timeCalls(calls);
  return ROTATED_BYTES / timeCalls(calls);
}

const decode = await byDecoding();
const own = library === "wick" ? { op: await byItself(), read: await bytesPerSecond() } : {};
process.stdout.write(JSON.stringify({ decode, ...own }));
process.exit(0);
