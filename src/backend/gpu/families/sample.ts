/** Choosing tokens from logits. */
import { blocks, type Family, maxGrid, type Sizes } from "./family.ts";

/** Tokens of a row that one block weighs. A row has at most 1024 such pieces. */
export const SAMPLE_PIECE = 1024;
export const SAMPLE_VOCAB = SAMPLE_PIECE * 1024;
export const SAMPLE_BINS = 1024;
/** Threads that draw from a row. */
const DRAW_BLOCK = 1024;

/** Whether one launch takes so many rows: these kernels have a block for each piece and do not loop. */
export const samplesAtOnce = (rows: number, vocab: number): boolean =>
  vocab <= SAMPLE_VOCAB && rows * Math.ceil(vocab / SAMPLE_PIECE) <= maxGrid(DRAW_BLOCK);

const pieces = (s: Sizes): number => s.rows! * Math.ceil(s.vocab! / SAMPLE_PIECE);
const input = "vocab rows stride logits* sequences* seen* best* sums* counts*";

export const sample: readonly Family[] = [
  {
    file: "sample",
    pattern: "sample_best",
    over: {},
    args: input,
    launch: (s) => blocks(pieces(s)),
  },
  {
    file: "sample",
    pattern: "sample_weigh",
    over: {},
    args: `${input} scale:f64 falls* bins* kept*`,
    launch: (s) => blocks(pieces(s)),
  },
  {
    file: "sample",
    pattern: "sample_draw",
    over: {},
    args: "vocab rows sequences* seen* best* sums* counts* scale:f64 falls* bins* kept* ids*",
    launch: (s) => blocks(s.rows!, 1, DRAW_BLOCK),
  },
];
