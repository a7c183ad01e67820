// 1,000 texts of 128 tokens as vectors, by an encoder of bge-small's shape with random weights:
//   node bench/gpu/embed.mjs DEVICE FOLDER [--dist PATH] [--only f32,f16,bf16] [--batch TOKENS,…] [--texts N] [--rounds N]
// Wall time from token ids on the host to vectors on the host, the best of the rounds after the first two; "mixed" are as
// many tokens in texts of 16 to 240. FOLDER gets the model and the vectors: embed.py runs the same weights beside it.
import { existsSync, mkdirSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const args = process.argv.slice(2);
const option = (name) => (args.includes(name) ? args[args.indexOf(name) + 1] : undefined);
const dist = pathToFileURL(resolve(option("--dist") ?? new URL("../../dist", import.meta.url).pathname)).href;
const { Device, Tensor, scope } = await import(`${dist}/index.js`);
const { saveSafetensors } = await import(`${dist}/formats/index.js`);
const { loadModel } = await import(`${dist}/models/index.js`);
const device = Device.from(args[0] ?? "cuda:0");
const folder = args[1] ?? fail("name a folder for the model");
const only = option("--only")?.split(",") ?? ["f32", "f16"];
const batches = option("--batch")?.split(",").map(Number) ?? [65_536];
const count = Number(option("--texts") ?? 1000);
const rounds = Number(option("--rounds") ?? 10);

const [layers, hidden, mlp, vocab, positions] = [12, 384, 1536, 30_522, 512];
if (!existsSync(join(folder, "model.safetensors"))) await writeModel();

/** As embed.py makes them. */
const id = (text, t) => 1000 + ((text * 7919 + t * 104_729) % 29_000);
const lengths = {
  equal: Array.from({ length: count }, () => 128),
  mixed: Array.from({ length: count }, (_, i) => 16 + ((i * 97) % 225)),
};

for (const dtype of only) {
  const model = await loadModel(folder, { device, dtype });
  for (const [name, each] of Object.entries(lengths)) {
    const texts = each.map((length, i) => Array.from({ length }, (_, t) => id(i, t)));
    for (const batchTokens of batches) {
      const times = [];
      let vectors;
      for (let round = 0; round < rounds + 2; round++) {
        const start = performance.now();
        const found = await model.embed(texts, { pooling: "cls", normalize: true, batchTokens });
        vectors = await found.data();
        times.push(performance.now() - start);
        found.dispose();
      }
      const ms = Math.min(...times.slice(2));
      const tokens = each.reduce((a, b) => a + b);
      writeFileSync(join(folder, `${name}-${dtype}.f32`), vectors);
      console.log(
        `${dtype} ${name.padEnd(6)} batches of ${String(batchTokens).padStart(6)} tokens: ${((1000 * count) / ms).toFixed(0).padStart(7)} texts/s, ${ms.toFixed(1)} ms, ${tokens} tokens`,
      );
    }
  }
  model.dispose();
}

async function writeModel() {
  mkdirSync(folder, { recursive: true });
  const sizes = { hidden_size: hidden, intermediate_size: mlp, num_hidden_layers: layers, num_attention_heads: 12 };
  const limits = { vocab_size: vocab, max_position_embeddings: positions, type_vocab_size: 2 };
  const config = { model_type: "bert", architectures: ["BertModel"], hidden_act: "gelu", layer_norm_eps: 1e-12 };
  writeFileSync(join(folder, "config.json"), JSON.stringify({ ...config, ...sizes, ...limits, dtype: "float32" }));
  await scope(async () => {
    const tensors = new Map();
    const random = (name, shape, scale) =>
      tensors.set(name, Tensor.randn(shape, { seed: tensors.size + 1 }).affine(scale, 0));
    const linear = (name, outputs, inputs) => {
      random(`${name}.weight`, [outputs, inputs], inputs ** -0.5);
      random(`${name}.bias`, [outputs], 0.05);
    };
    const norm = (name) => {
      tensors.set(`${name}.weight`, Tensor.randn([hidden], { seed: tensors.size + 1 }).affine(0.1, 1));
      random(`${name}.bias`, [hidden], 0.05);
    };
    random("embeddings.word_embeddings.weight", [vocab, hidden], 0.5);
    random("embeddings.position_embeddings.weight", [positions, hidden], 0.3);
    random("embeddings.token_type_embeddings.weight", [2, hidden], 0.1);
    norm("embeddings.LayerNorm");
    for (let i = 0; i < layers; i++) {
      const layer = `encoder.layer.${i}`;
      for (const part of ["query", "key", "value"]) linear(`${layer}.attention.self.${part}`, hidden, hidden);
      linear(`${layer}.attention.output.dense`, hidden, hidden);
      norm(`${layer}.attention.output.LayerNorm`);
      linear(`${layer}.intermediate.dense`, mlp, hidden);
      linear(`${layer}.output.dense`, hidden, mlp);
      norm(`${layer}.output.LayerNorm`);
    }
    await saveSafetensors(join(folder, "model.safetensors"), tensors);
  });
}

function fail(message) {
  console.error(message);
  process.exit(2);
}
