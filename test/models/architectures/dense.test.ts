/** Decoders besides Llama's family: LayerNorm, parallel residuals, learned positions, rotary embeddings per layer. */
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { GgufFile, openSafetensors } from "../../../src/formats/index.ts";
import { type Device, Tensor } from "../../../src/index.ts";
import { parseHuggingFaceConfig } from "../../../src/models/hugging-face/config.ts";
import { loadModel, type Model, promptLookup, type Speculation, writeModelGguf } from "../../../src/models/index.ts";
import { verify } from "../../../src/verify/runner.ts";
import { describeDevices, deviceNames } from "../../helpers/devices.ts";
import {
  denseNames,
  distance,
  goldenIds,
  logitsOf,
  type TinyName,
  tiny,
  variant,
} from "../../helpers/model-folders.ts";
import { temporaryFolder } from "../../helpers/temporary-folder.ts";

const folder = temporaryFolder();
const configOf = async (name: TinyName) =>
  JSON.parse(await readFile(join(tiny(name), "config.json"), "utf8")) as Record<string, unknown>;
const parse = (json: Record<string, unknown>) => parseHuggingFaceConfig(json, "config.json");

/** The simulator takes seconds for each; these have every mechanism. */
const names = (device: Device) => (device.name === "cpu" ? denseNames : (["gpt2", "cohere2"] as const));
const devices = deviceNames.filter((name) => name !== "sim:64");

describeDevices(
  "golden models",
  (device) => {
    it.each(names(device))("%s gives the logits and continuations of transformers", async (name) => {
      const report = await verify(tiny(name), device);
      expect(report.cases.filter((c) => !c.ok)).toEqual([]);
      expect(report.passed).toBe(4);
    });

    it("gpt2 knows the positions of padded sequences", async () => {
      const [first, second] = (await goldenIds("gpt2")) as [number[], number[]];
      using model = await loadModel(tiny("gpt2"), { device, dtype: "f32" });
      const both = await greedy(model, [first, second.slice(0, 5)]);
      expect(both[0]).toEqual((await greedy(model, [first]))[0]);
      expect(both[1]).toEqual((await greedy(model, [second.slice(0, 5)]))[0]);
    });

    it("gpt2 runs to its last position, with guesses and without, and no further", async () => {
      const own = await variant(
        tiny("gpt2"),
        folder(`short-${device.name.replace(":", "-")}`),
        { n_positions: 32 },
        (tensors) => {
          tensors.set("transformer.wpe.weight", tensors.get("transformer.wpe.weight")!.narrow(0, 0, 32));
        },
      );
      using model = await loadModel(own, { device, dtype: "f32" });
      const prompt = (await goldenIds("gpt2"))[0]!;
      const alone = await continued(model, prompt);
      expect(alone.length).toBe(32 - prompt.length + 1);
      expect(await continued(model, prompt, promptLookup())).toEqual(alone);
      expect(() => model.forward(Array.from({ length: 33 }, () => 1))).toThrow(/33 positions, .* vectors for 32/);
    });
  },
  devices,
);

async function greedy(model: Model, prompts: number[][]): Promise<number[][]> {
  const out: number[][] = prompts.map(() => []);
  for await (const piece of model.generateBatch(prompts, { maxTokens: 6, ignoreEos: true }))
    out[piece.sequence]!.push(piece.token);
  return out;
}

async function continued(model: Model, prompt: number[], speculation?: Speculation): Promise<number[]> {
  const out: number[] = [];
  for await (const { token } of model.generate(prompt, { ignoreEos: true, speculation })) out.push(token);
  return out;
}

