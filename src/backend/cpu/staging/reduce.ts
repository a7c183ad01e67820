/**
 * Rows that are too long to be in the heap: parts of them are reduced first, and what they give after that. Sums of floats
 * are f64 until then.
 */
import { type DType, decode, encode, isFloat, sizeOf } from "../../../core/dtype.ts";
import { fail } from "../../../core/errors.ts";
import { Layout, numel } from "../../../core/layout.ts";
import type { ReduceOp, View } from "../../backend.ts";
import { Storage } from "../../storage.ts";
import type { MemoryBackend } from "../memory-backend.ts";
import { stagedBytes } from "./stage.ts";

/** Rows of so many pieces are still reduced in one go, as they would be in the heap. */
const LONG = 16;

/** Null where rows are short enough to be reduced as they are. */
export function reduceLongRows(
  backend: MemoryBackend,
  op: ReduceOp,
  x: View,
  dims: number,
  pieceBytes: number,
): Storage | null {
  const { storage, layout } = x;
  const { dtype } = storage;
  const lead = layout.shape.slice(0, layout.rank - dims);
  const columns = numel(layout.shape.slice(layout.rank - dims));
  if (columns * sizeOf(dtype) <= LONG * pieceBytes) return null;
  const isArg = op === "argmin" || op === "argmax";
  if (isArg && columns > 2 ** 32) {
    fail("InvalidShape", `cpu: ${op} gives u32, which cannot name one of ${columns} elements; reduce fewer at a time`);
  }
  const results = backend.inHeap(() => Storage.alloc(backend, isArg ? "u32" : dtype, numel(lead)));
  try {
    for (let row = 0; row < numel(lead); row++) {
      const parts = [...rangesOf({ storage, layout: rowAt(layout, lead, row) }, pieceBytes)];
      const result = backend.inHeap(() => (isArg ? argOf(backend, op, parts) : foldOf(backend, op, parts)));
      backend.copy(first(result), { storage: results, layout: Layout.contiguous([1], row) });
      result.discard();
    }
  } catch (error) {
    results.discard();
    throw error;
  }
  return results;
}

const first = (storage: Storage): View => ({ storage, layout: Layout.contiguous([1]) });

function rowAt(layout: Layout, lead: readonly number[], row: number): Layout {
  const { shape, strides } = layout;
  let offset = layout.offset;
  for (let d = lead.length - 1; d >= 0; d--) {
    offset += (row % lead[d]!) * strides[d]!;
    row = Math.floor(row / lead[d]!);
  }
  return new Layout(shape.slice(lead.length), strides.slice(lead.length), offset);
}

/** Parts of a view that follow each other in its order. */
function* rangesOf(view: View, limit: number, dim = 0): Generator<View> {
  const { storage, layout } = view;
  if (stagedBytes(view) <= limit || dim === layout.rank) return yield view;
  const size = layout.shape[dim]!;
  if (size === 1) return yield* rangesOf(view, limit, dim + 1);
  const half = Math.ceil(size / 2);
  yield* rangesOf({ storage, layout: layout.narrow(dim, 0, half) }, limit, dim);
  yield* rangesOf({ storage, layout: layout.narrow(dim, half, size - half) }, limit, dim);
}

/** One element. */
function foldOf(backend: MemoryBackend, op: ReduceOp, parts: readonly View[]): Storage {
  const { dtype } = parts[0]!.storage;
  const wide = op === "sum" && isFloat(dtype) ? "f64" : dtype;
  const values = gathered(backend, wide, parts, (part) => {
    if (wide === dtype) return backend.reduce(op, part, part.layout.rank);
    const widened = backend.cast(part, wide);
    const all = { storage: widened, layout: Layout.contiguous([part.layout.numel]) };
    try {
      return backend.reduce(op, all, 1);
    } finally {
      widened.discard();
    }
  });
  const result = backend.reduce(op, { storage: values, layout: Layout.contiguous([parts.length]) }, 1);
  values.discard();
  if (wide === dtype) return result;
  const rounded = backend.cast(first(result), dtype);
  result.discard();
  return rounded;
}

/** Where the best of the parts' best is, as u32. */
function argOf(backend: MemoryBackend, op: "argmin" | "argmax", parts: readonly View[]): Storage {
  const extreme = op === "argmin" ? "min" : "max";
  const { dtype } = parts[0]!.storage;
  const values = gathered(backend, dtype, parts, (part) => backend.reduce(extreme, part, part.layout.rank));
  const best = backend.reduce(op, { storage: values, layout: Layout.contiguous([parts.length]) }, 1);
  const [part] = decode(backend.readSync(best, 0, 4), "u32") as Uint32Array;
  for (const used of [values, best]) used.discard();
  const within = backend.reduce(op, parts[part!]!, parts[part!]!.layout.rank);
  const [place] = decode(backend.readSync(within, 0, 4), "u32") as Uint32Array;
  const before = parts.slice(0, part).reduce((sum, { layout }) => sum + layout.numel, 0);
  backend.write(within, 0, encode([before + place!], "u32"));
  return within;
}

/** What each part gives, one behind the other. */
function gathered(
  backend: MemoryBackend,
  dtype: DType,
  parts: readonly View[],
  each: (part: View) => Storage,
): Storage {
  const values = Storage.alloc(backend, dtype, parts.length);
  for (const [i, part] of parts.entries()) {
    const value = each(part);
    backend.copy(first(value), { storage: values, layout: Layout.contiguous([1], i) });
    value.discard();
  }
  return values;
}
