// Llamas of random weights as GGUF files, as large as one wants.
import { quantTypes } from "../dist/core/quant-types.js";
import { writeGguf } from "../dist/formats/index.js";
import { Tensor } from "../dist/index.js";
import { QTensor } from "../dist/quantized/index.js";

/** An 8B Llama's, but for the number of layers; and one of 2 GB in Q8_0. */
export const shapes = {
  "8B": { hidden: 4096, layers: 32, heads: 32, kvHeads: 8, headDim: 128, ffn: 14336, vocab: 128256 },
  "2GB": { hidden: 2048, layers: 32, heads: 32, kvHeads: 8, headDim: 64, ffn: 8192, vocab: 32000 },
};

/** Random blocks of a type, the same over and over: a random tensor, quantized. */
async function randomBlocks(type) {
  const x = Tensor.randn([2 ** 12, 4096], { seed: 1 });
  const blocks = await QTensor.quantize(x.affine(0.02, 0), type).bytes();
  return async function* (count) {
    for (let left = count; left > 0; left -= blocks.length) yield blocks.subarray(0, Math.min(left, blocks.length));
  };
}

const bytesOf = (type, rows, columns) => ((rows * columns) / quantTypes[type].size) * quantTypes[type].bytes;

/** How many layers of a shape make a file of so many bytes. */
export function layersFor({ hidden, heads, kvHeads, headDim, ffn, vocab }, type, bytes) {
  const each = bytesOf(type, 3 * ffn + 2 * heads * headDim + 2 * kvHeads * headDim, hidden);
  return Math.max(1, Math.ceil((bytes - 2 * bytesOf(type, vocab, hidden)) / each));
}

export async function writeRandomLlama(path, { hidden, layers, heads, kvHeads, headDim, ffn, vocab }, type) {
  const random = await randomBlocks(type);
  const matrix = (name, rows, columns) => ({
    name,
    type,
    shape: [rows, columns],
    data: () => random(bytesOf(type, rows, columns)),
  });
  const ones = new Uint8Array(new Float32Array(hidden).fill(1).buffer);
  const norm = (name) => ({
    name,
    type: "F32",
    shape: [hidden],
    async *data() {
      yield ones;
    },
  });
  const layer = (i) => [
    norm(`blk.${i}.attn_norm.weight`),
    matrix(`blk.${i}.ffn_down.weight`, hidden, ffn),
    matrix(`blk.${i}.ffn_gate.weight`, ffn, hidden),
    matrix(`blk.${i}.ffn_up.weight`, ffn, hidden),
    norm(`blk.${i}.ffn_norm.weight`),
    matrix(`blk.${i}.attn_k.weight`, kvHeads * headDim, hidden),
    matrix(`blk.${i}.attn_output.weight`, hidden, heads * headDim),
    matrix(`blk.${i}.attn_q.weight`, heads * headDim, hidden),
    matrix(`blk.${i}.attn_v.weight`, kvHeads * headDim, hidden),
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
