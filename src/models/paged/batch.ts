/** The sequences of one step over a paged cache: their rows one behind the other, decoding before prompts. */
import type { Device } from "../../backend/device.ts";
import { PAGE_SIZE } from "../../backend/paged-attention.ts";
import { fail } from "../../core/errors.ts";
import { Tensor } from "../../ops/index.ts";

export interface PagedSequence {
  /** The new tokens, one or more; null is one that the host need not know: the newest of `slot`. */
  readonly ids: readonly number[] | null;
  readonly slot?: number | undefined;
  /** Positions that are in its pages already. */
  readonly past: number;
  /**
   * The pages of its positions in order, the new ones included. Pages that others have in common with it are only read:
   * nobody writes where another reads.
   */
  readonly pages: readonly number[];
  /** The positions the sequence will have, where this step feeds a part of its prompt. Default: those fed so far. */
  readonly extent?: number | undefined;
  /** Whether the step says something of its last row. Default true. */
  readonly logits?: boolean | undefined;
}

/** What the device is told of a batch. */
export interface PagedTensors {
  /** (rows): where each stands in its sequence. This and all below are i64, in one piece of memory. */
  readonly positions: Tensor;
  /** The last row of each that something is said of, as they were given. */
  readonly lasts: Tensor;
  /** Of those that have one, in the order of rows. */
  readonly slots: Tensor;
  readonly lengths: Tensor;
  readonly offsets: Tensor;
  readonly tables: Tensor;
}

export class PagedBatch {
  /** By the order of their rows: those of a slot, then others with one row, then prompts. */
  readonly sequences: readonly PagedSequence[];
  readonly singles: number;
  readonly rows: number;
  /** Where the rows of each begin, and where the last one's end. */
  readonly offsets: readonly number[];
  readonly #slots: readonly number[];
  /** The rows that something is said of, in the order of the sequences that were given. */
  readonly #lasts: readonly number[];

  constructor(sequences: readonly PagedSequence[], pages: number) {
    if (sequences.length === 0) fail("InvalidArgument", "a paged step needs a sequence, and was given none");
    for (const [i, sequence] of sequences.entries()) checkSequence(i, sequence, pages);
    const rank = ({ ids }: PagedSequence): number => (ids === null ? 0 : ids.length === 1 ? 1 : 2);
    const order = [...sequences.keys()].sort((a, b) => rank(sequences[a]!) - rank(sequences[b]!) || a - b);
    this.sequences = order.map((i) => sequences[i]!);
    this.singles = sequences.filter((sequence) => rank(sequence) < 2).length;
    this.#slots = this.sequences.filter(({ ids }) => ids === null).map(({ slot }) => slot!);
    const offsets = [0];
    for (const sequence of this.sequences) offsets.push(offsets.at(-1)! + lengthOf(sequence));
    this.offsets = offsets;
    this.rows = offsets.at(-1)!;
    const lasts = new Array<number>(sequences.length);
    for (const [at, i] of order.entries()) lasts[i] = offsets[at + 1]! - 1;
    this.#lasts = lasts.filter((_, i) => sequences[i]!.logits !== false);
  }

  /** Positions of the longest, with the new ones. */
  get longest(): number {
    return this.sequences.reduce((most, sequence) => Math.max(most, totalOf(sequence)), 0);
  }

  /** Whether every row is asked about, in its order. */
  get saysAll(): boolean {
    return this.#lasts.length === this.rows && this.#lasts.every((row, i) => row === i);
  }

  /** The new ones, u32 (rows); `slots` are the batch's own, and `tokens` u32 (slots) has the newest of each slot. */
  ids(device: Device, slots: Tensor, tokens: Tensor | null): Tensor {
    const given = Uint32Array.from(this.sequences.flatMap(({ ids }) => ids ?? []));
    const known = given.length > 0 ? [Tensor.from(given, { device })] : [];
    const newest = this.#slots.length > 0 ? [needTokens(tokens).indexSelect(slots, 0)] : [];
    const both = [...newest, ...known];
    return both.length === 1 ? both[0]! : Tensor.cat(both, 0);
  }

