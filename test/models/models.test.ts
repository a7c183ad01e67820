/** Every architecture computes what Hugging Face transformers computes, and bad folders are refused with the reason. */
import { readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { collect } from "../../src/backend/storage.ts";
import { openSafetensors, saveSafetensors } from "../../src/formats/index.ts";
import { Device, scope, Tensor } from "../../src/index.ts";
import { parseHuggingFaceConfig } from "../../src/models/hugging-face/config.ts";
import { loadModel } from "../../src/models/index.ts";
import { JsonFields } from "../../src/models/json-fields.ts";
import { frequencies } from "../../src/models/rotary.ts";
import { verify } from "../../src/verify/runner.ts";
import { describeDevices, inTurns } from "../helpers/devices.ts";
import {
  distance,
  fable,
  fewNames,
  goldenIds as inputs,
  logitsOf,
  tiny,
  tinyNames,
  variant,
} from "../helpers/model-folders.ts";
import { temporaryFolder } from "../helpers/temporary-folder.ts";

const folder = temporaryFolder();

describeDevices("golden models", (device) => {
  // test/backend/gpu/graphs.test.ts runs each on the other GPU.
  const names = device.name.startsWith("sim") ? fewNames : tinyNames;
  it.each(inTurns(names, device))("%s gives the logits and continuations of transformers", async (name) => {
    const report = await verify(tiny(name), device);
    expect(report.cases.filter((c) => !c.ok)).toEqual([]);
    expect(report.cases.map((c) => c.id)).toEqual(["logits", "logits-cached", "greedy-0", "greedy-1"]);
  });

  it.each(inTurns(["fable-7m"], device))("%s gives the ids, logits and continuations of transformers", async () => {
    // The simulator runs every GPU thread on the CPU: the continuations of five prompts would take minutes.
    const short = device.name.startsWith("sim");
    const report = await verify(fable, device, short ? { only: ["tokenizer", "logits"] } : {});
    expect(report.cases.filter((c) => !c.ok)).toEqual([]);
    expect(report.passed).toBe(short ? 10 : 20);
  });
});

describe("golden models", () => {
  it("fail where the weights differ", async () => {
    const changed = await variant(tiny("llama"), folder("changed"), {}, (tensors) => {
      const norm = tensors.get("model.norm.weight")!;
      tensors.set("model.norm.weight", norm.affine(1.01, 0));
    });
    const report = await verify(changed, Device.cpu(), { only: ["logits"] });
    expect(report).toMatchObject({ passed: 0, failed: 1, skipped: 3 });
    expect(report.cases[0]!.error).toMatch(/^element \d+ is .*, expected /);
  });

  it("fail where the continuation differs, and name the token", async () => {
    const changed = await variant(tiny("llama"), folder("greedy"));
    await writeFile(folder("greedy", "golden.json"), JSON.stringify({ greedy: [[6, 56, 7]] }));
    const report = await verify(changed, Device.cpu(), { only: ["greedy"] });
    expect(report.cases).toMatchObject([{ id: "greedy-0", ok: false, error: "token 2 is 6, expected 7" }]);
  });

  it("name a check that does not exist, and a golden file that is none", async () => {
    await expect(verify(tiny("llama"), Device.cpu(), { only: ["softmax"] })).rejects.toThrow(
      /no checks "softmax"; it has logits, logits-cached, greedy/,
    );
    const bad = await variant(tiny("llama"), folder("no-golden"));
    await writeFile(join(bad, "golden.json"), '{"greedy": 1}');
    await expect(verify(bad, Device.cpu())).rejects.toThrow(/golden.json must hold a list of prompts/);
  });

  it("need a model beside them", async () => {
    const bare = await variant(tiny("llama"), folder("bare"));
    await rm(join(bare, "config.json"));
    await expect(verify(bare, Device.cpu())).rejects.toThrow(/neither config.json nor a GGUF/);
  });
});

describe("a model", () => {
  it.each(["f16", "bf16"] as const)("computes in %s close to f32", async (dtype) => {
    const ids = await inputs("gemma2");
    const exact = await logitsOf(tiny("gemma2"), ids);
    using model = await loadModel(tiny("gemma2"), { dtype });
    expect(model.dtype).toBe(dtype);
    using logits = model.forward(ids);
    expect(logits.dtype).toBe("f32");
    const largest = exact.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
    expect(distance((await logits.data()) as Float32Array, exact)).toBeLessThan(
      largest * (dtype === "f16" ? 0.01 : 0.06),
    );
  });

  it.each(tinyNames)("%s goes on from any split of the prompt", async (name) => {
    using model = await loadModel(tiny(name));
    const ids = await inputs(name);
    using whole = model.logits(ids);
    using cache = model.newCache({ batch: 2 });
    for (const [from, to] of [
      [0, 9],
      [9, 10],
      [10, 20],
    ])
      model
        .logits(
          ids.map((row) => row.slice(from, to)),
          { cache },
        )
        .dispose();
    using last = model.logits(
      ids.map((row) => row.slice(20)),
      { cache },
    );
    expect(cache.length).toBe(21);
    expect(distance((await last.data()) as Float32Array, (await whole.data()) as Float32Array)).toBeLessThan(1e-5);
  });

  it("reads fused and separate projections alike", async () => {
    const split = await variant(tiny("phi3"), folder("split"), {}, (tensors) => {
      for (const layer of [0, 1]) {
        const at = `model.layers.${layer}.`;
        const qkv = tensors.get(`${at}self_attn.qkv_proj.weight`)!;
        const gateUp = tensors.get(`${at}mlp.gate_up_proj.weight`)!;
        const parts: [string, Tensor][] = [
          ["self_attn.q_proj", qkv.narrow(0, 0, 64)],
          ["self_attn.k_proj", qkv.narrow(0, 64, 32)],
          ["self_attn.v_proj", qkv.narrow(0, 96, 32)],
          ["mlp.gate_proj", gateUp.narrow(0, 0, 176)],
          ["mlp.up_proj", gateUp.narrow(0, 176, 176)],
        ];
        for (const [name, part] of parts) tensors.set(`${at}${name}.weight`, part);
        tensors.delete(`${at}self_attn.qkv_proj.weight`);
        tensors.delete(`${at}mlp.gate_up_proj.weight`);
      }
    });
    const ids = await inputs("phi3");
    expect(await logitsOf(split, ids)).toEqual(await logitsOf(tiny("phi3"), ids));
  });

  it("uses a bias where the file has one", async () => {
    const ids = await inputs("llama");
    const biased = (value: number) =>
      variant(tiny("llama"), folder(`bias-${value}`), {}, (tensors) => {
        tensors.set("model.layers.1.self_attn.k_proj.bias", Tensor.full([32], value));
        tensors.set("model.layers.0.mlp.down_proj.bias", Tensor.full([64], value));
      });
    const plain = await logitsOf(tiny("llama"), ids);
    expect(distance(await logitsOf(await biased(0), ids), plain)).toBe(0);
    expect(distance(await logitsOf(await biased(0.5), ids), plain)).toBeGreaterThan(0.01);
  });

  it("turns a part of each head where the config says so", async () => {
    const ids = await inputs("llama");
    const config = { rope_parameters: { rope_theta: 10000, rope_type: "default", partial_rotary_factor: 0.5 } };
    const partial = await logitsOf(await variant(tiny("llama"), folder("partial"), config), ids);
    expect(partial.every(Number.isFinite)).toBe(true);
    expect(distance(partial, await logitsOf(tiny("llama"), ids))).toBeGreaterThan(0.001);
    // The first position is not turned at all.
    const first = [[ids[0]![0]!]];
    expect(await logitsOf(folder("partial"), first)).toEqual(await logitsOf(tiny("llama"), first));
  });

  it("loads shards", async () => {
    const sharded = await variant(tiny("llama"), folder("shards"));
    const tensors = await (async () => {
      await using file = await openSafetensors(tiny("llama"));
      return Promise.all(file.names.map(async (name) => [name, await file.read(name)] as const));
    })();
    const names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"] as const;
    const shardOf = (i: number) => names[i % 2]!;
    for (const shard of names)
      await saveSafetensors(join(sharded, shard), new Map(tensors.filter((_, i) => shardOf(i) === shard)));
    const weight_map = Object.fromEntries(tensors.map(([name], i) => [name, shardOf(i)]));
    await writeFile(join(sharded, "model.safetensors.index.json"), JSON.stringify({ weight_map }));
    await rm(join(sharded, "model.safetensors"));
    const ids = await inputs("llama");
    expect(await logitsOf(sharded, ids)).toEqual(await logitsOf(tiny("llama"), ids));
    await rm(join(sharded, names[1]));
    await expect(loadModel(sharded)).rejects.toThrow(/is in .*model-00002-of-00002.safetensors .* does not exist/);
  });

  it("frees everything when it is disposed, and survives the scope it was loaded in", async () => {
    collect();
    const before = Device.cpu().memory();
    const model = await scope(() => loadModel(tiny("mixtral")));
    model.forward([1, 2, 3]).dispose();
    expect(Device.cpu().memory().live).toBeGreaterThan(before.live + 1_000_000);
    model.dispose();
    expect(Device.cpu().memory()).toMatchObject({ live: before.live, storages: before.storages });
  });

  it("computes without leaving tensors behind", async () => {
    using model = await loadModel(tiny("mixtral"));
    using cache = model.newCache();
    model.logits([5], { cache }).dispose();
    collect();
    const { storages } = Device.cpu().memory();
    for (let i = 0; i < 10; i++) model.logits([i], { cache }).dispose();
    expect(Device.cpu().memory().storages).toBe(storages);
  });

  it("refuses ids that do not fit", async () => {
    using model = await loadModel(tiny("llama"));
    using cache = model.newCache({ batch: 3 });
    expect(() => model.forward([])).toThrow(/token ids must be \(batch, length\).*\[1, 0\]/);
    expect(() => model.forward([[1], [2, 3]])).toThrow(/ragged/);
    expect(() => model.forward([[1], [2]], { cache })).toThrow(/the cache holds 3 sequences/);
    expect(() => model.forward([128])).toThrow(/128/);
    expect(() => model.newCache({ batch: 2, padding: [1] })).toThrow(/2 sequences was given 1 paddings/);
  });
});

describe("loading", () => {
  it("reports bytes that rise to the total", async () => {
    const seen: [number, number][] = [];
    const model = await loadModel(fable, { onProgress: (p) => seen.push([p.bytesLoaded, p.bytesTotal]) });
    model.dispose();
    expect(seen.length).toBeGreaterThan(50);
    expect(seen.every(([loaded], i) => i === 0 || loaded > seen[i - 1]![0])).toBe(true);
    expect(new Set(seen.map(([, total]) => total)).size).toBe(1);
    expect(seen.at(-1)![0]).toBe(seen.at(-1)![1]);
  });

  it("counts only what it reads", async () => {
    const extra = await variant(tiny("qwen2"), folder("extra"), {}, (tensors) => {
      tensors.set("lm_head.weight", Tensor.zeros([128, 64]));
      tensors.set("model.layers.0.self_attn.rotary_emb.inv_freq", Tensor.zeros([8]));
    });
    let last = [0, 1];
    const model = await loadModel(extra, { onProgress: (p) => (last = [p.bytesLoaded, p.bytesTotal]) });
    model.dispose();
    expect(last[0]).toBe(last[1]);
  });

  it("can be aborted at the start and in the middle, and frees what it had read", async () => {
    const { live } = Device.cpu().memory();
    await expect(loadModel(fable, { signal: AbortSignal.abort() })).rejects.toThrow(/abort/i);
    const abort = new AbortController();
    let calls = 0;
    const loading = loadModel(fable, { signal: abort.signal, onProgress: () => ++calls === 10 && abort.abort() });
    await expect(loading).rejects.toThrow(/abort/i);
    expect(calls).toBe(10);
    expect(Device.cpu().memory().live).toBeLessThanOrEqual(live);
  });

  it.each<[string, Parameters<typeof variant>[2], Parameters<typeof variant>[3], RegExp]>([
    [
      "an unknown architecture",
      { model_type: "mamba" },
      undefined,
      /unknown architecture "mamba"; known are llama, mis/,
    ],
    ["a missing architecture", { model_type: null }, undefined, /model_type must be a string/],
    ["a missing size", { hidden_size: undefined }, undefined, /hidden_size must be a whole.*, but it is missing/],
    ["a size that is none", { num_hidden_layers: 1.5 }, undefined, /num_hidden_layers must be a whole.*not 1.5/],
    ["heads that do not group", { num_key_value_heads: 3 }, undefined, /4 attention heads .* multiple of 3/],
    ["heads that do not divide", { head_dim: null, num_attention_heads: 6 }, undefined, /64 does not divide by 6/],
    ["an unknown activation", { hidden_act: "mish" }, undefined, /unknown activation "mish"; known are silu/],
    ["a rope it does not know", { rope_parameters: { rope_type: "spiral" } }, undefined, /unknown rope type "spiral"/],
    ["rope that is no object", { rope_parameters: 3 }, undefined, /rope_parameters must be a JSON object, not 3/],
    ["an odd share of a head", { rope_parameters: { partial_rotary_factor: 0.2 } }, undefined, /3 rotary dims of 16/],
    ["layers of a kind it does not know", { layer_types: ["x", "y"] }, undefined, /layer 0 has the unknown type "x"/],
    ["a window that is missing", { layer_types: ["sliding_attention", "full_attention"] }, undefined, /sliding_window/],
    ["end tokens that are none", { eos_token_id: ["x"] }, undefined, /eos_token_id must be a token id, or several/],
    [
      "a shape that contradicts the config",
      { intermediate_size: 160 },
      undefined,
      /"model.layers.0.mlp.gate_proj.weight" has shape \[176, 64\], but the config asks for \[160, 64\]/,
    ],
    [
      "a missing tensor",
      {},
      (t) => t.delete("model.layers.1.mlp.up_proj.weight"),
      /no tensor "model.layers.1.mlp.up_proj.weight", which a llama needs/,
    ],
    ["a missing bias", { model_type: "qwen2" }, undefined, /no tensor "model.layers.0.self_attn.q_proj.bias"/],
    [
      "weights that are integers",
      {},
      (t) => t.set("model.norm.weight", Tensor.zeros([64], { dtype: "i64" })),
      /"model.norm.weight" has dtype i64; weights must be floats/,
    ],
  ])("refuses %s", async (name, config, change, message) => {
    const { live } = Device.cpu().memory();
    const bad = await variant(tiny("llama"), folder(name.replaceAll(" ", "-")), config, change);
    await expect(loadModel(bad)).rejects.toThrow(message);
    expect(Device.cpu().memory().live).toBeLessThanOrEqual(live);
  });

  it("refuses folders and files that are no models", async () => {
    await expect(loadModel(folder("absent"))).rejects.toThrow(/cannot be opened.*ENOENT/);
    await expect(loadModel(folder())).rejects.toThrow(/has no config.json/);
    await writeFile(folder("a.txt"), "");
    await expect(loadModel(folder("a.txt"))).rejects.toThrow(/is no model/);
    const broken = await variant(tiny("llama"), folder("broken"));
    await writeFile(join(broken, "config.json"), "{");
    await expect(loadModel(broken)).rejects.toThrow(/config.json is not JSON/);
    await writeFile(join(broken, "config.json"), "[]");
    await expect(loadModel(broken)).rejects.toThrow(/config.json must be a JSON object/);
    await expect(loadModel(tiny("llama"), { dtype: "i64" as "f32" })).rejects.toThrow(/compute in f32, f16, bf16/);
  });
});

describe("config.json", () => {
  const base = async (name: (typeof tinyNames)[number]) =>
    JSON.parse(await readFile(join(tiny(name), "config.json"), "utf8")) as Record<string, unknown>;
  const parse = (json: Record<string, unknown>, generation?: unknown) =>
    parseHuggingFaceConfig(json, "config.json", generation ? new JsonFields(generation, "generation") : undefined);

  it("means the same in its older spelling", async () => {
    const now = await base("llama3");
    const { rope_theta, rope_type, ...rope } = now.rope_parameters as Record<string, unknown>;
    const { dtype, rope_parameters: _, ...rest } = now;
    const old = { ...rest, torch_dtype: dtype, rope_theta, rope_scaling: { ...rope, type: rope_type } };
    expect(parse(old)).toEqual(parse(now));
    expect(parse(now)).toMatchObject({ dtype: "f32", rope: { theta: 500000, scaling: { type: "llama3", factor: 8 } } });
  });

  it("gives the architectures' windows where it does not list layers", async () => {
    const windows = async (name: (typeof tinyNames)[number], more: Record<string, unknown>) => {
      const { layer_types: _, ...rest } = await base(name);
      return parse({ ...rest, num_hidden_layers: 4, ...more }).windows;
    };
    expect(await windows("llama", { sliding_window: 8 })).toEqual([0, 0, 0, 0]);
    expect(await windows("mistral", { sliding_window: 8 })).toEqual([8, 8, 8, 8]);
    expect(await windows("mistral", { sliding_window: null })).toEqual([0, 0, 0, 0]);
    expect(await windows("gemma2", { sliding_window: 8 })).toEqual([8, 0, 8, 0]);
    expect(await windows("qwen2", { sliding_window: 8 })).toEqual([0, 0, 0, 0]);
    const upper = { sliding_window: 8, use_sliding_window: true, max_window_layers: 3 };
    expect(await windows("qwen3", upper)).toEqual([0, 0, 0, 8]);
  });

  it("takes end tokens from generation_config.json too, once each", async () => {
    const config = { ...(await base("llama")), eos_token_id: 2, bos_token_id: null };
    expect(parse(config, { eos_token_id: [7, 2] })).toMatchObject({ eosTokens: [7, 2], bosToken: null });
    expect(parse(config).eosTokens).toEqual([2]);
  });

  it("refuses more experts per token than there are", async () => {
    const config = { ...(await base("mixtral")), num_experts_per_tok: 5 };
    expect(() => parse(config)).toThrow(/5 experts per token of 4/);
  });
});

describe("rotary frequencies", () => {
  const rope = { theta: 10000, dims: 8, interleaved: false };
  const plain = [1, 0.1, 0.01, 0.001];
  const close = (got: Float64Array, want: number[]) => expect(distance(got, want)).toBeLessThan(1e-12);

  it("fall geometrically, and divide under linear scaling", () => {
    close(frequencies({ ...rope, scaling: { type: "none" } }, 1).values, plain);
    const linear = { type: "linear", factor: 4 } as const;
    close(
      frequencies({ ...rope, scaling: linear }, 1).values,
      plain.map((f) => f / 4),
    );
  });

  it("of llama3 keep the fast, divide the slow and blend between", () => {
    // 0.01 makes 1000 · 0.01 / 2π ≈ 1.59 turns: (1.59 − 1) / (4 − 1) of it is kept.
    const scaling = { type: "llama3", factor: 8, lowFrequencyFactor: 1, highFrequencyFactor: 4, originalContext: 1000 };
    const kept = (10 / (2 * Math.PI) - 1) / 3;
    close(frequencies({ ...rope, scaling: scaling as never }, 1).values, [
      1,
      0.1,
      kept * 0.01 + ((1 - kept) * 0.01) / 8,
      0.001 / 8,
    ]);
  });

  it("of yarn keep the fast, divide the slow, and grow by the attention factor", () => {
    const scaling = {
      type: "yarn",
      factor: 4,
      betaFast: 32,
      betaSlow: 1,
      originalContext: 4096,
      attentionFactor: 1.25,
      truncate: true,
    } as const;
    const { values, magnitude } = frequencies({ ...rope, scaling }, 1);
    // 32 turns in 4096 positions are at index 1.3, one turn at index 2.8: the ramp goes from 1 to 3.
    close(values, [1, 0.1, 0.5 * 0.01 + (0.5 * 0.01) / 4, 0.001 / 4]);
    expect(magnitude).toBe(1.25);
    // Where they are not taken to whole indices, the ramp goes from 1.31 to 2.81.
    const exact = frequencies({ ...rope, scaling: { ...scaling, truncate: false } }, 1).values;
    const divided = (2 - 1.30903) / (2.81418 - 1.30903);
    expect(exact[2]).toBeCloseTo(divided * 0.0025 + (1 - divided) * 0.01, 6);
  });

  it("of longrope change with the extent", () => {
    const scaling = {
      type: "longrope",
      short: [1, 1, 2, 2],
      long: [1, 2, 4, 8],
      originalContext: 16,
      attentionFactor: 1,
    } as const;
    close(frequencies({ ...rope, scaling }, 16).values, [1, 0.1, 0.005, 0.0005]);
    close(frequencies({ ...rope, scaling }, 17).values, [1, 0.05, 0.0025, 0.000125]);
  });

  it("come from either spelling of longrope and from yarn", async () => {
    const config = JSON.parse(await readFile(join(tiny("phi3"), "config.json"), "utf8")) as Record<string, unknown>;
    const { rope_parameters: _, ...rest } = config;
    const factors = { short_factor: Array(8).fill(1), long_factor: Array(8).fill(2) };
    const own = { ...rest, original_max_position_embeddings: 128 };
    const su = parseHuggingFaceConfig({ ...own, rope_scaling: { type: "su", ...factors } }, "c").rope;
    expect(su.scaling).toMatchObject({ type: "longrope", originalContext: 128 });
    expect(su.scaling).toHaveProperty("attentionFactor", Math.sqrt(1 + Math.log(4) / Math.log(128)));
    const yarn = parseHuggingFaceConfig({ ...own, rope_scaling: { rope_type: "yarn", factor: 4 } }, "c").rope;
    expect(yarn.scaling).toMatchObject({ type: "yarn", betaFast: 32, attentionFactor: 0.1 * Math.log(4) + 1 });
    const short = { ...own, rope_scaling: { type: "su", short_factor: [1], long_factor: [1] } };
    expect(() => parseHuggingFaceConfig(short, "c")).toThrow(/short_factor must be 8 positive numbers/);
  });

  it("are long for the whole of a long prompt, however it is fed", async () => {
    const scaling = { rope_type: "longrope", short_factor: Array(8).fill(1), long_factor: Array(8).fill(3) };
    const config = { rope_parameters: { ...scaling, rope_theta: 10000, original_max_position_embeddings: 8 } };
    using model = await loadModel(await variant(tiny("phi3"), folder("longrope"), config));
    const [ids] = (await inputs("phi3")) as [number[]];
    using whole = model.logits(ids);
    using cache = model.newCache();
    model.logits(ids.slice(0, 5), { cache, extent: 21 }).dispose();
    using parts = model.logits(ids.slice(5), { cache, extent: 21 });
    expect(distance((await parts.data()) as Float32Array, (await whole.data()) as Float32Array)).toBeLessThan(1e-5);
  });
});
