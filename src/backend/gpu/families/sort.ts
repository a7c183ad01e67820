/** Argsort: whole rows in a block, wide ones by tiles and merges. */
import { type DType, sizeOf } from "../../../core/dtype.ts";
import { BLOCK, blocks, family, numbers } from "./family.ts";

/** The widest row that one block sorts. */
export const sortTile = (type: DType): number => (sizeOf(type) === 8 ? 2048 : 4096);

/** Threads that have a row of at most sortTile columns: a power of two, 4 columns each or, of long rows, as many as fit. */
function sortThreads(columns: number, type: DType): number {
  const padded = Math.min(sortTile(type), Math.max(128, 2 ** Math.ceil(Math.log2(columns))));
  return padded / (padded <= 1024 ? 4 : sortTile(type) / BLOCK);
}

/** The dtype of the keys that wide rows are merged by. */
export const sortKey = (type: DType): "u32" | "u64" => (sizeOf(type) === 8 ? "u64" : "u32");

export const sort = [
  family({
    file: "sort",
    pattern: "argsort_{direction}_{T}",
    over: { direction: ["asc", "desc"], T: numbers },
    args: "x* out* rows cols",
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
    launch: (s) => blocks(s.rows * Math.ceil(s.cols / 2048)),
  }),
] as const;
