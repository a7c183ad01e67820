/** Choosing tokens from logits. */
import { MOST_LOGPROBS } from "../../transformers.ts";
import { BLOCK, blocks, family, maxGrid, WIDE_BLOCK } from "./family.ts";
import { streamDefines } from "./quantized.ts";

/** Tokens of a row that one block weighs. A row has at most 1024 such pieces. */
export const SAMPLE_PIECE = 1024;
export const SAMPLE_VOCAB = SAMPLE_PIECE * 1024;
export const SAMPLE_BINS = 1024;
/** Places for the likeliest tokens of a piece, and of a row: one more than is told, for the likeliest of all is always known. */
export const SAMPLE_TOPS = MOST_LOGPROBS + 1;
/** Threads that draw from a row. */
const DRAW_BLOCK = WIDE_BLOCK;

/** Pieces of a row that a block looks for the best in: of many rows as many as it has warps. */
export const samplePieces = (rows: number): number => (rows < SAMPLE_MANY ? 1 : BLOCK / 32);
const SAMPLE_MANY = 8;

/** Whether one launch takes so many rows: these kernels have a block for each piece and do not loop. */
export const samplesAtOnce = (rows: number, vocab: number): boolean =>
  vocab <= SAMPLE_VOCAB && rows * Math.ceil(vocab / SAMPLE_PIECE) <= maxGrid(DRAW_BLOCK);

const pieces = (s: { readonly count: number; readonly vocab: number }): number =>
  s.count * Math.ceil(s.vocab / SAMPLE_PIECE);
const logits = "logits* slots* rows* best* sums* counts*";

export const sample = [
  family({
    file: "sample",
    pattern: "sample_best",
    over: {},
    args: `${logits} tops* totals* vocab stride dtype:u32 each:u32`,
    plan: "count",
    launch: (s) => blocks(s.count * Math.ceil(s.vocab / SAMPLE_PIECE / s.each)),
  }),
  family({
    file: "sample",
    pattern: "sample_weigh",
    over: {},
    args: `${logits} bins* kept* vocab stride scale:f64 dtype:u32`,
    plan: "count",
    launch: (s) => blocks(pieces(s)),
  }),
  family({
    file: "sample",
    pattern: "sample_draw",
    over: {},
    args: `${logits} bins* kept* tops* totals* tokens* told* vocab stride scale:f64 dtype:u32`,
    plan: "count",
    defines: { ...streamDefines, SAMPLE_PIECE, SAMPLE_BINS, SAMPLE_TOPS, DRAW_BLOCK },
    launch: (s) => blocks(s.count, 1, DRAW_BLOCK),
  }),
] as const;
