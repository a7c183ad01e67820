/**
 * Steps of many requests over one paged cache, from tokens to tokens: prompts in parts beside requests that go on by a token
 * each, and what was chosen for them. A step may be asked for before the tokens of those before it are known.
 */
import type { WickError } from "../../core/errors.ts";
import { BatchSampler, type Choice } from "../generation/batch-sampler.ts";
import { samplerSpec } from "../generation/sampling.ts";
import type { Transformer } from "../transformer.ts";
import type { PagedCache } from "./cache.ts";
import { PROMPTS, type PromptRow, promptRows, RecordedDecode } from "./decode.ts";

/** A request's part in a step. */
export interface StepRow {
  /** Of the sampler. */
  readonly slot: number;
  /** The new tokens; null is the slot's newest, which the host may not have seen yet. */
  readonly ids: readonly number[] | null;
  /** Positions that are in its pages already. */
  readonly past: number;
  /** The pages of its positions in order, the new ones included. */
  readonly pages: readonly number[];
  /** The positions that decide how the new ones are turned. */
  readonly extent: number;
  /** Whether the token behind the last of `ids` is chosen. */
  readonly samples: boolean;
  /** Of slots that are masked: which tokens may come. Default all. */
  readonly mask?: Uint32Array | null | undefined;
}

export type StepOutcome = Choice | WickError | null;

export interface PagedStepperOptions {
  /** Requests that may take part in a step. */
  readonly slots: number;
  /** The most positions of a request. */
  readonly positions: number;
}

/** Steps enqueued beyond the one whose tokens are waited for, so that the device never waits for the host. */
const AHEAD = 2;

/** Tokens of a prompt, beyond those that kernels for few rows take. */
const READY_TOKENS = 32;

/** What the host does for a step takes it several times as long before it is compiled. */
const WARM_UP_STEPS = 64;
const WARM_UP_MS = 250;

async function warmUp(run: () => Promise<void>): Promise<void> {
  const until = performance.now() + WARM_UP_MS;
  for (let i = 0; i === 0 || (i < WARM_UP_STEPS && performance.now() < until); i++) await run();
}

export class PagedStepper implements AsyncDisposable {
  readonly sampler: BatchSampler;
  /** Steps that may be asked for beyond the one that is waited for. */
  readonly ahead: number;
  readonly #model: Transformer;
  readonly #cache: PagedCache;
  readonly #decode: RecordedDecode | null;
  readonly #recordsPrompts: boolean;
  #rehearses = false;

  constructor(model: Transformer, cache: PagedCache, { slots, positions }: PagedStepperOptions) {
    const { device, config } = model;
    this.#model = model;
    this.#cache = cache;
    // Recorded steps have rows of prompts that may be nobody's.
    const sampler = new BatchSampler(device, config.vocabSize, slots + PROMPTS);
    this.sampler = sampler;
    this.ahead = sampler.onDevice ? AHEAD : 0;
    const { recorder } = device.backend;
    const records = recorder && recorder.problem === null && model.recordsPages && sampler.onDevice;
    this.#recordsPrompts = model.recordsPrompts;
    const choose = sampler.choose.bind(sampler);
    const shared = { model, cache, tokens: sampler.tokens, slots: sampler.rows, choose };
    this.#decode = records ? new RecordedDecode({ ...shared, recorder, rows: slots, positions }) : null;
  }

