// Products by Wick's own kernels beside the vendor's library, of sizes around those of tiles, in both orders of either operand:
//   node bench/gpu/gemm.mjs DEVICE [--dist PATH] [--json FILE] [--only bf16,f16,f32,Q8_0,…] [--sizes 512x512x512,…]
// m × n × k; N: rows lie one behind the other, T: columns do. Two processes, one that asks the library alone and one that has none, take
// turns at each product. Times are medians of replayed graphs, so the host has no part in them. A quantized type's products of bf16 rows
// with such weights (NT, weights that no cache holds) stand beside the library's with weights in bf16.
import { spawn } from "node:child_process";
import { writeFileSync } from "node:fs";
import { resolve } from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const args = process.argv.slice(2);
const option = (name) => (args.includes(name) ? args[args.indexOf(name) + 1] : undefined);
const dist = pathToFileURL(resolve(option("--dist") ?? new URL("../../dist", import.meta.url).pathname)).href;
const dtypes = option("--only")?.split(",") ?? ["bf16", "f16", "f32"];
const isQuantized = (dtype) => /^(I?Q|MX)/.test(dtype);
const quantizedSizes = ["512x14336x4096", "512x4096x14336", "512x28672x4096", "512x6144x4096", "512x4096x4096"];
const plainSizes = [
  "8192x8192x8192 4096x4096x14336 4096x14336x4096 2048x2048x2048 1536x1536x1536 1024x1024x1024 768x768x768 512x512x512",
  "256x256x256 64x4096x4096 128x4096x4096 256x2048x4096 512x512x4096 512x768x3072 1000x1000x1000 1001x1003x1005",
  "701x703x705 333x777x555 1999x4001x4095 100x1000x300",
].flatMap((row) => row.split(" "));
const sizesOf = (dtype) => option("--sizes")?.split(",") ?? (isQuantized(dtype) ? quantizedSizes : plainSizes);

/** Answers each product on a line of its own with the microseconds that it takes. */
async function serve() {
  const { Device, Tensor, scope } = await import(`${dist}/index.js`);
  const { QMatMul, QTensor } = await import(`${dist}/quantized/index.js`);
  const { backend } = Device.from(args[0]);
  const { context } = backend;
  const elapsed = (graph) => {
    const [start, end] = [context.createEvent(), context.createEvent()];
    context.recordEvent(start);
    graph.replay();
    context.recordEvent(end);
    context.synchronizeSync();
    const ms = context.elapsed(start, end);
    for (const event of [start, end]) context.destroyEvent(event);
    return ms;
  };
  const matrix = (dtype, rows, cols, turned, seed) => {
    const drawn = Tensor.randn(turned ? [cols, rows] : [rows, cols], { dtype, device: args[0], seed });
    return turned ? drawn.t() : drawn;
  };
  /** Quantized on the host, where there are all types, from rows that come again. */
  const quantized = (type, n, k) => {
    const rows = QTensor.quantize(Tensor.randn([64, k], { seed: 2, std: 0.02 }), type).blocks;
    const blocks = Tensor.cat(new Array(Math.ceil(n / 64)).fill(rows), 0).narrow(0, 0, (n * rows.shape[0]) / 64);
    return QTensor.fromBlocks(blocks.contiguous().toDeviceSync(args[0]), [n, k], type);
  };
  /** Products to take in turns. */
  const productsOf = ({ dtype, weights, m, n, k, lies }) => {
    const a = matrix(dtype, m, k, lies[0] === "T", 1);
    if (!weights) {
      const b = matrix(dtype, k, n, lies[1] === "T", 2);
      return [() => a.matmul(b)];
    }
    const layers = Array.from({ length: 8 }, (_, seed) => {
      if (process.env.WICK_BLAS !== "none") {
        const b = matrix(dtype, k, n, true, seed);
        return () => a.matmul(b);
      }
      const layer = new QMatMul(quantized(weights, n, k));
      return () => layer.forward(a);
    });
    return layers;
  };
  const measure = (product) =>
    scope(() => {
      const { m, n, k } = product;
      const products = productsOf(product);
      // Some milliseconds, but no more than fifty calls.
      const calls = Math.max(2, products.length, Math.min(50, Math.floor(1e11 / (2 * m * n * k))));
      products[0]().dispose();
      const graph = backend.capture(() => {
        for (let i = 0; i < calls; i++) products[i % products.length]().dispose();
      });
      elapsed(graph);
      const times = Array.from({ length: 7 }, () => elapsed(graph)).sort((x, y) => x - y);
      graph[Symbol.dispose]();
      return (1000 * times[3]) / calls;
    });
  for await (const line of createInterface({ input: process.stdin })) {
    try {
      console.log(JSON.stringify(measure(JSON.parse(line))));
    } catch (error) {
      console.log(JSON.stringify(error.message));
    }
    backend.trim();
  }
}

/** A process that measures what it is asked. */
function worker(blas) {
  const child = spawn(process.execPath, [process.argv[1], ...args, "--serve"], {
    env: { ...process.env, WICK_BLAS: blas },
    stdio: ["pipe", "pipe", "inherit"],
  });
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  return {
    async ask(product) {
      child.stdin.write(`${JSON.stringify(product)}\n`);
      const { value, done } = await lines.next();
      if (done) throw new Error(`the process with WICK_BLAS=${blas} has ended`);
      const answer = JSON.parse(value);
      if (typeof answer === "string") throw new Error(answer);
      return answer;
    },
    end: () => child.stdin.end(),
  };
}

async function main() {
  const library = args[0].startsWith("rocm") ? "rocblas" : "cublas";
  const [own, theirs] = ["none", library].map(worker);
  const results = {};
  for (const dtype of dtypes) {
    for (const size of sizesOf(dtype)) {
      const [m, n, k] = size.split("x").map(Number);
      const shown = [];
      for (const lies of isQuantized(dtype) ? ["NT"] : ["NN", "NT", "TN", "TT"]) {
        const kind = isQuantized(dtype) ? { dtype: "bf16", weights: dtype } : { dtype };
        const product = { ...kind, m, n, k, lies };
        const times = { own: await own.ask(product), [library]: await theirs.ask(product) };
        results[`${dtype} ${size} ${lies}`] = times;
        const rate = (2e-6 * m * n * k) / times.own;
        shown.push(`${lies} ${rate.toFixed(1)} = ${(times[library] / times.own).toFixed(2)}`);
      }
      console.log(`${dtype} ${size}`.padEnd(24), "TFLOP/s, beside", library, "\t", shown.join("\t"));
    }
  }
  for (const process of [own, theirs]) process.end();
  if (option("--json")) writeFileSync(option("--json"), JSON.stringify(results, null, 1));
}

await (args.includes("--serve") ? serve() : main());
