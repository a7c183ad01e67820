/** Models in several GGUF files. */
import { copyFile, rename } from "node:fs/promises";
import { beforeAll, describe, expect, it } from "vitest";
import { GgufFile, type GgufInput, openWeights, quantizeFile, writeGguf } from "../../../src/formats/index.ts";
import { Tensor } from "../../../src/ops/index.ts";
import { temporaryFolder } from "../../helpers/temporary-folder.ts";

const at = temporaryFolder();
const part = (i: number, count = 3) => at(`m-0000${i}-of-0000${count}.gguf`);

async function write(path: string, no: number, count: number, names: string[], more: Record<string, GgufInput> = {}) {
  const tensors = names.map((name, i) => ({ name, tensor: Tensor.full([2, 32], no * 10 + i) }));
  const split = {
    "split.no": { type: "u16", value: no },
    "split.count": { type: "u16", value: count },
    "split.tensors.count": { type: "i32", value: 4 },
  } as const;
  await writeGguf(path, { metadata: { ...more, ...split }, tensors });
}

beforeAll(async () => {
  // As llama.cpp writes them, the first part without tensors.
  await write(part(1), 0, 3, [], { "general.name": "whole" });
  await write(part(2), 1, 3, ["a", "b"]);
  await write(part(3), 2, 3, ["c", "d"]);
});

describe("a model in several GGUF files", () => {
  it.each([1, 2, 3])("is opened by its part %i", async (i) => {
    await using file = await GgufFile.open(part(i));
    expect([...file.tensors.keys()]).toEqual(["a", "b", "c", "d"]);
    expect([...file.metadata]).toEqual([["general.name", "whole"]]);
    expect(await ((await file.readTensor("d")) as Tensor).toArray()).toEqual([Array(32).fill(21), Array(32).fill(21)]);
    expect(new Float32Array((await file.readBytes("b")).buffer)[0]).toBe(11);
  });

  it("becomes one file", async () => {
    await quantizeFile(part(1), at("one.gguf"), { type: "F32" });
    await using file = await openWeights(at("one.gguf"));
    expect(file.tensors.map(({ name }) => name)).toEqual(["a", "b", "c", "d"]);
    expect([...file.metadata.keys()].filter((key) => key.startsWith("split"))).toEqual([]);
  });

  it("must have all its parts, and each its place", async () => {
    await copyFile(part(1), at("n-00001-of-00003.gguf"));
    await expect(GgufFile.open(at("n-00001-of-00003.gguf"))).rejects.toThrow(/n-00002-of-00003\.gguf cannot be opened/);
    await copyFile(part(3), at("n-00002-of-00003.gguf"));
    await copyFile(part(3), at("n-00003-of-00003.gguf"));
    await expect(GgufFile.open(at("n-00001-of-00003.gguf"))).rejects.toThrow(/is not part 2 of 3, which its name says/);
    await write(at("n-00002-of-00003.gguf"), 1, 3, ["c"]);
    await expect(GgufFile.open(at("n-00001-of-00003.gguf"))).rejects.toThrow(/has tensor "c" as an earlier part has/);
    await rename(at("n-00001-of-00003.gguf"), at("n.gguf"));
    await expect(GgufFile.open(at("n.gguf"))).rejects.toThrow(/is part of a model in 3 files, and is named neither/);
  });
});