describe("a dense decoder", () => {
  it.each(denseNames)("%s goes on from any split of the prompt", async (name) => {
    using model = await loadModel(tiny(name));
    const ids = await goldenIds(name);
    using whole = model.logits(ids);
    using cache = model.newCache({ batch: 2 });
    const feed = (from: number, to?: number) =>
      model.logits(
        ids.map((row) => row.slice(from, to)),
        { cache },
      );
    feed(0, 9).dispose();
    feed(9, 10).dispose();
    using last = feed(10);
    expect(distance((await last.data()) as Float32Array, (await whole.data()) as Float32Array)).toBeLessThan(1e-5);
  });

  it.each(["f16", "bf16"] as const)("computes in %s close to f32", async (dtype) => {
    const ids = await goldenIds("gpt2");
    const exact = await logitsOf(tiny("gpt2"), ids);
    using model = await loadModel(tiny("gpt2"), { dtype });
    using logits = model.forward(ids);
    expect(distance((await logits.data()) as Float32Array, exact)).toBeLessThan(dtype === "f16" ? 0.01 : 0.08);
  });

  it("is found as the language model of a larger one, and without its head", async () => {
    const ids = await goldenIds("gemma3");
    const want = await logitsOf(tiny("gemma3"), ids);
    const config = await configOf("gemma3");
    const whole = { model_type: "gemma3", text_config: config, eos_token_id: [1, 106] };
    const renamed = (to: string, rename: (name: string) => string) =>
      variant(tiny("gemma3"), folder(to), { ...nothing(config), ...whole }, (tensors) => {
        for (const [name, tensor] of [...tensors]) tensors.delete(name) && tensors.set(rename(name), tensor);
        tensors.set("vision_tower.patches.weight", Tensor.zeros([4, 4]));
      });
    const before = await renamed("before", (name) => `language_model.${name}`);
    const inside = await renamed("inside", (name) => name.replace("model.", "model.language_model."));
    for (const path of [before, inside]) {
      expect(distance(await logitsOf(path, ids), want)).toBe(0);
      using model = await loadModel(path);
      expect(model.config).toMatchObject({ architecture: "gemma3_text", eosTokens: [1, 106, 2] });
    }
    const bare = await variant(tiny("gpt2"), folder("bare"), {}, (tensors) => {
      for (const [name, tensor] of [...tensors])
        tensors.delete(name) && tensors.set(name.replace("transformer.", ""), tensor);
      tensors.set("h.0.attn.bias", Tensor.ones([1, 1, 8, 8]));
    });
    const own = await goldenIds("gpt2");
    expect(distance(await logitsOf(bare, own), await logitsOf(tiny("gpt2"), own))).toBe(0);
  });

  it.each<[TinyName, Record<string, unknown>, RegExp]>([
    ["phi", { qk_layernorm: true }, /qk_layernorm is true, which is not run for a phi/],
    [
      "gpt2",
      { scale_attn_by_inverse_layer_idx: true },
      /scale_attn_by_inverse_layer_idx is true, which is not run for a gpt2/,
    ],
    ["gpt2", { n_positions: 256 }, /"transformer.wpe.weight" has shape \[512, 64\].*\[256, 64\]/],
    ["cohere2", { use_qk_norm: true }, /use_qk_norm is true/],
    ["gemma3", { use_bidirectional_attention: true }, /use_bidirectional_attention is true/],
    ["smollm3", { no_rope_layers: [1] }, /no_rope_layers must be 2 numbers/],
    ["gemma3", { text_config: { model_type: "siglip" } }, /text_config: unknown architecture "siglip"/],
  ])("%s with %o is refused", async (name, config, message) => {
    const bad = await variant(tiny(name), folder(`${name}-${Object.keys(config)[0]}`), config);
    await expect(loadModel(bad)).rejects.toThrow(message);
  });
});

const nothing = (config: Record<string, unknown>) =>
  Object.fromEntries(Object.keys(config).map((key) => [key, undefined]));

