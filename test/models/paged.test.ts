/** Steps over a paged cache say what the model says of each sequence alone, whatever shares the step and wherever pages lie. */
import { describe, expect, it } from "vitest";
import { CpuBackend } from "../../src/backend/cpu/backend.ts";
import { PAGE_SIZE } from "../../src/backend/paged-attention.ts";
import { Device } from "../../src/index.ts";
import { loadModel, type Model, PagedCache, type PagedSequence } from "../../src/models/index.ts";
import { describeDevices, gpuNames, inTurns } from "../helpers/devices.ts";
import { denseNames, distance, type TinyName, tiny, tinyNames, variant } from "../helpers/model-folders.ts";
import { temporaryFolder } from "../helpers/temporary-folder.ts";

const folder = temporaryFolder();
const VOCAB = 128;
const PAGES = 12;

/** Three texts, of which the last two have their first page in common. */
const text = (length: number, seed: number): number[] =>
  Array.from({ length }, (_, i) => (seed + 37 * i + i * i) % VOCAB);
const long = text(150, 5);
const texts = [text(70, 11), long, [...long.slice(0, PAGE_SIZE), ...text(30, 2)]];
/** Where their pages lie: in no order, one of them shared. */
const pages = [
  [7, 3],
  [9, 0, 5],
  [9, 11],
];
/** What each step feeds, [text, up to which position]: prompts in parts beside single tokens, texts that come and go. */
type Schedule = readonly (readonly (readonly [number, number])[])[];
const schedule: Schedule = [
  [
    [1, 60],
    [0, 1],
  ],
  [
    [0, 30],
    [1, 100],
  ],
  [
    [0, 31],
    [1, 101],
    [2, 90],
  ],
  [
    [2, 91],
    [1, 149],
    [0, 32],
  ],
  [
    [2, 92],
    [0, 33],
    [1, 150],
  ],
  [
    [2, 94],
    [0, 70],
  ],
];

/** The same in few tokens, for what takes long. */
const shortly: Schedule = [
  [
    [0, 20],
    [1, 1],
  ],
  [
    [1, 12],
    [0, 21],
  ],
];

/** The greatest difference between what paged steps say, and what the model says of each text alone. */
async function worst(model: Model, steps: Schedule = schedule): Promise<number> {
  const extents = texts.map((ids) => ids.length);
  const want: Float32Array[] = [];
  for (const [i, ids] of texts.entries()) {
    const fed = Math.max(1, ...steps.flat().map(([which, to]) => (which === i ? to : 0)));
    using logits = model.forward([ids.slice(0, fed)], { extent: extents[i] });
    want.push((await logits.data()) as Float32Array);
  }
  using cache = new PagedCache(model.config, model.device, model.dtype, PAGES);
  // The shared page is written by the text that comes first. The other goes on with a copy of it.
  const fed = [0, 0, PAGE_SIZE];
  const copied = 10;
  let most = 0;
  for (const step of steps) {
    const sequences = step.map(([which, to]): PagedSequence => {
      const past = fed[which]!;
      fed[which] = to;
      const own = pages[which]!.map((page) => (page === 9 && which === 2 && past > PAGE_SIZE ? copied : page));
      return { ids: texts[which]!.slice(past, to), past, pages: own, extent: extents[which]! };
    });
    if (sequences.some((sequence) => sequence.pages.includes(copied))) cache.copyPage(9, copied);
    using logits = model.transformer.paged(sequences, cache);
    expect(logits.shape).toEqual([step.length, VOCAB]);
    const got = (await logits.data()) as Float32Array;
    for (const [i, [which, to]] of step.entries()) {
      const own = want[which]!.subarray((to - 1) * VOCAB, to * VOCAB);
      most = Math.max(most, distance(got.subarray(i * VOCAB, (i + 1) * VOCAB), own));
    }
  }
  return most;
}

/** On GPUs in turns those that have every mechanism: windows and a softcap, sinks, latents, learned positions. */
const few: readonly TinyName[] = ["gemma2", "gpt_oss", "deepseek_v2", "gpt2"];

describeDevices("paged steps", (device) => {
  const names = device.name === "cpu" ? [...tinyNames, ...denseNames] : inTurns(few, device);
  it.each(names)("of %s say what it says of each text alone", async (name) => {
    using model = await loadModel(tiny(name), { device, dtype: "f32" });
    // Kernels take every latent for one of the longest that they are made for.
    const most = await worst(model, device.name !== "cpu" && model.config.latent ? shortly : schedule);
    // Whole prompts expand latents, steps over pages do not; machine code attends to caches in one piece only.
    const sameCode = device.backend instanceof CpuBackend && !device.backend.native;
    if (sameCode && !model.config.latent) expect(most).toBe(0);
    else expect(most).toBeLessThan(3e-5);
  });
});

