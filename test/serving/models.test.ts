/** The engine over real models: many at once, coming and going, say what each says alone. */
import { setImmediate } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { Device } from "../../src/index.ts";
import { loadModel, type Model, type SamplingOptions } from "../../src/models/index.ts";
import {
  createEngine,
  type Engine,
  type EngineOptions,
  type EngineRequest,
  type TokenConstraint,
  type TokenEvent,
} from "../../src/serving/index.ts";
import { gpuNames, inTurns } from "../helpers/devices.ts";
import { fable, type TinyName, tiny } from "../helpers/model-folders.ts";

interface Client {
  readonly prompt: readonly number[];
  readonly sampling: SamplingOptions;
  readonly maxTokens: number;
  /** Turns of the event loop before it comes. */
  readonly comes: number;
  /** Leaves after so many tokens. */
  readonly leaves: number;
}

/** Numbers that only look random, on [0, n). */
function pseudoRandom(seed: number): (n: number) => number {
  let state = seed;
  return (n) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * n);
  };
}

function clientsOf(model: Model, count: number, longest: number, most: number): Client[] {
  const random = pseudoRandom(count);
  const { vocabSize } = model.config;
  const ids = (length: number) => Array.from({ length }, () => random(vocabSize));
  const system = ids(longest - 8);
  return Array.from({ length: count }, (_, i): Client => {
    const shared = random(3) > 0 ? system.slice(0, random(system.length)) : [];
    return {
      prompt: [...shared, ...ids(1 + random(8))],
      sampling: i % 2 === 0 ? {} : { temperature: 0.9, topP: 0.95, repetitionPenalty: i % 3 === 0 ? 1.2 : 1, seed: i },
      maxTokens: most - random(most / 2),
      comes: random(40),
      leaves: i % 7 === 3 ? random(most) : Number.POSITIVE_INFINITY,
    };
  });
}

async function live(engine: Engine, { prompt, sampling, maxTokens, comes, leaves }: Client): Promise<number[]> {
  for (let i = 0; i < comes; i++) await setImmediate();
  const said: number[] = [];
  for await (const { token } of engine.submit({ prompt, sampling, maxTokens, ignoreEos: true })) {
    said.push(token);
    if (said.length > leaves) break;
  }
  return said;
}

async function alone(model: Model, { prompt, sampling, maxTokens, leaves }: Client): Promise<number[]> {
  const said: number[] = [];
  for await (const { token } of model.generate(prompt, { ...sampling, maxTokens, ignoreEos: true })) said.push(token);
  return said.slice(0, leaves + 1);
}

/** Says how the engine fared. */
async function compare(model: Model, clients: readonly Client[], options: EngineOptions): Promise<Engine["stats"]> {
  await using engine = createEngine(model, options);
  const together = await Promise.all(clients.map((client) => live(engine, client)));
  for (const [i, client] of clients.entries()) expect(together[i]).toEqual(await alone(model, client));
  await engine.drain();
  expect(engine.stats).toMatchObject({ running: 0, waiting: 0, pages: { used: 0 } });
  return engine.stats;
}

describe("An engine on cpu", () => {
  let model: Model;
  beforeAll(async () => {
    model = await loadModel(fable);
  });
  afterAll(() => model.dispose());

  it("gives 32 requests at once what each gets alone", async () => {
    const stats = await compare(model, clientsOf(model, 32, 140, 20), { batch: 32, stepTokens: 100 });
    expect(stats.cachedTokens).toBeGreaterThan(500);
  });

  it("gives requests what they get alone where memory is short", async () => {
    const stats = await compare(model, clientsOf(model, 8, 60, 40), { batch: 6, pages: 3, stepTokens: 40 });
    expect(stats.preemptions).toBeGreaterThan(0);
  });

  // Windows and sinks, latents, experts, texts that are turned otherwise when they are long, learned positions.
  it.each<TinyName>(["gpt_oss", "deepseek_v2", "mixtral", "phi3", "gpt2"])(
    "serves %s as it answers alone",
    async (name) => {
      using own = await loadModel(tiny(name), { dtype: "f32" });
      const stats = await compare(own, clientsOf(own, 8, 60, 40), { batch: 6, pages: 3, stepTokens: 40 });
      expect(stats.preemptions).toBeGreaterThan(0);
    },
  );

  it("tells log-probabilities, keeps to penalties and constraints, and ends where the model does", async () => {
    await using engine = createEngine(model);
    const prompt = model.encode("Once upon a time");
    const collect = async (request: Omit<EngineRequest, "prompt">): Promise<TokenEvent[]> => {
      const events: TokenEvent[] = [];
      for await (const event of engine.submit({ prompt, ...request })) events.push(event);
      return events;
    };
    const [plain] = await collect({ maxTokens: 1, logprobs: 3 });
    expect(plain!.top!.map(({ token }) => token)[0]).toBe(plain!.token);
    expect(plain!.top![0]!.logprob).toBe(plain!.logprob);
    using logits = model.logits(prompt);
    const values = (await logits.data()) as Float32Array;
    const total = values.reduce((sum, value) => sum + Math.exp(value), 0);
    expect(plain!.logprob).toBeCloseTo(values[plain!.token]! - Math.log(total), 4);
    // Every token but one is forbidden.
    const only = 77;
    const mask = new Uint32Array(Math.ceil(model.config.vocabSize / 32));
    mask[only >> 5]! |= 1 << (only & 31);
    let heard = 0;
    const constraint: TokenConstraint = {
      mask: () => mask,
      accept: () => void heard++,
      get ended() {
        return heard === 3;
      },
      [Symbol.dispose]: () => {},
    };
    const forced = await collect({ constraint, sampling: { temperature: 1 } });
    expect(forced.map(({ token, finish }) => [token, finish])).toEqual([
      [only, null],
      [only, null],
      [only, "string"],
    ]);
    const biased = await collect({ sampling: { logitBias: new Map([[only, 1000]]) }, stopTokens: [only] });
    expect(biased.map(({ token, finish }) => [token, finish])).toEqual([[only, "token"]]);
    const none = { ...constraint, mask: () => new Uint32Array(mask.length) };
    await expect(collect({ constraint: none })).rejects.toMatchObject({ code: "ValueOutOfRange" });
    await expect(collect({ logprobs: 99 })).rejects.toMatchObject({ code: "InvalidArgument" });
    await expect(collect({ sampling: { temperature: -1 } })).rejects.toMatchObject({ code: "InvalidArgument" });
  });

  it("says how it is to be set up", async () => {
    expect(() => createEngine(model, { batch: 0 })).toThrow(/batch must be/);
    expect(() => createEngine(model, { pages: 0.5 })).toThrow(/pages must be/);
    expect(() => createEngine(model, { memory: 10 })).toThrow(expect.objectContaining({ code: "OutOfMemory" }));
    await using engine = createEngine(model, { memory: 2 ** 24 });
    expect(engine.stats.pages.total).toBeGreaterThan(1);
    using encoder = await loadModel(tiny("bert"));
    expect(() => createEngine(encoder)).toThrow(/encoder/);
  });
});

describe.each(gpuNames)("An engine on %s", (device) => {
  it.each(inTurns<TinyName>(["llama", "deepseek_v2"], Device.from(device)))(
    "serves %s as it answers alone",
    async (name) => {
      // Halves show what rounds otherwise.
      const halves = { dtype: "bf16", batchInvariant: true } as const;
      using model = await loadModel(tiny(name), { device, ...(name === "llama" ? halves : { dtype: "f32" }) });
      await compare(model, clientsOf(model, 6, 100, 6), { batch: 4, pages: 8, stepTokens: 40 });
    },
  );
});