describe("older spellings of config.json", () => {
  it("of Gemma 3 name a theta and a scaling for some layers each", async () => {
    const { rope_parameters: _, layer_types: __, ...rest } = await configOf("gemma3");
    const scaling = { rope_type: "linear", factor: 8 };
    const old = { ...rest, rope_theta: 1e6, rope_local_base_freq: 10_000, rope_scaling: scaling };
    expect(parse({ ...old, sliding_window_pattern: 2 })).toEqual(parse(await configOf("gemma3")));
  });

  it("of Gemma 3's larger models leave out what all have", () => {
    const text_config = {
      ...{ model_type: "gemma3_text", hidden_size: 2560, intermediate_size: 10240, num_hidden_layers: 34 },
      ...{ sliding_window: 1024, rope_scaling: { factor: 8, rope_type: "linear" } },
    };
    const config = parse({ model_type: "gemma3", text_config, torch_dtype: "bfloat16" });
    expect(config).toMatchObject({ heads: 8, kvHeads: 4, headDim: 256, contextLength: 131_072, dtype: "bf16" });
    expect(config.windows.slice(0, 7)).toEqual([1024, 1024, 1024, 1024, 1024, 0, 1024]);
    expect(config.ropes[0]).toMatchObject({ theta: 10_000, scaling: { type: "none" } });
    expect(config.ropes[5]).toMatchObject({ theta: 1_000_000, scaling: { type: "linear", factor: 8 } });
  });

  it("of GPT-NeoX have words of their own", async () => {
    const { rope_parameters: _, ...rest } = await configOf("gpt_neox");
    expect(parse({ ...rest, rotary_pct: 0.5, rotary_emb_base: 5000 }).rope).toMatchObject({ dims: 8, theta: 5000 });
    expect(parse(rest).rope).toMatchObject({ dims: 4, theta: 10_000 });
  });

  it("name the layers that are not turned by their period", async () => {
    const turned = ({ ropes }: { ropes: readonly { dims: number }[] }) => ropes.map(({ dims }) => dims > 0);
    const { no_rope_layers: _, layer_types: __, ...smol } = await configOf("smollm3");
    expect(turned(parse({ ...smol, num_hidden_layers: 5 }))).toEqual([true, true, true, false, true]);
    const { layer_types: ___, ...cohere } = await configOf("cohere2");
    const config = parse({ ...cohere, num_hidden_layers: 5, sliding_window_pattern: 3 });
    expect(turned(config)).toEqual([true, true, false, true, true]);
    expect(config.windows).toEqual([8, 8, 0, 8, 8]);
  });
});

