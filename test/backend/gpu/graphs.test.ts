/** Recorded work: what a graph may hold, and that models which decode in one say the same as step by step. */
import { afterEach, expect, it, vi } from "vitest";
import { collect } from "../../../src/backend/storage.ts";
import type { Graph, Recorder } from "../../../src/backend/transformers.ts";
import { type Device, scope, Tensor } from "../../../src/index.ts";
import {
  type GenerateOptions,
  loadModel,
  type Model,
  type Piece,
  PromptCache,
  writeModelGguf,
} from "../../../src/models/index.ts";
import { rmsNorm, rope, ropeI, sdpa } from "../../../src/nn/index.ts";
import { result } from "../../../src/tensor/tensor.ts";
import { describeDevices, gpuNames, inTurns } from "../../helpers/devices.ts";
import { fewNames, tiny, variant } from "../../helpers/model-folders.ts";
import { temporaryFolder } from "../../helpers/temporary-folder.ts";

const folder = temporaryFolder();
afterEach(() => {
  vi.unstubAllEnvs();
  vi.restoreAllMocks();
});

const recorderOf = (device: Device) => device.backend.recorder!;
const values = (x: Tensor): number[] => Array.from(x.dataSync(), Number);

describeDevices(
  "attention over a cache",
  (device) => {
    interface Case {
      readonly dtype: "f32" | "f16" | "bf16";
      readonly interleaved?: boolean;
      readonly rotary?: number;
      readonly t?: number;
      readonly past?: number;
      readonly window?: number;
      readonly softcap?: number;
      readonly hasSinks?: boolean;
      readonly padding?: readonly number[];
      readonly recorded?: boolean;
      /** Rows of q, k and v side by side, as one product gives them, or each by itself. */
      readonly fused?: boolean;
      /** Elements before each row of what is side by side: odd, so that no pair is aligned. */
      readonly before?: number;
      /** Heads of queries and keys are normalised, and so large before. */
      readonly normed?: number;
    }
    const [batch, heads, kvHeads, d, capacity] = [2, 4, 2, 16, 64];

    it.each<Case>([
      { dtype: "f32" },
      { dtype: "f32", interleaved: true, past: 0, t: 5 },
      { dtype: "f32", rotary: 6, fused: false },
      { dtype: "f32", rotary: 8, interleaved: true, t: 3 },
      { dtype: "f32", t: 11, past: 21, window: 7, softcap: 20 },
      { dtype: "f32", recorded: true, window: 9 },
      { dtype: "f32", recorded: true, padding: [0, 5] },
      { dtype: "f32", padding: [3, 0], t: 4, past: 1 },
      { dtype: "f16", rotary: 12, recorded: true },
      { dtype: "f16", interleaved: true, fused: false },
      { dtype: "bf16", t: 2, padding: [0, 2], hasSinks: true },
      { dtype: "f32", rotary: 0, t: 2 },
      { dtype: "f16", rotary: 0, recorded: true, hasSinks: true },
      { dtype: "bf16", interleaved: true, recorded: true },
      { dtype: "f32", normed: 1e25, rotary: 6, recorded: true },
      { dtype: "f32", normed: 1e-25, interleaved: true, t: 3, fused: false },
      { dtype: "f16", normed: 1, rotary: 8, interleaved: true },
      { dtype: "bf16", normed: 1, recorded: true },
      { dtype: "f16", before: 1, rotary: 8 },
      { dtype: "f32", before: 1, interleaved: true, t: 2 },
    ])("does what rope, cache and sdpa do: %o", (c) => {
      scope(() => {
        const { dtype, interleaved = false, rotary = d, t = 1, past = 13, window = 0, softcap = 0, fused = true } = c;
        const options = { dtype, device };
        const rows = batch * t;
        const widths = [heads * d, kvHeads * d, kvHeads * d];
        const [before, width] = [c.before ?? 0, (heads + 2 * kvHeads) * d];
        const drawn = Tensor.randn([rows, before + width], { ...options, seed: 1 }).affine(c.normed ?? 1, 0);
        const side = drawn.narrow(1, before, width);
        const weight = (seed: number) => Tensor.randn([d], { ...options, seed });
        const norms = c.normed ? { q: weight(5), k: weight(6), eps: Math.min(c.normed, 1) ** 2 * 0.1 } : null;
        const [q, k, v] = [0, heads * d, (heads + kvHeads) * d].map((at, i) => {
          const part = side.narrow(1, at, widths[i]!);
          return fused ? part : part.copy();
        }) as [Tensor, Tensor, Tensor];
        const angles = Tensor.randn([capacity, rotary / 2], { device, seed: 2 });
        const [cos, sin] = [angles.cos().toDType(dtype), angles.sin().toDType(dtype)];
        const filled = () => Tensor.randn([batch, kvHeads, capacity, d], { ...options, seed: 3 });
        const [keys, vals] = [filled(), filled()];
        const { padding } = c;
        const sinks = c.hasSinks ? Tensor.randn([heads], { ...options, seed: 4 }) : null;
        const mask =
          padding &&
          Tensor.from(
            padding.map((pad) => Array.from({ length: capacity }, (_, i) => (i < pad ? -30_000 : 0))),
            { shape: [batch, 1, 1, capacity], ...options },
          );
        const got = result(
          device.backend.cachedAttention!.attend(q, k, v, {
            ...{ cos, sin, interleaved, k: keys, v: vals, past, window, softcap, scale: 0.3, sinks, norms },
            lengths: c.recorded ? Tensor.full([batch], past + t, { dtype: "i64", device }) : null,
            padding: padding ? Tensor.from(BigInt64Array.from(padding, BigInt), { device }) : null,
            mask: mask ? (c.recorded ? mask : mask.narrow(3, 0, past + t)) : null,
          }),
          [batch, t, heads, d],
        ).transpose(1, 2);
        // The same, op by op.
        const split = (x: Tensor) => x.reshape([batch, t, -1, d]).transpose(1, 2);
        const turn = (x: Tensor) => {
          if (rotary === 0) return x;
          const tables = [cos, sin].map((table) =>
            Tensor.stack(
              Array.from({ length: batch }, (_, b) => {
                const at = Array.from({ length: t }, (_, i) => Math.max(past + i - (padding?.[b] ?? 0), 0));
                return table.indexSelect(Tensor.from(at, { dtype: "u32", device }), 0);
              }),
              0,
            ),
          ) as [Tensor, Tensor];
          const turned = (interleaved ? ropeI : rope)(x.narrow(3, 0, rotary), ...tables);
          return rotary === d ? turned : Tensor.cat([turned, x.narrow(3, rotary, d - rotary)], 3);
        };
        const tolerance = { f32: 1e-5, f16: 2e-3, bf16: 2e-2 }[dtype];
        const near = (got: readonly number[], want: readonly number[]): void => {
          for (const [i, x] of got.entries()) expect(Math.abs(x - want[i]!)).toBeLessThan(tolerance);
        };
        const normed = (x: Tensor, w: Tensor | undefined) => (w ? rmsNorm(split(x), w, norms!.eps) : split(x));
        const [wantK, wantV] = [filled(), filled()];
        wantK.sliceSet(turn(normed(k, norms?.k)), 2, past);
        wantV.sliceSet(split(v), 2, past);
        if (norms) near(values(keys), values(wantK));
        else expect(values(keys)).toEqual(values(wantK));
        expect(values(vals)).toEqual(values(wantV));
        // Values that are as large would hide what else is wrong.
        if (norms && c.normed !== 1) return;
        const [seenK, seenV] = [wantK.narrow(2, 0, past + t), wantV.narrow(2, 0, past + t)];
        const more = { ...(mask && { mask: mask.narrow(3, 0, past + t) }), ...(sinks && { sinks }) };
        const want = values(
          sdpa(turn(normed(q, norms?.q)), seenK, seenV, { scale: 0.3, causal: true, window, softcap, ...more }),
        );
        near(values(got), want);
      });
    });
  },
  gpuNames,
);

