/** The models the tests run, and folders made from them with something changed. */
import { cp, mkdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect } from "vitest";
import { loadSafetensors, openSafetensors, saveSafetensors } from "../../src/formats/index.ts";
import { scope, type Tensor } from "../../src/index.ts";
import { loadModel } from "../../src/models/index.ts";

const root = fileURLToPath(new URL("../data/models", import.meta.url));
export const fable = join(root, "fable-7m");
export const tinyNames = [
  "llama",
  "llama3",
  "mistral",
  "qwen2",
  "qwen3",
  "gemma2",
  "phi3",
  "mixtral",
  "olmo2",
  "granite",
  "qwen2_moe",
  "qwen3_moe",
  "gpt_oss",
  "deepseek_v2",
  "deepseek_v3",
] as const;
/** Those with mechanisms that no other of them has, for devices that take long. */
export const fewNames = tinyNames.filter((name) => name !== "qwen2_moe" && name !== "deepseek_v3");
export const encoderNames = ["bert", "xlm_roberta", "modernbert"] as const;
/** Other dense decoders. */
export const denseNames = [
  "gemma",
  "gemma3",
  "smollm3",
  "glm4",
  "starcoder2",
  "phi",
  "gpt2",
  "gpt_neox",
  "cohere2",
] as const;
export type TinyName = (typeof tinyNames)[number] | (typeof denseNames)[number];
export const tiny = (name: TinyName | (typeof encoderNames)[number]): string => join(root, "tiny", name);

/** The token ids of a tiny model's golden case: (2, 24). */
export async function goldenIds(name: TinyName): Promise<number[][]> {
  await using file = await openSafetensors(join(tiny(name), "golden.safetensors"));
  using ids = await file.read("input_ids");
  return ((await ids.toArray()) as bigint[][]).map((row) => row.map(Number));
}

/** What a model in f32 says of these ids, on the CPU. */
export async function logitsOf(path: string, ids: number[][]): Promise<Float32Array> {
  using model = await loadModel(path);
  using logits = model.forward(ids);
  return (await logits.data()) as Float32Array;
}

/** The largest difference. */
export const distance = (a: ArrayLike<number>, b: ArrayLike<number>): number => {
  expect(a.length).toBe(b.length);
  return Array.from(a).reduce((most, x, i) => Math.max(most, Math.abs(x - b[i]!)), 0);
};

/** A copy of a model's folder with other fields in config.json (undefined removes one) and other tensors. */
export async function variant(
  from: string,
  to: string,
  config: Record<string, unknown> = {},
  change: (tensors: Map<string, Tensor>) => void = () => {},
): Promise<string> {
  await mkdir(to, { recursive: true });
  await cp(from, to, { recursive: true });
  const own = JSON.parse(await readFile(join(from, "config.json"), "utf8")) as Record<string, unknown>;
  await writeFile(join(to, "config.json"), JSON.stringify({ ...own, ...config }));
  await scope(async () => {
    const tensors = await loadSafetensors(from);
    change(tensors);
    await saveSafetensors(join(to, "model.safetensors"), tensors);
  });
  return to;
}
