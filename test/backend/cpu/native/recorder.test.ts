/** Recorded work on the CPU: the bits of the same work op by op, on memory that stays its own. */
import { afterEach, beforeAll, describe, expect, it, vi } from "vitest";
import type { CpuBackend } from "../../../../src/backend/cpu/backend.ts";
import { Native } from "../../../../src/backend/cpu/native/native.ts";
import { chooseIsa, tiers } from "../../../../src/backend/cpu/native/tier.ts";
import { WARM_RUNS } from "../../../../src/backend/cpu/recorder.ts";
import { collect } from "../../../../src/backend/storage.ts";
import type { Graph } from "../../../../src/backend/transformers.ts";
import { Device, scope, Tensor } from "../../../../src/index.ts";
import { type GenerateOptions, loadModel, type Model, type Piece } from "../../../../src/models/index.ts";
import { rmsNorm } from "../../../../src/nn/index.ts";
import { advance } from "../../../../src/ops/counting.ts";
import { QTensor, qmatmul } from "../../../../src/quantized/index.ts";
import { result } from "../../../../src/tensor/tensor.ts";
import { fable } from "../../../helpers/model-folders.ts";

const natives = tiers()
  .filter((tier) => tier !== "wasm")
  .map((tier) => ({ tier, native: new Native(chooseIsa(tier)!) }));
const device = Device.cpu();
const backend = device.backend as CpuBackend;
const random = (shape: number[], seed: number) => Tensor.randn(shape, { seed });
const values = (x: Tensor): number[] => Array.from(x.toDType("f32").dataSync() as Float32Array);
const capture = (run: () => void): Graph => backend.recorder.capture(run);

beforeAll(() => {
  // The first runs of a process are not recorded.
  for (let i = 0; i < 2; i++) {
    using graph = capture(() => {});
    for (let j = 0; j < WARM_RUNS; j++) graph.replay();
  }
});
afterEach(() => {
  vi.unstubAllEnvs();
  Device.cpu({ threads: 2 });
});

/** The device's machine code is this one's, until the result is disposed. */
function instead(native: Native): Disposable {
  Object.defineProperty(backend, "native", { value: native, configurable: true });
  return { [Symbol.dispose]: () => Reflect.deleteProperty(backend, "native") };
}

const [heads, kvHeads, d, capacity, vocab] = [4, 2, 32, 40, 50];
const hidden = heads * d;

/** What decodes a token: ids and positions are in memory, and so is what it says. */
class Step implements Disposable {
  readonly ids = Tensor.zeros([2], { dtype: "u32" });
  readonly lengths = Tensor.full([2], 7, { dtype: "i64" });
  readonly out = Tensor.zeros([2, vocab]);
  readonly #table = random([vocab, hidden], 1);
  readonly #norm = random([hidden], 2);
  readonly qkv = QTensor.quantize(random([hidden + 2 * kvHeads * d, hidden], 3), "Q4_0");
  readonly #head = QTensor.quantize(random([vocab, hidden], 4), "Q8_0");
  readonly #angles = random([capacity, d / 2], 5);
  readonly #tables = { cos: this.#angles.cos(), sin: this.#angles.sin(), interleaved: false };
  readonly #caches = { k: random([2, kvHeads, capacity, d], 6), v: random([2, kvHeads, capacity, d], 7) };
  readonly #padding = Tensor.from(BigInt64Array.of(0n, 3n));
  readonly #mask = random([2, 1, 1, capacity], 8);

  runs = 0;

