/** Attention by latents: what its cache holds, the two ways of computing it, and the forms of its files. */
import { describe, expect, it } from "vitest";
import { GgufFile, type GgufInput, writeGguf } from "../../src/formats/index.ts";
import { scope, type Tensor } from "../../src/index.ts";
import { layerCacheBytes } from "../../src/models/cache.ts";
import { parseHuggingFaceConfig } from "../../src/models/hugging-face/config.ts";
import { loadModel, writeModelGguf } from "../../src/models/index.ts";
import { LatentCache } from "../../src/nn/index.ts";
import { describeDevices, gpuNames } from "../helpers/devices.ts";
import { distance, goldenIds, logitsOf, tiny, variant } from "../helpers/model-folders.ts";
import { temporaryFolder } from "../helpers/temporary-folder.ts";

const folder = temporaryFolder();
const LAYERS = [0, 1];
const attention = (layer: number, name: string): string => `model.layers.${layer}.self_attn.${name}.weight`;
const long = Array.from({ length: 90 }, (_, i) => (5 + 37 * i) % 128);

describeDevices(
  "latent attention",
  (device) => {
    it("attends to latents, and makes keys and values of them for a long prompt", async () => {
      using model = await loadModel(tiny("deepseek_v2"), { device, dtype: "f32" });
      const want = (await logitsOf(tiny("deepseek_v2"), [long])).slice(-128);
      using cache = model.newCache();
      for (const [from, to] of [
        [0, 75],
        [75, 76],
        [76, 90],
      ] as const) {
        using logits = model.logits([long.slice(from, to)], { cache });
        if (to === 90) expect(distance((await logits.data()) as Float32Array, want)).toBeLessThan(2e-5);
      }
    });
  },
  gpuNames.slice(0, 1),
);

