/** Argsort: whole rows in a block, wide ones by tiles and merges. */
import { type DType, sizeOf } from "../../../core/dtype.ts";
import { BLOCK, blocks, family, numbers } from "./family.ts";

/** Columns that a thread sorts, half as many of 8 bytes each; those of a short row, and those that it merges. */
const SORT_ITEMS = 16;
const SORT_FEW_ITEMS = 4;
const MERGE_ITEMS = 8;

const itemsOf = (type: DType): number => (sizeOf(type) === 8 ? SORT_ITEMS / 2 : SORT_ITEMS);
/** The widest row that one block sorts. */
export const sortTile = (type: DType): number => BLOCK * itemsOf(type);

/** Threads that have a row of at most sortTile columns: a power of two, at least a warp. */
function sortThreads(columns: number, type: DType): number {
  const padded = Math.min(sortTile(type), Math.max(32 * SORT_FEW_ITEMS, 2 ** Math.ceil(Math.log2(columns))));
  return padded / (padded <= BLOCK * SORT_FEW_ITEMS ? SORT_FEW_ITEMS : itemsOf(type));
}

/** The dtype of the keys that wide rows are merged by. */
export const sortKey = (type: DType): "u32" | "u64" => (sizeOf(type) === 8 ? "u64" : "u32");

export const sort = [
  family({
    file: "sort",
    pattern: "argsort_{direction}_{T}",
    over: { direction: ["asc", "desc"], T: numbers },
    args: "x* out* rows cols",
    defines: { SORT_ITEMS, SORT_FEW_ITEMS },
    launch: (s, b) => blocks(s.rows, 1, sortThreads(s.cols, b.T)),
  }),
  family({
    file: "sort",
    pattern: "argsort_tile_{direction}_{T}",
    over: { direction: ["asc", "desc"], T: numbers },
    args: "x* keys_out* index_out* rows cols",
    launch: (s, b) => blocks(s.rows * Math.ceil(s.cols / sortTile(b.T))),
  }),
  family({
    file: "sort",
    pattern: "argsort_merge_{K}",
    over: { K: ["u32", "u64"] },
    args: "keys_in* index_in* keys_out* index_out* rows cols run",
    defines: { MERGE_ITEMS },
    launch: (s) => blocks(s.rows * Math.ceil(s.cols / (BLOCK * MERGE_ITEMS))),
  }),
] as const;
