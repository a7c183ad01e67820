/** Choosing tokens from logits. */
import { blocks, type Family, type Sizes } from "./family.ts";

/** Tokens of a row that one block weighs. A row has at most 1024 such pieces. */
export const SAMPLE_PIECE = 1024;
export const SAMPLE_VOCAB = SAMPLE_PIECE * 1024;
export const SAMPLE_BINS = 1024;

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
    launch: (s) => blocks(s.rows!, 1, 1024),
  },
];