  /** Call it inside a scope. */
  tensors(device: Device): PagedTensors {
    const { sequences, rows, offsets } = this;
    const count = sequences.length;
    const width = Math.ceil(this.longest / PAGE_SIZE);
    const sizes = {
      positions: rows,
      lasts: this.#lasts.length,
      slots: this.#slots.length,
      lengths: count,
      offsets: count + 1,
      tables: count * width,
    };
    const board = new Board(sizes);
    for (const [i, row] of this.#lasts.entries()) board.put("lasts", i, row);
    for (const [i, slot] of this.#slots.entries()) board.put("slots", i, slot);
    for (const [i, sequence] of sequences.entries()) {
      const { past, pages } = sequence;
      const [from, length] = [offsets[i]!, lengthOf(sequence)];
      for (let j = 0; j < length; j++) board.put("positions", from + j, past + j);
      board.put("lengths", i, past + length);
      board.put("offsets", i + 1, from + length);
      board.putAll("tables", i * width, pages, Math.min(width, pages.length));
    }
    const all = Tensor.from(board.values, { device });
    const part = (name: keyof typeof sizes): Tensor => all.narrow(0, board.starts[name], sizes[name]);
    const parts = { positions: part("positions"), lasts: part("lasts"), slots: part("slots") };
    const places = {
      lengths: part("lengths"),
      offsets: part("offsets"),
      tables: part("tables").reshape([count, width]),
    };
    return { ...parts, ...places };
  }
}

/** Numbers that are told together: each transfer takes the host as long as some kilobytes do. */
const PIECE = 1024;

/** Whole numbers as i64, part by part in one piece. */
export class Board<Name extends string> {
  readonly values: BigInt64Array<ArrayBuffer>;
  readonly starts: Readonly<Record<Name, number>>;
  /** The lower halves: numbers are written without a BigInt each. */
  readonly #low: Int32Array;
  /** By pieces of PIECE numbers: whether one of them is another than was told last. */
  readonly #changed: Uint8Array;

  constructor(sizes: Readonly<Record<Name, number>>) {
    let end = 0;
    const starts = Object.entries<number>(sizes).map(([name, size]) => {
      end += size;
      return [name, end - size];
    });
    this.starts = Object.fromEntries(starts) as Record<Name, number>;
    this.values = new BigInt64Array(end);
    this.#low = new Int32Array(this.values.buffer);
    this.#changed = new Uint8Array(Math.ceil(end / PIECE));
  }

  /** Below 2³¹. */
  put(part: Name, i: number, value: number): void {
    const at = this.starts[part] + i;
    if (this.#low[2 * at] === value) return;
    this.#low[2 * at] = value;
    this.#changed[Math.floor(at / PIECE)] = 1;
  }

  /** The first `count` of `values`, from place i on. */
  putAll(part: Name, i: number, values: readonly number[], count: number): void {
    const at = this.starts[part] + i;
    const low = this.#low;
    for (let j = 0; j < count; j++) {
      if (low[2 * (at + j)] === values[j]) continue;
      low[2 * (at + j)] = values[j]!;
      this.#changed[Math.floor((at + j) / PIECE)] = 1;
    }
  }

  /** What is another than when this was last asked: bytes, and where they begin. */
  *changes(): Generator<{ readonly from: number; readonly bytes: Uint8Array }> {
    const changed = this.#changed;
    for (let first = changed.indexOf(1); first >= 0; first = changed.indexOf(1, first)) {
      const same = changed.indexOf(0, first);
      const end = same < 0 ? changed.length : same;
      changed.fill(0, first, end);
      const [from, until] = [8 * PIECE * first, Math.min(8 * PIECE * end, this.values.byteLength)];
      yield { from, bytes: new Uint8Array(this.values.buffer, from, until - from) };
    }
  }
}

/** New rows. */
export const lengthOf = ({ ids }: PagedSequence): number => ids?.length ?? 1;
/** Positions with the new ones. */
export const totalOf = (sequence: PagedSequence): number => sequence.past + lengthOf(sequence);
/** Those that decide how it is turned. */
export const extentOf = (sequence: PagedSequence): number => Math.max(sequence.extent ?? 0, totalOf(sequence));

const needTokens = (tokens: Tensor | null): Tensor =>
  tokens ?? fail("InvalidArgument", "a paged step takes tokens from slots, and was not given what they hold");

function checkSequence(index: number, sequence: PagedSequence, pages: number): void {
  const { ids, slot, past, pages: own } = sequence;
  const bad = (what: string) => fail("InvalidArgument", `sequence ${index} of a paged step ${what}`);
  if (ids?.length === 0) bad("has no new tokens");
  if (ids === null && slot === undefined) bad("has neither tokens nor a slot");
  if (!Number.isSafeInteger(past) || past < 0) bad(`says that ${past} positions are there already`);
  const total = totalOf(sequence);
  if (own.length * PAGE_SIZE < total) bad(`has ${own.length} pages of ${PAGE_SIZE} for ${total} positions`);
  const beyond = own.find((page) => !Number.isInteger(page) || page < 0 || page >= pages);
  if (beyond !== undefined) bad(`has page ${beyond}, but the cache has ${pages}`);
}
