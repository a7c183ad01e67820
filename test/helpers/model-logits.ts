/** What a model gives for the tokens of a tiny model's golden file, to compare models with. */
import { join } from "node:path";
import { expect } from "vitest";
import { openSafetensors } from "../../src/formats/index.ts";
import { loadModel } from "../../src/models/index.ts";

export async function goldenIds(folder: string): Promise<number[][]> {
  await using file = await openSafetensors(join(folder, "golden.safetensors"));
  using ids = await file.read("input_ids");
  return ((await ids.toArray()) as bigint[][]).map((row) => row.map(Number));
}

export async function logitsOf(path: string, ids: readonly (readonly number[])[]): Promise<Float32Array> {
  using model = await loadModel(path);
  using logits = model.forward(ids);
  return (await logits.data()) as Float32Array;
}

export function distance(a: ArrayLike<number>, b: ArrayLike<number>): number {
  expect(a.length).toBe(b.length);
  return Array.from(a).reduce((most, x, i) => Math.max(most, Math.abs(x - b[i]!)), 0);
}
