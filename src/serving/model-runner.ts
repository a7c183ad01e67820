/** A transformer with pages and slots, as the scheduler drives it. */
import type { SamplerSpec } from "../backend/transformers.ts";
import { DeviceError, WickError } from "../core/errors.ts";
import { BatchSampler, type Choice } from "../models/generation/batch-sampler.ts";
import { PagedCache } from "../models/paged/cache.ts";
import type { Transformer } from "../models/transformer.ts";
import type { TokenConstraint } from "./request.ts";
import type { Row, Runner, Slot } from "./runner.ts";

class ModelSlot implements Slot {
  /** The token that its last row chose. */
  last = 0;
  readonly #close: () => void;

  constructor(
    readonly index: number,
    readonly constraint: TokenConstraint | undefined,
    close: () => void,
  ) {
    this.#close = close;
  }

  [Symbol.dispose](): void {
    this.#close();
  }
}

type Outcome = Choice | WickError | null;

export class ModelRunner implements Runner {
  readonly pageSize: number;
  readonly pages: number;
  readonly slots: number;
  readonly ahead = 0;
  readonly #model: Transformer;
  readonly #cache: PagedCache;
  readonly #sampler: BatchSampler;
  readonly #freeSlots: number[];

  constructor(model: Transformer, pages: number, slots: number) {
    const { config, device, dtype } = model;
    this.#model = model;
    this.slots = slots;
    this.#freeSlots = Array.from({ length: slots }, (_, i) => slots - 1 - i);
    this.#sampler = new BatchSampler(device, config.vocabSize, slots);
    try {
      this.#cache = new PagedCache(config, device, dtype, pages);
    } catch (error) {
      this.#sampler[Symbol.dispose]();
      throw error;
    }
    this.pageSize = this.#cache.pageSize;
    this.pages = pages;
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

  turnedAlikeUntil(extent: number): number {
    return this.#model.recordedUntil(extent);
  }

  open(spec: SamplerSpec, constraint: TokenConstraint | undefined): Slot {
    const index = this.#freeSlots.pop()!;
    const close = (): void => {
      this.#sampler.release(index);
      this.#freeSlots.push(index);
    };
    try {
      this.#sampler.assign(index, spec);
    } catch (error) {
      close();
      throw error;
    }
    return new ModelSlot(index, constraint, close);
  }

  async step(rows: readonly Row[]): Promise<readonly Outcome[]> {
    const slots = rows.map(({ slot }) => slot as ModelSlot);
    const masks = rows.map((row, i) => (row.samples ? maskOf(slots[i]!) : null));
    const sequences = rows.map((row, i) => ({ ...row, ids: row.ids ?? [slots[i]!.last] }));
    using logits = this.#model.paged(sequences, this.#cache);
    const placed = rows.map((row, i) => (row.samples && !(masks[i] instanceof Error) ? slots[i]!.index : null));
    this.#sampler.place(
      placed,
      masks.map((mask) => (mask instanceof Error ? null : mask)),
    );
    this.#sampler.choose(logits);
    const choices = await this.#sampler.read();
    return choices.map((choice, i): Outcome => {
      const mask = masks[i];
      if (mask instanceof Error) return mask;
      if (choice && !(choice instanceof Error)) slots[i]!.last = choice.token;
      return choice;
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#model.device.synchronize();
    this.#sampler[Symbol.dispose]();
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
