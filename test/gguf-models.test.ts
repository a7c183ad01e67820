/** Models in GGUF files: written from folders and loaded back, with their tokenizers; the bundled model. */
import { cp, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { GgufFile, type GgufInput, openSafetensors, writeGguf } from "../src/formats/index.ts";
import { Device, Tensor } from "../src/index.ts";
import { loadModel, Tokenizer, writeModelGguf } from "../src/models/index.ts";
import { verify } from "../src/verify/runner.ts";
import { fable, tiny, tinyNames, variant } from "./model-folders.ts";
import { sentencePieceJson } from "./sentence-piece.ts";
import { temporaryFolder } from "./temporary-folder.ts";

const folder = temporaryFolder();
const bundled = fileURLToPath(new URL("../models/fable-7m.Q8_0.gguf", import.meta.url));

interface Golden {
  readonly prompt: string;
  readonly prompt_ids: number[];
  readonly greedy_ids: number[];
}
const golden = JSON.parse(await readFile(join(fable, "golden.json"), "utf8")) as Golden[];

async function inputs(name: (typeof tinyNames)[number]): Promise<number[][]> {
  await using file = await openSafetensors(join(tiny(name), "golden.safetensors"));
  using ids = await file.read("input_ids");
  return ((await ids.toArray()) as bigint[][]).map((row) => row.map(Number));
}

async function logitsOf(path: string, ids: number[][]): Promise<Float32Array> {
  using model = await loadModel(path);
  using logits = model.forward(ids);
  return (await logits.data()) as Float32Array;
}

const distance = (a: Float32Array, b: Float32Array): number => {
  expect(a.length).toBe(b.length);
  return a.reduce((most, x, i) => Math.max(most, Math.abs(x - b[i]!)), 0);
};

/** A copy of a GGUF file with something changed. */
async function changed(
  from: string,
  to: string,
  change: { metadata?: (m: Map<string, GgufInput>) => void; tensors?: (t: Map<string, Tensor>) => void },
): Promise<string> {
  await using file = await GgufFile.open(from);
  const metadata = new Map<string, GgufInput>(file.typedMetadata);
  change.metadata?.(metadata);
  const tensors = new Map<string, Tensor>();
  for (const name of file.tensors.keys()) tensors.set(name, (await file.readTensor(name)) as Tensor);
  change.tensors?.(tensors);
  await writeGguf(to, { metadata, tensors: [...tensors].map(([name, tensor]) => ({ name, tensor })) });
  for (const tensor of tensors.values()) tensor.dispose();
  return to;
}

describe("a GGUF file written from a folder", () => {
  it.each(tinyNames)("of %s loads back to the same logits", async (name) => {
    const path = folder(`${name}.gguf`);
    await writeModelGguf(tiny(name), path, { type: "F32" });
    const ids = await inputs(name);
    expect(distance(await logitsOf(path, ids), await logitsOf(tiny(name), ids))).toBeLessThan(2e-5);
  });

  it.each(["llama", "gemma2", "mixtral", "phi3"] as const)("of %s passes its golden checks", async (name) => {
    const own = folder(`golden-${name}`);
    await cp(tiny(name), own, { recursive: true, filter: (path) => !/config.json|model.safetensors/.test(path) });
    await writeModelGguf(tiny(name), join(own, "model.gguf"), { type: "F32" });
    const report = await verify(own, Device.cpu());
    expect(report.cases.filter((c) => !c.ok)).toEqual([]);
    expect(report.passed).toBe(4);
  });

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
    const turned = await (await file.readTensor("blk.0.attn_q.weight") as Tensor).toArray();
    const [from, to] = [q as number[][], turned as number[][]];
    expect([to[0], to[1], to[2], to[17]]).toEqual([from[0], from[8], from[1], from[24]]);
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
    const own = await variant(tiny("llama"), folder(`rope-${name}`), { rope_parameters: { ...rope, rope_theta: 10000 } });
    const ids = await inputs("llama");
    await writeModelGguf(own, folder(`${name}.rope.gguf`), { type: "F32" });
    const logits = await logitsOf(own, ids);
    expect(distance(await logitsOf(folder(`${name}.rope.gguf`), ids), logits)).toBeLessThan(2e-5);
    expect(distance(logits, await logitsOf(tiny("llama"), ids))).toBeGreaterThan(1e-3);
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
    await using [ours, theirs] = [await GgufFile.open(folder("fable.gguf")), await GgufFile.open(bundled)].reverse() as never;
  });
});

async function greedy(model: Awaited<ReturnType<typeof loadModel>>, prompt: number[], maxTokens: number) {
  const ids: number[] = [];
  for await (const piece of model.generate(prompt, { maxTokens, ignoreEos: true })) ids.push(piece.token);
  return ids;
}