describeDevices(
  "a graph",
  (device) => {
    /** x ← 2·x + 1 through a temporary, recorded. */
    const doubling = (x: Tensor): Graph =>
      recorderOf(device).capture(() =>
        scope(() => {
          const twice = x.add(x);
          x.sliceSet(twice.affine(1, 1), 0, 0);
        }),
      );

    it("does its work once when recorded, and again at every replay, on memory that nobody else gets", async () => {
      collect();
      const start = device.memory().live;
      {
        using x = Tensor.ones([3], { device });
        using graph = doubling(x);
        expect(values(x)).toEqual([3, 3, 3]);
        for (let i = 0; i < 3; i++) {
          graph.replay();
          // Whatever is allocated now must not be the graph's temporary.
          using other = Tensor.full([3], 7, { device });
          graph.replay();
          expect(values(other)).toEqual([7, 7, 7]);
        }
        expect(values(x)).toEqual([255, 255, 255]);
        expect(device.memory().live).toBeGreaterThan(start + x.numel * 4);
      }
      await device.synchronize();
      expect(device.memory().live).toBe(start);
    });

    it("of work that has run before is recorded at once, and does it once all the same", () => {
      using x = Tensor.ones([3], { device });
      let runs = 0;
      const work = (): void => {
        runs++;
        scope(() => x.sliceSet(x.add(x).affine(1, 1), 0, 0));
      };
      recorderOf(device).capture(work)[Symbol.dispose]();
      expect([runs, values(x)]).toEqual([2, [3, 3, 3]]);
      using graph = recorderOf(device).capture(work, true);
      expect([runs, values(x)]).toEqual([3, [7, 7, 7]]);
      graph.replay();
      expect(values(x)).toEqual([15, 15, 15]);
    });

    it("runs first after all where it was not what had run before", () => {
      using x = Tensor.arange(0, 30, { device }).reshape([2, 3, 5]);
      using y = Tensor.zeros([5, 3, 2], { device });
      let runs = 0;
      // Its layout is uploaded, which recorded work cannot do.
      using graph = recorderOf(device).capture(() => {
        runs++;
        scope(() => y.sliceSet(x.permute([2, 1, 0]).affine(1, 1), 0, 0));
      }, true);
      expect(runs).toBe(3);
      const want = scope(() => values(x.permute([2, 1, 0]).affine(1, 1).contiguous()));
      expect(values(y)).toEqual(want);
      scope(() => y.sliceSet(Tensor.zeros([5, 3, 2], { device }), 0, 0));
      graph.replay();
      expect(values(y)).toEqual(want);
    });

    it("may leave a result, which it writes again and again, and which outlives it", () => {
      collect();
      const start = device.memory().live;
      using x = Tensor.from([1, 2], { device });
      let y: Tensor | undefined;
      const graph = recorderOf(device).capture(() => {
        y?.dispose();
        y = x.sqr();
      });
      scope(() => x.sliceSet(Tensor.from([5], { device }), 0, 1));
      graph.replay();
      expect(values(y!)).toEqual([1, 25]);
      graph[Symbol.dispose]();
      using later = Tensor.zeros([2], { device });
      expect(values(y!)).toEqual([1, 25]);
      y!.dispose();
      expect(values(later)).toEqual([0, 0]);
      expect(device.memory().live).toBe(start + 8 + 8);
    });

    it("that nobody holds any more is collected", async () => {
      collect();
      const start = device.memory().live;
      using x = Tensor.ones([3], { device });
      (() => void doubling(x))();
      expect(device.memory().live).toBeGreaterThan(start + 12);
      for (let i = 0; i < 20 && device.memory().live > start + 12; i++) {
        globalThis.gc!();
        await new Promise((resolve) => setTimeout(resolve, 5));
      }
      expect(device.memory().live).toBe(start + 12);
    });

    it.each<[string, (x: Tensor) => unknown, RegExp]>([
      [
        "an upload",
        (x) => x.backend.write(x.storage, 0, new Uint8Array(4)),
        /data cannot move .* while work is recorded/,
      ],
      ["a read", (x) => x.dataSync(), /data cannot move/],
      ["a capture", (x) => recorderOf(device).capture(() => x.sqr()), /part of another/],
      ["an error", () => expect.fail("its own"), /its own/],
    ])("cannot hold %s, and the device goes on", (_, forbidden, message) => {
      collect();
      const start = device.memory().live;
      using x = Tensor.ones([3], { device });
      let run = 0;
      const record = () =>
        recorderOf(device).capture(() =>
          scope(() => {
            x.affine(2, 0);
            if (run++ > 0) forbidden(x);
          }),
        );
      expect(record).toThrow(message);
      using graph = doubling(x);
      graph.replay();
      expect(values(x)).toEqual([7, 7, 7]);
      graph[Symbol.dispose]();
      expect(() => graph.replay()).toThrow(/graph was disposed/);
      x.dispose();
      expect(device.memory().live).toBe(start);
    });

    it("cannot hold a layout that the run before it did not have", () => {
      using x = Tensor.ones([37, 41], { device });
      let run = 0;
      expect(() =>
        recorderOf(device).capture(() =>
          scope(() =>
            x
              .t()
              .narrow(0, 0, 7 + run++)
              .exp(),
          ),
        ),
      ).toThrow(/a layout that the first run did not have/);
    });
  },
  gpuNames,
);

