/** The sequences of one step over a paged cache: their rows one behind the other, decoding before prompts. */
import type { Device } from "../../backend/device.ts";
import { PAGE_SIZE } from "../../backend/paged-attention.ts";
import { fail } from "../../core/errors.ts";
import { Tensor } from "../../ops/index.ts";

export interface PagedSequence {
  /** The new tokens, one or more. */
  readonly ids: readonly number[];
  /** Positions that are in its pages already. */
  readonly past: number;
  /**
   * The pages of its positions in order, the new ones included. Pages that others have in common with it are only read:
   * nobody writes where another reads.
   */
  readonly pages: readonly number[];
  /** The positions the sequence will have, where this step feeds a part of its prompt. Default: those fed so far. */
  readonly extent?: number | undefined;
}

/** What the device is told of a batch; all i64, in one piece of memory. */
export interface PagedTensors {
  /** (rows). */
  readonly ids: Tensor;
  /** (rows): where each stands in its sequence. */
  readonly positions: Tensor;
  /** (sequences), as they were given: the last row of each. */
  readonly lasts: Tensor;
  readonly lengths: Tensor;
  readonly offsets: Tensor;
  readonly tables: Tensor;
}

export class PagedBatch {
  /** By the order of their rows: those with one row first. */
  readonly sequences: readonly PagedSequence[];
  readonly singles: number;
  readonly rows: number;
  /** Where the rows of each begin, and where the last one's end. */
  readonly offsets: readonly number[];
  /** The place of each among those that were given. */
  readonly #order: readonly number[];

  constructor(sequences: readonly PagedSequence[], pages: number) {
    if (sequences.length === 0) fail("InvalidArgument", "a paged step needs a sequence, and was given none");
    for (const [i, sequence] of sequences.entries()) checkSequence(i, sequence, pages);
    const places = sequences.map((_, i) => i);
    const isSingle = (i: number) => sequences[i]!.ids.length === 1;
    this.#order = [...places.filter(isSingle), ...places.filter((i) => !isSingle(i))];
    this.sequences = this.#order.map((i) => sequences[i]!);
    this.singles = sequences.filter(({ ids }) => ids.length === 1).length;
    const offsets = [0];
    for (const { ids } of this.sequences) offsets.push(offsets.at(-1)! + ids.length);
    this.offsets = offsets;
    this.rows = offsets.at(-1)!;
  }

  /** Positions of the longest, with the new ones. */
  get longest(): number {
    return this.sequences.reduce((most, sequence) => Math.max(most, totalOf(sequence)), 0);
  }

  /** Whether the rows are the last ones of the sequences as they were given. */
  get isDecode(): boolean {
    return this.singles === this.sequences.length;
  }

  /** Call it inside a scope. */
  tensors(device: Device): PagedTensors {
    const { sequences, rows, offsets } = this;
    const count = sequences.length;
    const width = Math.ceil(this.longest / PAGE_SIZE);
    const sizes = {
      ids: rows,
      positions: rows,
      lasts: count,
      lengths: count,
      offsets: count + 1,
      tables: count * width,
    };
    const values = new BigInt64Array(Object.values(sizes).reduce((sum, size) => sum + size, 0));
    // The lower halves: numbers are written without a BigInt each.
    const low = new Int32Array(values.buffer);
    let start = 0;
    const starts = Object.fromEntries(
      Object.entries(sizes).map(([name, size]) => {
        start += size;
        return [name, start - size];
      }),
    ) as Record<keyof PagedTensors, number>;
    const put = (part: keyof PagedTensors, i: number, value: number): void => {
      low[2 * (starts[part] + i)] = value;
    };
    for (const [i, sequence] of sequences.entries()) {
      const { ids, past, pages } = sequence;
      const from = offsets[i]!;
      for (const [j, id] of ids.entries()) {
        put("ids", from + j, id);
        put("positions", from + j, past + j);
      }
      put("lasts", this.#order[i]!, from + ids.length - 1);
      put("lengths", i, past + ids.length);
      put("offsets", i + 1, from + ids.length);
      for (let j = 0; j < Math.min(width, pages.length); j++) put("tables", i * width + j, pages[j]!);
    }
    const all = Tensor.from(values, { device });
    const part = (name: keyof PagedTensors): Tensor => all.narrow(0, starts[name], sizes[name]);
    return {
      ids: part("ids"),
      positions: part("positions"),
      lasts: part("lasts"),
      lengths: part("lengths"),
      offsets: part("offsets"),
      tables: part("tables").reshape([count, width]),
    };
  }
}

/** Positions with the new ones. */
export const totalOf = ({ ids, past }: PagedSequence): number => past + ids.length;
/** Those that decide how it is turned. */
export const extentOf = (sequence: PagedSequence): number => Math.max(sequence.extent ?? 0, totalOf(sequence));

function checkSequence(index: number, sequence: PagedSequence, pages: number): void {
  const { ids, past, pages: own } = sequence;
  const bad = (what: string) => fail("InvalidArgument", `sequence ${index} of a paged step ${what}`);
  if (ids.length === 0) bad("has no new tokens");
  if (!Number.isSafeInteger(past) || past < 0) bad(`says that ${past} positions are there already`);
  const total = totalOf(sequence);
  if (own.length * PAGE_SIZE < total) bad(`has ${own.length} pages of ${PAGE_SIZE} for ${total} positions`);
  const beyond = own.find((page) => !Number.isInteger(page) || page < 0 || page >= pages);
  if (beyond !== undefined) bad(`has page ${beyond}, but the cache has ${pages}`);
}