  /** Compiles and records what steps need, before there are any: the first requests do not wait for it then. */
  async ready(): Promise<void> {
    // A part of a prompt of nobody, in a page that nobody has yet.
    const ids = Array.from({ length: READY_TOKENS }, () => 0);
    await warmUp(async () => {
      this.#model.paged([{ ids, past: 0, pages: [0] }], this.#cache).dispose();
      // The host would be far ahead of the device.
      await this.#model.synchronize();
    });
    this.sampler.place([]);
    if (!this.#decode) return;
    this.#decode.recordAll();
    await this.#model.synchronize();
    const row = { slot: 0, past: 0, pages: [0], extent: ids.length, samples: true };
    await warmUp(async () => {
      this.#cache.copyPage(0, 0);
      this.sampler.assign(0, samplerSpec({}));
      await this.step([{ ...row, ids }]);
      await this.step([{ ...row, ids: null }]);
      this.sampler.release(0);
    });
  }

  /** Of the steps that `run` takes the host does all, the device nothing: whatever is asked for, the first token is chosen. */
  async rehearse(run: () => Promise<void>): Promise<void> {
    this.#rehearses = true;
    try {
      await run();
    } finally {
      this.#rehearses = false;
    }
  }

  /** Enqueues a step; for each row what was chosen, null where nothing was asked for. */
  step(rows: readonly StepRow[]): Promise<readonly StepOutcome[]> {
    const prompts = rows.filter(isPrompt);
    const decode = this.#isRecorded(prompts, rows.length - prompts.length) ? this.#decode : null;
    if (this.#rehearses && !decode) return Promise.resolve(rows.map(firstToken));
    const order = decode ? this.#replay(decode, rows, prompts) : this.#run(rows);
    const chosen = order.length > 0 ? this.sampler.read() : Promise.resolve([]);
    return chosen.then((choices) => {
      if (this.#rehearses) return rows.map(firstToken);
      const bySlot = new Map(order.map((slot, i) => [slot, choices[i]!] as const));
      return rows.map(({ slot, samples }) => (samples ? bySlot.get(slot)! : null));
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#model.synchronize();
    this.#decode?.[Symbol.dispose]();
    this.sampler[Symbol.dispose]();
  }

  /** Whether a recorded step takes them beside so many that decode: few tokens of prompts. */
  #isRecorded(prompts: readonly PromptRow[], others: number): boolean {
    if (prompts.length === 0) return true;
    const tokens = prompts.reduce((sum, { ids }) => sum + ids.length, 0);
    return this.#recordsPrompts && prompts.length <= PROMPTS && promptRows(tokens, others) !== null;
  }

  /** Gives the slots of the step's rows that something is chosen for, as the sampler has them. */
  #replay(
    decode: RecordedDecode,
    rows: readonly StepRow[],
    prompts: readonly (StepRow & PromptRow)[],
  ): readonly (number | null)[] {
    const others = prompts.length > 0 ? rows.filter((row) => !isPrompt(row)) : rows;
    const order: (number | null)[] = [...decode.arrange(new Set(others.map(({ slot }) => slot)))];
    // What the host knows goes where the device looks for it.
    for (const { slot, ids } of others) {
      if (ids) this.sampler.tokens.storage.write(4 * slot, new Uint8Array(Uint32Array.from(ids).buffer));
    }
    if (prompts.length > 0) {
      while (order.length < decode.size(true)) order.push(null);
      for (const { slot, samples } of prompts) order.push(samples ? slot : null);
    }
    const bySlot = new Map(rows.map((row) => [row.slot, row]));
    this.sampler.place(
      order,
      order.map((slot) => (slot === null ? null : (bySlot.get(slot)!.mask ?? null))),
    );
    decode.run(others, prompts, this.#rehearses);
    return order;
  }

  #run(rows: readonly StepRow[]): readonly (number | null)[] {
    const { sampler } = this;
    const asked = rows.filter(({ samples }) => samples);
    const order = asked.map(({ slot }) => slot);
    const sequences = rows.map((row) => ({ ...row, logits: row.samples }));
    using logits = this.#model.paged(sequences, this.#cache, sampler.tokens);
    if (asked.length === 0) return order;
    sampler.place(
      order,
      asked.map(({ mask }) => mask ?? null),
    );
    sampler.choose(logits);
    return order;
  }
}

const firstToken = ({ samples }: StepRow): StepOutcome => (samples ? { token: 0 } : null);

/** Whether it has more than the one token that a recorded step takes from its slot. */
const isPrompt = (row: StepRow): row is StepRow & PromptRow =>
  row.ids !== null && !(row.samples && row.ids.length === 1);