  readonly run = (): void =>
    scope(() => {
      this.runs++;
      advance(this.lengths, 1);
      const x = this.#table.indexSelect(this.ids, 0);
      const norm = { weight: this.#norm, eps: 1e-5 };
      const layer = { norm, bias: null, glu: null, residual: null };
      const rows = result(backend.linear(x, this.qkv.blocks, "Q4_0", layer)!, [2, hidden + 2 * kvHeads * d]);
      const [q, k, v] = [0, hidden, hidden + kvHeads * d].map((at, i) =>
        rows.narrow(1, at, i === 0 ? hidden : kvHeads * d),
      ) as [Tensor, Tensor, Tensor];
      const shape = { past: 0, window: 0, softcap: 0, scale: 0.2, sinks: null, mask: this.#mask };
      const places = { lengths: this.lengths, padding: this.#padding };
      const y = backend.cachedAttention.attend(q, k, v, { ...this.#tables, ...this.#caches, ...places, ...shape });
      this.out.sliceSet(qmatmul(rmsNorm(result(y, [2, hidden]).add(x), this.#norm, 1e-5), this.#head), 0, 0);
    });

  next(token: number, run: () => void): number[] {
    this.ids.storage.write(0, new Uint8Array(Uint32Array.of(token, vocab - 1 - token).buffer));
    run();
    return values(this.out);
  }

  [Symbol.dispose](): void {
    for (const part of Object.values(this)) if (part instanceof Tensor) part.dispose();
    this.qkv.dispose();
    this.#head.dispose();
    for (const x of [this.#table, this.#norm, this.#angles, this.#padding, this.#mask]) x.dispose();
    for (const x of [this.#tables.cos, this.#tables.sin, this.#caches.k, this.#caches.v]) x.dispose();
  }
}

describe.each(natives)("recorded with $tier", ({ native }) => {
  it("a step has the bits that it has op by op, whoever allocates between replays, and with any threads", () => {
    using _ = instead(native);
    using one = new Step();
    using two = new Step();
    using other = new Step();
    const want = Array.from({ length: 9 }, (_, i) => one.next(i, one.run));
    const graphs = new Map<Step, Graph>();
    const recorded = (step: Step) => () => {
      const graph = graphs.get(step);
      if (graph) graph.replay();
      else graphs.set(step, capture(step.run));
    };
    for (const [i, bits] of want.entries()) {
      Device.cpu({ threads: 1 + (i % 3) });
      using junk = Tensor.full([4096], Number.NaN);
      expect(two.next(i, recorded(two))).toEqual(bits);
      // Another one, in between.
      expect(other.next(i, recorded(other))).toEqual(bits);
      expect(values(junk).every(Number.isNaN)).toBe(true);
    }
    expect([one.runs, two.runs, other.runs]).toEqual([9, 1, 1]);
    for (const graph of graphs.values()) graph[Symbol.dispose]();
  });

  it("attention counts positions in memory as the host does, and no more than there is room for", () => {
    using _ = instead(native);
    scope(() => {
      for (const [dtype, t, interleaved] of [
        ["f32", 1, false],
        ["bf16", 3, true],
      ] as const) {
        const attend = (past: number, length: number | null) => {
          const rows = random([2 * t, hidden + 2 * kvHeads * d], 1).toDType(dtype);
          const [q, k, v] = [
            rows.narrow(1, 0, hidden),
            ...[0, 1].map((i) => rows.narrow(1, hidden + i * kvHeads * d, kvHeads * d)),
          ] as [Tensor, Tensor, Tensor];
          const [cos, sin] = [random([capacity, d / 2], 2).toDType(dtype), random([capacity, d / 2], 3).toDType(dtype)];
          const caches = [4, 5].map((seed) => random([2, kvHeads, capacity, d], seed).toDType(dtype));
          const lengths = length === null ? null : Tensor.full([2], length, { dtype: "i64" });
          const params = {
            cos,
            sin,
            interleaved,
            k: caches[0]!,
            v: caches[1]!,
            past,
            lengths,
            padding: null,
            mask: null,
          };
          const shape = { window: 0, softcap: 0, scale: 0.2, sinks: null };
          const y = result(backend.cachedAttention.attend(q, k, v, { ...params, ...shape }), [2, heads, t, d]);
          return [y, ...caches].map(values);
        };
        expect(attend(0, 20)).toEqual(attend(20 - t, null));
        expect(attend(0, t)).toEqual(attend(0, null));
        expect(attend(0, 1000)).toEqual(attend(capacity - t, null));
        expect(attend(0, -5)).toEqual(attend(0, null));
      }
    });
  });
});

describe.runIf(natives.length > 0)("a graph", () => {
  it("keeps its memory while it lives, and leaves none", () => {
    using step = new Step();
    step.run();
    collect();
    const { live } = device.memory();
    const graph = capture(step.run);
    expect(device.memory().live).toBeGreaterThan(live);
    graph[Symbol.dispose]();
    expect(device.memory().live).toBe(live);
    expect(() => graph.replay()).toThrow(/graph was disposed/);
    expect(() => capture(() => capture(step.run))).toThrow(/part of another/);
    expect(() => capture(() => scope(() => expect.fail(`${step.out.sqr()} its own`)))).toThrow(/its own/);
    expect(device.memory().live).toBe(live);
  });

  it("that nobody holds any more is collected", async () => {
    using x = Tensor.ones([3]);
    const start = device.memory().live;
    (() => void capture(() => scope(() => x.sliceSet(x.add(x), 0, 0))))();
    expect(device.memory().live).toBeGreaterThan(start);
    for (let i = 0; i < 20 && device.memory().live > start; i++) {
      globalThis.gc!();
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
    expect(device.memory().live).toBe(start);
  });

  it("is run op by op where JavaScript has a part in it", () => {
    using x = Tensor.from([1, 2, 3]);
    let runs = 0;
    using graph = capture(() =>
      scope(() => {
        runs++;
        const [first] = x.dataSync() as Float32Array;
        x.sliceSet(x.affine(1, first!), 0, 0);
      }),
    );
    for (let i = 0; i < 6; i++) graph.replay();
    expect(runs).toBe(7);
    expect(values(x)).toEqual([128, 129, 130]);
  });

  it("sees weights that were written since, and says what was disposed", () => {
    using step = new Step();
    using same = new Step();
    using graph = capture(step.run);
    same.run();
    expect(step.next(3, () => graph.replay())).toEqual(same.next(3, same.run));
    for (const { qkv } of [step, same]) {
      const { storage } = qkv.blocks;
      storage.write(0, storage.readSync().reverse());
    }
    expect(step.next(4, () => graph.replay())).toEqual(same.next(4, same.run));
    expect(step.next(5, () => graph.replay())).toEqual(same.next(5, same.run));
    expect(step.runs).toBe(2);
    step.lengths.dispose();
    expect(() => graph.replay()).toThrow(/disposed/);
  });

  it("finds ids that are none", () => {
    using step = new Step();
    using graph = capture(step.run);
    expect(() => step.next(vocab, () => graph.replay())).toThrow(/id 50 .* out of range/);
    expect(step.next(1, () => graph.replay()).every(Number.isFinite)).toBe(true);
  });
});

describe.runIf(natives.length > 0)("decoding in a graph", () => {
  it("gives the tokens of decoding op by op, drawn and likeliest, alone and side by side", async () => {
    using model = await loadModel(fable);
    const recorded = vi.spyOn(backend.recorder, "capture");
    const both = async (generate: (model: Model) => AsyncIterable<Piece>) => {
      const tokens = async () => {
        const all: number[] = [];
        for await (const { token } of generate(model)) all.push(token);
        return all;
      };
      recorded.mockClear();
      const got = await tokens();
      expect(recorded).toHaveBeenCalledTimes(1);
      vi.stubEnv("WICK_GRAPHS", "none");
      expect(await tokens()).toEqual(got);
      expect(recorded).toHaveBeenCalledTimes(1);
      vi.unstubAllEnvs();
    };
    const options: GenerateOptions = { maxTokens: 12, ignoreEos: true };
    await both((model) => model.generate("Once", options));
    await both((model) => model.generateBatch(["Once upon", "A"], { ...options, temperature: 1, seed: 3 }));
  });
});
