/** Which layers go where, by made-up memories. */
import { describe, expect, it } from "vitest";
import { Device } from "../../src/index.ts";
import { openModel } from "../../src/models/load.ts";
import { type ModelSizes, measureModel, weightBytes } from "../../src/models/placement/model-sizes.ts";
import { type Demand, place, type Room, shareBytes } from "../../src/models/placement/place.ts";
import { configSizes } from "../../src/models/weights/weight-sizes.ts";
import { fable, tiny } from "../helpers/model-folders.ts";

const source = await openModel(fable);
const { config } = source;
await source[Symbol.asyncDispose]();

const MIB = 2 ** 20;
const tally = (bytes: number) => ({ matrices: bytes, experts: 0, rest: 0 });
/** Eight layers of 10 MiB between a table and a head of 20. */
const sizes: ModelSizes = {
  input: tally(20 * MIB),
  layers: Array.from({ length: 8 }, () => tally(10 * MIB)),
  output: tally(20 * MIB),
  stored: 0,
};
const demand = (more: Partial<Demand> = {}): Demand => ({
  config: { ...config, layers: 8, tiedEmbeddings: false },
  sizes,
  dtype: "bf16",
  positions: 128,
  sequences: 1,
  ...more,
});
const room = (name: string, mib: number): Room => ({
  name,
  bytes: mib * MIB,
  spare: name === "cpu",
  maps: name === "cpu",
  keepsAll: name !== "cpu",
});
const counts = (rooms: Room[], more: Partial<Demand> = {}) =>
  place(demand(more), rooms)?.map((share) => `${share.layers} on ${rooms[share.room]!.name}`) ?? null;

describe("placing", () => {
  it("shares layers among GPUs by their memory, and leaves the CPU alone where they suffice", () => {
    expect(counts([room("a", 300), room("b", 300)])).toEqual(["4 on a", "4 on b"]);
    expect(counts([room("a", 600), room("b", 300), room("cpu", 4000)])).toEqual(["7 on a", "1 on b"]);
    expect(counts([room("a", 300)])).toEqual(["8 on a"]);
  });

  it("gives the CPU what is too much, wherever it is named, and fills nothing beyond its memory", () => {
    const rooms = [room("a", 100), room("b", 100), room("cpu", 1000)];
    expect(counts(rooms)).toEqual(["2 on a", "4 on b", "2 on cpu"]);
    expect(counts([rooms[2]!, rooms[0]!])).toEqual(["6 on cpu", "2 on a"]);
    for (const share of place(demand(), rooms)!) expect(shareBytes(share)).toBeLessThan(rooms[share.room]!.bytes);
    expect(counts([room("a", 100), room("cpu", 60)])).toBe(null);
    expect(counts([room("a", 30), room("cpu", 400)])).toEqual(["8 on cpu"]);
  });

  it("counts caches of all sequences, and lays a tied table beside the head", () => {
    const rooms = [room("a", 300), room("b", 300)];
    const [first, second] = place(demand({ config: { ...demand().config, tiedEmbeddings: true } }), rooms)!;
    expect([first!.hasInput, second!.hasInput, second!.hasOutput]).toEqual([false, true, true]);
    const of = (sequences: number) => place(demand({ sequences }), rooms)![0]!.cache;
    expect(of(3) - of(1)).toBeGreaterThan(0.9 * (of(2) - of(1)) * 2);
  });

  it.each([
    ["llama", "f32"],
    ["gpt2", "f32"],
    ["mixtral", "bf16"],
    ["deepseek_v3", "f32"],
  ] as const)("counts %s in %s from its config as from its file", async (name, dtype) => {
    await using model = await openModel(tiny(name));
    const byFile = weightBytes(await measureModel(model.config, model.sizesIn(dtype)));
    const byConfig = weightBytes(await measureModel(model.config, configSizes(dtype, null)));
    await using weights = await model.openWeights({ device: Device.cpu(), dtype });
    expect(byFile).toBe(weights.deviceBytes);
    expect(Math.abs(byConfig / byFile - 1)).toBeLessThan(0.01);
  });
});
