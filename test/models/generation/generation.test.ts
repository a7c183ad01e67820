/** Generation: what is drawn, when it ends, and that it can be repeated, batched, stopped and left. */
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, it, vi } from "vitest";
import { Device, scope, Tensor } from "../../../src/index.ts";
import { chooseTokens } from "../../../src/models/generation/sampling.ts";
import {
  type GenerateOptions,
  loadModel,
  type Model,
  type Piece,
  PromptCache,
  Sampler,
} from "../../../src/models/index.ts";
import { describeDevices, inTurns } from "../../helpers/devices.ts";
import { fable, tiny, tinyNames, variant } from "../../helpers/model-folders.ts";
import { temporaryFolder } from "../../helpers/temporary-folder.ts";

const folder = temporaryFolder();

const golden = JSON.parse(await readFile(join(fable, "golden.json"), "utf8")) as {
  prompt: string;
  prompt_ids: number[];
  greedy_ids: number[];
  greedy_text: string;
}[];

async function collect(pieces: AsyncIterable<Piece>): Promise<Piece[]> {
  const out: Piece[] = [];
  for await (const piece of pieces) out.push(piece);
  return out;
}
const textOf = (pieces: readonly Piece[]) => pieces.map((piece) => piece.text).join("");
const tokensOf = (pieces: readonly Piece[], sequence = 0) =>
  pieces.filter((piece) => piece.sequence === sequence).map((piece) => piece.token);

let model: Model;
beforeAll(async () => {
  model = await loadModel(fable);
});
afterAll(() => model.dispose());

describeDevices("generation", (device) => {
  it.each(inTurns(["fable-7m"], device, 1))("of %s goes on side by side as it does alone", async () => {
    using own = await loadModel(fable, { device, dtype: "f32" });
    // The simulator runs every GPU thread on the CPU: a few tokens show as much.
    const maxTokens = device.name.startsWith("sim") ? 3 : 24;
    const prompts = golden.map((g) => g.prompt);
    const pieces = await collect(own.generateBatch(prompts, { maxTokens }));
    for (const [i, g] of golden.entries()) expect(tokensOf(pieces, i)).toEqual(g.greedy_ids.slice(0, maxTokens));
  });

  it.each(inTurns(tinyNames, device))("of %s does not mind padding", async (name) => {
    using own = await loadModel(tiny(name), { device, dtype: "f32" });
    const prompts = [[3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46, 26], [27], [18, 28, 18, 28, 45]];
    const options = { maxTokens: device.name === "cpu" ? 14 : 6, ignoreEos: true };
    const together = await collect(own.generateBatch(prompts, options));
    for (const [i, prompt] of prompts.entries()) {
      expect(tokensOf(together, i)).toEqual(tokensOf(await collect(own.generate(prompt, options))));
    }
  });
});

