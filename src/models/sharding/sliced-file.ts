/** A file as a rank sees it: of the tensors that are split only its own part is there, and only that is read. */
import { fail } from "../../core/errors.ts";
import { numel, type Shape } from "../../core/layout.ts";
import { quantTypes } from "../../core/quant-types.ts";
import type { ByteRange } from "../../formats/read-options.ts";
import type { StoredWeights, WeightsTensor } from "../../formats/weights-file.ts";
import { scalesOf } from "../weights/f8-scales.ts";
import type { Rows } from "../weights/model-tensors.ts";

/** Of a tensor of rows: those that are wanted, in order, and of each the columns; all of them where that is null. */
export interface Slice {
  readonly rows: readonly Rows[];
  readonly columns: readonly Rows[] | null;
  /** Of what is left. */
  readonly shape: Shape;
}

/** Reads of single rows that are under way at once. */
const AT_ONCE = 64;

/** Elements that are stored together. */
export const blockOf = ({ quant }: WeightsTensor): number => (quant ? quantTypes[quant].size : 1);

/** `slices` by name; a tensor whose slice is null is not there. */
export function slicedFile(file: StoredWeights, slices: ReadonlyMap<string, Slice | null>): StoredWeights {
  const scaled = file.tensors.find((tensor) => slices.get(tensor.name) && scalesOf(file.tensors, tensor, file.path));
  if (scaled) {
    fail(
      "UnexpectedDType",
      `${file.path}: "${scaled.name}" is in ${scaled.type} with scales, whose blocks the ranks' parts may cut; save the model in bf16, or load it in one process`,
    );
  }
  const places = new Map(
    file.tensors.flatMap((tensor) => {
      const slice = slices.get(tensor.name);
      return slice ? [[tensor.name, new Place(tensor, slice)] as const] : [];
    }),
  );
  const tensors = file.tensors.flatMap((tensor) =>
    slices.get(tensor.name) === null ? [] : [places.get(tensor.name)?.tensor ?? tensor],
  );
  const readInto: StoredWeights["readInto"] = async (out, name, start, signal) => {
    const place = places.get(name);
    if (!place) return file.readInto(out, name, start, signal);
    let under: Promise<void>[] = [];
    for (const { at, from, bytes } of place.runs(start, start + out.byteLength)) {
      under.push(file.readInto(out.subarray(at, at + bytes), name, from, signal));
      if (under.length < AT_ONCE) continue;
      await Promise.all(under);
      under = [];
    }
    await Promise.all(under);
  };
  return {
    path: file.path,
    format: file.format,
    ...(file.gguf && { gguf: file.gguf }),
    metadata: file.metadata,
    tensors,
    readInto,
    readBytes: async (name, signal, range) => {
      const place = places.get(name);
      if (!place) return file.readBytes(name, signal, range);
      const { start, end }: ByteRange = range ?? { start: 0, end: place.tensor.byteLength };
      const out = new Uint8Array(end - start);
      await readInto(out, name, start, signal);
      return out;
    },
    [Symbol.asyncDispose]: () => file[Symbol.asyncDispose](),
  };
}

/** Where the bytes of a slice are in the file. */
class Place {
  readonly tensor: WeightsTensor;
  readonly #rows: readonly Rows[];
  /** Bytes of a row in the file, and of what is wanted of it. */
  readonly #stored: number;
  readonly #wanted: number;
  /** In bytes; null where rows are wanted whole. */
  readonly #columns: readonly Rows[] | null;

  constructor(tensor: WeightsTensor, { rows, columns, shape }: Slice) {
    const { byteLength } = tensor;
    const width = tensor.shape.length > 1 ? tensor.shape.at(-1)! : 1;
    const perElement = byteLength / Math.max(numel(tensor.shape), 1);
    this.#rows = rows;
    this.#columns = columns?.map(({ start, rows }) => ({ start: start * perElement, rows: rows * perElement })) ?? null;
    this.#stored = width * perElement;
    this.#wanted = this.#columns ? total(this.#columns) : this.#stored;
    // Rows that follow each other lie in the file as they are wanted.
    const [first] = rows;
    const place = tensor.place &&
      first &&
      rows.length === 1 &&
      !columns && {
        ...tensor.place,
        offset: tensor.place.offset + first.start * this.#stored,
      };
    this.tensor = { ...tensor, shape, byteLength: total(rows) * this.#wanted, place: place || undefined };
  }

  /** The pieces of the file that the bytes from `start` to `end` of the slice are, and where each belongs. */
  *runs(start: number, end: number): Generator<{ at: number; from: number; bytes: number }> {
    let before = 0;
    for (const { start: first, rows } of this.#rows) {
      const bytes = rows * this.#wanted;
      const [low, high] = [Math.max(start, before), Math.min(end, before + bytes)];
      if (low < high) yield* this.#runsOf(first, low - before, high - before, before - start);
      before += bytes;
    }
  }

  /** Of rows that follow each other from `first` on, their bytes from `low` to `high`. */
  *#runsOf(
    first: number,
    low: number,
    high: number,
    offset: number,
  ): Generator<{ at: number; from: number; bytes: number }> {
    if (!this.#columns) return yield { at: low + offset, from: first * this.#stored + low, bytes: high - low };
    for (let row = Math.floor(low / this.#wanted); row * this.#wanted < high; row++) {
      let at = row * this.#wanted;
      for (const { start, rows } of this.#columns) {
        const [from, to] = [Math.max(low, at), Math.min(high, at + rows)];
        if (from < to) {
          yield { at: from + offset, from: (first + row) * this.#stored + start + from - at, bytes: to - from };
        }
        at += rows;
      }
    }
  }
}

const total = (stretches: readonly Rows[]): number => stretches.reduce((sum, { rows }) => sum + rows, 0);
