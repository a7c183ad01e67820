/** The engine over a stub: whatever comes and goes, each request gets what it gets alone, or an error that says why. */
import { setImmediate } from "node:timers/promises";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { WickError } from "../../src/core/errors.ts";
import { BatchEngine, type BatchingOptions } from "../../src/serving/engine.ts";
import type { EngineRequest, TokenConstraint, TokenEvent } from "../../src/serving/request.ts";
import { alone, EOS, HOPELESS, POISON, type StubOptions, StubRunner, VOCAB } from "./stub-runner.ts";

/** Tokens that leave a remainder, and after some of them the end. */
class Remainders implements TokenConstraint {
  heard = 0;
  constructor(
    readonly modulus: number,
    readonly most: number,
  ) {}
  mask(): Uint32Array | null {
    if (this.modulus === 1) return null;
    const words = new Uint32Array(Math.ceil(VOCAB / 32));
    for (let id = this.heard % this.modulus; id < VOCAB; id += this.modulus) words[id >> 5]! |= 1 << (id & 31);
    return words;
  }
  accept(): void {
    this.heard++;
  }
  get ended(): boolean {
    return this.heard >= this.most;
  }
  [Symbol.dispose](): void {}
}

async function collect(events: AsyncIterable<TokenEvent>): Promise<TokenEvent[]> {
  const out: TokenEvent[] = [];
  for await (const event of events) out.push(event);
  return out;
}
const tokensOf = (events: readonly TokenEvent[]) => events.map(({ token }) => token);
const count = (length: number, from = 10) => Array.from({ length }, (_, i) => from + (i % 80));
const rejection = (promise: Promise<unknown>): Promise<unknown> =>
  promise.then(
    () => null,
    (error: unknown) => error,
  );
const ticks = async (n: number): Promise<void> => {
  for (let i = 0; i < n; i++) await setImmediate();
};

function open(options: StubOptions & BatchingOptions = {}): { runner: StubRunner; engine: BatchEngine } {
  const runner = new StubRunner(options);
  return { runner, engine: new BatchEngine(runner, { stepTokens: 16, ...options }) };
}

/** What one client does. */
interface Client {
  readonly arrives: number;
  readonly prefix: number;
  readonly shared: number;
  readonly own: readonly number[];
  readonly maxTokens: number | undefined;
  readonly seed: number;
  readonly ignoreEos: boolean;
  readonly constraint: { readonly modulus: number; readonly most: number } | null;
  /** Goes after so many tokens, by leaving the iteration or by its signal; or so many turns of the event loop after it came. */
  readonly goes: { readonly how: "leave" | "abort" | "later"; readonly after: number } | null;
  /** Turns of the event loop between two tokens that it reads. */
  readonly pause: number;
}

const clients = fc.array(
  fc.record<Client>({
    arrives: fc.nat(60),
    prefix: fc.nat(1),
    shared: fc.nat(40),
    own: fc.oneof(
      fc.constantFrom([4], [5, 6, 7]),
      fc.array(fc.integer({ min: 4, max: VOCAB - 1 }), { minLength: 1, maxLength: 20 }),
    ),
    maxTokens: fc.option(fc.integer({ min: 1, max: 60 }), { nil: undefined, freq: 3 }),
    seed: fc.nat(1),
    ignoreEos: fc.boolean(),
    constraint: fc.option(
      fc.record({ modulus: fc.integer({ min: 1, max: 3 }), most: fc.integer({ min: 1, max: 12 }) }),
      { freq: 2 },
    ),
    goes: fc.option(
      fc.record({ how: fc.constantFrom("leave" as const, "abort" as const, "later" as const), after: fc.nat(20) }),
      { freq: 2 },
    ),
    pause: fc.constantFrom(0, 0, 0, 3),
  }),
  { minLength: 1, maxLength: 14 },
);

