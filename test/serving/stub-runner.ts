/**
 * A runner whose next token follows from the whole text before it, read back through the pages of the row: a page that was
 * mixed up, overwritten or never written makes another text. Steps run later than they are asked for, in order.
 */
import { setImmediate } from "node:timers/promises";
import type { SamplerSpec } from "../../src/backend/transformers.ts";
import { MemoryError, ValueError, type WickError } from "../../src/core/errors.ts";
import type { Choice } from "../../src/models/generation/batch-sampler.ts";
import { samplerSpec } from "../../src/models/generation/sampling.ts";
import type { EngineRequest, TokenConstraint } from "../../src/serving/request.ts";
import type { PageCopy, Row, Runner, Slot } from "../../src/serving/runner.ts";

export const VOCAB = 97;
export const EOS = 1;
/** Behind this token no other can be chosen. */
export const HOPELESS = 2;
/** A step that is fed this token fails. */
export const POISON = 3;

const stir = (hash: number, x: number): number => Math.imul(hash ^ x, 0x01000193) ^ (hash >>> 15);

/** What is chosen behind `text` in the given step of a request. */
function chosen(
  text: Iterable<number>,
  { seed, temperature }: SamplerSpec,
  step: number,
  mask: Uint32Array | null,
): Choice | WickError {
  let hash = stir(stir(0x811c9dc5, temperature > 0 ? Number(seed & 0xffffn) : 0), step);
  let last = 0;
  for (const id of text) {
    hash = stir(hash, id);
    last = id;
  }
  if (last === HOPELESS) return new ValueError("ValueOutOfRange", "no token can be chosen");
  // The tokens that fail steps are never chosen: they come in prompts.
  for (let token = (hash >>> 3) % VOCAB; ; token = (token + 1) % VOCAB) {
    if (token > POISON || token === EOS) if (!mask || (mask[token >> 5]! >>> (token & 31)) & 1) return { token };
  }
}

/** What the request says when nothing else runs; an error ends it. */
export function alone(request: EngineRequest, context: number): (number | WickError)[] {
  const text = [...request.prompt];
  const spec = samplerSpec(request.sampling ?? {}, text);
  const said: (number | WickError)[] = [];
  const most = Math.min(request.maxTokens ?? Number.POSITIVE_INFINITY, context - text.length + 1);
  const ends = [...(request.ignoreEos ? [] : [EOS]), ...(request.stopTokens ?? [])];
  while (said.length < most) {
    const choice = chosen(text, spec, said.length, request.constraint?.mask() ?? null);
    if (choice instanceof Error) return [...said, choice];
    said.push(choice.token);
    text.push(choice.token);
    request.constraint?.accept(choice.token);
    if (ends.includes(choice.token) || request.constraint?.ended) break;
  }
  return said;
}

export interface StubOptions {
  readonly pageSize?: number;
  readonly pages?: number;
  readonly slots?: number;
  readonly ahead?: number;
  readonly contextLength?: number;
  /** Positions from which on texts are turned otherwise. */
  readonly turnsAt?: number;
  /** The most tokens of a step that do not run out of memory. */
  readonly memory?: number;
  /** Whether the step of this number fails for no reason of its own. */
  readonly fails?: (step: number) => boolean;
}

class StubSlot implements Slot {
  last = -1;
  made: number;
  open = true;
  constructor(
    readonly runner: StubRunner,
    readonly spec: SamplerSpec,
    readonly constraint: TokenConstraint | undefined,
  ) {
    this.made = spec.answer.length;
    runner.openSlots++;
  }
  [Symbol.dispose](): void {
    if (!this.open) throw new Error("a slot was closed twice");
    this.open = false;
    this.runner.openSlots--;
  }
}

interface StubRow extends Row {
  readonly mask: Uint32Array | null;
}

export class StubRunner implements Runner {
  readonly pageSize: number;
  readonly pages: number;
  readonly slots: number;
  readonly ahead: number;
  readonly contextLength: number;
  readonly vocabSize = VOCAB;
  readonly eosTokens = [EOS];
  readonly #options: StubOptions;
  /** By page and place: the token and its position, and how it was turned. */
  readonly #memory: string[][];
  #queue: Promise<unknown> = Promise.resolve();
  openSlots = 0;
  disposed = false;
  readied = 0;
  /** The rows' sizes of every step: [tokens, …]. */
  readonly steps: number[][] = [];
  computed = 0;
  copied = 0;

