/** Reductions over rows and columns, running sums. */
import { type DType, sizeOf } from "../../../core/dtype.ts";
import { reduceOps } from "../../backend.ts";
import { BLOCK, blocks, family, numbers, rowBlocks } from "./family.ts";

const powerOfTwoUpTo = (x: number): number => 2 ** Math.floor(Math.log2(Math.max(1, x)));

/** Threads that fill a large device. */
const ENOUGH_THREADS = 2 ** 18;

export interface ReducePlan {
  /** Threads per row, or side by side along the columns. */
  readonly threads: number;
  /** Parts of each row that are reduced by themselves and joined by a second launch. */
  readonly pieces: number;
}

/** How to reduce `rows` rows of `length` elements each: a few lanes, a warp, a block or several blocks per row. */
export function planRows(rows: number, length: number, type: DType): ReducePlan {
  const vectors = Math.ceil((length * sizeOf(type)) / 16);
  let threads = Math.min(32, powerOfTwoUpTo(vectors / 4));
  while (threads < BLOCK && rows * threads < ENOUGH_THREADS && vectors / threads > 4) threads *= 2;
  const missing = Math.floor(ENOUGH_THREADS / (rows * threads));
  const pieces = Math.min(missing, Math.floor(vectors / (threads * 16)));
  return { threads, pieces: threads === BLOCK && pieces > 1 ? pieces : 1 };
}

/** How to reduce `outer` × `inner` columns of `length` elements each, where neighbouring columns are neighbours in memory. */
export function planColumns(outer: number, length: number, inner: number, type: DType): ReducePlan {
  const wide = Math.ceil(inner / columnsPerThread(type));
  const threads = Math.min(32, 2 ** Math.ceil(Math.log2(wide)));
  const tiles = outer * Math.ceil(wide / threads);
  const rounds = Math.ceil(length / (BLOCK / threads));
  const pieces = Math.min(Math.floor(ENOUGH_THREADS / BLOCK / tiles), Math.floor(rounds / 16));
  return { threads, pieces: Math.max(1, pieces) };
}

/** Columns that a thread reduces at most: each has an accumulator of its own. */
const REDUCE_COLUMNS = 8;
const columnsPerThread = (type: DType): number => Math.min(REDUCE_COLUMNS, 16 / sizeOf(type));

/** Bytes of one partial result of a reduction that is cut into pieces. */
export function partialBytes(op: string, type: DType): number {
  const value = Math.max(4, sizeOf(type));
  return op.startsWith("arg") ? 2 * value : value;
}

export const reduce = [
  family({
    file: "reduce",
    pattern: "{op}_{T}",
    over: { op: reduceOps, T: numbers },
    args: "x* out* partial* rows length num_dims info* row_threads:u32 pieces:u32",
    launch: (s) => rowBlocks(s.rows * s.pieces, s.row_threads),
  }),
  family({
    file: "reduce",
    pattern: "{op}_cols_{T}",
    over: { op: reduceOps, T: numbers },
    args: "x* out* partial* outer length inner outer_stride length_stride col_threads:u32 pieces:u32",
    defines: { REDUCE_COLUMNS },
    launch: (s, b) => blocks(s.outer * s.pieces * Math.ceil(s.inner / (s.col_threads * columnsPerThread(b.T)))),
  }),
  family({
    file: "reduce",
    pattern: "{op}_join_{T}",
    over: { op: reduceOps, T: numbers },
    args: "partial* out* rows inner pieces:u32",
    launch: (s) => rowBlocks(s.rows, 32),
  }),
  family({
    file: "reduce",
    pattern: "cumsum_{T}",
    over: { T: numbers },
    args: "x* out* rows cols",
    launch: (s) => blocks(s.rows),
  }),
] as const;