interface Run {
  readonly tokens: number[][];
  readonly finishes: (string | null)[];
}

async function run(pieces: AsyncIterable<Piece>, sequences = 1): Promise<Run> {
  const tokens: number[][] = Array.from({ length: sequences }, () => []);
  const finishes: (string | null)[] = [];
  for await (const piece of pieces) {
    tokens[piece.sequence]!.push(piece.token);
    if (piece.finish) finishes[piece.sequence] = piece.finish;
  }
  return { tokens, finishes };
}

describeDevices(
  "decoding in a graph",
  (device) => {
    const recordings = () => vi.spyOn(device.backend.recorder as Recorder, "capture");

    /** The same generation recorded and step by step; says how often something was recorded. */
    async function both(model: Model, prompts: number[][], options: GenerateOptions): Promise<number> {
      const capture = recordings().mockClear();
      const recorded = await run(model.generateBatch(prompts, options), prompts.length);
      const count = capture.mock.calls.length;
      vi.stubEnv("WICK_GRAPHS", "none");
      expect(recorded).toEqual(await run(model.generateBatch(prompts, options), prompts.length));
      expect(capture.mock.calls.length).toBe(count);
      vi.unstubAllEnvs();
      return count;
    }
    const prompt = (length: number, from = 3): number[] => Array.from({ length }, (_, i) => (from + i * 29) % 128);

    it.each(inTurns(fewNames, device, 1))("gives the tokens of %s", async (name) => {
      using model = await loadModel(tiny(name), { device, dtype: "f32" });
      const options = { maxTokens: 7, ignoreEos: true };
      expect(await both(model, [prompt(9)], options)).toBe(1);
      expect(await both(model, [prompt(5), prompt(2, 50)], { ...options, temperature: 0.9, topK: 40, seed: 3 })).toBe(
        1,
      );
    });

    it("gives the same tokens where a step like it was recorded before, and the host goes through it once", async () => {
      using model = await loadModel(tiny("llama"), { device, dtype: "f32" });
      const options = { maxTokens: 7, ignoreEos: true };
      const logits = vi.spyOn(model.transformer, "logits");
      const counts: number[] = [];
      const texts: Run[] = [];
      for (let i = 0; i < 2; i++) {
        logits.mockClear();
        texts.push(await run(model.generateBatch([prompt(9), prompt(9, 5)], options), 2));
        counts.push(logits.mock.calls.length);
      }
      expect(texts[1]).toEqual(texts[0]);
      // Of the prompt, the step that is run, and its recording.
      expect(counts).toEqual([3, 2]);
    });

    it("gives the tokens of quantized weights", async () => {
      const path = folder(`q8-${device.name.replace(":", "")}.gguf`);
      await writeModelGguf(tiny("llama"), path, { type: "Q8_0" });
      using model = await loadModel(path, { device, dtype: "bf16" });
      expect(await both(model, [prompt(9)], { maxTokens: 10, ignoreEos: true })).toBe(1);
    });

    it.each(inTurns(["a sliding window"], device))("goes on where the cache must grow, behind %s", async () => {
      const longer = await variant(tiny("mistral"), folder(`longer-${device.name.replace(":", "")}`), {
        ...{ max_position_embeddings: 1024, num_hidden_layers: 1 },
      });
      using model = await loadModel(longer, { device, dtype: "f32" });
      expect(await both(model, [prompt(252)], { maxTokens: 265, ignoreEos: true })).toBe(2);
    });

    it("ends where the context does", async () => {
      const short = await variant(tiny("llama"), folder(`short-${device.name.replace(":", "")}`), {
        max_position_embeddings: 64,
      });
      using model = await loadModel(short, { device, dtype: "f32" });
      const { tokens, finishes } = await run(model.generate(prompt(62), { ignoreEos: true }));
      expect([tokens[0]!.length, finishes]).toEqual([3, ["context"]]);
      await both(model, [prompt(60)], { ignoreEos: true });
    });

    it("turns a part of each head, and to other frequencies where longrope does", async () => {
      const long = await variant(tiny("phi3"), folder(`long-${device.name.replace(":", "")}`), {
        original_max_position_embeddings: 16,
        max_position_embeddings: 512,
        rope_parameters: {
          ...{ rope_type: "longrope", rope_theta: 10_000, partial_rotary_factor: 0.5 },
          ...{ short_factor: new Array(4).fill(1), long_factor: new Array(4).fill(3) },
        },
      });
      using model = await loadModel(long, { device, dtype: "f32" });
      expect(await both(model, [prompt(12)], { maxTokens: 10, ignoreEos: true })).toBe(2);
    });

    it("ends sequences of a batch one by one", async () => {
      using model = await loadModel(tiny("llama"), { device, dtype: "f32" });
      const prompts = [prompt(4), prompt(6, 11)];
      const { tokens } = await run(model.generateBatch(prompts, { maxTokens: 8, ignoreEos: true }), 2);
      const stop = tokens[0]![2]!;
      await both(model, prompts, { maxTokens: 8, ignoreEos: true, stopTokens: [stop] });
    });

    it("repeats itself less under a penalty, as the host does", async () => {
      using model = await loadModel(tiny("qwen2"), { device, dtype: "f32" });
      expect(await both(model, [prompt(6)], { maxTokens: 8, ignoreEos: true, repetitionPenalty: 1.4 })).toBe(1);
    });

    it("leaves a prompt cache as long as the text, whatever ran ahead", async () => {
      using model = await loadModel(tiny("llama"), { device, dtype: "f32" });
      const options = { maxTokens: 6, ignoreEos: true };
      using promptCache = new PromptCache();
      let text = prompt(4);
      for (const added of [[9, 10], [11]]) {
        const want = await run(model.generate(text, options));
        expect(await run(model.generate(text, { ...options, promptCache }))).toEqual(want);
        expect(promptCache.length).toBe(text.length + 5);
        text = [...text, ...want.tokens[0]!, ...added];
      }
      // Left in the middle, while further steps are under way.
      const whole = (await run(model.generate(text, options))).tokens[0]!;
      let seen = 0;
      for await (const _ of model.generate(text, { ...options, promptCache })) if (++seen === 2) break;
      expect(promptCache.length).toBe(text.length + 1);
      const more = [...text, whole[0]!];
      const want = await run(model.generate([...more, 5], options));
      expect(await run(model.generate([...more, 5], { ...options, promptCache }))).toEqual(want);
    });

    it("can be aborted, and gives all memory back however it ends", async () => {
      using model = await loadModel(tiny("llama"), { device, dtype: "f32" });
      await run(model.generateBatch([prompt(3), prompt(5)], { maxTokens: 3 }), 2);
      await device.synchronize();
      const { live, storages } = device.memory();
      await run(model.generate(prompt(254), { maxTokens: 6, ignoreEos: true }));
      for await (const _ of model.generate(prompt(4), { ignoreEos: true, temperature: 1 })) break;
      const abort = new AbortController();
      const pieces = model.generate(prompt(4), { ignoreEos: true, signal: abort.signal });
      await pieces.next();
      abort.abort(new Error("enough"));
      await expect(pieces.next()).rejects.toThrow("enough");
      expect(device.memory()).toMatchObject({ live, storages });
    });

    it("says when the model computes no probabilities", async () => {
      const broken = await variant(tiny("llama"), folder(`nan-${device.name.replace(":", "")}`), {}, (tensors) => {
        const norm = tensors.get("model.norm.weight")!;
        tensors.set("model.norm.weight", norm.affine(Number.NaN, 0));
      });
      using model = await loadModel(broken, { device, dtype: "f32" });
      await expect(run(model.generate([1, 2], { maxTokens: 3 }))).rejects.toThrow(/largest logit is not finite/);
    });
  },
  gpuNames,
);
