// Tokens chosen on the device against those the host chooses from the same logits.
import { afterAll, describe, expect, test, vi } from "vitest";
import type { GpuBackend } from "../../../src/backend/gpu/backend.ts";
import { Storage } from "../../../src/backend/storage.ts";
import { NO_SLOT, NO_TOKEN, type SamplerSpec, type TokenSampler } from "../../../src/backend/transformers.ts";
import { Layout } from "../../../src/core/layout.ts";
import { Device, Tensor, WickError } from "../../../src/index.ts";
import { RowSampler } from "../../../src/models/generation/row-sampler.ts";
import { Sampler, type SamplingOptions, samplerSpec } from "../../../src/models/generation/sampling.ts";
import { gpuNames, inTurns } from "../../helpers/devices.ts";

const FAILED = NO_TOKEN;

let state = 7;
const random = (): number => {
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
  return state / 2 ** 32;
};
const normal = (): number => (random() + random() + random() + random() - 2) * 1.7;

/** What the host chooses; FAILED where it refuses. */
function hostChoice(sampler: RowSampler, logits: Float32Array, mask: Uint32Array | null = null): number {
  try {
    return sampler.sample(logits.slice(), mask);
  } catch (error) {
    if (error instanceof WickError && error.code === "ValueOutOfRange") return FAILED;
    throw error;
  }
}

const settings: readonly SamplingOptions[] = [
  {},
  { repetitionPenalty: 1.3 },
  { temperature: 1, seed: 1 },
  { temperature: 0.7, seed: 2, minP: 0.05 },
  { temperature: 1.5, seed: -3, repetitionPenalty: 1.2 },
  { temperature: 0.8, seed: 4, topK: 40 },
  { temperature: 2, seed: 5, topK: 1 },
  { temperature: 1, seed: 6, topK: 5000 },
  { temperature: 0.9, seed: 7, topP: 0.9 },
  { temperature: 3, seed: 8n ** 25n, topP: 0.999 },
  { temperature: 1, seed: 9, topP: 1e-9 },
  { temperature: 0.8, seed: 10, topK: 50, topP: 0.95, minP: 0.02, repetitionPenalty: 1.1 },
  { temperature: 100, seed: 11, topK: 2 ** 40, topP: 0.5 },
  { temperature: 0.01, seed: 12, topK: 20, topP: 0.99 },
  { temperature: 1.2, seed: 13, minP: 1, topK: 3 },
  { temperature: 1e-300, seed: 14 },
  { presencePenalty: 0.7, frequencyPenalty: 0.3 },
  {
    temperature: 0.9,
    seed: 15,
    frequencyPenalty: -0.1,
    topK: 30,
    logitBias: new Map([
      [0, 1.7],
      [3, -9],
      [30, 0.1],
    ]),
  },
  {
    logitBias: new Map([
      [1, Number.NEGATIVE_INFINITY],
      [2, 100],
      [2000000, 5],
    ]),
  },
  { temperature: 1.1, seed: 16, presencePenalty: 1.9, repetitionPenalty: 1.05, logitBias: new Map([[2, 3.3]]) },
];

type Logits = (i: number) => number;
const kinds: Readonly<Record<string, Logits>> = {
  "spread out": () => normal() * 3,
  "few and far between": (i) => (i % 97 === 3 ? normal() * 5 : -30 + normal()),
  "of sixteen values": () => Math.floor(random() * 16) / 4,
  "all equal": () => -2.5,
  "of which most are masked": () => (random() < 0.9 ? Number.NEGATIVE_INFINITY : normal()),
  "too close for their distances from the best to differ": (i) => (i === 5 ? 12 : i * 1e-20),
};

test.each(gpuNames)("words on %s come by a kernel where that may write page-locked memory", async (name) => {
  const gpu = Device.from(name).backend as GpuBackend;
  using words = Tensor.from(Uint32Array.of(7, 0, 0xffffffff), { device: Device.from(name) });
  const launch = vi.spyOn(gpu, "launch");
  for (const may of [false, true]) {
    Object.defineProperty(gpu.context, "kernelsWritePinned", { value: may, configurable: true });
    try {
      expect(new Uint32Array((await gpu.readWords(words.storage)).buffer)).toEqual(Uint32Array.of(7, 0, 0xffffffff));
    } finally {
      Reflect.deleteProperty(gpu.context, "kernelsWritePinned");
    }
    expect(launch).toHaveBeenCalledTimes(Number(may));
  }
});

