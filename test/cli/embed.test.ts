/** `wick embed` shows how alike texts are, ranks them, and prints their vectors. */
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { afterEach, expect, it, vi } from "vitest";
import { embedCommand } from "../../src/cli/embed.ts";
import { Tensor } from "../../src/index.ts";
import { wordPieceJson } from "../helpers/encoder-tokenizers.ts";
import { tiny, variant } from "../helpers/model-folders.ts";
import { temporaryFolder } from "../helpers/temporary-folder.ts";

const folder = temporaryFolder();
afterEach(() => vi.restoreAllMocks());

async function embed(...args: string[]): Promise<string> {
  const lines: string[] = [];
  vi.spyOn(console, "log").mockImplementation((line) => void lines.push(String(line)));
  await embedCommand().parseAsync(["--device", "cpu", ...args], { from: "user" });
  return lines.join("\n");
}

async function model(name: string, config = {}, change?: (tensors: Map<string, Tensor>) => void): Promise<string> {
  const path = await variant(tiny("bert"), folder(name), config, change);
  await writeFile(join(path, "tokenizer.json"), JSON.stringify(wordPieceJson));
  return path;
}

it("prints a table of cosines, of many texts the nearest, and of one text its first numbers", async () => {
  const path = await model("plain");
  const table = (await embed("--model", path, "the cat", "the cat", "a dog")).split("\n");
  expect(table).toHaveLength(4);
  expect(table[1]).toMatch(/^ +1 +the cat +1\.00 +1\.00 +-?\d\.\d\d$/);
  const lines = Array.from({ length: 12 }, (_, i) => "abcdefghijkl"[i]!);
  await writeFile(folder("lines.txt"), `${lines.join("\n")}\r\n\na\n`);
  const nearest = (await embed("--model", path, "--file", folder("lines.txt"))).split("\n");
  expect(nearest).toHaveLength(14);
  expect(nearest[1]).toMatch(/^ +1 +a +1\.00 +a$/);
  expect(await embed("--model", path, "a")).toMatch(/^( +-?\d+\.\d{4}){8} … \(64 numbers; --json prints all\)$/);
});

it("prints vectors as JSON", async () => {
  const path = await model("json");
  const { dims, embeddings } = JSON.parse(await embed("--model", path, "--json", "--normalize", "a", "b")) as {
    dims: number;
    embeddings: number[][];
  };
  expect([dims, embeddings.map((row) => row.length)]).toEqual([64, [64, 64]]);
  expect(embeddings[0]!.reduce((sum, x) => sum + x * x, 0)).toBeCloseTo(1, 5);
});

it("ranks texts for a query, by cosines or by a reranker", async () => {
  const byCosine = JSON.parse(
    await embed("--model", await model("cosine"), "--json", "--query", "the cat", "dog", "the cat"),
  );
  expect(byCosine.results[0]).toMatchObject({ index: 1, text: "the cat" });
  expect(byCosine.results[0].score).toBeCloseTo(1, 5);
  const config = { architectures: ["BertForSequenceClassification"], id2label: { 0: "LABEL_0" } };
  const reranker = await model("reranker", config, (tensors) => {
    tensors.set("classifier.weight", Tensor.randn([1, 64], { seed: 1 }));
    tensors.set("classifier.bias", Tensor.zeros([1]));
  });
  const lines = (await embed("--model", reranker, "--query", "the cat", "dog", "the cats", "cat")).split("\n");
  const scores = lines.map((line) => Number(line.trim().split(/\s+/)[0]));
  expect(scores).toEqual(scores.toSorted((a, b) => b - a));
  expect(lines.map((line) => line.trim().replace(/^\S+ +/, "")).sort()).toEqual(["cat", "dog", "the cats"]);
});

it("says what it was called wrongly with", async () => {
  await expect(embed("--file", "x.txt", "a text")).rejects.toThrow(/two ways to say one thing/);
  await expect(embed("--file", folder("missing.txt"))).rejects.toThrow(/missing.txt cannot be read/);
});
