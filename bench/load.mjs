// What loading a large model costs: writes a Llama in Q8_0 to the temporary folder, loads it in processes of their own with
// progress, and tells rates, where the time went, and peak memory against the file's size; then loads again and aborts.
//
//   node bench/load.mjs [--device cpu] [--shape 2GB|8B] [--loads 1] [--folder /tmp] [--keep] [--json FILE]
//
// The file has just been written, so it is read from the page cache. Of the seconds of a load, `open` pass before the first
// bytes are there (header, tokenizer, device, kernels that convert), `transfer` until the last ones, `finish` afterwards
// (kernels that are still being compiled). `reading` and `copying` count the pieces that are read from the file and copied
// to the device at the same time, on average; `busy` is the share of the time in which JavaScript runs.
import { spawnSync } from "node:child_process";
import { existsSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const { values: options } = parseArgs({
  options: {
    device: { type: "string", default: "cpu" },
    shape: { type: "string", default: "2GB" },
    loads: { type: "string", default: "1" },
    folder: { type: "string", default: tmpdir() },
    keep: { type: "boolean", default: false },
    json: { type: "string" },
    child: { type: "string" },
    file: { type: "string" },
  },
});
const shapes = {
  "2GB": { hidden: 2048, layers: 32, heads: 32, kvHeads: 8, headDim: 64, ffn: 8192, vocab: 32000 },
  "8B": { hidden: 4096, layers: 32, heads: 32, kvHeads: 8, headDim: 128, ffn: 14336, vocab: 128256 },
};
const shape = shapes[options.shape];
const Q8_0 = { size: 32, bytes: 34 };

/** One block of eight-bit weights with a scale of 2⁻¹², over and over. */
async function* blocks(count) {
  const piece = new Uint8Array(2 ** 15 * Q8_0.bytes);
  for (let i = 0; i < piece.length; i++)
    piece[i] = i % Q8_0.bytes === 0 ? 0 : i % Q8_0.bytes === 1 ? 0x0c : (i * 37) % 251;
  for (let left = count * Q8_0.bytes; left > 0; left -= piece.length)
    yield piece.subarray(0, Math.min(left, piece.length));
}
async function* ones(count) {
  yield new Uint8Array(new Float32Array(count).fill(1).buffer);
}

async function write(path) {
  const { writeGguf } = await import("../dist/formats/index.js");
  const { hidden, layers, heads, kvHeads, headDim, ffn, vocab } = shape;
  const matrix = (name, rows, columns) => ({
    name,
    type: "Q8_0",
    shape: [rows, columns],
    data: () => blocks((rows * columns) / Q8_0.size),
  });
  const norm = (name) => ({ name, type: "F32", shape: [hidden], data: () => ones(hidden) });
  const layer = (i) => [
    norm(`blk.${i}.attn_norm.weight`),
    matrix(`blk.${i}.attn_q.weight`, heads * headDim, hidden),
    matrix(`blk.${i}.attn_k.weight`, kvHeads * headDim, hidden),
    matrix(`blk.${i}.attn_v.weight`, kvHeads * headDim, hidden),
    matrix(`blk.${i}.attn_output.weight`, hidden, heads * headDim),
    norm(`blk.${i}.ffn_norm.weight`),
    matrix(`blk.${i}.ffn_gate.weight`, ffn, hidden),
    matrix(`blk.${i}.ffn_up.weight`, ffn, hidden),
    matrix(`blk.${i}.ffn_down.weight`, hidden, ffn),
  ];
  const tokens = Array.from({ length: vocab }, (_, i) => (i < 3 ? ["<unk>", "<s>", "</s>"][i] : `word${i}`));
  await writeGguf(path, {
    metadata: {
      "general.architecture": "llama",
      "llama.block_count": { type: "u32", value: layers },
      "llama.context_length": { type: "u32", value: 2048 },
      "llama.embedding_length": { type: "u32", value: hidden },
      "llama.feed_forward_length": { type: "u32", value: ffn },
      "llama.attention.head_count": { type: "u32", value: heads },
      "llama.attention.head_count_kv": { type: "u32", value: kvHeads },
      "llama.attention.layer_norm_rms_epsilon": { type: "f32", value: 1e-5 },
      "tokenizer.ggml.model": "llama",
      "tokenizer.ggml.tokens": { type: "string[]", value: tokens },
      "tokenizer.ggml.scores": { type: "f32[]", value: tokens.map(() => 0) },
      "tokenizer.ggml.token_type": { type: "i32[]", value: tokens.map((_, i) => (i < 3 ? 3 : 1)) },
    },
    tensors: [
      matrix("token_embd.weight", vocab, hidden),
      norm("output_norm.weight"),
      matrix("output.weight", vocab, hidden),
      ...Array.from({ length: layers }, (_, i) => layer(i)).flat(),
    ],
  });
}

/** Counts the time that transfers spend in reading, and in waiting for the device. */
function watch(backend) {
  const own = backend.receive;
  const times = { reading: 0, copying: 0 };
  backend.receive = async (dst, at, bytes, read) => {
    const start = performance.now();
    let between = start;
    await own.call(backend, dst, at, bytes, async (out) => {
      await read(out);
      between = performance.now();
    });
    times.reading += between - start;
    times.copying += performance.now() - between;
  };
  return times;
}

/** Runs in the process that is measured. */
async function load(path, abort) {
  const { Device } = await import("../dist/index.js");
  const { loadModel } = await import("../dist/models/index.js");
  const before = process.memoryUsage.rss();
  const controller = new AbortController();
  let calls = 0;
  let last = 0;
  let [first, latest] = [0, 0];
  const start = performance.now();
  const since = (at) => (performance.now() - at) / 1000;
  const { backend } = Device.from(options.device);
  const device = since(start);
  const times = watch(backend);
  const loop = performance.eventLoopUtilization();
  const finish = (extra) => {
    const peak = process.resourceUsage().maxRSS * 1024;
    const seconds = since(start);
    const transfer = (latest - first) / 1000;
    const split = {
      device,
      open: (first - start) / 1000,
      transfer,
      finish: since(latest),
      reading: times.reading / 1000 / transfer,
      copying: times.copying / 1000 / transfer,
      busy: performance.eventLoopUtilization(loop).utilization,
    };
    console.log(JSON.stringify({ seconds, split, before, peak, calls, ...extra }));
  };
  try {
    const model = await loadModel(path, {
      device: options.device,
      signal: controller.signal,
      onProgress: ({ bytesLoaded, bytesTotal }) => {
        latest = performance.now();
        if (calls++ === 0) first = latest;
        if (bytesLoaded < last) throw new Error("the progress went back");
        last = bytesLoaded;
        if (abort && bytesLoaded > bytesTotal / 3) controller.abort(new Error("stopped by the caller"));
      },
    });
    finish({ loaded: last, result: "loaded" });
    model[Symbol.dispose]();
  } catch (error) {
    finish({ loaded: last, result: error.message });
  }
}

const gb = (n) => `${(n / 1e9).toFixed(2)} GB`;
const seconds = (n) => `${n.toFixed(2)} s`;

/** One load in a process of its own. */
function measure(kind, path, bytes) {
  const own = fileURLToPath(import.meta.url);
  const args = [own, "--child", kind, "--file", path, "--device", options.device];
  const { stdout, stderr } = spawnSync(process.execPath, args, { encoding: "utf8" });
  if (stderr) process.stderr.write(stderr);
  const row = JSON.parse(stdout);
  const { split, calls, loaded, peak, before, result } = row;
  console.log(
    `${kind}: ${seconds(row.seconds)} (${(loaded / row.seconds / 1e9).toFixed(2)} GB/s): open ${seconds(split.open)} (the device ${seconds(split.device)}), transfer ${seconds(split.transfer)} (${(loaded / split.transfer / 1e9).toFixed(2)} GB/s; reading ${split.reading.toFixed(1)}, copying ${split.copying.toFixed(1)}, busy ${split.busy.toFixed(2)}), finish ${seconds(split.finish)}`,
  );
  console.log(
    `      ${calls} progress calls up to ${gb(loaded)}, peak ${gb(peak)} (${(peak / bytes).toFixed(3)} of the file; ${gb(before)} before): ${result}`,
  );
  return { kind, gbPerSecond: loaded / row.seconds / 1e9, ...row };
}

if (options.child) {
  await load(options.file, options.child === "abort");
} else {
  const path = join(options.folder, `wick-bench-load-${options.shape}.gguf`);
  const start = performance.now();
  if (!existsSync(path)) await write(path);
  const bytes = statSync(path).size;
  console.log(
    `${path}: ${gb(bytes)}, written in ${seconds((performance.now() - start) / 1000)}; loading on ${options.device}`,
  );
  const kinds = [...new Array(Number(options.loads)).fill("load"), "abort"];
  const rows = kinds.map((kind) => measure(kind, path, bytes));
  if (!options.keep) rmSync(path);
  if (options.json) {
    const result = { bench: "load", device: options.device, shape: options.shape, bytes, rows };
    writeFileSync(options.json, `${JSON.stringify(result, null, 2)}\n`);
  }
}