describe.each(gpuNames.map((name) => [name]))("tokens chosen on %s", { timeout: 300_000 }, (device) => {
  const backend = Device.from(device).backend as GpuBackend;
  const gpu = backend;
  const before = backend.memory().live;
  afterAll(() => expect(backend.memory().live).toBe(before));

  /** Logits in device memory under a sampler; rows have slots out of order, and between them is one of nobody. */
  class Rig {
    readonly vocab: number;
    readonly sampler: TokenSampler;
    readonly #slots: number[];
    /** Rows lie a few elements apart, and not at the beginning. */
    readonly #pitch: number;
    readonly #logits: Storage;

    constructor(vocab: number, specs: readonly SamplerSpec[], apart = 3) {
      this.vocab = vocab;
      this.#slots = specs.map((_, i) => (i * 5 + 3) % specs.length);
      if (new Set(this.#slots).size < specs.length) this.#slots = [...specs.keys()];
      this.#slots.splice(specs.length >> 1, 0, NO_SLOT);
      this.#pitch = vocab + apart;
      this.sampler = backend.transformers.sampler(vocab, this.#slots.length)!;
      for (const [row, slot] of this.#held.entries()) this.sampler.assign(slot, specs[row]!);
      this.sampler.place(this.#slots);
      this.#logits = Storage.alloc(backend, "f32", 1 + this.#slots.length * this.#pitch);
    }
    get #held(): number[] {
      return this.#slots.filter((slot) => slot !== NO_SLOT);
    }
    write(rows: readonly Float32Array[]): void {
      const all = new Float32Array(this.#logits.length).fill(1e9);
      const given = rows.values();
      for (const [i, slot] of this.#slots.entries()) {
        all.set(
          slot === NO_SLOT ? new Float32Array(this.vocab).fill(Number.NaN) : given.next().value!,
          1 + i * this.#pitch,
        );
      }
      gpu.write(this.#logits, 0, new Uint8Array(all.buffer));
    }
    assign(row: number, spec: SamplerSpec): void {
      this.sampler.assign(this.#held[row]!, spec);
    }
    restrict(row: number, mask: Uint32Array | null): void {
      this.sampler.restrict(this.#held[row]!, mask);
    }
    enqueue(): void {
      const layout = new Layout([this.#slots.length, this.vocab], [this.#pitch, 1], 1);
      this.sampler.sample({ storage: this.#logits, layout });
    }
    read(): number[] {
      const tokens = new Uint32Array(this.sampler.tokens.readSync().buffer);
      return this.#held.map((slot) => tokens[slot]!);
    }
    choose(rows: readonly Float32Array[]): number[] {
      this.write(rows);
      this.enqueue();
      return this.read();
    }
    [Symbol.dispose](): void {
      this.sampler[Symbol.dispose]();
      this.#logits.discard();
    }
  }
  const choose = (options: SamplingOptions, logits: readonly number[], prompt: readonly number[] = []): number => {
    using rig = new Rig(logits.length, [samplerSpec(options, prompt, 0)]);
    return rig.choose([Float32Array.from(logits)])[0]!;
  };

  test.each(["f16", "bf16"] as const)("logits in %s are those in f32 that they stand for", async (dtype) => {
    const [vocab, rows] = [2100, settings.length];
    using halves = Tensor.randn([rows, vocab], { dtype, device: Device.from(device), seed: 3 });
    using floats = halves.toDType("f32");
    const told = [halves, floats].map(async (logits) => {
      using sampler = backend.transformers.sampler(vocab, rows)!;
      for (const [i, options] of settings.entries()) {
        sampler.assign(i, samplerSpec(options, [1, 2, 3], i, { logprobs: 2 }));
      }
      sampler.place([...settings.keys()]);
      sampler.sample(logits);
      const { tokens, logprobs } = await sampler.read();
      return { tokens, logprobs };
    });
    expect(await told[0]).toEqual(await told[1]);
  });

  const sizes = [
    [1, 1],
    [2, 3],
    [31, 4],
    [1000, 2],
    [4097, 1],
    [32000, 1],
  ] as const;
  for (const [at, [vocab, steps]] of sizes.entries()) {
    test.each(inTurns(Object.entries(kinds), Device.from(device), at >> 1))(`of ${vocab}, logits %s`, (name, kind) => {
      // Every setting meets every size and every kind, and half of their pairs.
      const odd = (at + Object.keys(kinds).indexOf(name)) % 2;
      const chosen = settings.filter((_, i) => i % 2 === odd);
      const prompts = chosen.map(() => Array.from({ length: 9 }, () => Math.floor(random() * vocab)));
      const host = chosen.map((options, i) => new Sampler(options, prompts[i]!, i));
      using rig = new Rig(
        vocab,
        chosen.map((options, i) => samplerSpec(options, prompts[i]!, i)),
      );
      for (let step = 0; step < steps; step++) {
        const logits = chosen.map(() => Float32Array.from({ length: vocab }, (_, i) => kind(i)));
        const want = host.map((sampler, i) => hostChoice(sampler, logits[i]!));
        expect(rig.choose(logits), `step ${step}`).toEqual(want);
      }
    });
  }

  test("a vocabulary of many pieces, and one too large for the kernels", () => {
    const vocab = 200_003;
    const chosen = [0, 2, 5, 9, 11].map((i) => settings[i]!);
    const host = chosen.map((options, i) => new Sampler(options, [5], i));
    using rig = new Rig(
      vocab,
      chosen.map((options, i) => samplerSpec(options, [5], i)),
    );
    const logits = chosen.map(() => Float32Array.from({ length: vocab }, () => normal() * 3));
    expect(rig.choose(logits)).toEqual(host.map((sampler, i) => hostChoice(sampler, logits[i]!)));
    expect(backend.transformers.sampler(2 ** 20 + 1, 1)).toBe(null);
    // 2^22 blocks of 1024 threads are more than a driver takes.
    expect(backend.transformers.sampler(2 ** 20, 2 ** 12)).toBe(null);
    expect(Device.cpu().backend.transformers).toBeUndefined();
  });

  test("the first of equal logits is the likeliest, and 0 equals −0", () => {
    expect(choose({}, [1, 3, 2, 3])).toBe(1);
    expect(choose({}, [-5, -0, 0])).toBe(1);
    const long = new Array<number>(5000).fill(0);
    expect(choose({}, long)).toBe(0);
    expect(choose({}, long.with(4999, 1).with(2047, 1))).toBe(2047);
    expect(choose({ temperature: 1, topK: 1 }, long.with(4999, 1).with(2047, 1))).toBe(2047);
  });

  test("NaN is never chosen, and fails where it comes first; infinities fail", () => {
    const [nan, inf] = [Number.NaN, Number.POSITIVE_INFINITY];
    for (const options of [
      {},
      { temperature: 1, seed: 3 },
      { temperature: 1, topK: 2 },
      { temperature: 1, topP: 0.5 },
    ]) {
      expect(choose(options, [-2, nan, 50, nan])).toBe(2);
      expect(choose(options, [nan, 1, 2])).toBe(FAILED);
      expect(choose(options, [1, inf, 2])).toBe(FAILED);
      expect(choose(options, [-inf, -inf])).toBe(FAILED);
      expect(choose(options, [-inf, 4, -inf])).toBe(1);
    }
    expect(hostChoice(new Sampler({}), Float32Array.of(nan, 1))).toBe(FAILED);
    expect(hostChoice(new Sampler({}), Float32Array.of(-2, nan, 50))).toBe(2);
  });

  test("a failed step counts for nothing", () => {
    const options = { temperature: 1, seed: 5, topK: 20, repetitionPenalty: 1.5 };
    const host = new Sampler(options, [1, 2]);
    using rig = new Rig(100, [samplerSpec(options, [1, 2], 0)]);
    for (let step = 0; step < 10; step++) {
      if (step % 3 === 1) expect(rig.choose([new Float32Array(100).fill(Number.NaN)])).toEqual([FAILED]);
      const logits = Float32Array.from({ length: 100 }, normal);
      expect(rig.choose([logits])).toEqual([hostChoice(host, logits)]);
    }
  });

  test("the penalty counts the prompt and every token chosen, and ignores ids beyond the vocabulary", () => {
    expect(choose({ repetitionPenalty: 4 }, [8, 7, 6], [0, 99])).toBe(1);
    expect(choose({ repetitionPenalty: 4 }, [-1, -3, -5], [0])).toBe(1);
    using rig = new Rig(3, [samplerSpec({ repetitionPenalty: 4 }, [], 0)]);
    const logits = [Float32Array.of(8, 7, 6)];
    expect([1, 2, 3, 4].map(() => rig.choose(logits)[0])).toEqual([0, 1, 2, 0]);
  });

  test("steps that are recorded once and replayed choose as steps run one by one", () => {
    const options = [0, 1, 4, 11].map((i) => settings[i]!);
    const specs = options.map((o, i) => samplerSpec(o, [3], i));
    using eager = new Rig(1500, specs);
    using recorded = new Rig(1500, specs);
    const steps = Array.from({ length: 6 }, () =>
      specs.map(() => Float32Array.from({ length: 1500 }, () => normal() * 2)),
    );
    const want = steps.map((logits) => eager.choose(logits));
    recorded.write(steps[0]!);
    gpu.context.beginCapture();
    recorded.enqueue();
    const graph = gpu.context.endCapture();
    const got = steps.map((logits) => {
      recorded.write(logits);
      gpu.context.launchGraph(graph);
      return recorded.read();
    });
    gpu.context.destroyGraph(graph);
    expect(got).toEqual(want);
    expect(new Set(want.map((ids) => ids[3])).size).toBeGreaterThan(1);
  });

  test("masks, penalties and a request's place in its answer may change between replays", () => {
    const vocab = 1500;
    const options = { temperature: 0.9, seed: 3, topK: 50, frequencyPenalty: 0.5 };
    const specs = [{}, options, { ...options, seed: 4 }].map((o, i) => samplerSpec(o, [7], i, { masked: i !== 1 }));
    using rig = new Rig(vocab, specs);
    const random32 = (): number => Math.floor(random() * 2 ** 32);
    const masks = Array.from({ length: 5 }, () => Uint32Array.from({ length: Math.ceil(vocab / 32) }, random32));
    const steps = masks.map(() => specs.map(() => Float32Array.from({ length: vocab }, () => normal() * 2)));
    const host = specs.map((spec) => new RowSampler(spec));
    rig.write(steps[0]!);
    gpu.context.beginCapture();
    rig.enqueue();
    const graph = gpu.context.endCapture();
    const said: number[] = [];
    for (const [step, logits] of steps.entries()) {
      const mask = step === 3 ? null : masks[step]!;
      rig.restrict(0, mask);
      rig.restrict(2, mask);
      // Taken away and put back, it goes on behind what it has said.
      if (step === 2) rig.assign(1, { ...specs[1]!, answer: said });
      const want = host.map((sampler, i) => hostChoice(sampler, logits[i]!, i === 1 ? null : mask));
      rig.write(logits);
      gpu.context.launchGraph(graph);
      const got = rig.read();
      expect(got, `step ${step}`).toEqual(want);
      said.push(got[1]!);
    }
    rig.restrict(0, new Uint32Array(Math.ceil(vocab / 32)));
    expect(rig.choose(steps[0]!)[0]).toBe(FAILED);
    gpu.context.destroyGraph(graph);
  });

  test("gives its memory back, once", () => {
    const live = backend.memory().live;
    const sampler = backend.transformers.sampler(5000, 2)!;
    const plain = backend.memory().live;
    sampler.assign(0, samplerSpec({ temperature: 1, topK: 3 }));
    expect(backend.memory().live).toBe(plain);
    // Marks, a bias and a mask are there only where they are asked for.
    const shaped = { repetitionPenalty: 2, logitBias: new Map([[3, 1]]) };
    for (let i = 0; i < 3; i++) sampler.assign(1, samplerSpec(shaped, [], 0, { masked: true }));
    expect(backend.memory().live - plain).toBe(2 * 20_000 + 4 * Math.ceil(5000 / 32));
    sampler.release(1);
    expect(backend.memory().live).toBe(plain);
    sampler.assign(0, samplerSpec(shaped));
    for (let i = 0; i < 2; i++) sampler[Symbol.dispose]();
    expect(backend.memory().live).toBe(live);
    const view = { storage: Storage.alloc(backend, "f32", 5000), layout: Layout.contiguous([1, 5000]) };
    expect(() => sampler.sample(view)).toThrow("disposed");
    view.storage.discard();
  });
});
