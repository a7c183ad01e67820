// Tokens for rows of a batch: what each request gets does not depend on who else is there.
import { describe, expect, test } from "vitest";
import { Tensor, WickError } from "../../../src/index.ts";
import { BatchSampler, type Choice } from "../../../src/models/generation/batch-sampler.ts";
import { logprobsOf, RowSampler } from "../../../src/models/generation/row-sampler.ts";
import { type SamplerExtras, type SamplingOptions, samplerSpec } from "../../../src/models/generation/sampling.ts";
import { describeInTurns } from "../../helpers/devices.ts";

const VOCAB = 1100;
const WORDS = Math.ceil(VOCAB / 32);

let state = 11;
const random = (): number => {
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
  return state / 2 ** 32;
};
const row = (): Float32Array => Float32Array.from({ length: VOCAB }, () => (random() + random() - 1) * 9);
const mask = (): Uint32Array => Uint32Array.from({ length: WORDS }, () => Math.floor(random() * 2 ** 32));

const requests: readonly (readonly [SamplingOptions, SamplerExtras])[] = [
  [{}, {}],
  [{}, { logprobs: 0 }],
  [{ temperature: 0.8, seed: 1 }, { logprobs: 20 }],
  [{ temperature: 1, topP: 0.9, seed: 2, presencePenalty: 1.5 }, {}],
  [
    { temperature: 1, topK: 7, seed: 3 },
    { masked: true, logprobs: 3 },
  ],
  [{ frequencyPenalty: 0.4, logitBias: new Map([[5, 4]]) }, { masked: true }],
];

describeInTurns("a sampler for many", (device) => {
  const rowsOf = (rows: readonly Float32Array[]): Tensor =>
    Tensor.from(Float32Array.from(rows.flatMap((values) => [...values])), { shape: [rows.length, VOCAB], device });

  test("gives each request what it gets alone, wherever its row and slot are", async () => {
    const specs = requests.map(([options, extras], i) => samplerSpec(options, [1, 2, 3], i, extras));
    const alone = specs.map((spec) => new RowSampler(spec));
    using sampler = new BatchSampler(device, VOCAB, 8);
    const slots = [4, 1, 7, 2, 0, 5];
    for (const [i, spec] of specs.entries()) sampler.assign(slots[i]!, spec);
    for (let step = 0; step < 5; step++) {
      // They move, and one or another sits out.
      const present = [...specs.keys()].filter((i) => (i + step) % 4 !== 3).sort(() => random() - 0.5);
      const placed: (number | null)[] = present.map((i) => slots[i]!);
      placed.splice(step % placed.length, 0, null);
      const order = [...present] as (number | null)[];
      order.splice(step % order.length, 0, null);
      const logits = placed.map(() => row());
      const masks = order.map((i) => (i !== null && specs[i]!.masked && step !== 2 ? mask() : null));
      sampler.place(placed, masks);
      using rows = rowsOf(logits);
      sampler.choose(rows);
      const choices = await sampler.read();
      for (const [at, i] of order.entries()) {
        if (i === null) {
          expect(choices[at]).toBe(null);
          continue;
        }
        const { logprobs } = specs[i]!;
        const token = alone[i]!.sample(logits[at]!.slice(), masks[at]);
        const choice = choices[at] as Choice;
        expect(choice.token, `step ${step}, request ${i}`).toBe(token);
        if (logprobs === null) {
          expect(choice).toEqual({ token });
          continue;
        }
        const want = logprobsOf(logits[at]!, token, logprobs);
        expect(choice.logprob).toBeCloseTo(want.own, 5);
        expect(choice.top!.map((each) => each.token)).toEqual(want.top.map((each) => each.token));
        for (const [rank, { logprob }] of want.top.entries())
          expect(choice.top![rank]!.logprob).toBeCloseTo(logprob, 5);
      }
      // What the next step reads.
      const newest = (await sampler.tokens.data()) as Uint32Array;
      for (const [at, slot] of placed.entries()) {
        if (slot !== null) expect(newest[slot]).toBe((choices[at] as Choice).token);
      }
      using fed = sampler.tokens.gather(sampler.rows.narrow(0, 0, placed.length), 0);
      expect([...((await fed.data()) as Uint32Array)]).toEqual(
        placed.map((slot) => (slot === null ? 0 : newest[slot])),
      );
    }
  });

  test("goes on behind an answer that was begun elsewhere", async () => {
    const options = { temperature: 1.2, seed: 9, frequencyPenalty: 0.3, repetitionPenalty: 1.1 };
    const spec = samplerSpec(options, [4]);
    const rows = Array.from({ length: 6 }, row);
    const whole = new RowSampler(spec);
    const want = rows.map((logits) => whole.sample(logits.slice()));
    using sampler = new BatchSampler(device, VOCAB, 2);
    sampler.assign(1, { ...spec, answer: want.slice(0, 3) });
    sampler.place([1]);
    for (const [i, logits] of rows.slice(3).entries()) {
      using one = rowsOf([logits]);
      sampler.choose(one);
      expect(await sampler.read()).toEqual([{ token: want[3 + i] }]);
    }
  });

  test("tells a row without probabilities of it, and no other", async () => {
    const specs = [{}, { temperature: 1, seed: 1 }, {}, {}].map((o, i) => samplerSpec(o, [], 0, { masked: i === 2 }));
    using sampler = new BatchSampler(device, VOCAB, 4);
    for (const [i, spec] of specs.entries()) sampler.assign(i, spec);
    const good = row();
    for (const bad of [Number.NaN, Number.POSITIVE_INFINITY]) {
      sampler.place([0, 1, 2, 3], [null, null, new Uint32Array(WORDS), null]);
      using rows = rowsOf([good, new Float32Array(VOCAB).fill(bad), good, good]);
      sampler.choose(rows);
      const [first, broken, forbidden, last] = await sampler.read();
      expect(first).toEqual(last);
      expect((first as Choice).token).toBe(good.indexOf(Math.max(...good)));
      for (const error of [broken, forbidden]) {
        expect(error).toBeInstanceOf(WickError);
        expect((error as WickError).code).toBe("ValueOutOfRange");
      }
      expect((forbidden as WickError).message).toContain("no token may come");
    }
  });

  test("has fewer tokens than log-probabilities were asked for", async () => {
    using sampler = new BatchSampler(device, 3, 1);
    sampler.assign(0, samplerSpec({}, [], 0, { logprobs: 20 }));
    sampler.place([0]);
    using logits = Tensor.from([[0, Math.log(3), Number.NEGATIVE_INFINITY]], { dtype: "f32", device });
    sampler.choose(logits);
    const [choice] = (await sampler.read()) as Choice[];
    expect(choice!.top!.map(({ token, logprob }) => [token, Math.exp(logprob).toFixed(6)])).toEqual([
      [1, "0.750000"],
      [0, "0.250000"],
      [2, "0.000000"],
    ]);
  });

  test("says what it cannot do", () => {
    using sampler = new BatchSampler(device, VOCAB, 2);
    sampler.assign(0, samplerSpec({}, [], 0, { masked: true }));
    expect(() => sampler.assign(2, samplerSpec({}))).toThrow("there is no slot 2");
    expect(() => sampler.place([1])).toThrow("belongs to no request");
    expect(() => sampler.place([0, 0])).toThrow("two rows");
    expect(() => sampler.place([0, null, null])).toThrow("3 rows are more than 2 slots");
    expect(() => sampler.place([0], [new Uint32Array(3)])).toThrow(`${WORDS} words, not 3`);
    using narrow = Tensor.zeros([1, VOCAB - 1], { device });
    expect(() => sampler.choose(narrow)).toThrow("tokens are chosen from logits");
  });
});

