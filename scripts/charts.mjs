// Draws docs/benchmarks/*.svg from the JSON beside them, which is what the benches write by --json: npm run charts
import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { barChart, curveChart } from "./chart-svg.mjs";

/** The libraries of bench/bench.mjs, as they are called and as they are written. */
const LIBRARIES = {
  wick: "Wick",
  tfjs: "tfjs-wasm",
  "jax-js": "jax-js",
  "onnxruntime-web": "onnxruntime-web",
  "onnxruntime-node": "onnxruntime-node (native)",
};

const machine = ({ cpu, cores, node, threads }) =>
  `${cpu}, ${cores} cores, Node ${node.slice(1)}, ${threads} thread${threads > 1 ? "s" : ""}`;

/** Rows of bench/bench.mjs with one unit, all libraries side by side. */
function cpuBars({ cpu: [run] }, title, unit, isWanted) {
  const rows = run.rows.filter(isWanted).map(({ op, label, results }) => ({
    label: `${op} ${label}`,
    values: Object.keys(LIBRARIES).map((name) => results[name]?.rate ?? null),
  }));
  const note = `${machine(run)}; (n×): Wick's speed over the library's`;
  return barChart({ title, note, unit, series: Object.values(LIBRARIES), rows });
}

function cpuMatmul({ cpu: [run] }) {
  const sizes = run.rows.filter(({ op }) => op === "matmul");
  const series = Object.entries(LIBRARIES).map(([key, name]) => ({
    name,
    points: sizes.map(({ label, results }) => [Number.parseInt(label, 10), results[key].rate]),
  }));
  const title = "f32 products of square matrices, by size";
  return curveChart({ title, note: machine(run), unit: "GFLOP/s", xUnit: "rows and columns", series });
}

/** What bench/llama measured with the number of threads that is best for each library. */
function cpuLlama({ "cpu-llama": results }, what, title) {
  const best = (model, isWick) =>
    Math.max(...results.filter((r) => r.model === model && (r.library === "wick") === isWick).map((r) => r[what]));
  const models = [...new Set(results.map(({ model }) => model))];
  const rows = models.map((label) => ({ label, values: [best(label, true), best(label, false)] }));
  const note = "1 or 2 threads of an AMD EPYC (Zen 5), whichever is faster; (n×): Wick's speed over llama.cpp's";
  return barChart({
    title,
    note,
    unit: "tokens/s",
    series: ["Wick", "llama.cpp (native, AVX-512)"],
    rows,
  });
}

const PYTORCH = "PyTorch 2.11";
/** Ops that PyTorch's side of the comparison calls by another name. */
const torchName = (name) => name.replace("geluErf f32", "gelu_erf f32").replace("transpose copy", "transpose-copy");
const written = (name) =>
  name
    .replace("geluErf", "gelu_erf")
    .replace("->", " to ")
    .replace(/ k3$/, ", 3x3")
    .replaceAll(/(?<=\d)x(?=\d)/g, "×");

/** The ops that both bench/gpu/ops.mjs and PyTorch's side measured in `field`. */
function gpuOps({ "h200-ops": wick, "h200-torch": torch }, field, scale) {
  return Object.entries(wick.results)
    .filter(([name, result]) => result[field] && torch[torchName(name)]?.[field])
    .map(([name, result]) => ({
      label: written(name),
      values: [result[field] / scale, torch[torchName(name)][field] / scale],
    }));
}

const gpuNote = ({ "h200-ops": { device } }) => `${device.name}; (n×): Wick's speed over PyTorch's`;

function gpuStreaming(data) {
  const at = data["h200-ops"].results.ceiling.GBps / 1000;
  return barChart({
    title: "Ops bound by memory",
    note: gpuNote(data),
    unit: "TB/s, each operand counted once",
    series: ["Wick", PYTORCH],
    rows: gpuOps(data, "GBps", 1000),
    mark: { at, label: `copy: ${at.toFixed(2)}` },
  });
}

const gpuProducts = (data) =>
  barChart({
    title: "Products, convolution and attention",
    note: gpuNote(data),
    unit: "TFLOP/s",
    series: ["Wick", PYTORCH],
    rows: gpuOps(data, "TFLOPs", 1),
  });

/** Square products by size, by Wick's own kernels and by the vendor's library: two runs of bench/gpu/ops.mjs. */
function gpuGemm({ "h200-gemm-own": own, "h200-gemm-cublas": library }, dtype) {
  const points = ({ results }) =>
    Object.entries(results)
      .filter(([name, result]) => name.startsWith(`gemm ${dtype} `) && result.TFLOPs)
      .map(([name, { TFLOPs }]) => [Number(name.split(" ")[2]), TFLOPs]);
  return curveChart({
    title: `Square products in ${dtype}, by size`,
    note: own.device.name,
    unit: "TFLOP/s",
    xUnit: "rows and columns",
    series: [
      { name: "Wick's own kernels", points: points(own) },
      { name: "cuBLAS", points: points(library) },
    ],
  });
}

