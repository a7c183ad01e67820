/** Speculation: whatever is guessed, the tokens are those of the model alone, and what was wrong leaves no trace. */
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import {
  draftModel,
  type GenerateOptions,
  loadModel,
  type Model,
  PromptCache,
  promptLookup,
  Speculation,
} from "../../../src/models/index.ts";
import { describeInTurns } from "../../helpers/devices.ts";
import { fable, tiny, tinyNames } from "../../helpers/model-folders.ts";

async function tokensOf(model: Model, prompt: string | number[], options: GenerateOptions): Promise<number[]> {
  const tokens: number[] = [];
  for await (const piece of model.generate(prompt, options)) tokens.push(piece.token);
  return tokens;
}

/** Tells the model's own tokens behind `prompt`, every third of them wrongly. */
const wrongAtTimes = (tokens: readonly number[], prompt: readonly number[]) =>
  new Speculation({
    propose: (ids, most) => {
      const at = ids.length - prompt.length;
      return tokens.slice(at, at + most).map((token, i) => ((at + i) % 3 === 2 ? (token + 1) % 100 : token));
    },
  });

let model: Model;
beforeAll(async () => {
  model = await loadModel(fable);
});
afterAll(() => model.dispose());

describeInTurns("speculation", (device) => {
  const few = device.name.startsWith("sim");
  const prompt = [3, 14, 15, 92, 65, 35];

  it.each(few ? (["llama", "mistral"] as const) : tinyNames)("gives the tokens of %s alone", async (name) => {
    using own = await loadModel(tiny(name), { device, dtype: "f32" });
    const options = { maxTokens: few ? 8 : 24, ignoreEos: true };
    const alone = await tokensOf(own, prompt, options);
    const guesses = wrongAtTimes(alone, prompt);
    expect(await tokensOf(own, prompt, { ...options, speculation: guesses })).toEqual(alone);
    expect(guesses.accepted).toBeGreaterThan(alone.length / 4);
    expect(guesses.drafted).toBeGreaterThan(guesses.accepted);
  });
});

describe("speculation", () => {
  const prompt = "Once upon a time there was a king. Once upon a time there was";
  const sampling: GenerateOptions[] = [
    {},
    { temperature: 1.1, topK: 40, seed: 5 },
    { temperature: 0.8, repetitionPenalty: 1.2, seed: 11 },
  ];

  it.each(sampling)("by the prompt draws as it does without: %o", async (options) => {
    const all = { ...options, maxTokens: 60 };
    const lookup = promptLookup({ shortest: 1 });
    expect(await tokensOf(model, prompt, { ...all, speculation: lookup })).toEqual(await tokensOf(model, prompt, all));
    expect(lookup.drafted).toBeGreaterThan(0);
  });

  it("by a draft model that always agrees takes few passes, and frees its cache", async () => {
    const options = { maxTokens: 40 };
    const alone = await tokensOf(model, prompt, options);
    const before = model.device.memory().live;
    {
      using guesses = draftModel(model, { tokens: 4 });
      expect(await tokensOf(model, prompt, { ...options, speculation: guesses })).toEqual(alone);
      expect(guesses.accepted).toBe(guesses.drafted);
      // The first token comes with the prompt; each pass gives one that was not guessed.
      expect(guesses.accepted).toBeGreaterThanOrEqual(30);
      // Another text from the start: what the draft knows of the first one does not count.
      const other = await tokensOf(model, "The wolf", options);
      expect(await tokensOf(model, "The wolf", { ...options, speculation: guesses })).toEqual(other);
    }
    expect(model.device.memory().live).toBe(before);
  });

  it("stops where it would without, with guesses left over, and leaves a prompt cache that can go on", async () => {
    const alone = await tokensOf(model, prompt, { maxTokens: 30 });
    const ids = model.encode(prompt);
    using promptCache = new PromptCache();
    const speculation = wrongAtTimes(alone, ids);
    const stopTokens = [alone[11]!];
    const stopped = await tokensOf(model, prompt, { maxTokens: 30, stopTokens });
    expect(await tokensOf(model, prompt, { maxTokens: 30, stopTokens, speculation, promptCache })).toEqual(stopped);
    const longer = [...ids, ...alone.slice(0, 8)];
    expect(await tokensOf(model, longer, { maxTokens: 10, speculation, promptCache })).toEqual(alone.slice(8, 18));
  });

  it("fills the context and no more", async () => {
    using own = await loadModel(tiny("llama"));
    const long = Array.from({ length: 500 }, (_, i) => (i * 7) % 100);
    const alone = await tokensOf(own, long, { ignoreEos: true });
    const guesses = wrongAtTimes(alone, long);
    expect(await tokensOf(own, long, { ignoreEos: true, speculation: guesses })).toEqual(alone);
  });

  it("guesses what stood behind the same tokens last", () => {
    const { drafter } = promptLookup({ longest: 3, shortest: 2 });
    expect(drafter.propose([1, 2, 3, 4, 5, 2, 3], 2)).toEqual([4, 5]);
    expect(drafter.propose([1, 2, 3, 4, 9, 2, 3, 7, 2, 3], 1)).toEqual([7]);
    expect(drafter.propose([1, 2, 3, 4, 9, 2, 3, 7, 1, 2, 3], 3)).toEqual([4, 9, 2]);
    expect(drafter.propose([1, 2, 3, 4], 3)).toEqual([]);
    expect(drafter.propose([1], 3)).toEqual([]);
  });

  it("refuses what makes no sense", async () => {
    using other = await loadModel(tiny("llama"));
    using draft = draftModel(other);
    await expect(tokensOf(model, "a", { speculation: draft })).rejects.toThrow(/draft model has \d+ tokens/);
    const batch = model.generateBatch(["a", "b"], { speculation: promptLookup() });
    await expect(batch.next()).rejects.toThrow(/one sequence at a time/);
    expect(() => promptLookup({ tokens: 0 })).toThrow(/tokens must be/);
    expect(() => promptLookup({ longest: 1, shortest: 2 })).toThrow(/from 2 to 1/);
  });
});
