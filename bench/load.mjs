// What loading a large model costs: writes a Llama of about 2 GB in Q8_0 to the temporary folder, loads it in a process of
// its own with progress, and tells that process's peak memory against the file's size; then loads again and aborts.
//
//   node bench/load.mjs [--device cpu] [--keep]
import { spawnSync } from "node:child_process";
import { existsSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const { values: options } = parseArgs({
  options: {
    device: { type: "string", default: "cpu" },
    keep: { type: "boolean", default: false },
    child: { type: "string" },
    file: { type: "string" },
  },
});
const shape = { hidden: 2048, layers: 32, heads: 32, kvHeads: 8, headDim: 64, ffn: 8192, vocab: 32000 };
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

/** Runs in the process that is measured. */
async function load(path, abort) {
  const { loadModel } = await import("../dist/models/index.js");
  const before = process.memoryUsage.rss();
  const controller = new AbortController();
  let calls = 0;
  let last = 0;
  const start = performance.now();
  const finish = (extra) => {
    const peak = process.resourceUsage().maxRSS * 1024;
    console.log(JSON.stringify({ seconds: (performance.now() - start) / 1000, before, peak, calls, ...extra }));
  };
  try {
    const model = await loadModel(path, {
      device: options.device,
      signal: controller.signal,
      onProgress: ({ bytesLoaded, bytesTotal }) => {
        calls++;
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

if (options.child) {
  await load(options.file, options.child === "abort");
} else {
  const path = join(tmpdir(), "wick-bench-load.gguf");
  if (!existsSync(path)) await write(path);
  const bytes = statSync(path).size;
  const gb = (n) => `${(n / 1e9).toFixed(2)} GB`;
  console.log(`${path}: ${gb(bytes)}, on ${options.device}`);
  for (const kind of ["load", "abort"]) {
    const { stdout, stderr } = spawnSync(
      process.execPath,
      [fileURLToPath(import.meta.url), "--child", kind, "--file", path, "--device", options.device],
      { encoding: "utf8" },
    );
    if (stderr) process.stderr.write(stderr);
    const { seconds, before, peak, calls, loaded, result } = JSON.parse(stdout);
    console.log(
      `${kind}: ${seconds.toFixed(1)} s, ${calls} progress calls up to ${gb(loaded)}, peak ${gb(peak)} (${(peak / bytes).toFixed(3)} of the file; ${gb(before)} before): ${result}`,
    );
  }
  if (!options.keep) rmSync(path);
}