const plain = { maxTokens: undefined, ignoreEos: false, constraint: null, goes: null, pause: 0 } as const;
const [alike, other] = [
  { ...plain, prefix: 0, shared: 5, own: [4], seed: 1 },
  { ...plain, prefix: 0, shared: 0, own: [4], seed: 0 },
];
type Setting = "pageSize" | "positions" | "slots" | "ahead" | "stepTokens" | "turnsAt" | "memory" | "failing";
/** Two say the same, and a step of the second fails whose last page is the first's already. */
const lostBehindAnother: [Client[], Record<Setting, number>] = [
  [
    { ...alike, arrives: 0 },
    { ...alike, arrives: 1 },
    { ...other, arrives: 0 },
    { ...other, arrives: 1 },
  ],
  { pageSize: 1, positions: 64, slots: 2, ahead: 2, stepTokens: 1, turnsAt: 30, memory: 5, failing: 7 },
];

const requestOf = (client: Client): EngineRequest => ({
  prompt: [...count(client.shared, 10 + client.prefix), ...client.own],
  maxTokens: client.maxTokens,
  sampling: { temperature: 1, seed: client.seed },
  ignoreEos: client.ignoreEos,
  ...(client.constraint && { constraint: new Remainders(client.constraint.modulus, client.constraint.most) }),
});

async function live(engine: BatchEngine, client: Client, context: number, mayFail: boolean): Promise<void> {
  await ticks(client.arrives);
  const controller = new AbortController();
  const request = { ...requestOf(client), signal: controller.signal };
  const expected = alone(requestOf(client), context);
  const { goes } = client;
  if (goes?.how === "later") void ticks(goes.after).then(() => controller.abort(new Error("gone")));
  const got: number[] = [];
  try {
    for await (const { token } of engine.submit(request)) {
      got.push(token);
      if (goes?.how === "abort" && got.length > goes.after) controller.abort(new Error("gone"));
      if (goes?.how === "leave" && got.length > goes.after) break;
      await ticks(client.pause);
    }
    const whole = goes?.how === "leave" ? expected.slice(0, goes.after + 1) : expected;
    expect(got).toEqual(whole);
  } catch (error) {
    const gone = error instanceof Error && error.message === "gone";
    if (!gone && !(mayFail && error instanceof WickError && error.code === "OutOfMemory")) throw error;
    expect(got).toEqual(expected.slice(0, got.length));
  }
}

