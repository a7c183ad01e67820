/** Requests that come and go, side by side in recorded and other steps, say what each of them says alone. */
import { describe, expect, it, vi } from "vitest";
import { GpuBackend } from "../../src/backend/gpu/backend.ts";
import { PAGE_SIZE } from "../../src/backend/paged-attention.ts";
import type { Device } from "../../src/index.ts";
import { loadModel, type Model, PagedCache, PagedStepper, Sampler, type StepRow } from "../../src/models/index.ts";
import { recordedRows } from "../../src/models/paged/decode.ts";
import { describeDevices, inTurns } from "../helpers/devices.ts";
import { type TinyName, tiny } from "../helpers/model-folders.ts";

const VOCAB = 128;
const text = (length: number, seed: number): number[] =>
  Array.from({ length }, (_, i) => (seed + 37 * i + i * i) % VOCAB);

interface Asked {
  readonly prompt: readonly number[];
  readonly tokens: number;
  /** The step it joins with. */
  readonly from: number;
  readonly temperature?: number;
}
/** One of them crosses a page while it decodes, one comes late and goes early, one has a prompt of one token. */
const asked: readonly Asked[] = [
  { prompt: text(62, 3), tokens: 9, from: 0 },
  { prompt: text(20, 5), tokens: 7, from: 0, temperature: 0.8 },
  { prompt: text(1, 7), tokens: 5, from: 2, temperature: 1.5 },
  { prompt: text(70, 9), tokens: 2, from: 4 },
];
const samplingOf = ({ temperature = 0 }: Asked, i: number) => ({ temperature, seed: 11 + i });

async function alone(model: Model): Promise<number[][]> {
  const out: number[][] = [];
  for (const [i, request] of asked.entries()) {
    const tokens: number[] = [];
    const options = { ...samplingOf(request, i), maxTokens: request.tokens, ignoreEos: true };
    for await (const { token } of model.generate(request.prompt, options)) tokens.push(token);
    out.push(tokens);
  }
  return out;
}

/** All of them by steps that are enqueued ahead of what they say; prompts in parts of 24 tokens. */
async function together(model: Model): Promise<number[][]> {
  using cache = new PagedCache(model.config, model.device, model.dtype, 2 * asked.length);
  // Requests may have so many that GPUs share the keys of prompts out.
  await using stepper = new PagedStepper(model.transformer, cache, { slots: 8, positions: 8 * PAGE_SIZE });
  await stepper.ready();
  const fed = asked.map(() => 0);
  const chosen = asked.map(() => 0);
  const said: number[][] = asked.map(() => []);
  const pending: (() => Promise<void>)[] = [];
  for (let step = 0; ; step++) {
    const rows: (StepRow & { readonly of: number })[] = [];
    for (const [i, { prompt, tokens, from }] of asked.entries()) {
      if (step < from || chosen[i] === tokens) continue;
      // Slots lie in another order than requests.
      const slot = 7 - 2 * i;
      const past = fed[i]!;
      if (past === 0) stepper.sampler.assign(slot, new Sampler(samplingOf(asked[i]!, i), prompt).spec);
      const ids = past < prompt.length ? prompt.slice(past, past + 24) : null;
      fed[i] = past + (ids?.length ?? 1);
      const samples = fed[i]! >= prompt.length;
      if (samples) chosen[i]!++;
      rows.push({ of: i, slot, ids, past, pages: [2 * i + 1, 2 * i], extent: prompt.length + tokens, samples });
    }
    if (rows.length === 0) break;
    const outcome = stepper.step(rows);
    pending.push(async () => {
      for (const [at, choice] of (await outcome).entries()) {
        const { of, samples } = rows[at]!;
        if (!samples) expect(choice).toBeNull();
        else if (choice === null || choice instanceof Error) throw choice ?? new Error("nothing was chosen");
        else said[of]!.push(choice.token);
      }
    });
    if (pending.length > stepper.ahead) await pending.shift()!();
  }
  for (const rest of pending) await rest();
  return said;
}

/** Of two GPUs each runs one. */
const names = (device: Device): readonly TinyName[] =>
  device.name === "cpu" ? ["llama", "gpt2", "deepseek_v2", "mixtral"] : inTurns(["llama", "gpt2"], device);

describeDevices("steps of many requests", (device) => {
  it.each(names(device))("of %s say what each says alone", async (name) => {
    using model = await loadModel(tiny(name), { device, dtype: "f32" });
    const { live } = device.memory();
    const launched = new Set<string>();
    const { backend } = device;
    if (backend instanceof GpuBackend) {
      const { launch } = backend;
      vi.spyOn(backend, "launch").mockImplementation((kernel, values) => {
        launched.add(kernel);
        launch.call(backend, kernel, values);
      });
    }
    const said = await together(model);
    vi.restoreAllMocks();
    expect(said).toEqual(await alone(model));
    // Few rows of prompts share their keys out.
    const shares = [...launched].some((kernel) => kernel.startsWith("attention_split_"));
    expect(shares).toBe(device.name !== "cpu" && name === "llama");
    expect(device.memory().live - live).toBeLessThan(300_000);
  });
});

describe("recorded steps", () => {
  it("are of few sizes, and not larger than they may be", () => {
    expect([1, 3, 9, 33, 65, 128, 129, 200].map((rows) => recordedRows(rows, 256))).toEqual([
      1, 4, 16, 48, 96, 128, 192, 256,
    ]);
    expect(recordedRows(70, 80)).toBe(80);
  });
});
