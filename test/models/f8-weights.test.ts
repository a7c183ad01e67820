/** Checkpoints in f8: weights times their scales, whether these are for a matrix, for rows or for blocks. */
import { join } from "node:path";
import { expect, it } from "vitest";
import { Tensor } from "../../src/index.ts";
import { loadModel } from "../../src/models/index.ts";
import { distance, goldenIds, logitsOf, tiny, variant } from "../helpers/model-folders.ts";
import { temporaryFolder } from "../helpers/temporary-folder.ts";

const folder = temporaryFolder();
const isMatrix = (name: string): boolean => /_proj\.weight$/.test(name);

/** Each matrix in f8 beside scales for blocks of a size, or as what they mean. */
function saved(name: string, ending: string, [high, wide]: readonly [number, number], isPlain: boolean) {
  return variant(tiny("llama"), join(folder(), `${name}${isPlain ? "-plain" : ""}`), {}, (tensors) => {
    for (const [key, weight] of [...tensors]) {
      if (!isMatrix(key)) continue;
      const [rows, columns] = weight.shape as [number, number];
      const [down, across] = [Math.ceil(rows / high), Math.ceil(columns / wide)];
      const scaleOf = (i: number) => 0.003 * (1 + (i % 7) / 5);
      const at = (i: number) => Math.floor(i / columns / high) * across + Math.floor((i % columns) / wide);
      const each = Tensor.from(Float32Array.from({ length: rows * columns }, (_, i) => scaleOf(at(i)))).reshape(
        weight.shape,
      );
      const bytes = weight.toDType("f32").div(each).toDType("f8e4m3");
      tensors.set(key, isPlain ? bytes.toDType("f32").mul(each) : bytes);
      const scales = Tensor.from(Float32Array.from({ length: down * across }, (_, i) => scaleOf(i)));
      if (!isPlain) tensors.set(`${key}${ending}`, scales.reshape(down * across === 1 ? [] : [down, across]));
    }
  });
}

const ALL = 1 << 20;
it.each([
  ["blocks of 128", "_scale_inv", [128, 128]],
  ["blocks of 32", "_scale_inv", [32, 32]],
  ["rows", "_scale", [1, ALL]],
  ["whole matrices", "_scale", [ALL, ALL]],
] as const)("scales of %s", async (name, ending, block) => {
  const ids = await goldenIds("llama");
  const own = await logitsOf(await saved(name, ending, block, false), ids);
  const wanted = await logitsOf(await saved(name, ending, block, true), ids);
  expect(distance(own, wanted)).toBe(0);
});

it("scales that divide no matrix are refused", async () => {
  const bad = await variant(tiny("llama"), join(folder(), "bad"), {}, (tensors) => {
    const key = [...tensors.keys()].find(isMatrix)!;
    tensors.set(key, tensors.get(key)!.toDType("f8e4m3"));
    tensors.set(`${key}_scale_inv`, Tensor.ones([3, 3]));
  });
  await expect(loadModel(bad)).rejects.toThrow(/into blocks; scales are one for a matrix, for each row, or for blocks/);
});
