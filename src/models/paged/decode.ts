/**
 * Steps of decoding that are recorded, one for each of a few numbers of rows: which sequences the rows are, how long each is
 * and where its pages lie is in device memory, which the host writes between replays. Rows beyond those in use are nobody's:
 * they have no positions.
 */
import type { Graph, Recorder } from "../../backend/transformers.ts";
import { fail } from "../../core/errors.ts";
import { scope, Tensor } from "../../ops/index.ts";
import type { RopeConfig } from "../config.ts";
import type { Transformer } from "../transformer.ts";
import { Board } from "./batch.ts";
import { PagedCache } from "./cache.ts";
import type { PagedTable } from "./steps.ts";

/** Numbers of rows that steps are recorded for; beyond, by so many more. */
const SIZES = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128] as const;
const FURTHER = 64;

/** Rows of the recording that serves `rows` of at most `most`. */
export function recordedRows(rows: number, most: number): number {
  const size = SIZES.find((own) => own >= rows) ?? Math.ceil(rows / FURTHER) * FURTHER;
  return Math.min(size, most);
}

/** A sequence that goes on by one token. */
export interface DecodingRow {
  readonly slot: number;
  readonly past: number;
  readonly pages: readonly number[];
  readonly extent: number;
}

export interface RecordedDecodeOptions {
  readonly model: Transformer;
  readonly cache: PagedCache;
  readonly recorder: Recorder;
  /** The most rows of a step. */
  readonly rows: number;
  /** The most positions of a sequence. */
  readonly positions: number;
  /** u32 on the device: the newest token of each slot, and the slot of each row. */
  readonly tokens: Tensor;
  readonly slots: Tensor;
  /** Recorded with each step: what becomes of its logits (rows, vocab). */
  readonly choose: (logits: Tensor) => void;
}

export class RecordedDecode implements Disposable {
  readonly #options: RecordedDecodeOptions;
  readonly #width: number;
  /** The host's image of what is in device memory. */
  readonly #board: Board<"lengths" | "offsets" | "tables" | "starts">;
  readonly #memory: Tensor;
  readonly #tables: ReadonlyMap<RopeConfig, PagedTable>;
  readonly #startOf: ((extent: number) => number) | null;
  /** By rows; null where the device did not take a recording: those steps run as they are. */
  readonly #graphs = new Map<number, Graph | null>();
  /** The slot of each row, as far as rows are in use. */
  readonly #order: number[] = [];

  constructor(options: RecordedDecodeOptions) {
    const { model, rows, positions } = options;
    const { device } = model;
    this.#options = options;
    this.#width = PagedCache.pagesFor(positions);
    const sizes = { lengths: rows, offsets: rows + 1, starts: rows, tables: rows * this.#width };
    this.#board = new Board(sizes);
    for (let i = 0; i <= rows; i++) this.#board.put("offsets", i, i);
    this.#memory = Tensor.from(this.#board.values, { device }).keep();
    const shared = model.pagedTables(positions);
    const starting = [...shared.values()].filter(({ start }) => start !== null);
    if (new Set(starting.map(({ start }) => start!(positions))).size > 1) {
      fail("InvalidArgument", "layers that turn long texts in different ways cannot be recorded together");
    }
    this.#startOf = starting[0]?.start ?? null;
    const starts = this.#part("starts", rows).keep();
    this.#tables = new Map(
      [...shared].map(([rope, { start, ...table }]) => [rope, { ...table, starts: start && starts }]),
    );
  }

  /** Which slots have the rows of the next step, in order; where the same go on they stay where they are. */
  arrange(slots: ReadonlySet<number>): readonly number[] {
    const order = this.#order;
    for (let i = order.length - 1; i >= 0; i--) {
      if (slots.has(order[i]!)) continue;
      const last = order.pop()!;
      if (i < order.length) order[i] = last;
    }
    const there = new Set(order);
    for (const slot of slots) if (!there.has(slot)) order.push(slot);
    return order;
  }

  /** Enqueues a step of the rows that were arranged. */
  run(rows: readonly DecodingRow[]): void {
    const size = recordedRows(this.#order.length, this.#options.rows);
    this.#write(rows, size);
    const known = this.#graphs.get(size);
    if (known) known.replay();
    else if (known === null) this.#compute(size);
    else this.#graphs.set(size, this.#record(size));
  }

  /** Records steps of every size, of nobody's rows. */
  recordAll(): void {
    this.arrange(new Set());
    const { rows } = this.#options;
    for (let size = recordedRows(1, rows); ; size = recordedRows(size + 1, rows)) {
      this.#write([], size);
      if (!this.#graphs.has(size)) this.#graphs.set(size, this.#record(size));
      if (size === rows) return;
    }
  }

  [Symbol.dispose](): void {
    for (const graph of this.#graphs.values()) graph?.[Symbol.dispose]();
    this.#graphs.clear();
    this.#memory.dispose();
    for (const { starts } of this.#tables.values()) starts?.dispose();
  }

  /** Says what has changed. */
  #write(rows: readonly DecodingRow[], size: number): void {
    const board = this.#board;
    const bySlot = new Map(rows.map((row) => [row.slot, row]));
    let startsChanged = false;
    for (let i = 0; i < size; i++) {
      const row = i < this.#order.length ? bySlot.get(this.#order[i]!) : undefined;
      board.put("lengths", i, row ? row.past + 1 : 0);
      if (!row) continue;
      if (this.#startOf) startsChanged = board.put("starts", i, this.#startOf(row.extent)) || startsChanged;
      this.#writeTable(i, row);
    }
    this.#upload("lengths", 0, size);
    if (startsChanged) this.#upload("starts", 0, size);
  }

  #writeTable(i: number, { past, pages }: DecodingRow): void {
    const [used, width] = [PagedCache.pagesFor(past + 1), this.#width];
    if (used > width) fail("ValueOutOfRange", `${past + 1} positions, but steps were recorded for ${width} pages each`);
    let [first, end] = [used, 0];
    for (let j = 0; j < used; j++) {
      if (!this.#board.put("tables", i * width + j, pages[j]!)) continue;
      first = Math.min(first, j);
      end = j + 1;
    }
    if (first < end) this.#upload("tables", i * width + first, end - first);
  }

  #upload(part: "lengths" | "starts" | "tables", from: number, count: number): void {
    this.#memory.storage.write(8 * (this.#board.starts[part] + from), this.#board.bytes(part, from, count));
  }

  /** Recording a step runs it, too. Where only recording it fails it has run all the same. */
  #record(size: number): Graph | null {
    let runs = 0;
    try {
      return this.#options.recorder.capture(() => {
        this.#compute(size);
        runs++;
      });
    } catch (error) {
      if (runs === 0) throw error;
      return null;
    }
  }

  #compute(size: number): void {
    const { model, cache, tokens, slots, choose } = this.#options;
    scope(() => {
      const ids = tokens.indexSelect(slots.narrow(0, 0, size), 0);
      const places = {
        lengths: this.#part("lengths", size),
        offsets: this.#part("offsets", size + 1),
        tables: this.#part("tables", size * this.#width).reshape([size, this.#width]),
        singles: size,
      };
      choose(model.pagedDecode(ids, cache, places, this.#tables));
    });
  }

  #part(name: "lengths" | "offsets" | "starts" | "tables", count: number): Tensor {
    return this.#memory.narrow(0, this.#board.starts[name], count);
  }
}
