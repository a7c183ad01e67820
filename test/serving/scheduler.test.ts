/** The scheduler step by step: what becomes of requests, pages and counts when steps fail that others were planned behind. */
import { describe, expect, it } from "vitest";
import { MemoryError } from "../../src/core/errors.ts";
import { BatchEngine } from "../../src/serving/engine.ts";
import type { TokenEvent } from "../../src/serving/request.ts";
import type { Row } from "../../src/serving/runner.ts";
import { Scheduler, type Step } from "../../src/serving/scheduler.ts";
import { Task } from "../../src/serving/task.ts";
import { TokenStream } from "../../src/serving/token-stream.ts";
import { type StubOptions, StubRunner } from "./stub-runner.ts";

const memory = new MemoryError("OutOfMemory", "no room for the step");
const range = (from: number, length: number) => Array.from({ length }, (_, i) => from + i);

/** A scheduler over pages of four positions whose steps the test plans, settles and discards. */
function driven({ stepTokens = 16, ...options }: StubOptions & { stepTokens?: number } = {}) {
  const runner = new StubRunner({ slots: 4, contextLength: 400, ...options });
  const scheduler = new Scheduler(runner, stepTokens);
  let arrivals = 0;
  return {
    scheduler,
    add(prompt: readonly number[], maxTokens = 50): Task {
      const stream = new TokenStream(() => {});
      const request = { prompt, maxTokens, ignoreEos: true };
      const task = new Task({ request, stream, arrival: arrivals++, runner, context: 400, onEnd: () => {} });
      scheduler.add(task);
      return task;
    },
    plan: (): Step => scheduler.plan()!,
    /** Every row that asks for a token gets this one. */
    settle: (step: Step, token = 50) =>
      scheduler.settle(
        step,
        step.rows.map(({ samples }) => (samples ? { token } : null)),
      ),
    /** [past, tokens] of a task's row in a step. */
    rowOf({ parts, rows }: Step, task: Task): readonly [number, number] | null {
      const at = parts.findIndex((part) => part.task === task);
      return at < 0 ? null : [rows[at]!.past, rows[at]!.ids?.length ?? 1];
    },
  };
}

/** What can be read of a stream without waiting, and how it goes on. */
async function read(stream: TokenStream): Promise<(TokenEvent | { readonly error: unknown })[]> {
  const out: (TokenEvent | { readonly error: unknown })[] = [];
  for (;;) {
    const next = await stream.next().catch((error: unknown) => ({ error }));
    if ("error" in next) return [...out, next];
    if (next.done) return out;
    out.push(next.value);
  }
}