describe("An engine", () => {
  it("gives every request what it gets alone, whatever comes and goes", async () => {
    await fc.assert(
      fc.asyncProperty(
        clients,
        fc.record({
          pageSize: fc.constantFrom(1, 4, 8),
          positions: fc.integer({ min: 64, max: 200 }),
          slots: fc.integer({ min: 1, max: 6 }),
          ahead: fc.nat(3),
          stepTokens: fc.constantFrom(1, 3, 16, 64),
          turnsAt: fc.constantFrom(30, Number.POSITIVE_INFINITY),
          memory: fc.constantFrom(5, Number.POSITIVE_INFINITY),
          failing: fc.constantFrom(0, 7, 30, 47),
        }),
        async (some, { positions, failing, ...options }) => {
          const pages = Math.floor(positions / options.pageSize);
          const fails = (step: number) => failing > 0 && step % failing === 0;
          const { runner, engine } = open({ ...options, pages, contextLength: 90, fails });
          const context = Math.min(90, pages * options.pageSize);
          await Promise.all(some.map((client) => live(engine, client, context, failing > 0)));
          await engine.drain();
          const { running, waiting, pages: held } = engine.stats;
          expect({ running, waiting, used: held.used }).toEqual({ running: 0, waiting: 0, used: 0 });
          expect(runner.openSlots).toBe(0);
          await engine[Symbol.asyncDispose]();
          expect(runner.disposed).toBe(true);
        },
      ),
      { numRuns: 150, examples: [lostBehindAnother] },
    );
  });

  it("computes what many prompts begin with once, also when they come together", async () => {
    const { runner, engine } = open({ pages: 200, slots: 16, contextLength: 400 });
    const prefix = count(100);
    const requests = Array.from({ length: 10 }, (_, i) => ({ prompt: [...prefix, 90, i + 4], maxTokens: 1 }));
    const answers = await Promise.all(requests.map((request) => collect(engine.submit(request))));
    for (const [i, request] of requests.entries()) expect(tokensOf(answers[i]!)).toEqual(alone(request, 400));
    expect(runner.computed).toBe(100 + 10 * 2);
    expect(answers.map(([event]) => event!.cachedTokens)).toEqual([0, ...new Array(9).fill(100)]);
    // Later ones find it, too; a whole prompt that is there computes its last token for what comes behind.
    const [again] = await collect(engine.submit({ prompt: prefix, maxTokens: 1 }));
    expect(again!.cachedTokens).toBe(99);
    expect(engine.stats.pages.used).toBe(0);
    expect(engine.stats.cachedTokens).toBe(9 * 100 + 99);
  });

  it("goes on with a common beginning whose writer has left", async () => {
    const { engine } = open({ contextLength: 400, pages: 100, stepTokens: 8, ahead: 0 });
    const controller = new AbortController();
    const first = rejection(collect(engine.submit({ prompt: count(100), maxTokens: 3, signal: controller.signal })));
    const request = { prompt: [...count(100), 5], maxTokens: 3 };
    const second = collect(engine.submit(request));
    await ticks(9);
    controller.abort(new Error("gone"));
    expect(await first).toEqual(new Error("gone"));
    expect(tokensOf(await second)).toEqual(alone(request, 400));
  });

  it("finds what was said before as the beginning of the next prompt", async () => {
    const { engine } = open({ contextLength: 400, pages: 100 });
    const prompt = count(10);
    const said = tokensOf(await collect(engine.submit({ prompt, maxTokens: 30, ignoreEos: true })));
    const [next] = await collect(engine.submit({ prompt: [...prompt, ...said, 5, 6], maxTokens: 1 }));
    // The last token said was never fed.
    expect(next!.cachedTokens).toBe(39);
  });

  it("copies what a prompt has in common with a page, also with one that is being written", async () => {
    const { engine, runner } = open({ contextLength: 400, pages: 100, pageSize: 8 });
    const system = count(21);
    const asking = (id: number) => ({ prompt: [...system, id, id + 1], maxTokens: 12, ignoreEos: true });
    const [first, second, third] = [asking(50), asking(60), asking(70)];
    const talking = engine.submit(first);
    const begun = await talking.next();
    const beside = await collect(engine.submit(second));
    const rest = await collect(talking);
    const later = await collect(engine.submit(third));
    expect([beside, later].map(([event]) => event!.cachedTokens)).toEqual([21, 21]);
    expect(runner.copied).toBe(2);
    expect([(begun.value as TokenEvent).token, ...tokensOf(rest)]).toEqual(alone(first, 400));
    expect(tokensOf(beside)).toEqual(alone(second, 400));
    expect(tokensOf(later)).toEqual(alone(third, 400));
  });

  it("holds nobody up behind a long prompt", async () => {
    const { runner, engine } = open({ contextLength: 2000, pages: 1000, stepTokens: 16 });
    const talking = engine.submit({ prompt: [5], maxTokens: 40, ignoreEos: true });
    await talking.next();
    const start = runner.steps.length;
    const long = collect(engine.submit({ prompt: count(1000), maxTokens: 1 }));
    const short = engine.submit({ prompt: [7, 8], maxTokens: 1 });
    await short.next();
    expect(runner.steps.length - start).toBeLessThan(8);
    const rest = collect(talking);
    await long;
    // Whoever talks is in every step until it has said all; the prompt has the rest of each.
    expect(runner.steps.slice(start + 1, start + 30).every((rows) => rows.includes(1) && rows.length > 1)).toBe(true);
    expect(Math.max(...runner.steps.flatMap((rows) => rows.reduce((sum, n) => sum + n, 0)))).toBe(16);
    await rest;
  });

  it("lets a long prompt get on under a stream of short ones, in the order they came", async () => {
    const { engine } = open({ contextLength: 2000, pages: 200, slots: 4, stepTokens: 16 });
    const done: string[] = [];
    let over = false;
    const long = collect(engine.submit({ prompt: count(600), maxTokens: 2 })).then(() => {
      over = true;
    });
    for (let i = 0; !over; i++) {
      expect(i).toBeLessThan(400);
      await Promise.all([5, 6, 7].map((id) => collect(engine.submit({ prompt: [id, 10 + (i % 80)], maxTokens: 2 }))));
    }
    await long;
    const some = [20, 21, 22, 23, 24, 25].map((id) =>
      collect(engine.submit({ prompt: count(20, id), maxTokens: 1 })).then(() => done.push(String(id))),
    );
    await Promise.all(some);
    expect(done).toEqual(["20", "21", "22", "23", "24", "25"]);
  });

  it("does not let those that fit pass one that does not for ever", async () => {
    // 400 positions: beside anything else that runs, 396 tokens do not fit.
    const { engine } = open({ contextLength: 400, pages: 100, slots: 8, stepTokens: 64 });
    let over = false;
    const small = (id: number) => collect(engine.submit({ prompt: [id], maxTokens: 8, ignoreEos: true }));
    const first = small(9);
    const large = collect(engine.submit({ prompt: count(396), maxTokens: 1 })).then(() => {
      over = true;
    });
    let served = 0;
    const client = async (id: number): Promise<void> => {
      for (; !over; served++) await small(id);
    };
    await Promise.all([first, large, client(5), client(6), client(7)]);
    expect(served).toBeGreaterThan(3);
    expect(served).toBeLessThan(60);
  });

  it("puts the last that came back where memory is short, and nobody notices", async () => {
    const { engine, runner } = open({ contextLength: 80, pages: 20, slots: 4, stepTokens: 64 });
    const requests = [4, 5, 6, 7].map((id) => ({ prompt: count(8, id), maxTokens: 60, ignoreEos: true }));
    const order: number[] = [];
    const answers = await Promise.all(
      requests.map(async (request, i) => {
        const answer = await collect(engine.submit(request));
        order.push(i);
        return answer;
      }),
    );
    for (const [i, request] of requests.entries()) expect(tokensOf(answers[i]!)).toEqual(alone(request, 80));
    expect(order).toEqual([0, 1, 2, 3]);
    expect(engine.stats.preemptions).toBeGreaterThan(1);
    expect(engine.stats.generatedTokens).toBe(240);
    expect(runner.openSlots).toBe(0);
  });

  it("ends a text where the cache is full, as where the context is", async () => {
    const { engine } = open({ contextLength: 400, pages: 5 });
    const answer = await collect(engine.submit({ prompt: count(10), ignoreEos: true }));
    expect(answer.length).toBe(11);
    expect(answer.at(-1)!.finish).toBe("context");
    const [last] = (await collect(engine.submit({ prompt: count(10), maxTokens: 2, ignoreEos: true }))).slice(-1);
    expect(last!.finish).toBe("length");
  });

  it("refuses what can never be answered", async () => {
    const { engine } = open({ contextLength: 100, pages: 20 });
    const codeOf = (request: EngineRequest): string | undefined => {
      try {
        void engine.submit(request).return!();
      } catch (error) {
        return (error as WickError).code;
      }
      return undefined;
    };
    expect(codeOf({ prompt: [] })).toBe("InvalidArgument");
    expect(codeOf({ prompt: count(101) })).toBe("ValueOutOfRange");
    expect(codeOf({ prompt: count(81) })).toBe("OutOfMemory");
    expect(codeOf({ prompt: [VOCAB] })).toBe("InvalidIndex");
    expect(codeOf({ prompt: [5], stopTokens: [-1] })).toBe("InvalidIndex");
    expect(codeOf({ prompt: [5], maxTokens: 1.5 })).toBe("InvalidArgument");
    expect(codeOf({ prompt: count(80) })).toBeUndefined();
    expect(await collect(engine.submit({ prompt: [5], maxTokens: 0 }))).toEqual([]);
    expect(() => new BatchEngine(new StubRunner(), { stepTokens: 0 })).toThrow(/stepTokens/);
  });

  it("takes no more than the queue holds, and nothing when it is drained", async () => {
    const { engine } = open({ slots: 2, queue: 3 });
    const all = Array.from({ length: 5 }, (_, i) => collect(engine.submit({ prompt: [i + 5], maxTokens: 4 })));
    expect(() => engine.submit({ prompt: [5] })).toThrow(expect.objectContaining({ code: "QueueFull" }));
    await ticks(3);
    expect(engine.stats).toMatchObject({ running: 2, waiting: 3 });
    const drained = engine.drain();
    expect(() => engine.submit({ prompt: [5] })).toThrow(expect.objectContaining({ code: "EngineClosed" }));
    await drained;
    expect((await Promise.all(all)).every((events) => events.at(-1)!.finish !== null)).toBe(true);
  });

  it("readies its runner once, before what is submitted meanwhile", async () => {
    const { engine, runner } = open();
    const ready = engine.ready();
    const answer = collect(engine.submit({ prompt: [5], maxTokens: 2 }));
    expect(runner.readied).toBe(0);
    await ready;
    expect([runner.readied, runner.steps.length]).toEqual([1, 0]);
    await engine.ready();
    expect(runner.readied).toBe(1);
    expect(tokensOf(await answer)).toEqual(alone({ prompt: [5], maxTokens: 2 }, 200));
    runner.ready = () => Promise.reject(new Error("no memory"));
    await engine.drain();
    await expect(engine.ready()).rejects.toThrow("no memory");
  });

  it("ends everything by an error when it is disposed", async () => {
    const { engine, runner } = open({ slots: 1 });
    const answers = [5, 6].map((id) => rejection(collect(engine.submit({ prompt: [id], ignoreEos: true }))));
    await ticks(6);
    await engine[Symbol.asyncDispose]();
    for (const answer of answers) expect(await answer).toMatchObject({ code: "EngineClosed" });
    expect(runner).toMatchObject({ openSlots: 0, disposed: true });
    await engine[Symbol.asyncDispose]();
  });

  it("keeps tokens for slow readers, throws them away when the signal says so, and hears it at any time", async () => {
    const { engine, runner } = open();
    const slow = engine.submit({ prompt: [5], maxTokens: 20, ignoreEos: true });
    const controller = new AbortController();
    const gone = engine.submit({ prompt: [6], ignoreEos: true, signal: controller.signal });
    await ticks(200);
    controller.abort(new Error("gone"));
    await expect(gone.next()).rejects.toThrow("gone");
    expect(await gone.next()).toEqual({ done: true, value: undefined });
    expect((await collect(slow)).length).toBe(20);
    const late = engine.submit({ prompt: [6], signal: controller.signal });
    await expect(late.next()).rejects.toThrow("gone");
    expect(engine.stats).toMatchObject({ running: 0, waiting: 0, pages: { used: 0 } });
    expect(runner.openSlots).toBe(0);
  });

  it("blames a failed step on the request that fails alone", async () => {
    const { engine } = open({ slots: 4, memory: 9 });
    const good = [5, 6, 7].map((id) => ({ prompt: count(12, id), maxTokens: 12 }));
    const bad = rejection(collect(engine.submit({ prompt: [...count(9), POISON], maxTokens: 4 })));
    const answers = await Promise.all(good.map((request) => collect(engine.submit(request))));
    for (const [i, request] of good.entries()) expect(tokensOf(answers[i]!)).toEqual(alone(request, 200));
    expect(await bad).toMatchObject({ code: "OutOfMemory" });
    expect(await rejection(collect(engine.submit({ prompt: [HOPELESS] })))).toMatchObject({ code: "ValueOutOfRange" });
    expect(engine.stats.pages.used).toBe(0);
    expect(alone({ prompt: [EOS], maxTokens: 3 }, 200).length).toBeGreaterThan(0);
  });

  it("ends a request whose constraint or slot fails, and no other", async () => {
    const { engine, runner } = open();
    class Broken extends Remainders {
      override accept(): void {
        throw new Error("no such token");
      }
    }
    const other = collect(engine.submit({ prompt: [5], maxTokens: 5 }));
    const constraint = new Broken(2, 9);
    await expect(collect(engine.submit({ prompt: [5], constraint }))).rejects.toThrow("no such token");
    const openSlot = runner.open.bind(runner);
    runner.open = () => {
      throw new Error("no slot");
    };
    await expect(collect(engine.submit({ prompt: [5] }))).rejects.toThrow("no slot");
    runner.open = openSlot;
    expect(tokensOf(await other)).toEqual(alone({ prompt: [5], maxTokens: 5 }, 200));
    runner.step = () => Promise.reject(new Error("a bug"));
    const failed = collect(engine.submit({ prompt: [5] }));
    await expect(failed).rejects.toMatchObject({ code: "DriverError", message: "a step failed: a bug" });
    expect(engine.stats.pages.used).toBe(0);
  });
});