describe("generation", () => {
  it("streams the text of transformers, and ends at maxTokens", async () => {
    const [g] = golden as [(typeof golden)[0]];
    const pieces = await collect(model.generate(g.prompt, { maxTokens: 48 }));
    expect(textOf(pieces)).toBe(g.greedy_text);
    expect(pieces.map((p) => p.finish)).toEqual([...Array(47).fill(null), "length"]);
    expect(await collect(model.generate(g.prompt, { maxTokens: 0 }))).toEqual([]);
  });

  it.each([1, 3, 8, 9, 100])("does not depend on the prompt's chunks of %i", async (prefillChunk) => {
    const [g] = golden as [(typeof golden)[0]];
    const pieces = await collect(model.generate(g.prompt_ids, { maxTokens: 8, prefillChunk }));
    expect(tokensOf(pieces)).toEqual(g.greedy_ids.slice(0, 8));
  });

  it("ends before a stop string that spans tokens, and holds back no other text", async () => {
    const [g] = golden as [(typeof golden)[0]];
    // " fond of hunting.\n\nOne day": the string starts inside one token and ends inside another.
    const options = { maxTokens: 48, stop: ["nting.\n\nO", "no such text"] };
    const pieces = await collect(model.generate(g.prompt, options));
    expect(textOf(pieces)).toBe(" who was very fond of hu");
    expect(pieces.at(-1)!.finish).toBe("string");
    const held = await collect(model.generate(g.prompt, { maxTokens: 5, stop: `${g.greedy_text.slice(0, 60)}?` }));
    expect(held.slice(0, -1).every((p) => p.text === "")).toBe(true);
    expect(g.greedy_text.startsWith(textOf(held))).toBe(true);
    expect(textOf(held).length).toBeGreaterThan(10);
  });

  it("ends at a stop token without its text, or goes on where told", async () => {
    const [g] = golden as [(typeof golden)[0]];
    const stop = g.greedy_ids[3]!;
    const pieces = await collect(model.generate(g.prompt, { maxTokens: 48, stopTokens: [stop] }));
    expect(tokensOf(pieces)).toEqual(g.greedy_ids.slice(0, 4));
    expect(pieces.at(-1)).toMatchObject({ token: stop, text: "", finish: "token" });
    const eos = 66;
    using own = await loadModel(await variant(tiny("llama"), folder("eos"), { eos_token_id: eos }));
    const first = tokensOf(await collect(own.generate([1, 2, 3], { maxTokens: 20 })));
    const all = tokensOf(await collect(own.generate([1, 2, 3], { maxTokens: 20, ignoreEos: true })));
    expect(all).toHaveLength(20);
    expect(first).toEqual(all.slice(0, all.indexOf(eos) + 1));
    expect(first.length).toBeGreaterThan(1);
  });

  it("fills the context and no more", async () => {
    using own = await loadModel(tiny("llama"));
    const prompt = Array.from({ length: 510 }, (_, i) => i % 128);
    const pieces = await collect(own.generate(prompt, { ignoreEos: true }));
    expect(pieces.map((p) => p.finish)).toEqual([null, null, "context"]);
    expect(await collect(own.generate([...prompt, 1, 2], { ignoreEos: true }))).toHaveLength(1);
    await expect(collect(own.generate([...prompt, 1, 2, 3]))).rejects.toThrow(/513 tokens, but .* holds 512/);
  });

  it("repeats with a seed and differs without", async () => {
    const draw = async (options: GenerateOptions) =>
      tokensOf(await collect(model.generate("The king", { maxTokens: 30, temperature: 1.2, ...options })));
    const first = await draw({ seed: 5 });
    expect(await draw({ seed: 5 })).toEqual(first);
    expect(await draw({ seed: 5n })).toEqual(first);
    expect(await draw({ seed: 6 })).not.toEqual(first);
    expect(await draw({})).not.toEqual(await draw({}));
    expect(await draw({ seed: 5, topK: 1 })).toEqual(await draw({ temperature: 0 }));
  });

  it("gives the sequences of a batch draws of their own", async () => {
    const pieces = await collect(
      model.generateBatch(["The king", "The king"], { maxTokens: 20, temperature: 1, seed: 1 }),
    );
    expect(tokensOf(pieces, 0)).toHaveLength(20);
    expect(tokensOf(pieces, 1)).not.toEqual(tokensOf(pieces, 0));
  });

  it("repeats itself less under a penalty", async () => {
    const distinct = async (repetitionPenalty: number) => {
      const wolf = golden[2]!.prompt;
      return new Set(tokensOf(await collect(model.generate(wolf, { maxTokens: 48, repetitionPenalty })))).size;
    };
    expect(await distinct(1.3)).toBeGreaterThan(2 * (await distinct(1)));
  });

  it("stops for a signal with its reason, between tokens and between chunks of the prompt", async () => {
    const abort = new AbortController();
    const seen: Piece[] = [];
    const run = async () => {
      for await (const piece of model.generate("Once", { maxTokens: 50, signal: abort.signal })) {
        seen.push(piece);
        if (seen.length === 3) abort.abort(new Error("enough"));
      }
    };
    await expect(run()).rejects.toThrow("enough");
    expect(seen).toHaveLength(3);
    const long = Array.from({ length: 400 }, (_, i) => i);
    const late = new AbortController();
    setImmediate(() => late.abort());
    await expect(collect(model.generate(long, { prefillChunk: 1, signal: late.signal }))).rejects.toThrow(/abort/i);
    await expect(collect(model.generate("Once", { signal: AbortSignal.abort() }))).rejects.toThrow(/abort/i);
  });

  it("lets timers run, so that a timeout can stop it", async () => {
    const run = collect(model.generate("Once", { ignoreEos: true, signal: AbortSignal.timeout(100) }));
    await expect(run).rejects.toThrow(/timeout/i);
  });

  it("holds no memory after its end, however it ended", async () => {
    await collect(model.generate("Once", { maxTokens: 4 }));
    const { live, storages } = Device.cpu().memory();
    await collect(model.generateBatch(["Once", "Once upon"], { maxTokens: 4 }));
    for await (const _ of model.generate("Once")) break;
    await collect(model.generate("Once", { signal: AbortSignal.timeout(20) })).catch(() => {});
    expect(Device.cpu().memory()).toMatchObject({ live, storages });
  });

  it("holds the same memory at every step, and survives scopes around its steps", async () => {
    const pieces = model.generate("Once", { maxTokens: 40 });
    const sizes: number[] = [];
    for (;;) {
      const { done } = await scope(() => pieces.next());
      if (done) break;
      sizes.push(Device.cpu().memory().storages);
    }
    // Behind the prompt the first step is recorded, and the recording holds what it needs.
    expect(new Set(sizes.slice(1)).size).toBe(1);
  });

  it.each<[string, Parameters<Model["generate"]>[0], GenerateOptions, RegExp]>([
    ["a negative temperature", "a", { temperature: -1 }, /temperature must be a number from 0 up, not -1/],
    ["an infinite temperature", "a", { temperature: Number.POSITIVE_INFINITY }, /temperature must be/],
    ["a topK that is no count", "a", { topK: 1.5 }, /topK must be a whole number/],
    ["a topP of 0", "a", { topP: 0 }, /topP must be above 0/],
    ["a topP above 1", "a", { topP: 1.1 }, /topP must be/],
    ["a minP above 1", "a", { minP: 2 }, /minP must be from 0 to 1, not 2/],
    ["a penalty of 0", "a", { repetitionPenalty: 0 }, /repetitionPenalty must be a positive/],
    ["a seed that is no integer", "a", { seed: 0.5 }, /seed must be a whole number/],
    ["NaN", "a", { temperature: Number.NaN }, /temperature must be/],
    ["a count that is none", "a", { maxTokens: -1 }, /maxTokens must be a whole number from 0 up, not -1/],
    ["a chunk of nothing", "a", { prefillChunk: 0 }, /prefillChunk must be a whole number from 1 up/],
    ["an empty stop string", "a", { stop: ["x", ""] }, /empty stop string/],
    ["no tokens", [], {}, /the prompt has no tokens/],
    ["ids outside the vocabulary", [4096], {}, /4096 is no token id; the vocabulary has 4096/],
    ["ids that are no integers", [0.5], {}, /0.5 is no token id/],
    ["a chat without a template", [{ role: "user", content: "hi" }], {}, /no chat template/],
  ])("refuses %s", async (_, prompt, options, message) => {
    await expect((async () => collect(model.generate(prompt, options)))()).rejects.toThrow(message);
  });

  it("refuses text where there is no tokenizer, and no prompts at all", async () => {
    using own = await loadModel(tiny("llama"));
    expect(() => own.generate("text")).toThrow(/without a tokenizer .*token ids/);
    await expect(collect(own.generate([1], { stop: "x" }))).rejects.toThrow(/stop strings need a tokenizer/);
    await expect(collect(own.generateBatch([]))).rejects.toThrow(/at least one prompt/);
  });
});

