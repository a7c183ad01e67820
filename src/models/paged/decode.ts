/**
 * Steps of decoding that are recorded, one for each of a few numbers of rows: which sequences the rows are, how long each is
 * and where its pages lie is in device memory, which the host writes between replays. Rows beyond those in use are nobody's:
 * they have no positions. Others are recorded with some rows of prompts behind: of what is left where most of a prompt is
 * known, which would take the host longer to enqueue than the device to compute.
 */
import type { PagedPlanner } from "../../backend/paged-attention.ts";
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

/** Numbers of rows that decode beside prompts; beyond, as above. */
const BESIDE_PROMPTS = [0, 8, 32, 64, 128] as const;
/**
 * Rows of prompts in such a step, of which more are recorded where none decode, and how many prompts they may be of. What they
 * do not fill is one more, without positions.
 */
const PROMPT_ROWS = 64;
const PROMPT_ROWS_ALONE = [16, 32, 48, PROMPT_ROWS, 96, 128] as const;
const MOST_PROMPT_ROWS = 128;
export const PROMPTS = 3;

/** Rows of prompts in the recording for `tokens` of them beside `rows` that decode; null where there is none. */
export function promptRows(tokens: number, rows: number): number | null {
  const sizes = rows > 0 ? [PROMPT_ROWS] : PROMPT_ROWS_ALONE;
  return sizes.find((size) => size >= tokens) ?? null;
}

/** A sequence that goes on by one token. */
export interface DecodingRow {
  readonly slot: number;
  readonly past: number;
  readonly pages: readonly number[];
  readonly extent: number;
}

/** A sequence that goes on by tokens that the host knows. */
export interface PromptRow extends DecodingRow {
  readonly ids: readonly number[];
}

export interface RecordedDecodeOptions {
  readonly model: Transformer;
  readonly cache: PagedCache;
  readonly recorder: Recorder;
  /** The most rows that decode in a step. */
  readonly rows: number;
  /** The most positions of a sequence. */
  readonly positions: number;
  /** u32 on the device: the newest token of each slot, and the slot of each row. */
  readonly tokens: Tensor;
  readonly slots: Tensor;
  /** Recorded with each step: what becomes of its logits (rows, vocab). */
  readonly choose: (logits: Tensor) => void;
}

/** `bounds` are the offsets of steps with prompts, `lasts` the rows of such a step that something is chosen behind. */
type Part = "lengths" | "offsets" | "starts" | "plan" | "bounds" | "lasts" | "tables";

export class RecordedDecode implements Disposable {
  readonly #options: RecordedDecodeOptions;
  readonly #width: number;
  /** The host's image of what is in device memory. */
  readonly #board: Board<Part>;
  readonly #memory: Tensor;
  readonly #tables: ReadonlyMap<RopeConfig, PagedTable>;
  readonly #planner: PagedPlanner | null;
  readonly #startOf: ((extent: number) => number) | null;
  /** u32 (MOST_PROMPT_ROWS). */
  readonly #promptIds: Tensor;
  /** By rows that decode and rows of prompts; null where the device did not take a recording: those steps run as they are. */
  readonly #graphs = new Map<string, Graph | null>();
  /** The slot of each row, as far as rows are in use. */
  readonly #order: number[] = [];

