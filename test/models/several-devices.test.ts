/** Models whose layers lie on several devices say what they say on one, and take the memory that was planned. */
import { describe, expect, it } from "vitest";
import { Device } from "../../src/index.ts";
import { type GenerateOptions, loadModel, type Model, PromptCache, promptLookup } from "../../src/models/index.ts";
import { createEngine } from "../../src/serving/index.ts";
import { verify } from "../../src/verify/runner.ts";
import { gpuNames } from "../helpers/devices.ts";
import { distance, fable, tiny } from "../helpers/model-folders.ts";

const PROMPT = Array.from({ length: 12 }, (_, i) => (7 * i + 3) % 100);

async function idsOf(model: Model, options: GenerateOptions = {}): Promise<number[]> {
  const ids: number[] = [];
  const own = { maxTokens: 8, temperature: 0, ignoreEos: true, ...options };
  for await (const { token } of model.generate(PROMPT, own)) ids.push(token);
  return ids;
}

/** Bytes of tensors, those that show a file's included. */
const held = (device: Device): number => {
  const { live, mapped = 0 } = device.memory();
  return live + mapped;
};

describe.skipIf(gpuNames.length < 2)("layers on several devices", () => {
  const three = [...gpuNames.slice(0, 2), "cpu"];
  const [first, second] = three as [string, string];

  it("say the same of fable-7m on three, with its memory as planned", async () => {
    using alone = await loadModel(fable, { dtype: "f32" });
    const want = await idsOf(alone);
    const before = new Map(three.map((name) => [name, held(Device.from(name))]));
    using model = await loadModel(fable, { device: three, gpuLayers: 2, dtype: "f32", context: 128 });
    expect(model.placement.map(({ device, layers }) => `${layers} on ${device.name}`)).toEqual([
      `1 on ${first}`,
      `1 on ${second}`,
      "6 on cpu",
    ]);
    using cache = new PromptCache();
    expect(await idsOf(model, { promptCache: cache, prefillChunk: 5 })).toEqual(want);
    for (const { device, weights, cache: kept } of model.placement) {
      const live = held(device) - before.get(device.name)!;
      expect(Math.abs(live / (weights + kept) - 1), device.name).toBeLessThan(0.02);
    }
  });

  // Tied and windowed; latents; learned positions; experts: between two GPUs, to the CPU and from it.
  it.each([
    ["gemma2", [second, first]],
    ["deepseek_v2", [first, "cpu"]],
    ["gpt2", ["cpu", second]],
    ["mixtral", [first, second]],
  ] as const)("say the same of %s on %j", async (name, device) => {
    const devices = device.map((each) => Device.from(each));
    const gpuLayers = devices.some((each) => each.name === "cpu") ? 1 : undefined;
    const report = await verify(tiny(name), devices, { gpuLayers, only: ["logits", "greedy"] });
    expect(report).toMatchObject({ failed: 0 });
    expect(new Set(report.device.split(","))).toEqual(new Set(device));
  });

  it("generate side by side with padding, embed, and serve by pages", async () => {
    using alone = await loadModel(tiny("qwen3"), { dtype: "f32" });
    using model = await loadModel(tiny("qwen3"), { device: [first, "cpu"], gpuLayers: 1, dtype: "f32" });
    const prompts = [PROMPT, PROMPT.slice(0, 5)];
    const both = async (each: Model): Promise<number[][]> => {
      const ids: number[][] = [[], []];
      for await (const { token, sequence } of each.generateBatch(prompts, { maxTokens: 8, temperature: 0 })) {
        ids[sequence]!.push(token);
      }
      return ids;
    };
    const want = await both(alone);
    expect(await both(model)).toEqual(want);
    using cache = new PromptCache();
    const options = [{ promptCache: cache }, { promptCache: cache }, { speculation: promptLookup() }];
    for (const own of options) expect(await idsOf(model, own)).toEqual(await idsOf(alone));
    const vectors = async (each: Model) => (await (await each.embed([PROMPT])).data()) as Float32Array;
    expect(distance(await vectors(model), await vectors(alone))).toBeLessThan(1e-4);
    await using engine = createEngine(model, { batch: 2, pages: 4 });
    const answers = prompts.map(async (prompt) => {
      const tokens: number[] = [];
      for await (const { token } of engine.submit({ prompt, maxTokens: 8, sampling: { temperature: 0 } }))
        tokens.push(token);
      return tokens;
    });
    expect(await Promise.all(answers)).toEqual(want);
  });

  it("encode", async () => {
    const report = await verify(
      tiny("bert"),
      [first, "cpu"].map((name) => Device.from(name)),
      { gpuLayers: 1 },
    );
    expect(report).toMatchObject({ failed: 0, device: `${first},cpu` });
  });

  it("refuse what cannot be", async () => {
    const load = (device: string | string[], options = {}) => loadModel(tiny("llama"), { device, ...options });
    await expect(load([first, "cpu", first])).rejects.toThrow(/is named twice/);
    await expect(load([])).rejects.toThrow(/list of devices is empty/);
    await expect(load(`${first},nowhere:1`)).rejects.toThrow(/unknown device "nowhere:1"/);
    await expect(load(first, { gpuLayers: 3 })).rejects.toThrow(/from 0 to the model's 2 layers, not 3/);
    await expect(load("cpu", { gpuLayers: 1 })).rejects.toThrow(/no GPU was named/);
    await expect(load([first, "cpu"], { memory: 300_000 })).rejects.toThrow(
      /needs .*weights.*sim:\d+ [\d.]+ KiB can be had .*cpu [\d.]+ KiB can be had.*more would hold it; nothing was loaded/,
    );
  });
});
