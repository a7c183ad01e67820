// Whether llama.cpp goes on with texts as transformers does, from GGUF files that Wick wrote: node tokens.mjs [FOLDER…]
// The tiny Mistral is expected to differ: llama.cpp does not know its sliding window.
import { mkdir, mkdtemp, readdir, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { basename, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { loadSafetensors } from "../../dist/formats/index.js";
import { writeModelGguf } from "../../dist/models/index.js";

/** Neither library reads it here, but llama.cpp wants one: GPT-2's letters for bytes, and words that no text has. */
function tokenizer(size) {
  const special = ["<unk>", "<s>", "</s>", "<|endoftext|>"];
  const known = [...special, "Ċ", "Ġ", ...Array.from({ length: 94 }, (_, i) => String.fromCharCode(33 + i))];
  const tokens = Array.from({ length: size }, (_, id) => known[id] ?? `word${id}`);
  return {
    added_tokens: special.map((content, id) => ({ id, content, special: true })),
    normalizer: null,
    post_processor: null,
    pre_tokenizer: { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: true },
    decoder: { type: "ByteLevel" },
    model: { type: "BPE", vocab: Object.fromEntries(tokens.map((token, id) => [token, id])), merges: [] },
  };
}

/** A folder that has a tokenizer besides what the model's has. */
async function withTokenizer(folder, to) {
  await mkdir(to);
  for (const name of await readdir(folder)) await symlink(join(folder, name), join(to, name));
  const { vocab_size, text_config } = JSON.parse(await readFile(join(folder, "config.json"), "utf8"));
  await writeFile(join(to, "tokenizer.json"), JSON.stringify(tokenizer(vocab_size ?? text_config.vocab_size)));
  return to;
}

/** The texts of a model's golden case, and how transformers goes on with them. */
async function golden(folder) {
  const { greedy } = JSON.parse(await readFile(join(folder, "golden.json"), "utf8"));
  const { input_ids } = Object.fromEntries(await loadSafetensors(join(folder, "golden.safetensors")));
  const prompts = await input_ids.toArray();
  // Encoders do not go on.
  return (greedy ? prompts : []).map((prompt, i) => ({ prompt: prompt.map(Number), want: greedy[i] }));
}

async function byLlama(llama, path, prompt, count) {
  const model = await llama.loadModel({ modelPath: path });
  const context = await model.createContext({ contextSize: 128 });
  const tokens = [];
  for await (const token of context.getSequence().evaluate(prompt, { temperature: 0, yieldEogToken: true })) {
    if (tokens.push(token) === count) break;
  }
  await model.dispose();
  return tokens;
}

const { getLlama, LlamaLogLevel } = await import("node-llama-cpp");
const llama = await getLlama({ gpu: false, build: "never", maxThreads: 1, logLevel: LlamaLogLevel.error });
const all = fileURLToPath(new URL("../../test/data/models/tiny", import.meta.url));
const asked = process.argv.slice(2);
const folders =
  asked.length > 0 ? asked.map((folder) => resolve(folder)) : (await readdir(all)).map((name) => join(all, name));
const work = await mkdtemp(join(tmpdir(), "wick-tokens-"));
let failed = false;
for (const folder of folders) {
  const name = basename(folder);
  const path = join(work, `${name}.gguf`);
  try {
    await writeModelGguf(await withTokenizer(folder, join(work, name)), path, { type: "F32" });
  } catch (error) {
    console.log(`${name}: not written: ${error.message}`);
    continue;
  }
  const differing = [];
  for (const { prompt, want } of await golden(folder)) {
    const got = await byLlama(llama, path, prompt, want.length);
    if (want.some((token, i) => token !== got[i])) differing.push(`${got} and not ${want}`);
  }
  failed ||= differing.length > 0;
  console.log(`${name}: ${differing.length > 0 ? differing.join("; ") : "the same tokens"}`);
}
await rm(work, { recursive: true });
process.exit(failed ? 1 : 0);
