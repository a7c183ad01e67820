/**
 * A model that is split over ranks, under one scheduler: rank 0 has it, and tells the others every slot and every step, which
 * they take as well. What they choose is the same, as all ranks have the same logits and the same seeds.
 */
import type { SamplerSpec } from "../backend/transformers.ts";
import type { Group } from "../distributed/group.ts";
import type { StepOutcome } from "../models/paged/stepper.ts";
import { ModelRunner } from "./model-runner.ts";
import type { TokenConstraint } from "./request.ts";
import type { PageCopy, Row, Slot } from "./runner.ts";

/** A row as the others are told it: the slot by its number, the mask with it. */
interface ToldRow extends Omit<Row, "slot"> {
  readonly slot: number;
  readonly mask: string | null;
}

type ToldSpec = Omit<SamplerSpec, "seed" | "logitBias"> & { seed: string; logitBias: [number, number | string][] };

export type Told =
  | { readonly type: "open"; readonly slot: number; readonly spec: ToldSpec; readonly constrained: boolean }
  | { readonly type: "close"; readonly slot: number }
  | { readonly type: "step"; readonly rows: readonly ToldRow[]; readonly copies: readonly PageCopy[] }
  | { readonly type: "end" };

// Infinities are no numbers in JSON.
const toldSpec = ({ seed, logitBias, ...spec }: SamplerSpec): ToldSpec => ({
  ...spec,
  seed: `${seed}`,
  logitBias: [...logitBias].map(([id, bias]) => [id, Number.isFinite(bias) ? bias : `${bias}`]),
});
const specOf = ({ seed, logitBias, ...spec }: ToldSpec): SamplerSpec => ({
  ...spec,
  seed: BigInt(seed),
  logitBias: new Map(logitBias.map(([id, bias]) => [id, Number(bias)])),
});

/** A slot whose number others know, with the mask that its constraint gives for the next step. */
class ToldSlot implements Slot {
  readonly number: number;
  readonly own: Slot;
  readonly constraint: StepMask | null;
  readonly #closed: (slot: number) => void;

  constructor(number: number, own: Slot, constraint: StepMask | null, closed: (slot: number) => void) {
    this.number = number;
    this.own = own;
    this.constraint = constraint;
    this.#closed = closed;
  }

  [Symbol.dispose](): void {
    this.own[Symbol.dispose]();
    this.#closed(this.number);
  }
}

/** A constraint that is asked once for each step, by whoever tells of it; it is accepted for and ended elsewhere. */
class StepMask implements TokenConstraint {
  readonly ended = false;
  readonly #from: TokenConstraint | null;
  current: Uint32Array | null = null;
  #failure: { readonly error: unknown } | null = null;

  constructor(from: TokenConstraint | null) {
    this.#from = from;
  }

  /** Whether it could say what may come. */
  ask(): boolean {
    try {
      this.#failure = null;
      this.current = this.#from?.mask() ?? null;
    } catch (error) {
      this.#failure = { error };
    }
    return this.#failure === null;
  }

  mask(): Uint32Array | null {
    if (this.#failure) throw this.#failure.error;
    return this.current;
  }

  accept(): void {}

  [Symbol.dispose](): void {}
}

export class FollowedRunner extends ModelRunner {
  #group: Group | null = null;
  #slots = 0;

  /** Rank 0's: it is followed from now on. */
  leads(group: Group): this {
    this.#group = group;
    return this;
  }

  /** How long that takes depends on the machine, and ranks would not do as much as each other. */
  override async ready(): Promise<void> {}

  override open(spec: SamplerSpec, constraint: TokenConstraint | undefined): Slot {
    const mask = constraint ? new StepMask(constraint) : null;
    const own = super.open(spec, mask ?? undefined);
    const slot = this.#slots++;
    this.#group?.tell({ type: "open", slot, spec: toldSpec(spec), constrained: mask !== null } satisfies Told);
    return new ToldSlot(slot, own, mask, (number) => this.#group?.tell({ type: "close", slot: number } satisfies Told));
  }

  override step(rows: readonly Row[], copies: readonly PageCopy[]): Promise<readonly StepOutcome[]> {
    const told = rows.map(({ slot, ...row }): ToldRow => {
      const { number, constraint } = slot as ToldSlot;
      const isAsked = row.samples && constraint !== null;
      // A row whose constraint fails gets no token, here as at the others.
      const samples = row.samples && !(isAsked && !constraint.ask());
      return { ...row, samples, slot: number, mask: isAsked && samples ? textOf(constraint.current) : null };
    });
    this.#group?.tell({ type: "step", rows: told, copies } satisfies Told);
    const own = rows.map((row) => ({ ...row, slot: (row.slot as ToldSlot).own }));
    return super.step(own, copies);
  }

  override async [Symbol.asyncDispose](): Promise<void> {
    this.#group?.tell({ type: "end" } satisfies Told);
    await super[Symbol.asyncDispose]();
  }
}

/** Of the other ranks: takes what rank 0 tells, until it ends. */
export async function follow(runner: ModelRunner, group: Group): Promise<void> {
  const slots = new Map<number, { own: Slot; mask: StepMask | null }>();
  await group.listen(async (value) => {
    const told = value as Told;
    if (told.type === "end") return false;
    if (told.type === "open") {
      const mask = told.constrained ? new StepMask(null) : null;
      slots.set(told.slot, { own: runner.open(specOf(told.spec), mask ?? undefined), mask });
    } else if (told.type === "close") {
      slots.get(told.slot)?.own[Symbol.dispose]();
      slots.delete(told.slot);
    } else {
      const rows = told.rows.map(({ slot, mask, ...row }): Row => {
        const known = slots.get(slot)!;
        if (known.mask) known.mask.current = mask === null ? null : wordsOf(mask);
        return { ...row, slot: known.own };
      });
      // What failed here failed at rank 0, too, or is told by the loss of this rank.
      await runner.step(rows, told.copies);
    }
    return true;
  });
  for (const { own } of slots.values()) own[Symbol.dispose]();
}

const textOf = (mask: Uint32Array | null): string | null =>
  mask && Buffer.from(mask.buffer, mask.byteOffset, mask.byteLength).toString("base64");

const wordsOf = (text: string): Uint32Array => {
  const bytes = Uint8Array.from(Buffer.from(text, "base64"));
  return new Uint32Array(bytes.buffer);
};
