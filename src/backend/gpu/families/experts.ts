/** Mixtures of experts: routing, products of few rows by expert, and the sum of what experts make. */
import { sizeOf } from "../../../core/dtype.ts";
import { BLOCK, blocks, family, gridFor, perThread, quantFloats, quants } from "./family.ts";
import { streamDefines } from "./quantized.ts";

/** The most scores that a warp chooses from, and the most that it chooses. */
export const TOPK_COLUMNS = 512;
export const TOPK_MOST = 32;

const slots = "x* w* ids* bias* out* n k per_slot:u32 share:u32 experts:u32 glu:u32 splits:u32";

/** `blocks` blocks for each slot. */
const launch = (s: {
  readonly per_slot: number;
  readonly slots: number;
  readonly threads: number;
  readonly shared_bytes: number;
}) => ({ grid: gridFor(s.per_slot * s.slots, s.threads), block: s.threads, shared: s.shared_bytes });

export const experts = [
  family({
    file: "experts",
    pattern: "topk_{T}",
    over: { T: quantFloats },
    args: "x* values* ids* rows cols k:u32 softmax:u32",
    defines: { ...streamDefines, TOPK_COLUMNS },
    launch: (s) => blocks(s.rows, BLOCK / 32),
  }),
  family({
    file: "experts",
    pattern: "mix_{T}",
    over: { T: quantFloats },
    args: "y* mix* residual* out* rows width k:u32 dtype:u32",
    launch: (s, b) => perThread(s.rows * s.width, 16 / sizeOf(b.T)),
  }),
  family({
    file: "linear",
    pattern: "expert_linear_{T}",
    over: { T: quantFloats },
    args: `${slots} error*`,
    plan: "slots threads shared_bytes",
    launch,
  }),
  family({
    file: "quant-matvec",
    pattern: "expert_linear_{Q}",
    over: { Q: quants },
    args: `${slots} segment:u32 dtype:u32 error*`,
    plan: "slots threads shared_bytes",
    launch,
  }),
] as const;