function gpuLlama({ "h200-llama": wick, "h200-torch": torch }) {
  const decode = (type) => wick[`${type} decode`]["tokens/s"];
  const compiled = torch["llama-1B bf16 decode compiled tok/s"];
  const eager = torch["llama-1B bf16 decode eager tok/s"];
  return barChart({
    title: "A Llama of 1B parameters, one text: tokens per second",
    note: `${wick.device}; (n×): Wick's speed over PyTorch's`,
    unit: "tokens/s",
    series: ["Wick", `${PYTORCH}, compiled`, `${PYTORCH}, eager`],
    rows: [
      { label: "bf16", values: [decode("bf16"), compiled, eager] },
      { label: "Q8_0", values: [decode("Q8_0"), null, null] },
      { label: "Q4_K", values: [decode("Q4_K"), null, null] },
    ],
  });
}

/** Files of what wick bench printed for several numbers of texts, by the type of the weights. */
const BATCHES = { Q4_0: "h200-8b-q4_0", Q8_0: "h200-8b-q8_0" };

/** Texts side by side; dashed, what the rate of one would be times their number. */
function gpuBatches(data) {
  const series = Object.entries(BATCHES).map(([name, file]) => ({
    name,
    points: data[file].results.map((row) => [row.batch, row.decodeTokensPerSecond]),
  }));
  const { points } = series[0];
  const [[, alone]] = points;
  return curveChart({
    title: "A Llama of 8B parameters, several texts: tokens per second of all",
    note: "NVIDIA H200, wick bench on GGUF files of random weights",
    unit: "tokens/s",
    xUnit: "texts at a time",
    series,
    guide: { name: "one text × n", points: points.map(([batch]) => [batch, batch * alone]) },
    powers: true,
  });
}

/** The memory of a server under load: the most of each minute. */
function soak({ soak: { machine: on, minutes, clients, requests, points } }) {
  const line = (name, field) => ({
    name,
    points: Array.from({ length: Math.ceil(minutes) }, (_, i) => {
      const values = points.filter(({ minute }) => Math.floor(minute) === i).map((point) => point[field]);
      return [i + 1, Math.max(...values)];
    }),
  });
  return curveChart({
    title: `A server under load for ${minutes} minutes: its memory`,
    note: `fable-7m, ${clients} clients, ${requests.toLocaleString("en-US")} requests; ${on.cpu}, Node ${on.node.slice(1)}`,
    unit: "MiB",
    xUnit: "minutes",
    series: [
      line("resident", "resident"),
      line("outside JavaScript's heap", "native"),
      line("in use in that heap", "heap"),
      line("tensors", "tensors"),
    ],
    even: true,
  });
}

/** What scripts/scaling.mjs simulates; dashed, what GPUs that need not talk would give. */
function scaling({ scaling: { card, context, rows } }) {
  const own = rows.filter(({ shape, sequences }) => shape === "70B" && sequences === 1);
  const networks = [...new Set(own.map(({ network }) => network))];
  const series = networks.map((name) => ({
    name,
    points: own.filter(({ network }) => network === name).map(({ ranks, tokensPerSecond }) => [ranks, tokensPerSecond]),
  }));
  const ideal = own
    .filter(({ network }) => network === networks[0])
    .map(({ ranks, step, stepLinks }) => [ranks, 1 / (step - stepLinks)]);
  return curveChart({
    title: "Simulated: a Llama of 70B parameters over 2 to 64 GPUs",
    note: `${card}, bf16, one text of ${context} tokens, tensor parallel; no number here was measured`,
    unit: "tokens/s",
    xUnit: "GPUs",
    series,
    guide: { name: "links that take no time", points: ideal },
  });
}

const isProduct = ({ op }) => op === "conv2d" || op === "sdpa" || op === "matmul";
/** By the name of its file: what is drawn from the JSON files, which are given by theirs. */
const charts = {
  "cpu-products": (data) => cpuBars(data, "f32 on the CPU: products, convolution, attention", "GFLOP/s", isProduct),
  "cpu-streaming": (data) =>
    cpuBars(data, "f32 on the CPU: ops bound by memory", "GB/s", ({ unit }) => unit === "bytes"),
  "cpu-matmul": cpuMatmul,
  "cpu-llama-decode": (data) => cpuLlama(data, "decode", "Small Llamas on the CPU: decoding"),
  "cpu-llama-prompt": (data) => cpuLlama(data, "prompt", "Small Llamas on the CPU: prompts"),
  "h200-streaming": gpuStreaming,
  "h200-products": gpuProducts,
  "h200-gemm-bf16": (data) => gpuGemm(data, "bf16"),
  "h200-gemm-f32": (data) => gpuGemm(data, "f32"),
  "h200-llama": gpuLlama,
  "h200-batches": gpuBatches,
  soak,
  scaling,
};

/** Each chart's file and text; `read` gives the text of a JSON file. */
export function drawCharts(read) {
  const data = new Proxy({}, { get: (_, name) => JSON.parse(read(`${name}.json`)) });
  return Object.entries(charts).map(([name, draw]) => [`${name}.svg`, draw(data)]);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const path = (name) => fileURLToPath(new URL(`../docs/benchmarks/${name}`, import.meta.url));
  for (const [name, svg] of drawCharts((file) => readFileSync(path(file), "utf8"))) writeFileSync(path(name), svg);
}