describe("options of a sampler", () => {
  test.each([
    [{ presencePenalty: Number.NaN }, /presencePenalty must be a number/],
    [{ frequencyPenalty: Number.POSITIVE_INFINITY }, /frequencyPenalty must be a number/],
    [{ logitBias: new Map([[-1, 2]]) }, /a token's id, not -1/],
    [{ logitBias: new Map([[1, Number.NaN]]) }, /logitBias of token 1/],
    [{ logitBias: new Map([[1, 1e39]]) }, /logitBias of token 1/],
  ])("%o is refused", (options, message) => expect(() => samplerSpec(options)).toThrow(message));

  test("log-probabilities of more tokens than there is room for are refused", () => {
    expect(() => samplerSpec({}, [], 0, { logprobs: 21 })).toThrow("from 0 to 20");
  });

  test("presence and frequency count the answer and not the prompt; bias comes before temperature", () => {
    const shaped = (options: SamplingOptions, answer: readonly number[], temperature = 0): number[] => {
      const logits = Float32Array.of(1, 2, 3, 4);
      new RowSampler({ ...samplerSpec({ ...options, temperature }, [0]), answer }).sample(logits);
      return [...logits];
    };
    expect(shaped({ presencePenalty: 0.5 }, [1, 3, 3])).toEqual([1, 1.5, 3, 3.5]);
    expect(shaped({ frequencyPenalty: 0.5 }, [1, 3, 3])).toEqual([1, 1.5, 3, 3]);
    expect(shaped({ repetitionPenalty: 2, presencePenalty: 1, frequencyPenalty: 0.25 }, [3, 3])).toEqual([
      0.5, 2, 3, 0.5,
    ]);
    expect(
      shaped(
        {
          logitBias: new Map([
            [0, 2],
            [3, Number.NEGATIVE_INFINITY],
            [9, 1],
          ]),
        },
        [],
      ),
    ).toEqual([3, 2, 3, Number.NEGATIVE_INFINITY]);
    const sampler = new RowSampler(samplerSpec({ temperature: 0.01, seed: 1, logitBias: new Map([[0, 5]]) }));
    expect(sampler.sample(Float32Array.of(1, 2, 3, 4))).toBe(0);
  });
});
