/** A transformer with pages and slots, as the scheduler drives it. */
import type { SamplerSpec } from "../backend/transformers.ts";
import { DeviceError, WickError } from "../core/errors.ts";
import type { PagedCache } from "../models/paged/cache.ts";
import { PagedStepper, type StepOutcome, type StepRow } from "../models/paged/stepper.ts";
import type { Transformer } from "../models/transformer.ts";
import { rehearse } from "./rehearsal.ts";
import type { TokenConstraint } from "./request.ts";
import type { PageCopy, Row, Runner, Slot } from "./runner.ts";

class ModelSlot implements Slot {
  readonly index: number;
  readonly constraint: TokenConstraint | undefined;
  readonly #close: () => void;

  constructor(index: number, constraint: TokenConstraint | undefined, close: () => void) {
    this.index = index;
    this.constraint = constraint;
    this.#close = close;
  }

  [Symbol.dispose](): void {
    this.#close();
  }
}

export class ModelRunner implements Runner {
  readonly pageSize: number;
  readonly pages: number;
  readonly slots: number;
  readonly #model: Transformer;
  readonly #cache: PagedCache;
  readonly #stepper: PagedStepper;
  readonly #freeSlots: number[];

  constructor(model: Transformer, pages: number, slots: number) {
    const { config } = model;
    this.#model = model;
    this.slots = slots;
    this.#freeSlots = Array.from({ length: slots }, (_, i) => slots - 1 - i);
    this.#cache = model.newPagedCache(pages);
    this.pageSize = this.#cache.pageSize;
    this.pages = pages;
    try {
      const positions = Math.min(config.contextLength, pages * this.pageSize);
      this.#stepper = new PagedStepper(model, this.#cache, { slots, positions });
    } catch (error) {
      this.#cache.dispose();
      throw error;
    }
  }

  get ahead(): number {
    return this.#stepper.ahead;
  }

  get vocabSize(): number {
    return this.#model.config.vocabSize;
  }

  get contextLength(): number {
    return this.#model.config.contextLength;
  }

  get eosTokens(): readonly number[] {
    return this.#model.config.eosTokens;
  }

  async ready(): Promise<void> {
    // On the CPU there is nothing to record, and a step takes longer than all that the host does for it.
    if (this.#stepper.ahead === 0) return;
    await this.#stepper.ready();
    await this.#stepper.rehearse(() => rehearse(this));
  }

  turnedAlikeUntil(extent: number): number {
    return this.#model.recordedUntil(extent);
  }

  open(spec: SamplerSpec, constraint: TokenConstraint | undefined): Slot {
    const index = this.#freeSlots.pop()!;
    const close = (): void => {
      this.#stepper.sampler.release(index);
      this.#freeSlots.push(index);
    };
    try {
      this.#stepper.sampler.assign(index, spec);
    } catch (error) {
      close();
      throw error;
    }
    return new ModelSlot(index, constraint, close);
  }

  async step(rows: readonly Row[], copies: readonly PageCopy[]): Promise<readonly StepOutcome[]> {
    for (const { from, to } of copies) this.#cache.copyPage(from, to);
    const masks = rows.map(({ slot, samples }) => (samples ? maskOf(slot as ModelSlot) : null));
    const own = rows.map(({ slot, ids, past, pages, extent, samples }, i): StepRow => {
      const mask = masks[i]!;
      const { index } = slot as ModelSlot;
      // In one piece: spreading rows takes longer than what is done with them.
      if (mask instanceof Error) return { slot: index, ids, past, pages, extent, samples: false, mask: null };
      return { slot: index, ids, past, pages, extent, samples, mask };
    });
    const outcomes = await this.#stepper.step(own);
    return outcomes.map((outcome, i) => (masks[i] instanceof Error ? masks[i] : outcome));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#stepper[Symbol.asyncDispose]();
    this.#cache.dispose();
  }
}

/** What may come next; where a constraint cannot say, that is its request's error and no other's. */
function maskOf({ constraint }: ModelSlot): Uint32Array | WickError | null {
  try {
    return constraint?.mask() ?? null;
  } catch (error) {
    if (error instanceof WickError) return error;
    return new DeviceError("DriverError", `a constraint failed: ${String(error)}`, { cause: error });
  }
}
