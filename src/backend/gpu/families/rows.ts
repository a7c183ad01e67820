/** Softmax, norms, rotary embeddings and gated activations. */
import { type DType, sizeOf } from "../../../core/dtype.ts";
import { BLOCK, blocks, dtype, type Family, floats, type Launch, perThread, type Sizes } from "./family.ts";

/** Heads whose same places a thread turns, as in kernels/rope.hip. */
const ROPE_HEADS = 2;

/** `side`: bytes of one side of the pairs that a thread turns at once. */
function ropeBlocks(tables: number, heads: number, elements: number, type: DType, side: number): Launch {
  return perThread(tables * Math.ceil(heads / ROPE_HEADS) * (elements / 2), side / sizeOf(type));
}
/** Heads that share a table, where they lie outside of positions. */
const headsOf = (s: Sizes): number => (s.stride_b ? s.stride_b / s.td! : s.bh!);

/** Several short rows per block, a warp each; or a block per row. */
function wholeRows(s: Sizes): Launch {
  return s.block_size === 32 ? blocks(s.n_rows!, BLOCK / 32) : blocks(s.n_rows!, 1, s.block_size!);
}

export interface RowPlan {
  /** Threads per row. */
  readonly threads: number;
  /** "_wide" for the kernels that take more than 256 threads. */
  readonly suffix: "" | "_wide";
}

/** Threads per row of softmax and norms: as many as keep the row in registers, 64 bytes each (16 in the wide kernels). */
export function planWholeRows(columns: number, type: DType): RowPlan {
  const bytes = Math.max(1, columns * sizeOf(type));
  const threads = (each: number): number => 2 ** Math.ceil(Math.log2(bytes / each));
  if (threads(64) <= BLOCK) return { threads: Math.max(32, threads(64)), suffix: "" };
  return { threads: Math.min(1024, Math.max(512, threads(16))), suffix: "_wide" };
}

export const rows: readonly Family[] = [
  {
    file: "softmax",
    pattern: "{op}_{T}",
    over: { op: ["softmax", "softmax_wide", "log_softmax", "log_softmax_wide"], T: floats },
    args: "src* dst* n_cols n_rows block_size:u32",
    launch: wholeRows,
  },
  {
    file: "norm",
    pattern: "rmsnorm{wide}_{T}",
    over: { wide: ["", "_wide"], T: floats },
    args: "src* dst* alpha* n_cols block_size:u32 eps:f64 n_rows",
    launch: wholeRows,
  },
  {
    file: "norm",
    pattern: "layernorm{wide}_{T}",
    over: { wide: ["", "_wide"], T: floats },
    args: "src* dst* alpha* beta* n_cols block_size:u32 eps:f64 n_rows",
    launch: wholeRows,
  },
  {
    file: "norm",
    pattern: "add_rmsnorm{wide}_{T}",
    over: { wide: ["", "_wide"], T: floats },
    args: "src* residual* sum* dst* alpha* n_cols block_size:u32 eps:f64 n_rows",
    launch: wholeRows,
  },
  {
    file: "rope",
    pattern: "rope_i_{T}",
    over: { T: floats },
    args: "src* cos* sin* dst* bh td stride_b d table_stride",
    launch: (s, b) => ropeBlocks(s.bh! / headsOf(s), headsOf(s), s.td!, dtype(b), 8),
  },
  {
    file: "rope",
    pattern: "rope_{T}",
    over: { T: floats },
    args: "src* cos* sin* dst* bh td d stride_b table_stride",
    launch: (s, b) => ropeBlocks(s.bh! / headsOf(s), headsOf(s), s.td!, dtype(b), 16),
  },
  {
    file: "rope",
    pattern: "rope_thd_{T}",
    over: { T: floats },
    args: "src* cos* sin* dst* b t h d stride_b table_stride",
    launch: (s, b) => ropeBlocks(s.b!, s.h!, s.t! * s.d!, dtype(b), 16),
  },
  {
    file: "glu",
    pattern: "{op}_{T}",
    over: { op: ["swiglu", "geglu"], T: floats },
    args: "gate* up* dst* rows width row_stride",
    launch: (s, b) => perThread(s.rows! * s.width!, 16 / sizeOf(dtype(b))),
  },
];