  constructor(options: StubOptions = {}) {
    this.#options = options;
    this.pageSize = options.pageSize ?? 4;
    this.pages = options.pages ?? 64;
    this.slots = options.slots ?? 8;
    this.ahead = options.ahead ?? 2;
    this.contextLength = options.contextLength ?? 200;
    this.#memory = Array.from({ length: this.pages }, () => new Array<string>(this.pageSize).fill("nothing"));
  }

  async ready(): Promise<void> {
    await setImmediate();
    this.readied++;
  }

  turnedAlikeUntil(extent: number): number {
    const { turnsAt = Number.POSITIVE_INFINITY } = this.#options;
    return extent <= turnsAt ? turnsAt : Number.POSITIVE_INFINITY;
  }

  open(spec: SamplerSpec, constraint: TokenConstraint | undefined): Slot {
    if (this.openSlots === this.slots) throw new Error("there are no more slots");
    return new StubSlot(this, spec, constraint);
  }

  step(rows: readonly Row[], pageCopies: readonly PageCopy[] = []): Promise<readonly (Choice | WickError | null)[]> {
    const copies = rows.map((row): StubRow => {
      // Masks are what the host knows now, not when the step runs.
      const mask = row.samples ? (row.slot as StubSlot).constraint?.mask() : null;
      return { ...row, ids: row.ids?.slice() ?? null, pages: [...row.pages], mask: mask ?? null };
    });
    this.copied += pageCopies.length;
    this.steps.push(rows.map(({ ids }) => ids?.length ?? 1));
    const number = this.steps.length;
    if (rows.length > this.slots) throw new Error("more rows than slots");
    if (rows.some(({ slot }) => !(slot as StubSlot).open)) throw new Error("a row's slot is closed");
    const result = this.#queue.then(async () => {
      await setImmediate();
      for (const { from, to } of pageCopies) this.#memory[to] = [...this.#memory[from]!];
      return this.#run(copies, number);
    });
    this.#queue = result.catch(() => {});
    return result;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.disposed) throw new Error("the runner was disposed twice");
    this.disposed = true;
  }

  #run(rows: readonly StubRow[], number: number): (Choice | WickError | null)[] {
    const { memory = Number.POSITIVE_INFINITY, fails } = this.#options;
    const fed = rows.map((row) => row.ids ?? [(row.slot as StubSlot).last]);
    const tokens = fed.reduce((sum, ids) => sum + ids.length, 0);
    const broken = tokens > memory || fed.some((ids) => ids.includes(POISON)) || fails?.(number);
    const written = new Set<string>();
    for (const [i, { past, pages, extent }] of rows.entries()) {
      for (const [j, id] of fed[i]!.entries()) {
        const page = pages[Math.floor((past + j) / this.pageSize)]!;
        const place = (past + j) % this.pageSize;
        if (written.has(`${page} ${place}`)) throw new Error(`page ${page} has two writers`);
        written.add(`${page} ${place}`);
        const turned = this.turnedAlikeUntil(extent);
        this.#memory[page]![place] = broken ? "garbage" : `${id} ${past + j} ${turned}`;
      }
    }
    if (broken) {
      // Nothing that the slots know can be relied upon.
      for (const { slot } of rows) (slot as StubSlot).last = -2;
      throw new MemoryError("OutOfMemory", `step ${number} of ${tokens} tokens`);
    }
    this.computed += tokens;
    return rows.map((row, i) => this.#choose(row, fed[i]!));
  }

  #choose({ slot, past, pages, samples, mask }: StubRow, ids: readonly number[]): Choice | WickError | null {
    if (!samples) return null;
    const own = slot as StubSlot;
    const text = Array.from({ length: past + ids.length }, (_, at) => {
      const entry = this.#memory[pages[Math.floor(at / this.pageSize)]!]![at % this.pageSize]!;
      const [token, position, turned] = entry.split(" ").map(Number);
      // As alone: a prompt is turned as a whole, what follows by the length it has then.
      const extent = Math.max(own.spec.prompt.length, at + 1);
      return position === at && turned === this.turnedAlikeUntil(extent) ? token! : 1000 + at;
    });
    const choice = chosen(text, own.spec, own.made++, mask);
    own.last = choice instanceof Error ? -3 : choice.token;
    return choice;
  }
}
