// Models to measure: the bundled one, and a Llama of random weights that is written here in three types.
import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { saveSafetensors } from "../../dist/formats/index.js";
import { scope, Tensor } from "../../dist/index.js";
import { writeModelGguf } from "../../dist/models/index.js";

const VOCAB = 32000;
const shape = { hidden: 512, layers: 8, heads: 8, kvHeads: 4, headDim: 64, ffn: 1536 };

/** Bytes, and as many tokens as are missing: both libraries need a tokenizer, neither uses it here. */
function tokenizer() {
  const bytes = Array.from({ length: 256 }, (_, i) => `<0x${i.toString(16).toUpperCase().padStart(2, "0")}>`);
  const known = ["<unk>", "<s>", "</s>", ...bytes];
  const filled = Array.from({ length: VOCAB - known.length }, (_, i) => `word${i}`);
  const added = (id) => ({ id, content: known[id], special: true });
  return {
    added_tokens: [added(0), added(1), added(2)],
    normalizer: { type: "Prepend", prepend: "▁" },
    pre_tokenizer: null,
    post_processor: null,
    decoder: { type: "ByteFallback" },
    model: {
      type: "BPE",
      unk_token: "<unk>",
      byte_fallback: true,
      vocab: Object.fromEntries([...known, ...filled].map((token, id) => [token, id])),
      merges: [],
    },
  };
}

async function writeRandomLlama(folder) {
  const { hidden, layers, heads, kvHeads, headDim, ffn } = shape;
  let seed = 1;
  const matrix = (rows, columns) => {
    const x = Tensor.randn([rows, columns], { seed: seed++ });
    return x.affine(0.02, 0).toDType("f16");
  };
  const tensors = new Map([
    ["model.embed_tokens.weight", () => matrix(VOCAB, hidden)],
    ["lm_head.weight", () => matrix(VOCAB, hidden)],
    ["model.norm.weight", () => Tensor.ones([hidden])],
  ]);
  for (let i = 0; i < layers; i++) {
    const own = {
      "input_layernorm.weight": () => Tensor.ones([hidden]),
      "post_attention_layernorm.weight": () => Tensor.ones([hidden]),
      "self_attn.q_proj.weight": () => matrix(heads * headDim, hidden),
      "self_attn.k_proj.weight": () => matrix(kvHeads * headDim, hidden),
      "self_attn.v_proj.weight": () => matrix(kvHeads * headDim, hidden),
      "self_attn.o_proj.weight": () => matrix(hidden, heads * headDim),
      "mlp.gate_proj.weight": () => matrix(ffn, hidden),
      "mlp.up_proj.weight": () => matrix(ffn, hidden),
      "mlp.down_proj.weight": () => matrix(hidden, ffn),
    };
    for (const [name, make] of Object.entries(own)) tensors.set(`model.layers.${i}.${name}`, make);
  }
  await mkdir(folder, { recursive: true });
  await scope(async () => {
    const made = new Map([...tensors].map(([name, make]) => [name, make()]));
    await saveSafetensors(join(folder, "model.safetensors"), made);
  });
  const config = {
    model_type: "llama",
    vocab_size: VOCAB,
    hidden_size: hidden,
    intermediate_size: ffn,
    num_hidden_layers: layers,
    num_attention_heads: heads,
    num_key_value_heads: kvHeads,
    head_dim: headDim,
    max_position_embeddings: 2048,
    rms_norm_eps: 1e-5,
    bos_token_id: 1,
    eos_token_id: 2,
  };
  await writeFile(join(folder, "config.json"), JSON.stringify(config));
  await writeFile(join(folder, "tokenizer.json"), JSON.stringify(tokenizer()));
}

/** Files by what the table calls them. */
export async function models(folder) {
  const source = join(folder, "random");
  await writeRandomLlama(source);
  const files = [["fable-7m Q8_0", fileURLToPath(new URL("../../models/fable-7m.Q8_0.gguf", import.meta.url))]];
  for (const type of ["Q8_0", "Q4_0", "Q4_K"]) {
    const path = join(folder, `random.${type}.gguf`);
    await writeModelGguf(source, path, { type });
    files.push([`Llama 58M ${type}`, path]);
  }
  return files;
}
