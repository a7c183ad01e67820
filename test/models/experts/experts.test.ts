/** Mixtures of experts in the forms that files have them in: all the same model. */
import { describe, expect, it } from "vitest";
import { GgufFile, type GgufInput, writeGguf } from "../../../src/formats/index.ts";
import { scope, Tensor } from "../../../src/index.ts";
import { parseHuggingFaceConfig } from "../../../src/models/hugging-face/config.ts";
import { loadModel, writeModelGguf } from "../../../src/models/index.ts";
import { QTensor } from "../../../src/quantized/index.ts";
import { gpuNames } from "../../helpers/devices.ts";
import { distance, goldenIds, logitsOf, tiny, variant } from "../../helpers/model-folders.ts";
import { temporaryFolder } from "../../helpers/temporary-folder.ts";

const folder = temporaryFolder();
const LAYERS = [0, 1];
const prefix = (layer: number): string => `model.layers.${layer}.mlp.`;

/** Random MXFP4 as safetensors hold it, and the floats it stands for: 16 bytes of two weights each, scales of one byte. */
function mxfp4(shape: readonly number[], seed: number) {
  const count = shape.reduce((a, b) => a * b) / 32;
  const grid = [0, 0.5, 1, 1.5, 2, 3, 4, 6];
  let state = seed;
  const next = (below: number): number => {
    state = (state * 1103515245 + 12345) % 2 ** 31;
    return (state >> 8) % below;
  };
  const blocks = Uint8Array.from({ length: 16 * count }, () => next(256));
  const scales = Uint8Array.from({ length: count }, () => 120 + next(4));
  const value = (code: number): number => (code & 8 ? -1 : 1) * grid[code & 7]!;
  const floats = Float32Array.from({ length: 32 * count }, (_, i) => {
    const [block, at] = [Math.floor(i / 32), i % 32];
    const byte = blocks[16 * block + (at >> 1)]!;
    return value(at % 2 === 0 ? byte & 15 : byte >> 4) * 2 ** (scales[block]! - 127);
  });
  return { blocks, scales, floats };
}