describe("a prompt cache", () => {
  it.each(["llama", "gemma2"] as const)("changes nothing for %s but the work", async (name) => {
    using own = await loadModel(tiny(name));
    using promptCache = new PromptCache();
    const options = { maxTokens: 6, ignoreEos: true };
    let prompt = [5, 6, 7, 8];
    for (const added of [[9, 10], [11], [12, 13, 14]]) {
      const want = tokensOf(await collect(own.generate(prompt, options)));
      expect(tokensOf(await collect(own.generate(prompt, { ...options, promptCache })))).toEqual(want);
      expect(promptCache.length).toBe(prompt.length + 5);
      prompt = [...prompt, ...want, ...added];
    }
    // Another text with the same start, the very same text, and another one altogether.
    for (const other of [[5, 6, 99], [5, 6, 99], [42]]) {
      const want = tokensOf(await collect(own.generate(other, options)));
      expect(tokensOf(await collect(own.generate(other, { ...options, promptCache })))).toEqual(want);
    }
    promptCache.reset();
    expect(promptCache.length).toBe(0);
    await expect(collect(own.generateBatch([[1], [2]], { promptCache }))).rejects.toThrow(/one sequence at a time/);
  });
});

describe("a step that fails half-way", () => {
  it.each(["llama", "mistral"] as const)("leaves a cache of %s that can be used", async (name) => {
    using own = await loadModel(tiny(name));
    using promptCache = new PromptCache();
    const options = { maxTokens: 6, ignoreEos: true };
    const want = tokensOf(await collect(own.generate([5, 6, 7], options)));
    const cache = promptCache.open(own.transformer);
    const layer = cache.layers[1]!;
    const append = layer.append.bind(layer);
    vi.spyOn(layer, "append")
      .mockImplementationOnce(append)
      .mockImplementationOnce(() => {
        throw new Error("no memory");
      });
    await expect(collect(own.generate([5, 6, 7], { ...options, promptCache }))).rejects.toThrow("no memory");
    expect(cache.length).toBe(name === "llama" ? 3 : 0); // a sliding window cannot go back
    expect(tokensOf(await collect(own.generate([5, 6, 7], { ...options, promptCache })))).toEqual(want);
    expect(cache.length).toBe(8);
  });
});

