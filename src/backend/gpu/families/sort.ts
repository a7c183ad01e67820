/** Argsort: whole rows in a block, wide ones by tiles and merges. */
import { type DType, sizeOf } from "../../../core/dtype.ts";
import { BLOCK, blocks, dtype, type Family, numbers } from "./family.ts";

/** The widest row that one block sorts. */
export const sortTile = (type: DType): number => (sizeOf(type) === 8 ? 2048 : 4096);

/** `ncols_pad` for a row of at most sortTile columns: a power of two, at least 4 columns for each of 32 threads. */
export const sortPad = (columns: number): number => Math.max(128, 2 ** Math.ceil(Math.log2(columns)));

const sortItems = (padded: number, type: DType): number => (padded <= 1024 ? 4 : sortTile(type) / BLOCK);

/** The dtype of the keys that wide rows are merged by. */
export const sortKey = (type: DType): "u32" | "u64" => (sizeOf(type) === 8 ? "u64" : "u32");

export const sort: readonly Family[] = [
  {
    file: "sort",
    pattern: "asort_{direction}_{T}",
    over: { direction: ["asc", "desc"], T: numbers },
    args: "x* dst* ncols:i32 ncols_pad:i32 rows",
    launch: (s, b) => blocks(s.rows!, 1, s.ncols_pad! / sortItems(s.ncols_pad!, dtype(b))),
  },
  {
    file: "sort",
    pattern: "asort_tile_{direction}_{T}",
    over: { direction: ["asc", "desc"], T: numbers },
    args: "x* keys_out* dst* ncols rows",
    launch: (s, b) => blocks(s.rows! * Math.ceil(s.ncols! / sortTile(dtype(b)))),
  },
  {
    file: "sort",
    pattern: "asort_merge_{K}",
    over: { K: ["u32", "u64"] },
    args: "rows ncols run keys_in* index_in* keys_out* index_out*",
    launch: (s) => blocks(s.rows! * Math.ceil(s.ncols! / 2048)),
  },
];
