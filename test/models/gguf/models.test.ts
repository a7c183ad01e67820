/** Models in GGUF files: written from folders and loaded back, with their tokenizers; the bundled model. */
import { cp, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { GgufFile, type GgufInput, openSafetensors, writeGguf } from "../../../src/formats/index.ts";
import { Device, scope, Tensor } from "../../../src/index.ts";
import { byteLevelStep, preTokenizers, splitStep } from "../../../src/models/gguf/pre-tokenizers.ts";
import { readGgufTokenizer } from "../../../src/models/gguf/tokenizer.ts";
import { ggufVocabulary } from "../../../src/models/gguf/vocabulary.ts";
import { parseHuggingFaceConfig } from "../../../src/models/hugging-face/config.ts";
import { loadModel, Tokenizer, writeModelGguf } from "../../../src/models/index.ts";
import { JsonFields } from "../../../src/models/json-fields.ts";
import { verify } from "../../../src/verify/runner.ts";
import { describeInTurns } from "../../helpers/devices.ts";
import {
  distance,
  fable,
  goldenIds as inputs,
  logitsOf,
  tiny,
  tinyNames,
  variant,
} from "../../helpers/model-folders.ts";
import { sentencePieceJson } from "../../helpers/sentence-piece.ts";
import { temporaryFolder } from "../../helpers/temporary-folder.ts";

const folder = temporaryFolder();
const bundled = fileURLToPath(new URL("../../../models/fable-7m.Q8_0.gguf", import.meta.url));

interface Golden {
  readonly prompt: string;
  readonly prompt_ids: number[];
  readonly greedy_ids: number[];
}
const golden = JSON.parse(await readFile(join(fable, "golden.json"), "utf8")) as Golden[];
const llamaConfig = JSON.parse(await readFile(join(tiny("llama"), "config.json"), "utf8")) as unknown;

/** A copy of a GGUF file with something changed. */
async function changed(
  from: string,
  to: string,
  change: { metadata?: (m: Map<string, GgufInput>) => void; tensors?: (t: Map<string, Tensor>) => void },
): Promise<string> {
  await using file = await GgufFile.open(from);
  const metadata = new Map<string, GgufInput>(file.typedMetadata);
  change.metadata?.(metadata);
  await scope(async () => {
    const tensors = new Map<string, Tensor>();
    for (const name of file.tensors.keys()) tensors.set(name, (await file.readTensor(name)) as Tensor);
    change.tensors?.(tensors);
    await writeGguf(to, { metadata, tensors: [...tensors].map(([name, tensor]) => ({ name, tensor })) });
  });
  return to;
}

describe("a GGUF file written from a folder", () => {
  it.each(tinyNames)("of %s loads back to the same logits", async (name) => {
    const path = folder(`${name}.gguf`);
    await writeModelGguf(tiny(name), path, { type: "F32" });
    const ids = await inputs(name);
    expect(distance(await logitsOf(path, ids), await logitsOf(tiny(name), ids))).toBeLessThan(2e-5);
  });

  it.each(["llama", "gemma2", "mixtral", "phi3", "olmo2", "granite"] as const)(
    "of %s passes its golden checks",
    async (name) => {
      const own = folder(`golden-${name}`);
      await cp(tiny(name), own, { recursive: true, filter: (path) => !/config.json|model.safetensors/.test(path) });
      await writeModelGguf(tiny(name), join(own, "model.gguf"), { type: "F32" });
      const report = await verify(own, Device.cpu());
      expect(report.cases.filter((c) => !c.ok)).toEqual([]);
      expect(report.passed).toBe(4);
    },
  );

  it("has the names, the order of rows and the metadata that others read", async () => {
    await writeModelGguf(tiny("mixtral"), folder("names.gguf"), { type: "F16" });
    await using file = await GgufFile.open(folder("names.gguf"));
    expect([...file.tensors.keys()].filter((name) => !name.startsWith("blk.1."))).toEqual([
      "token_embd.weight",
      "blk.0.attn_norm.weight",
      "blk.0.attn_q.weight",
      "blk.0.attn_k.weight",
      "blk.0.attn_v.weight",
      "blk.0.attn_output.weight",
      "blk.0.ffn_norm.weight",
      "blk.0.ffn_gate_inp.weight",
      "blk.0.ffn_gate_exps.weight",
      "blk.0.ffn_up_exps.weight",
      "blk.0.ffn_down_exps.weight",
      "output_norm.weight",
      "output.weight",
    ]);
    expect(file.info("blk.0.ffn_up_exps.weight")).toMatchObject({ shape: [4, 176, 64], typeName: "F16" });
    expect(file.info("blk.0.ffn_gate_inp.weight")).toMatchObject({ shape: [4, 64], typeName: "F32" });
    expect(Object.fromEntries(file.metadata)).toMatchObject({
      "general.architecture": "llama",
      "general.name": "mixtral",
      "llama.expert_count": 4,
      "llama.expert_used_count": 2,
      "llama.attention.head_count_kv": 2,
      "llama.rope.freq_base": 1_000_000,
      "tokenizer.ggml.model": "no_vocab",
      "tokenizer.ggml.eos_token_id": 2,
    });
    // Row 1 of a head of 16 was row 8: pairs (i, i + 8) are neighbours.
    await using source = await openSafetensors(tiny("mixtral"));
    const q = await (await source.read("model.layers.0.self_attn.q_proj.weight")).toDType("f16").toArray();
    const turned = await ((await file.readTensor("blk.0.attn_q.weight")) as Tensor).toArray();
    const [from, to] = [q as number[][], turned as number[][]];
    expect([to[0], to[1], to[2], to[17]]).toEqual([from[0], from[8], from[1], from[24]]);
  });

  it("has the norms of OLMo 2 and no others, and is refused with the windows of OLMo 3", async () => {
    await writeModelGguf(tiny("olmo2"), folder("olmo2-norms.gguf"), { type: "F32" });
    await using file = await GgufFile.open(folder("olmo2-norms.gguf"));
    expect([...file.tensors.keys()].filter((name) => /^blk\.0\..*norm/.test(name))).toEqual([
      "blk.0.attn_q_norm.weight",
      "blk.0.attn_k_norm.weight",
      "blk.0.post_attention_norm.weight",
      "blk.0.post_ffw_norm.weight",
    ]);
    expect(file.info("blk.0.attn_k_norm.weight").shape).toEqual([32]);
    const windowed = await changed(folder("olmo2-norms.gguf"), folder("olmo3.gguf"), {
      metadata: (m) => m.set("olmo2.attention.sliding_window", 8),
    });
    await expect(loadModel(windowed)).rejects.toThrow(/a sliding window makes it an OLMo 3/);
  });

  it("has the scales of Granite under the names that others read", async () => {
    await writeModelGguf(tiny("granite"), folder("granite-scales.gguf"), { type: "F32" });
    await using file = await GgufFile.open(folder("granite-scales.gguf"));
    const scale = (name: string) => file.metadata.get(`granite.${name}`);
    const scales = ["attention.scale", "embedding_scale", "residual_scale", "logit_scale"].map(scale);
    expect(scales).toEqual([0.2, 3, 0.4, 2].map(Math.fround));
  });

  it("keeps biases, fused projections and a head of its own", async () => {
    const biased = await variant(tiny("llama"), folder("biased"), {}, (tensors) => {
      tensors.set("model.layers.1.self_attn.q_proj.bias", Tensor.randn([64], { seed: 1 }));
      tensors.set("model.layers.1.self_attn.k_proj.bias", Tensor.randn([32], { seed: 2 }));
      tensors.set("model.layers.1.self_attn.v_proj.bias", Tensor.randn([32], { seed: 3 }));
      tensors.set("model.layers.0.mlp.down_proj.bias", Tensor.randn([64], { seed: 4 }));
    });
    const ids = await inputs("llama");
    await writeModelGguf(biased, folder("biased.gguf"), { type: "F32" });
    expect(distance(await logitsOf(folder("biased.gguf"), ids), await logitsOf(biased, ids))).toBeLessThan(2e-5);
    await writeModelGguf(tiny("phi3"), folder("fused.gguf"), { type: "F32" });
    await using file = await GgufFile.open(folder("fused.gguf"));
    expect([...file.tensors.keys()]).toEqual(expect.arrayContaining(["blk.0.attn_qkv.weight", "blk.1.ffn_up.weight"]));
    expect(file.tensors.has("blk.0.ffn_gate.weight")).toBe(false);
  });

  it.each([
    ["linear", { rope_type: "linear", factor: 4 }],
    ["yarn", { rope_type: "yarn", factor: 4, original_max_position_embeddings: 128, beta_fast: 16 }],
    [
      "longrope",
      {
        rope_type: "longrope",
        short_factor: Array(8).fill(1.5),
        long_factor: Array(8).fill(3),
        original_max_position_embeddings: 16,
      },
    ],
    ["partly turned heads", { rope_type: "default", partial_rotary_factor: 0.5 }],
  ])("keeps %s", async (name, rope) => {
    const own = await variant(tiny("llama"), folder(`rope-${name}`), {
      rope_parameters: { ...rope, rope_theta: 10000 },
    });
    const ids = await inputs("llama");
    await writeModelGguf(own, folder(`${name}.rope.gguf`), { type: "F32" });
    const logits = await logitsOf(own, ids);
    expect(distance(await logitsOf(folder(`${name}.rope.gguf`), ids), logits)).toBeLessThan(2e-5);
    expect(distance(logits, await logitsOf(tiny("llama"), ids))).toBeGreaterThan(1e-3);
  });

  it("refuses parts of different dtypes", async () => {
    const own = await variant(tiny("mixtral"), folder("dtypes"), {}, (tensors) => {
      const name = "model.layers.0.block_sparse_moe.experts.1.w1.weight";
      tensors.set(name, tensors.get(name)!.toDType("f16"));
    });
    await expect(writeModelGguf(own, folder("dtypes.gguf"), { type: "F32" })).rejects.toThrow(
      /the parts of "blk.0.ffn_gate_exps.weight" have f32, f16; they must be floats of one dtype/,
    );
  });

  it.each([
    ["an activation", { hidden_act: "relu" }, /GGUF's qwen2 cannot hold the activation relu/],
    [
      "windows of some layers",
      { use_sliding_window: true, sliding_window: 8, max_window_layers: 1, layer_types: undefined },
      /GGUF's qwen2 cannot hold windows of 0, 8/,
    ],
  ])("refuses %s that the format has no word for", async (name, config, message) => {
    const own = await variant(tiny("qwen2"), folder(`refused ${name}`), config);
    await expect(writeModelGguf(own, folder("refused.gguf"), { type: "F32" })).rejects.toThrow(message);
  });

  it("is quantized on the way, with the tokenizer and the template", async () => {
    const own = folder("fable");
    await cp(fable, own, { recursive: true });
    const chat_template = "{{ bos_token }}{{ messages[0].content }}";
    const tokenizerConfig = { add_bos_token: true, bos_token: "<|bos|>", chat_template };
    await writeFile(join(own, "tokenizer_config.json"), JSON.stringify(tokenizerConfig));
    await writeModelGguf(own, folder("fable.gguf"), { type: "Q8_0" });
    using model = await loadModel(folder("fable.gguf"));
    for (const { prompt, prompt_ids } of golden) expect(model.encode(prompt)).toEqual(prompt_ids);
    expect(model.chatTemplate?.render([{ role: "user", content: "Hello" }])).toBe("<|bos|>Hello");
    expect(await greedy(model, golden[0]!.prompt_ids, 48)).toEqual(golden[0]!.greedy_ids);
    // The same bytes as in the file that was made with GGUF's own tools.
    await using ours = await GgufFile.open(folder("fable.gguf"));
    await using theirs = await GgufFile.open(bundled);
    expect(new Set(ours.tensors.keys())).toEqual(new Set(theirs.tensors.keys()));
    for (const name of ["blk.3.attn_k.weight", "blk.0.ffn_down.weight", "output_norm.weight"]) {
      expect(Buffer.compare(await ours.readBytes(name), await theirs.readBytes(name))).toBe(0);
    }
    const kept = [...theirs.metadata].filter(([key]) => key.startsWith("llama.") || key.startsWith("tokenizer."));
    expect(Object.fromEntries(ours.metadata)).toMatchObject(Object.fromEntries(kept));
  });
});

async function greedy(model: Awaited<ReturnType<typeof loadModel>>, prompt: number[], maxTokens: number) {
  const ids: number[] = [];
  for await (const piece of model.generate(prompt, { maxTokens, ignoreEos: true })) ids.push(piece.token);
  return ids;
}

describeInTurns("the bundled model", (device) => {
  it("gives the logits of the original, as far as 8 bits go", async () => {
    const own = folder(`on-${device.name}`);
    // The simulator runs every GPU thread on the CPU: continuations, and all prompts, would take minutes.
    const short = device.name.startsWith("sim");
    await cp(bundled, join(own, "fable.gguf"));
    await writeFile(join(own, "golden.json"), JSON.stringify(short ? golden.slice(0, 2) : golden));
    const report = await verify(own, device, short ? { only: ["tokenizer", "logits"] } : {});
    expect(report.cases.filter((c) => !c.ok)).toEqual([]);
    expect(report.passed).toBe(short ? 4 : 20);
  });
});

describe("the bundled model", () => {
  it("continues every prompt as the original does in f32", async () => {
    using model = await loadModel(bundled);
    for (const { prompt, prompt_ids, greedy_ids } of golden) {
      expect(model.encode(prompt)).toEqual(prompt_ids);
      expect(await greedy(model, prompt_ids, 48)).toEqual(greedy_ids);
    }
  });

  it("brings back any text", async () => {
    using model = await loadModel(bundled);
    const tokenizer = model.tokenizer!;
    fc.assert(
      fc.property(fc.string({ unit: "binary" }), (s) => {
        expect(tokenizer.decode(tokenizer.encode(s, { special: false }))).toBe(s);
      }),
      { numRuns: 200 },
    );
  });

  it("fails its golden checks with other weights", async () => {
    const own = folder("verified");
    await cp(join(fable, "golden.json"), join(own, "golden.json"));
    await cp(bundled, join(own, "fable.gguf"));
    await changed(bundled, join(own, "other.gguf"), {
      tensors: (t) => t.set("output_norm.weight", t.get("output_norm.weight")!.affine(1.05, 0)),
    });
    const other = await verify(join(own, "other.gguf"), Device.cpu(), { only: ["logits"] });
    expect(other).toMatchObject({ passed: 0, failed: 5 });
    await expect(verify(own, Device.cpu())).rejects.toThrow(/fable.gguf, other.gguf: name one of them/);
  });

  it("is close to itself in 4 bits", async () => {
    const own = folder("four");
    await cp(join(fable, "golden.json"), join(own, "golden.json"));
    await writeModelGguf(fable, join(own, "fable.gguf"), { type: "Q4_0" });
    const report = await verify(own, Device.cpu());
    expect(report.cases.filter((c) => !c.ok)).toEqual([]);
    const logits = report.cases.filter((c) => c.op === "logits").map((c) => c.maxAbs);
    expect(Math.min(...logits)).toBeGreaterThan(0.2);
  });

  it("loads in the dtypes that GPUs compute in", async () => {
    using model = await loadModel(bundled, { dtype: "bf16" });
    expect((await greedy(model, golden[0]!.prompt_ids, 4)).length).toBe(4);
  });

  it("mixes types in a layer, as files of mixed precision do", async () => {
    const ids = [golden[0]!.prompt_ids];
    const mixed = await changed(bundled, folder("mixed.gguf"), {
      tensors: (t) => {
        const v = t.get("blk.0.attn_v.weight") as unknown as { dequantize(): Tensor };
        t.set("blk.0.attn_v.weight", v.dequantize());
      },
    });
    expect(distance(await logitsOf(mixed, ids), await logitsOf(bundled, ids))).toBeLessThan(0.1);
  });

  it("frees everything when it is disposed, and reports its progress", async () => {
    const before = Device.cpu().memory();
    const seen: [number, number][] = [];
    const model = await loadModel(bundled, { onProgress: (p) => seen.push([p.bytesLoaded, p.bytesTotal]) });
    model.forward([1, 2, 3]).dispose();
    model.dispose();
    expect(Device.cpu().memory()).toMatchObject({ live: before.live, storages: before.storages });
    expect(seen.at(-1)![0]).toBe(seen.at(-1)![1]);
    const abort = new AbortController();
    const loading = loadModel(bundled, { signal: abort.signal, onProgress: () => abort.abort() });
    await expect(loading).rejects.toThrow(/abort/i);
    expect(Device.cpu().memory().live).toBeLessThanOrEqual(before.live);
  });
});

describe("a GGUF file's tokenizer", () => {
  async function withTokenizer(json: object, name: string): Promise<string> {
    const own = folder(name);
    await variant(tiny("llama"), own, { vocab_size: 272 }, (tensors) => {
      for (const table of ["model.embed_tokens.weight", "lm_head.weight"]) tensors.set(table, Tensor.zeros([272, 64]));
    });
    await writeFile(join(own, "tokenizer.json"), JSON.stringify(json));
    return own;
  }

  it("of SentencePiece is written and read with its scores and bytes", async () => {
    const own = await withTokenizer(sentencePieceJson, "pieces");
    await writeModelGguf(own, folder("pieces.gguf"), { type: "F32" });
    using model = await loadModel(folder("pieces.gguf"));
    const want = new Tokenizer(sentencePieceJson, { source: "tokenizer.json" });
    const got = model.tokenizer!;
    fc.assert(
      fc.property(fc.string({ unit: fc.constantFrom("a", "b", "c", "h", " ", "é", "z", "😀") }), (s) => {
        expect(got.encode(s)).toEqual(want.encode(s));
        expect(got.decode(got.encode(s, { special: false }))).toBe(s);
      }),
    );
    expect(got.encode("</s>", { special: false })).toEqual([2]);
  });

  it("joins pieces in the order of their scores", async () => {
    const tokens = ["<unk>", "<s>", "a", "b", "c", "ab", "bc", "abc"];
    const scored = (ab: number, bc: number) =>
      changed(folder("llama.gguf"), folder(`scores${ab}.gguf`), {
        metadata: (m) => {
          m.set("tokenizer.ggml.model", "llama");
          m.set("tokenizer.ggml.tokens", tokens);
          m.set("tokenizer.ggml.scores", Float32Array.of(0, 0, 0, 0, 0, ab, bc, -9));
          m.set("tokenizer.ggml.token_type", Int32Array.of(2, 3, 1, 1, 1, 1, 1, 5));
          m.set("tokenizer.ggml.add_space_prefix", false);
          m.set("tokenizer.ggml.add_bos_token", false);
        },
      });
    const encode = async (path: string) => {
      using model = await loadModel(path);
      return model.encode("abc");
    };
    await writeModelGguf(tiny("llama"), folder("llama.gguf"), { type: "F32" });
    expect(await encode(await scored(-1, -2))).toEqual([5, 4]);
    expect(await encode(await scored(-2, -1))).toEqual([2, 6]);
  });

  it.each([
    ["llama-bpe", "in 12345 we'LL go\n\n on", ["in", " ", "123", "45", " we", "'LL", " go", "\n\n", " on"]],
    ["qwen2", "in 12 we'LL go\n\n on", ["in", " ", "1", "2", " we", "'LL", " go", "\n\n", " on"]],
    ["gpt-2", "in 12345 we'll go", ["in", " 12345", " we", "'ll", " go"]],
    ["smollm", "in 12", ["in", " ", "1", "2"]],
    ["tekken", "inSide 12 a/b", ["in", "Side", " ", "1", "2", " a", "/", "b"]],
    ["gpt-4o", "inSide it's 1234", ["in", "Side", " it's", " ", "123", "4"]],
    ["default", "in (12345) go", ["in", " ", "(", "123", "45", ")", " go"]],
  ])("cuts text as %s does", async (pre, text, words) => {
    // A vocabulary of the bytes, and of the words that must not be cut: each is then one token.
    const { vocabulary, merges, symbols } = byteVocabulary(words);
    const path = await changed(await someGguf(), folder(`${pre}.gguf`), {
      metadata: (m) => {
        m.set("tokenizer.ggml.model", "gpt2");
        m.set("tokenizer.ggml.pre", pre);
        m.set("tokenizer.ggml.tokens", vocabulary);
        m.set("tokenizer.ggml.merges", merges);
        m.set("tokenizer.ggml.add_bos_token", false);
      },
    });
    using model = await loadModel(path);
    const ids = model.encode(text);
    expect(ids.map((id) => model.tokenizer!.token(id))).toEqual(words.map(symbols));
    expect(model.tokenizer!.decode(ids)).toBe(text);
  });

  /** A file to change. */
  async function someGguf(): Promise<string> {
    await writeModelGguf(tiny("llama"), folder("some.gguf"), { type: "F32" });
    return folder("some.gguf");
  }

  it.each<[string, (m: Map<string, GgufInput>) => void, RegExp]>([
    [
      "an unknown model",
      (m) => m.set("tokenizer.ggml.model", "rwkv"),
      /unknown tokenizer "rwkv"; known are gpt2, .*llama, t5, bert/,
    ],
    ["an unknown pre-tokenizer", (m) => m.set("tokenizer.ggml.pre", "gpt-9"), /unknown pre-tokenizer "gpt-9"; known/],
    ["no tokens", (m) => m.delete("tokenizer.ggml.tokens"), /tokenizer.ggml.tokens must be strings, but it is missing/],
    ["tokens that are none", (m) => m.set("tokenizer.ggml.tokens", [1, 2]), /tokens must be strings, not \[1,2\]/],
    ["too few types", (m) => m.set("tokenizer.ggml.token_type", [1]), /token_type must be 4096 numbers, not \[1\]/],
    ["no merges", (m) => m.delete("tokenizer.ggml.merges"), /tokenizer.ggml.merges must be strings/],
  ])("with %s is refused", async (name, metadata, message) => {
    const path = await changed(bundled, folder(`bad ${name}.gguf`), { metadata });
    await expect(loadModel(path)).rejects.toThrow(message);
  });

  it("finds the tokens that end a turn", async () => {
    const path = await changed(bundled, folder("turns.gguf"), {
      metadata: (m) => {
        const { value } = m.get("tokenizer.ggml.tokens") as unknown as { value: string[] };
        m.set("tokenizer.ggml.tokens", value.with(7, "<|eot_id|>").with(8, "<|im_end|>"));
        const types = (m.get("tokenizer.ggml.token_type") as unknown as { value: Int32Array }).value.with(7, 3);
        m.set("tokenizer.ggml.token_type", types);
        m.set("tokenizer.ggml.eot_token_id", 9);
      },
    });
    using model = await loadModel(path);
    expect(model.config.eosTokens).toEqual([1, 9, 7]);
  });
});

describe("loading a GGUF file", () => {
  it("takes a window no shorter than the context for none", async () => {
    const own = await variant(tiny("mistral"), folder("wide"), { sliding_window: 512 });
    await writeModelGguf(own, folder("wide.gguf"), { type: "F32" });
    const path = await changed(folder("wide.gguf"), folder("wider.gguf"), {
      metadata: (m) => m.set("llama.attention.sliding_window", 2 ** 18),
    });
    for (const source of [own, path]) {
      using model = await loadModel(source);
      expect(model.config.windows).toEqual([0, 0]);
    }
  });

  it.each<[string, Parameters<typeof changed>[2], RegExp]>([
    [
      "an unknown architecture",
      { metadata: (m) => m.set("general.architecture", "mamba") },
      /unknown architecture "mamba"; known are llama, qwen2, qwen3, gemma2, phi3/,
    ],
    ["no architecture", { metadata: (m) => m.delete("general.architecture") }, /general.architecture must be a string/],
    ["no size", { metadata: (m) => m.delete("llama.block_count") }, /llama.block_count must be a whole.*missing/],
    [
      "a size that is none",
      { metadata: (m) => m.set("llama.context_length", { type: "u64", value: 2n ** 60n }) },
      /llama.context_length must be a whole number from 1 up, not "1152921504606846976"/,
    ],
    [
      "layers that differ",
      { metadata: (m) => m.set("llama.attention.head_count_kv", { type: "u32[]", value: [2, 1] }) },
      /llama.attention.head_count_kv differs from layer to layer/,
    ],
    ["heads that do not group", { metadata: (m) => m.set("llama.attention.head_count_kv", 3) }, /4 .* multiple of 3/],
    [
      "heads that do not divide",
      { metadata: (m) => m.delete("llama.attention.key_length") && m.set("llama.attention.head_count", 6) },
      /width 64 does not divide by 6 heads/,
    ],
    [
      "values of another width",
      { metadata: (m) => m.set("llama.attention.value_length", 8) },
      /keys of 16 and values of 8/,
    ],
    ["odd rotary dims", { metadata: (m) => m.set("llama.rope.dimension_count", 7) }, /7 rotary dims of 16/],
    [
      "an unknown rope",
      { metadata: (m) => m.set("llama.rope.scaling.type", "spiral") },
      /unknown rope scaling "spiral"/,
    ],
    [
      "more experts per token than there are",
      { metadata: (m) => m.set("llama.expert_count", 2).set("llama.expert_used_count", 3) },
      /3 experts per token of 2/,
    ],
    [
      "rotary factors that do not fit",
      { tensors: (t) => t.set("rope_freqs.weight", Tensor.ones([5])) },
      /5 rotary factors for 16 rotary dims/,
    ],
    [
      "rotary factors that are none",
      { tensors: (t) => t.set("rope_freqs.weight", Tensor.zeros([8])) },
      /"rope_freqs.weight" must hold positive numbers/,
    ],
    ["no embeddings", { tensors: (t) => t.delete("token_embd.weight") }, /token_embd.weight/],
    ["an embedding of one dim", { tensors: (t) => t.set("token_embd.weight", Tensor.ones([64])) }, /has 1 dims/],
    [
      "a missing tensor",
      { tensors: (t) => t.delete("blk.1.ffn_up.weight") },
      /has no tensor "blk.1.ffn_up.weight", which a llama needs/,
    ],
    [
      "a shape that contradicts the metadata",
      { tensors: (t) => t.set("blk.0.attn_q.weight", Tensor.ones([32, 64])) },
      /"blk.0.attn_q.weight" has shape \[32, 64\], but the config asks for \[64, 64\]/,
    ],
    [
      "weights that are integers",
      { tensors: (t) => t.set("output_norm.weight", Tensor.zeros([64], { dtype: "i32" })) },
      /"output_norm.weight" has dtype I32; weights must be floats/,
    ],
  ])("with %s is refused", async (name, change, message) => {
    await writeModelGguf(tiny("llama"), folder("good.gguf"), { type: "F32" });
    const { live } = Device.cpu().memory();
    const path = await changed(folder("good.gguf"), folder(`${name}.gguf`), change);
    await expect(loadModel(path)).rejects.toThrow(message);
    expect(Device.cpu().memory().live).toBeLessThanOrEqual(live);
  });

  it("knows a file by its first bytes, and experts by their own tensors", async () => {
    await writeModelGguf(tiny("mixtral"), folder("stacked.gguf"), { type: "F32" });
    const path = await changed(folder("stacked.gguf"), folder("without-ending"), {
      tensors: (t) => {
        for (const [name, tensor] of [...t]) {
          if (!name.includes("_exps")) continue;
          t.delete(name);
          for (let e = 0; e < 4; e++) t.set(name.replace("_exps", `.${e}`), tensor.get(e).contiguous());
        }
      },
    });
    const ids = await inputs("mixtral");
    expect(await logitsOf(path, ids)).toEqual(await logitsOf(folder("stacked.gguf"), ids));
  });
});

/** GPT-2's letters for bytes: printable ones stand for themselves, the others for those from U+0100 on. */
function byteVocabulary(words: readonly string[]) {
  const own = [...range(33, 126), ...range(161, 172), ...range(174, 255)];
  const others = range(0, 255).filter((byte) => !own.includes(byte));
  const letter = (byte: number): string => String.fromCodePoint(own.includes(byte) ? byte : 256 + others.indexOf(byte));
  const symbols = (text: string): string => Array.from(Buffer.from(text), letter).join("");
  const vocabulary = range(0, 255).map(letter);
  const merges: string[] = [];
  const add = (left: string, right: string): void => {
    if (vocabulary.includes(left + right)) return;
    vocabulary.push(left + right);
    merges.push(`${left} ${right}`);
  };
  for (const word of words.map(symbols)) for (let i = 1; i < word.length; i++) add(word.slice(0, i), word[i]!);
  return { vocabulary, merges, symbols };
}

const range = (from: number, to: number): number[] => Array.from({ length: to - from + 1 }, (_, i) => from + i);

describe("tokenizer.json as GGUF metadata", () => {
  const config = parseHuggingFaceConfig(llamaConfig, "config.json");
  const splitting = (...steps: object[]) => ({ type: "Sequence", pretokenizers: steps });
  const split = (name: string) => splitting(...preTokenizers[name]!.patterns.map(splitStep), byteLevelStep(false));
  const base = {
    added_tokens: [
      { id: 4, content: "<|end|>", special: true },
      { id: 5, content: "<tool>", special: false },
    ],
    normalizer: null as object | null,
    pre_tokenizer: byteLevelStep(true) as object | null,
    post_processor: null,
    decoder: { type: "ByteLevel" },
    model: { type: "BPE", vocab: { a: 0, b: 1, ab: 2 }, merges: [["a", "b"]] as unknown } as Record<string, unknown>,
  };
  const metadata = (json: object, vocabSize = 8) =>
    ggufVocabulary(
      json,
      { ...config, vocabSize, eosTokens: [4, 5, 6, 7] },
      { first: null, last: null },
      "tokenizer.json",
    );

  it("comes back as it was", () => {
    const written = metadata(base);
    const values = Object.fromEntries(Object.entries(written).map(([key, { value }]) => [key, value]));
    const tokenizer = readGgufTokenizer(new JsonFields(values, "m.gguf"))!;
    expect(tokenizer.encode("ab<|end|>b<tool>")).toEqual([2, 4, 1, 5]);
    expect(tokenizer.decode([2, 4, 5], { skipSpecial: true })).toBe("ab<tool>");
    expect(values).toMatchObject({
      "tokenizer.ggml.tokens": ["a", "b", "ab", "[PAD3]", "<|end|>", "<tool>", "[PAD6]", "[PAD7]"],
      "tokenizer.ggml.token_type": Int32Array.of(1, 1, 1, 5, 3, 4, 5, 5),
      "tokenizer.ggml.eos_token_id": 4,
      "tokenizer.ggml.eot_token_id": 5,
      "tokenizer.ggml.eom_token_id": 6,
      "tokenizer.ggml.merges": ["a b"],
    });
    expect(metadata({ ...base, model: { ...base.model, merges: ["a b"] } })).toEqual(written);
  });

  it.each([
    ["gpt-2", base.pre_tokenizer, null, false],
    ["llama-bpe", split("llama-bpe"), null, true],
    ["dbrx", split("dbrx"), null, false],
    ["qwen2", split("qwen2"), { type: "NFC" }, false],
    ["smollm", splitting({ type: "Digits", individual_digits: true }, byteLevelStep(true)), null, false],
    ["tekken", split("tekken"), null, true],
  ])("knows %s by its pattern", (name, pre_tokenizer, normalizer, ignore_merges) => {
    const json = { ...base, pre_tokenizer, normalizer, model: { ...base.model, ignore_merges } };
    expect(metadata(json)["tokenizer.ggml.pre"]?.value).toBe(name);
  });

  it("says whether SentencePiece puts a space first", () => {
    const model = { ...base.model, byte_fallback: true };
    const prefix = (more: object) => metadata({ ...base, model, ...more })["tokenizer.ggml.add_space_prefix"]?.value;
    expect(prefix({ normalizer: { type: "Prepend", prepend: "▁" } })).toBe(true);
    expect(prefix({ normalizer: { type: "Replace", pattern: { String: " " }, content: "▁" } })).toBe(false);
    expect(prefix({ pre_tokenizer: { type: "Metaspace", prepend_scheme: "first" } })).toBe(true);
    expect(prefix({ pre_tokenizer: { type: "Metaspace", prepend_scheme: "never" } })).toBe(false);
  });

  it.each<[string, object, RegExp]>([
    [
      "another kind of model",
      { model: { type: "WordLevel" } },
      /has a WordLevel model; BPE, WordPiece, Unigram can be written/,
    ],
    ["no model", { model: null }, /has no model/],
    ["a pattern without a name", { pre_tokenizer: splitStep("x") }, /no name for its pre_tokenizer; known are gpt-2/],
    ["another way of cutting", { pre_tokenizer: { type: "Whitespace" } }, /no name for its pre_tokenizer/],
    ["one step of another kind", { pre_tokenizer: splitting({ type: "Whitespace" }) }, /no name for its pre_tokenizer/],
    ["groups of digits", { pre_tokenizer: { type: "Digits" } }, /no name for its pre_tokenizer/],
    ["a normalizer", { normalizer: { type: "Lowercase" } }, /the normalizer Lowercase does not belong to GGUF's gpt-2/],
    ["a missing normalizer", { pre_tokenizer: split("qwen2") }, /the normalizer none does not belong to GGUF's qwen2/],
    ["an id beyond the model", { added_tokens: [{ id: 8, content: "x" }] }, /token "x" has id 8; the model has 8/],
    ["tokens that are no list", { added_tokens: {} }, /added_tokens must be a list/],
    ["merges that are no list", { model: { ...base.model, merges: 1 } }, /merges must be a list/],
  ])("refuses %s", (_, change, message) => {
    expect(() => metadata({ ...base, ...change })).toThrow(message);
  });
});