describe("gpt-oss", () => {
  /** The same experts as MXFP4 and as floats. */
  async function both(): Promise<[packed: string, dense: string]> {
    const make = (to: string, packed: boolean) =>
      variant(tiny("gpt_oss"), folder(to), {}, (tensors) => {
        for (const layer of LAYERS)
          for (const [name, outputs, inputs] of [
            ["gate_up_proj", 256, 64],
            ["down_proj", 64, 128],
          ] as const) {
            const own = `${prefix(layer)}experts.${name}`;
            const { blocks, scales, floats } = mxfp4([4, outputs, inputs], layer * 2 + outputs);
            tensors.delete(own);
            if (packed) {
              tensors.set(`${own}_blocks`, Tensor.from(blocks, { shape: [4, outputs, inputs / 32, 16] }));
              tensors.set(`${own}_scales`, Tensor.from(scales, { shape: [4, outputs, inputs / 32] }));
            } else {
              const rows = Tensor.from(floats, { shape: [4, outputs, inputs] });
              tensors.set(own, rows.transpose(1, 2).contiguous());
            }
          }
      });
    return [await make("packed", true), await make("dense", false)];
  }

  it("has experts of MXFP4 as blocks and scales, and the same in GGUF", async () => {
    const [packed, dense] = await both();
    const ids = await goldenIds("gpt_oss");
    const want = await logitsOf(dense, ids);
    const size = want.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
    // Activations are rounded to 8 bits where few rows are multiplied with blocks.
    expect(distance(await logitsOf(packed, ids), want)).toBeLessThan(0.02 * size);
    await writeModelGguf(packed, folder("packed.gguf"), { type: "F32" });
    expect(distance(await logitsOf(folder("packed.gguf"), ids), want)).toBeLessThan(2e-5 * Math.max(size, 1));
  });

  it("says what is wrong with blocks and scales", async () => {
    const [packed] = await both();
    const scales = `${prefix(0)}experts.down_proj_scales`;
    const without = await variant(packed, folder("without"), {}, (tensors) => tensors.delete(scales));
    await expect(loadModel(without)).rejects.toThrow(/down_proj_blocks" without ".*down_proj_scales"/);
    const short = await variant(packed, folder("short"), {}, (tensors) =>
      tensors.set(scales, tensors.get(scales)!.narrow(1, 0, 32).contiguous()),
    );
    await expect(loadModel(short)).rejects.toThrow(/16 bytes and a scale of one byte for each block of 32/);
  });

  it("is refused with another limit", async () => {
    const other = await variant(tiny("gpt_oss"), folder("limit"), { swiglu_limit: 5 });
    await expect(loadModel(other)).rejects.toThrow(/swiglu_limit is 5; models with 7 are run/);
  });

  it("keeps its biases and routers in F32, whatever its experts are written as", async () => {
    await writeModelGguf(tiny("gpt_oss"), folder("q8.gguf"), { type: "Q8_0" });
    await using file = await GgufFile.open(folder("q8.gguf"));
    const types = Object.fromEntries([...file.tensors].map(([name, { typeName }]) => [name, typeName]));
    expect(types).toMatchObject({
      "blk.0.ffn_gate_exps.weight": "Q8_0",
      "blk.0.ffn_gate_exps.bias": "F32",
      "blk.0.ffn_gate_inp.weight": "F32",
      "blk.0.attn_sinks.weight": "F32",
    });
    const ids = await goldenIds("gpt_oss");
    const want = await logitsOf(tiny("gpt_oss"), ids);
    expect(distance(await logitsOf(folder("q8.gguf"), ids), want)).toBeLessThan(0.05);
  });
});

/** A copy of a GGUF file with other tensors. */
async function changed(from: string, to: string, change: (t: Map<string, Tensor | QTensor>) => void): Promise<string> {
  await using file = await GgufFile.open(from);
  await scope(async () => {
    const tensors = new Map<string, Tensor | QTensor>();
    for (const name of file.tensors.keys()) tensors.set(name, await file.readTensor(name));
    change(tensors);
    const metadata = new Map<string, GgufInput>(file.typedMetadata);
    await writeGguf(to, { metadata, tensors: [...tensors].map(([name, tensor]) => ({ name, tensor })) });
  });
  return to;
}

describe("experts", () => {
  it("are the same in one tensor for all, gates before ups", async () => {
    const fused = await variant(tiny("qwen3_moe"), folder("fused"), {}, (tensors) => {
      const take = (name: string): Tensor => {
        const tensor = tensors.get(`${name}.weight`)!;
        tensors.delete(`${name}.weight`);
        return tensor;
      };
      for (const layer of LAYERS) {
        const each = Array.from({ length: 8 }, (_, expert) => `${prefix(layer)}experts.${expert}.`);
        const pairs = each.map((own) => Tensor.cat([take(`${own}gate_proj`), take(`${own}up_proj`)], 0));
        tensors.set(`${prefix(layer)}experts.gate_up_proj`, Tensor.stack(pairs, 0));
        const downs = each.map((own) => take(`${own}down_proj`));
        tensors.set(`${prefix(layer)}experts.down_proj`, Tensor.stack(downs, 0));
      }
    });
    const ids = await goldenIds("qwen3_moe");
    const want = await logitsOf(tiny("qwen3_moe"), ids);
    expect(await logitsOf(fused, ids)).toEqual(want);

    await writeModelGguf(fused, folder("fused.gguf"), { type: "F32" });
    const joined = await changed(folder("fused.gguf"), folder("joined.gguf"), (tensors) => {
      for (const layer of LAYERS) {
        const [gate, up] = ["gate", "up"].map((name) => `blk.${layer}.ffn_${name}_exps.weight`) as [string, string];
        const both = Tensor.cat([tensors.get(gate) as Tensor, tensors.get(up) as Tensor], 1);
        tensors.set(`blk.${layer}.ffn_gate_up_exps.weight`, both);
        tensors.delete(gate);
        tensors.delete(up);
      }
    });
    expect(distance(await logitsOf(joined, ids), want)).toBeLessThan(2e-5);
  });

  it("may have gates and ups of different types", async () => {
    await writeModelGguf(tiny("qwen3_moe"), folder("plain.gguf"), { type: "F32" });
    const mixed = await changed(folder("plain.gguf"), folder("mixed.gguf"), (tensors) => {
      for (const layer of LAYERS) {
        const name = `blk.${layer}.ffn_up_exps.weight`;
        tensors.set(name, QTensor.quantize(tensors.get(name) as Tensor, "Q8_0"));
      }
    });
    const ids = await goldenIds("qwen3_moe");
    expect(distance(await logitsOf(mixed, ids), await logitsOf(tiny("qwen3_moe"), ids))).toBeLessThan(0.02);
  });

  it.each(gpuNames.slice(0, 1))("of odd widths are not recorded on %s, and run all the same", async (device) => {
    const odd = await variant(tiny("qwen3_moe"), folder("odd"), { moe_intermediate_size: 18 }, (tensors) => {
      for (const [name, tensor] of tensors)
        if (name.includes(".experts."))
          tensors.set(name, tensor.narrow(name.includes("down_proj") ? 1 : 0, 0, 18).contiguous());
    });
    const tokens = async (on: string): Promise<number[]> => {
      using model = await loadModel(odd, { device: on, dtype: "f32" });
      const got: number[] = [];
      for await (const { token } of model.generate([3, 14, 15, 92], { maxTokens: 5, ignoreEos: true })) got.push(token);
      return got;
    };
    expect(await tokens(device)).toEqual(await tokens("cpu"));
  });

  it("stand beside layers with an MLP where the config says so", async () => {
    const dense = (tensors: Map<string, Tensor>, layer: number): void => {
      for (const [name, shape] of [
        ["gate_proj", [128, 64]],
        ["up_proj", [128, 64]],
        ["down_proj", [64, 128]],
      ] as const)
        tensors.set(`${prefix(layer)}${name}.weight`, Tensor.randn(shape, { seed: 7, std: 0.1 }));
    };
    const listed = await variant(tiny("qwen3_moe"), folder("listed"), { mlp_only_layers: [0] }, (t) => dense(t, 0));
    const stepped = await variant(tiny("qwen3_moe"), folder("stepped"), { decoder_sparse_step: 2 }, (t) => dense(t, 0));
    const ids = await goldenIds("qwen3_moe");
    const logits = await logitsOf(listed, ids);
    expect(await logitsOf(stepped, ids)).toEqual(logits);
    expect(distance(logits, await logitsOf(tiny("qwen3_moe"), ids))).toBeGreaterThan(1e-3);
    await expect(writeModelGguf(listed, folder("listed.gguf"), { type: "F32" })).rejects.toThrow(
      /qwen3moe cannot hold layers without experts/,
    );
    const other = await variant(tiny("qwen3_moe"), folder("other"), { norm_topk_prob: false });
    await expect(writeModelGguf(other, folder("other.gguf"), { type: "F32" })).rejects.toThrow(
      /qwen3moe cannot hold norm_topk_prob: false/,
    );
  });

  it.each([
    ["more per token than there are", { num_experts_per_tok: 9 }, /9 experts per token of 8/],
    ["groups that are not even", { n_group: 3 }, /from 2 of the 3 groups of 8 experts/],
    ["too few groups", { topk_group: 1, num_experts_per_tok: 3 }, /3 experts per token from 1 of the 4 groups/],
    ["layers that take turns", { moe_layer_freq: 2 }, /moe_layer_freq is not 1/],
  ])("are refused with %s", async (name, config, message) => {
    const own = await variant(tiny("deepseek_v3"), folder(`refused ${name}`), config);
    await expect(loadModel(own)).rejects.toThrow(message);
  });

  it("are chosen as the config says", () => {
    const parse = (more: object) => parseHuggingFaceConfig({ ...deepseekV2, ...more }, "config.json").experts!.routing;
    expect(parse({ topk_method: "group_limited_greedy", n_group: 3, topk_group: 2 }).groups).toEqual({
      ...{ count: 3, perToken: 2, scoredBy: 1 },
    });
    expect(parse({ n_group: 3, topk_group: 2 }).groups).toBeNull();
    expect(() => parse({ topk_method: "noaux_tc" })).toThrow(/unknown topk_method "noaux_tc"; known are greedy/);
  });
});

const deepseekV2 = {
  ...{ model_type: "deepseek_v2", vocab_size: 128, hidden_size: 64, intermediate_size: 128, num_hidden_layers: 2 },
  ...{ num_attention_heads: 4, max_position_embeddings: 512, kv_lora_rank: 32, qk_nope_head_dim: 24, v_head_dim: 20 },
  ...{ qk_rope_head_dim: 16, moe_intermediate_size: 48, n_routed_experts: 6, num_experts_per_tok: 2 },
};