describe("latent attention", () => {
  it("keeps one vector and one key per position and layer, whatever the heads", async () => {
    using model = await loadModel(tiny("deepseek_v2"));
    using cache = model.newCache();
    using logits = model.logits([long], { cache });
    expect(logits.shape).toEqual([1, 128]);
    for (const layer of cache.layers) {
      expect(layer).toBeInstanceOf(LatentCache);
      using all = (layer as LatentCache).reserve(0, [1, 1, 0, 48], model);
      expect(all.shape).toEqual([1, 1, 256, 32 + 16]);
    }
    expect(layerCacheBytes(model.config, 0, "bf16", 1024, false)).toBe(1024 * (32 + 16) * 2);
    expect(`${cache.layers[0]}`).toBe("LatentCache(90 positions)");
  });

  it.each(["deepseek_v2", "deepseek_v3"] as const)(
    "of %s makes keys and values of a long prompt's latents, and not of one more",
    async (name) => {
      using model = await loadModel(tiny(name));
      using whole = model.logits([long]);
      const want = (await whole.data()) as Float32Array;
      // The first part is long enough to be expanded; the last tokens attend to latents.
      for (const cuts of [
        [0, 80, 81, 90],
        [0, 8, 16, 90],
        [0, 3, 90],
      ]) {
        using cache = model.newCache();
        for (const [i, to] of cuts.slice(1).entries()) {
          using logits = model.logits([long.slice(cuts[i], to)], { cache });
          if (to === 90) expect(distance((await logits.data()) as Float32Array, want)).toBeLessThan(2e-5);
        }
        expect(cache.rewind(81)).toBe(true);
        using again = model.logits([long.slice(81)], { cache });
        expect(distance((await again.data()) as Float32Array, want)).toBeLessThan(2e-5);
      }
    },
  );

  it("may make queries of the hidden state, and have rotary pairs that lie apart", async () => {
    const direct = await variant(tiny("deepseek_v2"), folder("direct"), { q_lora_rank: null }, (tensors) => {
      for (const layer of LAYERS) {
        const [down, up] = ["q_a_proj", "q_b_proj"].map((name) => tensors.get(attention(layer, name))!) as [
          Tensor,
          Tensor,
        ];
        tensors.set(attention(layer, "q_proj"), up.matmul(down));
        for (const name of ["q_a_proj", "q_b_proj", "q_a_layernorm"]) tensors.delete(attention(layer, name));
      }
    });
    const ids = await goldenIds("deepseek_v2");
    const logits = await logitsOf(direct, ids);
    expect(distance(logits, await logitsOf(tiny("deepseek_v2"), ids))).toBeGreaterThan(1e-3);
    await writeModelGguf(direct, folder("direct.gguf"), { type: "F32" });
    expect(distance(await logitsOf(folder("direct.gguf"), ids), logits)).toBeLessThan(2e-5);

    const apart = await variant(tiny("deepseek_v3"), folder("apart"), { rope_interleave: false }, (tensors) => {
      // Pairs (2i, 2i + 1) of the 16 turned dims go to (i, i + 8).
      const moved = (rows: Tensor): Tensor => rows.reshape([8, 2, -1]).transpose(0, 1).reshape([16, -1]);
      for (const layer of LAYERS) {
        const [q, kv] = ["q_b_proj", "kv_a_proj_with_mqa"].map((name) => attention(layer, name)) as [string, string];
        const heads = tensors.get(q)!.split([40, 40, 40, 40], 0);
        const parts = heads.flatMap((head) => [head.narrow(0, 0, 24), moved(head.narrow(0, 24, 16))]);
        const own = tensors.get(kv)!;
        const { cat } = own.constructor as typeof Tensor;
        tensors.set(q, cat(parts, 0));
        tensors.set(kv, cat([own.narrow(0, 0, 32), moved(own.narrow(0, 32, 16))], 0));
      }
    });
    expect(distance(await logitsOf(apart, ids), await logitsOf(tiny("deepseek_v3"), ids))).toBeLessThan(2e-5);
    await expect(writeModelGguf(apart, folder("apart.gguf"), { type: "F32" })).rejects.toThrow(
      /rope_interleave: false/,
    );
  });

  const yarn = { type: "yarn", factor: 8, original_max_position_embeddings: 64, beta_fast: 32, beta_slow: 1 };
  const scaled = { rope_parameters: null, rope_theta: 10000 };

  it("grows its scores with yarn's mscale_all_dim", async () => {
    const own = { ...scaled, rope_scaling: { ...yarn, mscale: 0.7, mscale_all_dim: 0.7 } };
    const stretched = await variant(tiny("deepseek_v2"), folder("yarn"), own);
    using model = await loadModel(stretched);
    const grown = 1 + 0.07 * Math.log(8);
    expect(model.config.attentionScale).toBeCloseTo(grown ** 2 / Math.sqrt(40), 10);
    expect(model.config.rope.scaling).toMatchObject({ type: "yarn", attentionFactor: 1 });
    const ids = [long];
    await writeModelGguf(stretched, folder("yarn.gguf"), { type: "F32" });
    expect(distance(await logitsOf(folder("yarn.gguf"), ids), await logitsOf(stretched, ids))).toBeLessThan(2e-5);
    await using file = await GgufFile.open(folder("yarn.gguf"));
    expect(file.metadata.get("deepseek2.rope.scaling.yarn_log_multiplier")).toBeCloseTo(0.07, 6);
  });

  it("turns by more where yarn's two scales differ, or there is none", async () => {
    const config = (rope_scaling: object) => parseHuggingFaceConfig({ ...v2, rope_scaling }, "config.json");
    const both = config({ ...yarn, mscale: 1, mscale_all_dim: 0.5 });
    const factor = (by: number): number => 1 + 0.1 * by * Math.log(8);
    expect(both.rope.scaling).toMatchObject({ attentionFactor: factor(1) / factor(0.5) });
    expect(both.attentionScale).toBeCloseTo(factor(0.5) ** 2 / Math.sqrt(40), 10);
    const none = config(yarn);
    expect(none.rope.scaling).toMatchObject({ attentionFactor: factor(1) });
    expect(none.attentionScale).toBeCloseTo(1 / Math.sqrt(40), 10);
    const other = { ...scaled, rope_scaling: { ...yarn, mscale: 1, mscale_all_dim: 0.5 } };
    const refused = await variant(tiny("deepseek_v2"), folder("refused"), other);
    await expect(writeModelGguf(refused, folder("refused.gguf"), { type: "F32" })).rejects.toThrow(
      /a yarn whose mscale is not its mscale_all_dim/,
    );
  });

  it("leaves what predicts further tokens aside, and chooses from groups in GGUF files, too", async () => {
    const more = await variant(
      tiny("deepseek_v3"),
      folder("more"),
      { n_group: 2, topk_group: 1, routed_scaling_factor: 1.25 },
      (tensors) => {
        for (const [name, tensor] of [...tensors])
          if (name.startsWith("model.layers.1.")) tensors.set(name.replace(".1.", ".2."), tensor);
      },
    );
    const ids = await goldenIds("deepseek_v3");
    const logits = await logitsOf(more, ids);
    await writeModelGguf(more, folder("more.gguf"), { type: "F32" });
    expect(distance(await logitsOf(folder("more.gguf"), ids), logits)).toBeLessThan(2e-5);
    const counted = await changed(folder("more.gguf"), folder("counted.gguf"), (metadata) => {
      metadata.set("deepseek2.block_count", { type: "u32", value: 3 });
      metadata.set("deepseek2.nextn_predict_layers", { type: "u32", value: 1 });
    });
    expect(distance(await logitsOf(counted, ids), logits)).toBeLessThan(2e-5);
  });

  it("is quantized head by head", async () => {
    await writeModelGguf(tiny("deepseek_v2"), folder("q8.gguf"), { type: "Q8_0" });
    await using file = await GgufFile.open(folder("q8.gguf"));
    expect(file.info("blk.0.attn_v_b.weight")).toMatchObject({ shape: [4, 20, 32], typeName: "Q8_0" });
    const ids = [long];
    const [got, want] = [await logitsOf(folder("q8.gguf"), ids), await logitsOf(tiny("deepseek_v2"), ids)];
    // In a few rows another expert is chosen.
    const apart = long.map((_, row) =>
      distance(got.subarray(128 * row, 128 * (row + 1)), want.subarray(128 * row, 128 * (row + 1))),
    );
    expect(apart.filter((most) => most > 0.06).length).toBeLessThan(12);
  });

  it("says what is wrong with a file", async () => {
    await writeModelGguf(tiny("deepseek_v2"), folder("good.gguf"), { type: "F32" });
    const old = await changed(folder("good.gguf"), folder("old.gguf"), (metadata) =>
      metadata.delete("deepseek2.attention.key_length_mla"),
    );
    await expect(loadModel(old)).rejects.toThrow(/key_length_mla is missing: .* convert the model again/);
    const shape = await variant(tiny("deepseek_v2"), folder("shape"), { v_head_dim: 24 });
    await expect(loadModel(shape)).rejects.toThrow(/kv_b_proj.weight" has shape \[176, 32\], but .* \[192, 32\]/);
  });
});

async function changed(from: string, to: string, change: (m: Map<string, GgufInput>) => void): Promise<string> {
  await using file = await GgufFile.open(from);
  const metadata = new Map<string, GgufInput>(file.typedMetadata);
  change(metadata);
  await scope(async () => {
    const tensors: { name: string; tensor: Tensor }[] = [];
    for (const name of file.tensors.keys()) tensors.push({ name, tensor: (await file.readTensor(name)) as Tensor });
    await writeGguf(to, { metadata, tensors });
  });
  return to;
}

const v2 = {
  ...{ model_type: "deepseek_v2", vocab_size: 128, hidden_size: 64, intermediate_size: 128, num_hidden_layers: 2 },
  ...{ num_attention_heads: 4, max_position_embeddings: 512, kv_lora_rank: 32, qk_nope_head_dim: 24, v_head_dim: 20 },
  ...{ qk_rope_head_dim: 16, moe_intermediate_size: 48, n_routed_experts: 6, num_experts_per_tok: 2 },
};
