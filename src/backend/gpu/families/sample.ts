/** Choosing tokens from logits. */
import { blocks, family, maxGrid, WIDE_BLOCK } from "./family.ts";

/** Tokens of a row that one block weighs. A row has at most 1024 such pieces. */
export const SAMPLE_PIECE = 1024;
export const SAMPLE_VOCAB = SAMPLE_PIECE * 1024;
export const SAMPLE_BINS = 1024;
/** Threads that draw from a row. */
const DRAW_BLOCK = WIDE_BLOCK;

/** Whether one launch takes so many rows: these kernels have a block for each piece and do not loop. */
export const samplesAtOnce = (rows: number, vocab: number): boolean =>
  vocab <= SAMPLE_VOCAB && rows * Math.ceil(vocab / SAMPLE_PIECE) <= maxGrid(DRAW_BLOCK);

const pieces = (s: { readonly rows: number; readonly vocab: number }): number =>
  s.rows * Math.ceil(s.vocab / SAMPLE_PIECE);
const logits = "logits* sequences* seen* best* sums* counts*";

export const sample = [
  family({
    file: "sample",
    pattern: "sample_best",
    over: {},
    args: `${logits} vocab stride`,
    plan: "rows",
    launch: (s) => blocks(pieces(s)),
  }),
  family({
    file: "sample",
    pattern: "sample_weigh",
    over: {},
    args: `${logits} falls* bins* kept* vocab stride scale:f64`,
    plan: "rows",
    launch: (s) => blocks(pieces(s)),
  }),
  family({
    file: "sample",
    pattern: "sample_draw",
    over: {},
    args: "sequences* seen* best* sums* counts* falls* bins* kept* out* vocab scale:f64",
    plan: "rows",
    defines: { SAMPLE_PIECE, SAMPLE_BINS, DRAW_BLOCK },
    launch: (s) => blocks(s.rows, 1, DRAW_BLOCK),
  }),
] as const;