describe("a sampler", () => {
  const logits = (...values: number[]) => Float32Array.from(values);
  const counts = (options: ConstructorParameters<typeof Sampler>[0], values: number[], draws = 4000) => {
    const sampler = new Sampler({ temperature: 1, seed: 1, ...options });
    const out = values.map(() => 0);
    for (let i = 0; i < draws; i++) out[sampler.sample(logits(...values))]! += 1 / draws;
    return out;
  };
  const four = [0.4, 0.3, 0.2, 0.1].map(Math.log);

  it("draws as often as the probabilities say", () => {
    for (const [i, share] of counts({}, four).entries()) expect(share).toBeCloseTo([0.4, 0.3, 0.2, 0.1][i]!, 1.3);
    const squared = [16, 9, 4, 1].map((x) => x / 30);
    for (const [i, share] of counts({ temperature: 0.5 }, four).entries()) expect(share).toBeCloseTo(squared[i]!, 1.3);
  });

  it.each([
    ["topK", { topK: 2 }, [4 / 7, 3 / 7, 0, 0]],
    ["topK beyond the vocabulary", { topK: 9 }, [0.4, 0.3, 0.2, 0.1]],
    ["topP that the first reaches", { topP: 0.39 }, [1, 0, 0, 0]],
    ["topP that two reach", { topP: 0.65 }, [4 / 7, 3 / 7, 0, 0]],
    ["topP of what topK leaves", { topK: 2, topP: 0.56 }, [1, 0, 0, 0]],
    ["minP", { minP: 0.45 }, [4 / 9, 3 / 9, 2 / 9, 0]],
    ["minP of 1", { minP: 1 }, [1, 0, 0, 0]],
    ["all of them", { topK: 3, topP: 0.99, minP: 0.6 }, [4 / 7, 3 / 7, 0, 0]],
  ])("keeps to %s", (_, options, want) => {
    const got = counts(options, four);
    for (const [i, share] of want.entries()) {
      if (share === 0) expect(got[i]).toBe(0);
      else expect(got[i]).toBeCloseTo(share, 1.3);
    }
  });

  it("takes the likeliest tokens in order, whatever the vocabulary", () => {
    const values = fc.array(fc.integer({ min: -20, max: 20 }), { minLength: 1, maxLength: 200 });
    fc.assert(
      fc.property(values, fc.integer({ min: 1, max: 20 }), fc.nat(), (v, topK, seed) => {
        const token = new Sampler({ temperature: 50, topK, seed }).sample(logits(...v));
        // Equal logits: the lower id comes first.
        const rank = v.filter((x, i) => x > v[token]! || (x === v[token] && i < token)).length;
        expect(rank).toBeLessThan(topK);
      }),
    );
  });

  it("penalises what was there: positive logits shrink, negative ones grow", () => {
    const penalised = (values: number[], prompt: number[]) => {
      const own = logits(...values);
      new Sampler({ repetitionPenalty: 2 }, prompt).sample(own);
      return Array.from(own);
    };
    expect(penalised([4, -4, 3], [0, 1, 77])).toEqual([2, -8, 3]);
    const sampler = new Sampler({ repetitionPenalty: 2 });
    expect([0, 1, 2].map(() => sampler.sample(logits(4, 3, 1)))).toEqual([0, 1, 0]);
  });

  it("says when there is nothing to draw from", () => {
    expect(() => new Sampler({ temperature: 1 }).sample(logits(Number.NaN, Number.NaN))).toThrow(
      /largest logit is NaN/,
    );
    for (const options of [{}, { topK: 2 }, { topP: 0.9 }, { minP: 0.1 }]) {
      expect(new Sampler({ temperature: 1, seed: 1, ...options }).sample(logits(-9, Number.NaN, 9))).toBe(2);
    }
    expect(new Sampler({ temperature: 1 }).sample(logits(Number.NEGATIVE_INFINITY, 0))).toBe(1);
  });

  it("mixes greedy, drawing and ended sequences in one batch", async () => {
    using rows = Tensor.from([
      [0, 5, 1],
      [9, 0, 0],
      [0, 0, 9],
    ]);
    const drawing = new Sampler({ temperature: 0.1, seed: 1 });
    expect(await chooseTokens(rows, [new Sampler({}), null, drawing])).toEqual([1, 0, 2]);
    expect(await chooseTokens(rows, [new Sampler({}), null, new Sampler({})])).toEqual([1, 0, 2]);
  });
});