/** What paged steps say, sequence by sequence of each step, in company and in parts, or each of them alone and at once. */
async function said(model: Model, alone: boolean): Promise<Float32Array[]> {
  using cache = new PagedCache(model.config, model.device, model.dtype, PAGES);
  const fed = [0, 0, PAGE_SIZE];
  const all: Float32Array[] = [];
  const run = async (sequences: PagedSequence[]): Promise<void> => {
    using logits = model.transformer.paged(sequences, cache);
    const rows = (await logits.data()) as Float32Array;
    for (let at = 0; at < rows.length; at += VOCAB) all.push(rows.slice(at, at + VOCAB));
  };
  for (const step of schedule.slice(0, 4)) {
    const sequences = step.map(([which, to]): PagedSequence => {
      const past = alone ? 0 : fed[which]!;
      fed[which] = to;
      return { ids: texts[which]!.slice(past, to), past, pages: pages[which]! };
    });
    if (!alone) await run(sequences);
    else for (const sequence of sequences) await run([sequence]);
  }
  return all;
}

const invariant = (device: Device): void => {
  // The latter has windows and a softcap.
  const models = [["mixtral", "bf16"] as const, ["gemma2", "f32"] as const];
  it.each(inTurns(models, device))("say the same of %s in %s in any company, bit by bit", async (name, dtype) => {
    using model = await loadModel(tiny(name), { device, dtype, batchInvariant: true });
    expect(model.transformer.batchInvariant).toBe(true);
    expect(await said(model, false)).toEqual(await said(model, true));
  });
};
describeDevices("batch-invariant paged steps", invariant, gpuNames);

describe("a paged step", () => {
  it("turns each sequence as long as it is", async () => {
    const factors = (most: number) => Array.from({ length: 8 }, (_, i) => 1 + (most * (i + 1)) / 8);
    const scaling = { rope_type: "longrope", short_factor: factors(1), long_factor: factors(7) };
    // The first text is short.
    const path = await variant(tiny("phi3"), folder("longrope"), {
      rope_parameters: { ...scaling, rope_theta: 10_000, original_max_position_embeddings: 80 },
    });
    using model = await loadModel(path);
    expect(model.config.rope.scaling.type).toBe("longrope");
    expect([70, 94].map((extent) => model.transformer.turnsAsLong(extent))).toEqual([false, true]);
    expect(await worst(model)).toBeLessThan(3e-5);
  });

  it("says the same of latents however a prompt is cut", async () => {
    using model = await loadModel(tiny("deepseek_v3"));
    const run = async (...ends: number[]): Promise<Float32Array> => {
      using cache = new PagedCache(model.config, model.device, model.dtype, 3);
      const steps = ends.map((end, i) => {
        const past = ends[i - 1] ?? 0;
        return model.transformer.paged([{ ids: long.slice(past, end), past, pages: [1, 2, 0] }], cache);
      });
      return (await steps.at(-1)!.data()) as Float32Array;
    };
    const whole = await run(150);
    expect(await run(1, 2, 90, 149, 150)).toEqual(whole);
  });

  it("leaves other pages as they are", async () => {
    using model = await loadModel(tiny("llama"));
    using cache = new PagedCache(model.config, model.device, model.dtype, 3);
    const [ids] = texts as [number[]];
    const decode = { ids: ids.slice(-1), past: ids.length - 1, pages: [2, 0] };
    model.transformer.paged([{ ids: ids.slice(0, -1), past: 0, pages: [2, 0] }], cache).dispose();
    using before = model.transformer.paged([decode], cache);
    const want = (await before.data()) as Float32Array;
    // Another sequence beside it, and one that fails.
    model.transformer.paged([decode, { ids: long.slice(0, 40), past: 0, pages: [1] }], cache).dispose();
    const beyond = { ids: [VOCAB + 5], past: 40, pages: [1] };
    await expect((async () => model.transformer.paged([beyond], cache).data())()).rejects.toThrow(/133/);
    using after = model.transformer.paged([decode], cache);
    expect(distance((await after.data()) as Float32Array, want)).toBe(0);
  });

  it("refuses sequences that are none, and pages that are not there", async () => {
    using model = await loadModel(tiny("gpt2"));
    using cache = new PagedCache(model.config, model.device, model.dtype, 2);
    const run = (...sequences: PagedSequence[]) => model.transformer.paged(sequences, cache);
    const good = { ids: [1], past: 0, pages: [0] };
    expect(() => run()).toThrow(/needs a sequence/);
    expect(() => run(good, { ...good, ids: [] })).toThrow(/sequence 1 of a paged step has no new tokens/);
    expect(() => run({ ...good, past: -1 })).toThrow(/says that -1 positions/);
    expect(() => run({ ...good, past: PAGE_SIZE })).toThrow(/has 1 pages of 64 for 65 positions/);
    expect(() => run({ ...good, pages: [2] })).toThrow(/has page 2, but the cache has 2/);
    const far = Array.from({ length: 9 }, () => 0);
    expect(() => run({ ...good, past: 512, pages: far })).toThrow(/513 positions, .* vectors for 512/);
    expect(() => new PagedCache(model.config, model.device, "f32", 0)).toThrow(/1 page or more, not 0/);
    expect(`${cache}`).toBe("PagedCache(2 layers, 2 pages of 64 positions, f32, cpu)");
  });

  it("keeps what a page says it takes", async () => {
    for (const name of ["llama", "deepseek_v2"] as const) {
      using model = await loadModel(tiny(name));
      const { live } = Device.cpu().memory();
      using cache = new PagedCache(model.config, model.device, "f32", 3);
      expect(Device.cpu().memory().live - live).toBe(3 * PagedCache.pageBytes(model.config, "f32"));
      expect(cache.layers.length).toBe(model.config.layers);
    }
  });
});
