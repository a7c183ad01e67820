// Llamas whose layers are seven square matrices each, of random blocks: what a layer more costs is seven mat-vecs more.
import { createCipheriv } from "node:crypto";
import { writeGguf } from "../../dist/formats/index.js";
import { quantTypes } from "../../dist/quantized/index.js";

export const WIDTH = 4096;
export const MATRICES = 7;
const HEADS = 32;
const PIECE_BLOCKS = 2 ** 14;

/**
 * 16-bit words at the start of each block, such that weights have a mean of 0 and a spread of about 0.02 whatever the
 * other bytes are. Q8_0: a scale of 2⁻¹². Q4_K: 2⁻¹³ for scales, and for minima 7.5 times that, half a weight's range.
 */
const words = { Q8_0: [0x0c00], Q4_K: [0x0800, 0x1380] };

export const matrixBytes = (type) => (WIDTH * WIDTH * quantTypes[type].bytes) / quantTypes[type].size;

/** Blocks of bytes as a cipher gives them: quick, and the same every time. */
export function* randomBlocks(type, count, seed) {
  const { bytes } = quantTypes[type];
  const key = Buffer.alloc(16);
  key.writeUInt32LE(seed);
  const cipher = createCipheriv("aes-128-ctr", key, Buffer.alloc(16));
  for (let left = count; left > 0; left -= PIECE_BLOCKS) {
    const piece = cipher.update(Buffer.alloc(Math.min(left, PIECE_BLOCKS) * bytes));
    for (let at = 0; at < piece.length; at += bytes) {
      for (const [i, word] of words[type].entries()) piece.writeUInt16LE(word, at + 2 * i);
    }
    yield piece;
  }
}

export async function writeLayers(path, type, layers) {
  let seed = 1;
  const matrix = (name, rows) => {
    const count = (rows * WIDTH) / quantTypes[type].size;
    const own = seed++;
    return {
      name,
      type,
      shape: [rows, WIDTH],
      data: async function* () {
        yield* randomBlocks(type, count, own);
      },
    };
  };
  const ones = new Uint8Array(new Float32Array(WIDTH).fill(1).buffer);
  const norm = (name) => ({
    name,
    type: "F32",
    shape: [WIDTH],
    data: async function* () {
      yield ones;
    },
  });
  const square = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];
  const layer = (i) => [
    ...["attn_norm", "ffn_norm"].map((name) => norm(`blk.${i}.${name}.weight`)),
    ...square.map((name) => matrix(`blk.${i}.${name}.weight`, WIDTH)),
  ];
  // The smallest vocabulary of this kind: the marks and the bytes.
  const bytes = Array.from({ length: 256 }, (_, i) => `<0x${i.toString(16).toUpperCase().padStart(2, "0")}>`);
  const tokens = ["<unk>", "<s>", "</s>", ...bytes];
  const u32 = (value) => ({ type: "u32", value });
  await writeGguf(path, {
    metadata: {
      "general.architecture": "llama",
      "llama.block_count": u32(layers),
      "llama.context_length": u32(512),
      "llama.embedding_length": u32(WIDTH),
      "llama.feed_forward_length": u32(WIDTH),
      "llama.attention.head_count": u32(HEADS),
      "llama.attention.head_count_kv": u32(HEADS),
      "llama.attention.layer_norm_rms_epsilon": { type: "f32", value: 1e-5 },
      "tokenizer.ggml.model": "llama",
      "tokenizer.ggml.tokens": { type: "string[]", value: tokens },
      "tokenizer.ggml.scores": { type: "f32[]", value: tokens.map(() => 0) },
      "tokenizer.ggml.token_type": { type: "i32[]", value: tokens.map((_, i) => (i === 0 ? 2 : i < 3 ? 3 : 6)) },
      "tokenizer.ggml.bos_token_id": u32(1),
      "tokenizer.ggml.eos_token_id": u32(2),
      "tokenizer.ggml.unknown_token_id": u32(0),
    },
    tensors: [
      matrix("token_embd.weight", tokens.length),
      norm("output_norm.weight"),
      matrix("output.weight", tokens.length),
      ...Array.from({ length: layers }, (_, i) => layer(i)).flat(),
    ],
  });
}