describe("After a step that failed", () => {
  it("a request goes on behind the last position that is certain", () => {
    const { scheduler, add, plan, settle, rowOf } = driven();
    const task = add(range(10, 5));
    settle(plan());
    settle(plan());
    const other = add(range(30, 40));
    // The last page would be whole with the second of these.
    const lost = [plan(), plan()];
    expect(lost.map((step) => rowOf(step, task)![0])).toEqual([6, 7]);
    scheduler.discard(lost, memory);
    const next = plan();
    expect([rowOf(next, task), rowOf(next, other)]).toEqual([
      [6, 1],
      [0, 7],
    ]);
  });

  it("what it found in the cache is not counted twice", async () => {
    const { scheduler, add, plan, settle } = driven();
    const first = add(range(10, 9), 1);
    settle(plan());
    expect(first.ended).toBe(true);
    const second = add([...range(10, 8), 70, 71], 1);
    scheduler.discard([plan()], memory);
    while (!second.ended) settle(plan());
    expect(await read(second.stream)).toMatchObject([{ cachedTokens: 8 }]);
    expect(scheduler.stats).toMatchObject({ cachedTokens: 8, promptTokens: 19 });
  });

  it("steps from before a request was put back do not count for its new pages", () => {
    const { scheduler, add, plan, settle, rowOf } = driven({ pages: 5, stepTokens: 2 });
    const old = add([5]);
    settle(plan());
    const young = add(range(10, 12));
    // A token each, until the older one needs the page that the younger one has.
    const steps: Step[] = [];
    while (scheduler.stats.preemptions === 0) steps.push(plan());
    expect(young.slot).toBeNull();
    const fed = steps.filter((step) => rowOf(step, young)).length;
    expect(fed % 4).toBeGreaterThan(0);
    scheduler.end(old);
    const again = plan();
    // It goes on with the page that it left half-done.
    expect(rowOf(again, young)).toEqual([fed, 2]);
    for (const step of steps) settle(step);
    scheduler.discard([again], memory);
    expect(rowOf(plan(), young)).toEqual([fed, 1]);
  });

  it("pages that another was to compute are the next one's to compute", () => {
    const { scheduler, add, plan, settle, rowOf } = driven({ stepTokens: 8 });
    const first = add([...range(10, 8), 70]);
    const second = add([...range(10, 8), 71]);
    const step = plan();
    expect([rowOf(step, first), rowOf(step, second)]).toEqual([[0, 8], null]);
    const behind = plan();
    scheduler.discard([step, behind], memory);
    scheduler.end(first);
    expect(rowOf(plan(), second)).toEqual([0, 4]);
    settle(plan());
  });

  it("steps are small, and grow again when many have succeeded", () => {
    const { scheduler, add, plan, settle } = driven({ pages: 100 });
    add(range(4, 90));
    const failed = plan();
    expect(failed.tokens).toBe(16);
    scheduler.discard([failed], memory);
    for (let i = 0; i < 16; i++) {
      const step = plan();
      expect(step.tokens).toBe(i < 12 ? (i < 11 ? 8 : 2) : 1);
      settle(step);
    }
    add(range(5, 60));
    expect(plan().tokens).toBe(16);
  });

  it("whom it was the fault of reads what was said before the error", async () => {
    const { scheduler, add, plan, settle } = driven();
    const task = add([5]);
    settle(plan(), 60);
    // A step of one token cannot be made smaller.
    scheduler.discard([plan()], memory);
    expect(scheduler.isIdle).toBe(true);
    expect(await read(task.stream)).toMatchObject([{ token: 60 }, { error: memory }]);
  });
});

describe("A page that two requests have computed or will", () => {
  it("is taken from the other when both are whole, and not before", () => {
    const { add, plan, settle, rowOf } = driven({ stepTokens: 2 });
    const saying = add(range(10, 4));
    for (let step = plan(); ; step = plan()) {
      settle(step, 50 + saying.said);
      if (saying.said === 1) break;
    }
    // It begins with what the first one says now.
    const asking = add([...range(10, 4), 50, 51, 52, 53, 60]);
    for (const token of [51, 52, 53]) {
      const step = plan();
      expect(rowOf(step, asking)![1]).toBe(1);
      settle(step, token);
    }
    expect([saying.pages[1]!.filled, asking.pages[1]!.filled]).toEqual([3, 3]);
    expect(saying.table[1]).not.toBe(asking.table[1]);
    for (const token of [54, 55]) settle(plan(), token);
    expect(saying.table.slice(0, 2)).toEqual(asking.table.slice(0, 2));
  });
});

describe("An engine whose step has failed", () => {
  it("asks for no other before all that were enqueued have ended", async () => {
    const runner = new StubRunner({ ahead: 1 });
    const ends: { readonly resolve: () => void; readonly reject: (error: unknown) => void }[] = [];
    runner.step = (rows: readonly Row[]) =>
      new Promise((resolve, reject) => {
        ends.push({ resolve: () => resolve(rows.map(() => ({ token: 60 }))), reject });
      });
    const engine = new BatchEngine(runner);
    const turn = () => new Promise((resolve) => setTimeout(resolve, 1));
    const answer = engine.submit({ prompt: range(10, 5), maxTokens: 2, ignoreEos: true });
    while (ends.length < 2) await turn();
    ends[0]!.reject(memory);
    for (let i = 0; i < 5; i++) await turn();
    expect(ends.length).toBe(2);
    ends[1]!.reject(memory);
    // The prompt again, in parts of two tokens.
    for (let i = 2; i < 6; i++) {
      while (ends.length <= i) await turn();
      ends[i]!.resolve();
    }
    const events: TokenEvent[] = [];
    for await (const event of answer) events.push(event);
    expect(events.map(({ token }) => token)).toEqual([60, 60]);
    await engine[Symbol.asyncDispose]();
  });
});
