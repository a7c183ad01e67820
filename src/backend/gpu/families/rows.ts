/** Softmax, norms, rotary embeddings and gated activations. */
import { type DType, sizeOf } from "../../../core/dtype.ts";
import { BLOCK, blocks, family, floats, type Launch, perThread, WIDE_BLOCK } from "./family.ts";

/** Heads whose same places a thread turns. */
const ROPE_HEADS = 2;
/** Bytes of one side of the pairs that a thread turns at once, half as many where the sides are interleaved. */
const ROPE_SIDE = 16;
const ropeDefines = { ROPE_HEADS, ROPE_SIDE };

interface RopeSizes {
  readonly batch: number;
  readonly heads: number;
  readonly positions: number;
  readonly d: number;
}
const ropeBlocks = ({ batch, heads, positions, d }: RopeSizes, type: DType, side: number): Launch =>
  perThread(batch * Math.ceil(heads / ROPE_HEADS) * positions * (d / 2), side / sizeOf(type));

/** Several short rows per block, a warp each; or a block per row. */
const wholeRows = (s: { readonly rows: number; readonly row_threads: number }): Launch =>
  s.row_threads === 32 ? blocks(s.rows, BLOCK / 32) : blocks(s.rows, 1, s.row_threads);

export interface RowPlan {
  /** Threads per row. */
  readonly threads: number;
  /** "_wide" for the kernels that take more than 256 threads. */
  readonly suffix: "" | "_wide";
}

/** Vectors of 16 bytes that a thread keeps in registers; in the wide kernels it has one at least, and keeps none. */
const ROW_VECTORS = 4;

/** Threads per row of softmax and norms: as many as keep the row in registers. */
export function planWholeRows(columns: number, type: DType): RowPlan {
  const bytes = Math.max(1, columns * sizeOf(type));
  const threads = (each: number): number => 2 ** Math.ceil(Math.log2(bytes / each));
  const kept = threads(ROW_VECTORS * 16);
  if (kept <= BLOCK) return { threads: Math.max(32, kept), suffix: "" };
  return { threads: Math.min(WIDE_BLOCK, Math.max(2 * BLOCK, threads(16))), suffix: "_wide" };
}

/** The epilogue kernel's numbers of activations; 0 is none. */
export const epilogueActivations = { silu: 1, gelu: 2, geluErf: 3, relu: 4 } as const;
const epilogueDefines = {
  EPILOGUE_SILU: epilogueActivations.silu,
  EPILOGUE_GELU: epilogueActivations.gelu,
  EPILOGUE_GELU_ERF: epilogueActivations.geluErf,
  EPILOGUE_RELU: epilogueActivations.relu,
};

const ropeArgs = "x* cos* sin* out* batch heads positions d table_stride";

export const rows = [
  family({
    file: "softmax",
    pattern: "{op}{wide}_{T}",
    over: { op: ["softmax", "log_softmax"], wide: ["", "_wide"], T: floats },
    args: "x* out* rows cols row_threads:u32",
    defines: { ROW_VECTORS },
    launch: wholeRows,
  }),
  family({
    file: "norm",
    pattern: "rmsnorm{wide}_{T}",
    over: { wide: ["", "_wide"], T: floats },
    args: "x* alpha* out* rows cols eps:f64 row_threads:u32",
    defines: { ROW_VECTORS },
    launch: wholeRows,
  }),
  family({
    file: "norm",
    pattern: "layernorm{wide}_{T}",
    over: { wide: ["", "_wide"], T: floats },
    args: "x* alpha* beta* out* rows cols eps:f64 row_threads:u32",
    defines: { ROW_VECTORS },
    launch: wholeRows,
  }),
  family({
    file: "norm",
    pattern: "add_rmsnorm{wide}_{T}",
    over: { wide: ["", "_wide"], T: floats },
    args: "x* residual* alpha* sum* out* rows cols eps:f64 row_threads:u32",
    defines: { ROW_VECTORS },
    launch: wholeRows,
  }),
  family({
    file: "rope",
    pattern: "rope_i_{T}",
    over: { T: floats },
    args: ropeArgs,
    defines: ropeDefines,
    launch: (s, b) => ropeBlocks(s, b.T, ROPE_SIDE / 2),
  }),
  family({
    file: "rope",
    pattern: "rope{thd}_{T}",
    over: { thd: ["", "_thd"], T: floats },
    apart: ["thd"],
    args: ropeArgs,
    defines: ropeDefines,
    launch: (s, b) => ropeBlocks(s, b.T, ROPE_SIDE),
  }),
  family({
    file: "glu",
    pattern: "{op}_{T}",
    over: { op: ["swiglu", "geglu", "clamped_swiglu"], T: floats },
    args: "gate* up* out* rows width row_stride",
    launch: (s, b) => perThread(s.rows * s.width, 16 / sizeOf(b.T)),
  }),
  family({
    file: "epilogue",
    pattern: "epilogue_{T}",
    over: { T: floats },
    args: "y* bias* residual* out* rows cols act:u32",
    defines: epilogueDefines,
    launch: (s, b) => perThread(s.rows * s.cols, 16 / sizeOf(b.T)),
  }),
] as const;