  constructor(options: RecordedDecodeOptions) {
    const { model, rows, positions } = options;
    const { device } = model;
    this.#options = options;
    this.#width = PagedCache.pagesFor(positions);
    this.#planner = plannerOf(model, rows);
    const plan = this.#planner?.words(rows) ?? 0;
    const most = rows + PROMPTS + 1;
    const sizes = { lengths: most, offsets: rows + 1, starts: most, plan, bounds: most + 1, lasts: rows + PROMPTS };
    this.#board = new Board({ ...sizes, tables: most * this.#width });
    for (let i = 0; i <= rows; i++) this.#board.put("offsets", i, i);
    this.#memory = Tensor.zeros([this.#board.values.length], { dtype: "i64", device }).keep();
    this.#promptIds = Tensor.zeros([MOST_PROMPT_ROWS], { dtype: "u32", device }).keep();
    const shared = model.pagedTables(positions);
    const starting = [...shared.values()].filter(({ start }) => start !== null);
    if (new Set(starting.map(({ start }) => start!(positions))).size > 1) {
      fail("InvalidArgument", "layers that turn long texts in different ways cannot be recorded together");
    }
    this.#startOf = starting[0]?.start ?? null;
    const starts = this.#part("starts", most).keep();
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

  /** How many rows decode in the recording that serves those that were arranged, beside prompts or alone. */
  size(besidePrompts: boolean): number {
    const [{ length }, { rows }] = [this.#order, this.#options];
    return besidePrompts ? rowsBesidePrompts(length, rows) : recordedRows(length, rows);
  }

  /**
   * Enqueues a step of the rows that were arranged, and of prompts, at most `PROMPTS` with as many tokens as `promptRows`
   * takes; all but the work itself where it is only rehearsed.
   */
  run(rows: readonly DecodingRow[], prompts: readonly PromptRow[] = [], isRehearsed = false): void {
    const tokens = prompts.reduce((sum, { ids }) => sum + ids.length, 0);
    const size = this.size(tokens > 0);
    const fed = tokens > 0 ? promptRows(tokens, size)! : 0;
    this.#write(rows, size, prompts, fed);
    if (isRehearsed) return;
    const known = this.#graphs.get(`${size} ${fed}`);
    if (known) known.replay();
    else if (known === null) this.#compute(size, fed);
    else this.#record(size, fed);
  }

  /** Records steps of every size, of nobody's rows. */
  recordAll(): void {
    this.arrange(new Set());
    const { rows, model } = this.#options;
    const ready = (size: number, fed: number): void => {
      this.#write([], size, [], fed);
      if (!this.#graphs.has(`${size} ${fed}`)) this.#record(size, fed);
    };
    for (let size = recordedRows(1, rows); ; size = recordedRows(size + 1, rows)) {
      ready(size, 0);
      if (size === rows) break;
    }
    if (!model.recordsPrompts) return;
    for (const fed of PROMPT_ROWS_ALONE) ready(0, fed);
    for (let size = rowsBesidePrompts(1, rows); ; size = rowsBesidePrompts(size + 1, rows)) {
      ready(size, PROMPT_ROWS);
      if (size === rows) return;
    }
  }

  [Symbol.dispose](): void {
    for (const graph of this.#graphs.values()) graph?.[Symbol.dispose]();
    this.#graphs.clear();
    this.#memory.dispose();
    this.#promptIds.dispose();
    for (const { starts } of this.#tables.values()) starts?.dispose();
  }

  /** Says what has changed, for a step with so many rows of prompts. */
  #write(rows: readonly DecodingRow[], size: number, prompts: readonly PromptRow[], fed: number): void {
    const board = this.#board;
    const bySlot = new Map(rows.map((row) => [row.slot, row]));
    const lengths: number[] = [];
    const put = (place: number, row: DecodingRow, length: number): void => {
      board.put("lengths", place, length);
      if (this.#startOf) board.put("starts", place, this.#startOf(row.extent));
      this.#writeTable(place, row, length);
    };
    for (let i = 0; i < size; i++) {
      const row = i < this.#order.length ? bySlot.get(this.#order[i]!) : undefined;
      lengths.push(row ? row.past + 1 : 0);
      if (row) put(i, row, lengths[i]!);
      else board.put("lengths", i, 0);
    }
    for (const [i, prompt] of prompts.entries()) put(size + i, prompt, prompt.past + prompt.ids.length);
    if (fed > 0) this.#writePrompts(prompts, size, fed);
    const plan = size > 0 && this.#planner ? this.#planner.plan(lengths) : [];
    board.putAll("plan", 0, plan, plan.length);
    for (const { from, bytes } of board.changes()) this.#memory.storage.write(from, bytes);
  }

  /** Where the rows of prompts lie behind `size` others; those that are nobody's are the last sequence's. */
  #writePrompts(prompts: readonly PromptRow[], size: number, fed: number): void {
    const board = this.#board;
    const ids = new Uint32Array(fed);
    for (let i = 0; i < size; i++) {
      board.put("bounds", i, i);
      board.put("lasts", i, i);
    }
    let end = 0;
    board.put("bounds", size, size);
    for (let i = 0; i < PROMPTS; i++) {
      const prompt = prompts[i];
      if (prompt) ids.set(prompt.ids, end);
      else board.put("lengths", size + i, 0);
      end += prompt?.ids.length ?? 0;
      board.put("bounds", size + i + 1, size + end);
      board.put("lasts", size + i, size + Math.max(end - 1, 0));
    }
    board.put("lengths", size + PROMPTS, 0);
    board.put("bounds", size + PROMPTS + 1, size + fed);
    this.#promptIds.storage.write(0, new Uint8Array(ids.buffer));
  }

  #writeTable(i: number, { pages }: DecodingRow, length: number): void {
    const [used, width] = [PagedCache.pagesFor(length), this.#width];
    if (used > width) fail("ValueOutOfRange", `${length} positions, but steps were recorded for ${width} pages each`);
    this.#board.putAll("tables", i * width, pages, used);
  }

  /** Recording a step runs it, too. Where only recording it fails it has run all the same. */
  #record(size: number, fed: number): void {
    let runs = 0;
    let graph: Graph | null = null;
    try {
      graph = this.#options.recorder.capture(() => {
        this.#compute(size, fed);
        runs++;
      });
    } catch (error) {
      if (runs === 0) throw error;
    }
    this.#graphs.set(`${size} ${fed}`, graph);
  }

  #compute(size: number, fed: number): void {
    const { model, cache, tokens, slots, choose } = this.#options;
    const beside = fed > 0;
    scope(() => {
      const newest = size > 0 ? [tokens.indexSelect(slots.narrow(0, 0, size), 0)] : [];
      const ids = beside ? [...newest, this.#promptIds.narrow(0, 0, fed)] : newest;
      const sequences = beside ? size + PROMPTS + 1 : size;
      const places = {
        lengths: this.#part("lengths", sequences),
        offsets: this.#part(beside ? "bounds" : "offsets", sequences + 1),
        tables: this.#part("tables", sequences * this.#width).reshape([sequences, this.#width]),
        singles: size,
        plan: this.#planner && this.#part("plan", this.#planner.words(size)),
      };
      const lasts = beside ? this.#part("lasts", size + PROMPTS) : null;
      const all = ids.length === 1 ? ids[0]! : Tensor.cat(ids, 0);
      choose(model.pagedDecode(all, cache, places, this.#tables, lasts));
    });
  }

  #part(name: Part, count: number): Tensor {
    return this.#memory.narrow(0, this.#board.starts[name], count);
  }
}

function rowsBesidePrompts(rows: number, most: number): number {
  return Math.min(BESIDE_PROMPTS.find((own) => own >= rows) ?? recordedRows(rows, most), most);
}

function plannerOf({ config, device, dtype, cacheDType: stored }: Transformer, rows: number): PagedPlanner | null {
  if (config.latent) return null;
  const { heads, kvHeads, headDim } = config;
  return device.backend.pagedAttention?.planner?.(dtype, { heads, kvHeads, headDim, stored }, rows) ?? null;
}
