import { describe, expect, it } from "vitest";
import { llama } from "../../src/models/architectures/llama.ts";
import type { ModelConfig } from "../../src/models/config.ts";
import { openModel } from "../../src/models/load.ts";
import { requireShardable, Share, stretchOf, unitOf } from "../../src/models/sharding/cuts.ts";
import { slicedFile } from "../../src/models/sharding/sliced-file.ts";
import { tiny } from "../helpers/ranks/run.ts";

async function tinyConfig(change: Partial<ModelConfig>): Promise<ModelConfig> {
  await using source = await openModel(tiny("llama"));
  return { ...source.config, ...change };
}

const shares = (config: ModelConfig, ranks: number, block = 1): Share[] =>
  Array.from({ length: ranks }, (_, rank) => new Share(config, { rank, ranks, block }));

describe("A model's parts", () => {
  it("are as long as each other, or nearly", () => {
    const parts = (total: number, unit: number, ranks: number) =>
      Array.from({ length: ranks }, (_, rank) => stretchOf(total, unit, rank, ranks));
    expect(parts(10, 1, 3)).toEqual([
      { start: 0, count: 4 },
      { start: 4, count: 3 },
      { start: 7, count: 3 },
    ]);
    expect(parts(768, 256, 2).map(({ count }) => count)).toEqual([512, 256]);
    expect([unitOf(11008, 1, 4), unitOf(176, 1, 3), unitOf(127, 1, 2), unitOf(4096, 32, 4)]).toEqual([32, 4, 1, 32]);
  });

  it("repeat kv heads that ranks cannot share", async () => {
    const config = await tinyConfig({ heads: 12, kvHeads: 4 });
    expect(shares(config, 2).map(({ kvHeads }) => kvHeads)).toEqual([
      [0, 1],
      [2, 3],
    ]);
    // Of four heads each, three share a kv head: the fourth is of another.
    expect(shares(config, 3).map(({ kvHeads }) => kvHeads)).toEqual([
      [0, 0, 0, 1],
      [1, 2],
      [2, 3, 3, 3],
    ]);
    expect(shares(config, 6).map(({ kvHeads }) => kvHeads)).toEqual([[0], [0, 1], [1], [2], [2, 3], [3]]);
    expect(shares(config, 12).map(({ kvHeads }) => kvHeads[0])).toEqual([0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]);
  });

  it("are of a number of ranks that divides the heads", async () => {
    const config = await tinyConfig({ heads: 12, kvHeads: 4 });
    expect(() => requireShardable(config, 5)).toThrow(
      "the model's 12 heads cannot be split over 5 ranks; 1, 2, 3, 4, 6, 12 ranks can",
    );
    await using encoder = await openModel(tiny("bert"));
    expect(() => requireShardable(encoder.config, 2)).toThrow("bert is an encoder");
  });

  it("are read from where they lie, and nothing else", async () => {
    const bytes = Uint8Array.from({ length: 60 }, (_, i) => i);
    const reads: number[] = [];
    const stored = {
      path: "a file",
      format: "safetensors" as const,
      metadata: new Map(),
      tensors: [{ name: "w", type: "u8", dtype: "u8" as const, shape: [6, 10], byteLength: 60 }],
      readBytes: async () => bytes,
      readInto: async (out: Uint8Array, _: string, start: number) => {
        reads.push(out.byteLength);
        out.set(bytes.subarray(start, start + out.byteLength));
      },
      [Symbol.asyncDispose]: async () => {},
    };
    const slice = {
      rows: [
        { start: 4, rows: 2 },
        { start: 0, rows: 1 },
      ],
      columns: [
        { start: 8, rows: 2 },
        { start: 1, rows: 1 },
      ],
      shape: [3, 3],
    };
    const file = slicedFile(stored, new Map([["w", slice]]));
    expect(file.tensors).toMatchObject([{ name: "w", shape: [3, 3], byteLength: 9 }]);
    const all = await file.readBytes("w");
    expect([...all]).toEqual([48, 49, 41, 58, 59, 51, 8, 9, 1]);
    expect(reads.reduce((a, b) => a + b, 0)).toBe(9);
    expect([...(await file.readBytes("w", undefined, { start: 2, end: 7 }))]).toEqual([41, 58, 59, 51, 8]);
  });

  it("are what the architecture's column says", () => {
    expect(llama.sharding).toMatchObject({ q: "heads", k: "kvHeads", o: "headInputs", down: "widthInputs" });
  });
});