describe("a GGUF file of a dense decoder", () => {
  it.each(denseNames)("%s loads back to the same logits", async (name) => {
    const path = folder(`${name}.gguf`);
    await writeModelGguf(tiny(name), path, { type: "F32" });
    const ids = await goldenIds(name);
    expect(distance(await logitsOf(path, ids), await logitsOf(tiny(name), ids))).toBeLessThan(2e-5);
  });

  it("of Command R does so, too", async () => {
    const own = await variant(tiny("cohere2"), folder("cohere"), { model_type: "cohere", layer_types: undefined });
    await writeModelGguf(own, folder("cohere.gguf"), { type: "F32" });
    const ids = await goldenIds("cohere2");
    const logits = await logitsOf(own, ids);
    expect(distance(await logitsOf(folder("cohere.gguf"), ids), logits)).toBeLessThan(2e-5);
    expect(distance(logits, await logitsOf(tiny("cohere2"), ids))).toBeGreaterThan(1e-3);
  });

  it("is quantized but for its positions", async () => {
    await writeModelGguf(tiny("gpt2"), folder("gpt2.q8.gguf"), { type: "Q8_0" });
    await using file = await GgufFile.open(folder("gpt2.q8.gguf"));
    expect(file.info("position_embd.weight")).toMatchObject({ shape: [512, 64], typeName: "F32" });
    expect(file.info("blk.0.ffn_down.weight")).toMatchObject({ shape: [64, 256], typeName: "Q8_0" });
    const ids = await goldenIds("gpt2");
    expect(distance(await logitsOf(folder("gpt2.q8.gguf"), ids), await logitsOf(tiny("gpt2"), ids))).toBeLessThan(0.1);
  });

  it("has the names and the order of rows that others read", async () => {
    await writeModelGguf(tiny("gpt_neox"), folder("neox.gguf"), { type: "F32" });
    await using file = await GgufFile.open(folder("neox.gguf"));
    const parts = ["attn_norm", "attn_qkv", "attn_output", "ffn_norm", "ffn_up", "ffn_down"];
    expect([...file.tensors.keys()].filter((name) => name.startsWith("blk.0."))).toEqual(
      parts.flatMap((part) => [`blk.0.${part}.weight`, `blk.0.${part}.bias`]),
    );
    expect(Object.fromEntries(file.metadata)).toMatchObject({
      "general.architecture": "gptneox",
      "gptneox.use_parallel_residual": true,
      "gptneox.attention.layer_norm_epsilon": Math.fround(1e-5),
      "gptneox.rope.dimension_count": 4,
    });
    // Heads of 16: q, k and v of a head follow each other in the folder; all of q comes first here.
    await using source = await openSafetensors(tiny("gpt_neox"));
    const read = async (tensor: Tensor) => (await tensor.toArray()) as number[];
    const from = await read(await source.read("gpt_neox.layers.0.attention.query_key_value.bias"));
    const to = await read((await file.readTensor("blk.0.attn_qkv.bias")) as Tensor);
    expect([to[0], to[16], to[64], to[128 + 17]]).toEqual([from[0], from[48], from[16], from[48 + 32 + 1]]);
  });

  it("of SmolLM3 says which layers are turned where readers take it otherwise", async () => {
    const turned = async (no_rope_layers: number[]) => {
      const path = folder(`smollm3-${no_rope_layers}.gguf`);
      await writeModelGguf(
        await variant(tiny("smollm3"), folder(`smollm3-${no_rope_layers}`), { no_rope_layers }),
        path,
        {
          type: "F32",
        },
      );
      await using file = await GgufFile.open(path);
      return file.metadata.get("smollm3.rope.turned_layers");
    };
    expect(await turned([1, 1])).toBeUndefined();
    expect(await turned([1, 0])).toEqual(Int32Array.of(1, 0));
  });

  it("of Gemma 3 says which layers are local, and how they turn", async () => {
    await writeModelGguf(tiny("gemma3"), folder("local.gguf"), { type: "F32" });
    await using file = await GgufFile.open(folder("local.gguf"));
    expect(Object.fromEntries(file.metadata)).toMatchObject({
      "gemma3.attention.sliding_window": 8,
      "gemma3.attention.sliding_window_pattern": 2,
      "gemma3.rope.freq_base": 1_000_000,
      "gemma3.rope.freq_base_swa": 10_000,
      "gemma3.rope.scaling.type": "linear",
    });
    // Readers scale scores by the size of a head, 32, and not by query_pre_attn_scalar, 24.
    expect(file.metadata.has("gemma3.attention.scale")).toBe(false);
    await using source = await openSafetensors(tiny("gemma3"));
    const stored = (await (await source.read("model.layers.0.self_attn.q_norm.weight")).toArray()) as number[];
    const written = (await ((await file.readTensor("blk.0.attn_q_norm.weight")) as Tensor).toArray()) as number[];
    expect(
      distance(
        written,
        stored.map((w) => (1 + w) * Math.sqrt(32 / 24)),
      ),
    ).toBeLessThan(1e-6);
  });

  it.each<[TinyName, Record<string, unknown>, RegExp]>([
    [
      "smollm3",
      { layer_types: ["full_attention", "sliding_attention"], sliding_window: 8 },
      /cannot hold windows of 0, 8/,
    ],
    ["phi", { hidden_act: "relu" }, /GGUF's phi2 cannot hold the activation relu/],
  ])("of %s with %o is refused", async (name, config, message) => {
    const own = await variant(tiny(name), folder(`refused-${name}`), config);
    await expect(writeModelGguf(own, folder("refused.gguf"), { type: "F32" })).rejects.toThrow(message);
  });
});
