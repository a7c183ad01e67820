/** Products of 9 to 16 rows of halves with quantized weights, as decoding several texts at once has them, on mma.sync. */
import { type QuantType, quantTypes } from "../../../core/quant-types.ts";
import { sharedBudget, unitDefines } from "../attention-plan.ts";
import { family, gridFor, quants } from "./family.ts";
import { QUANT_FAR, QUANT_NEAR, streamDefines } from "./quantized.ts";

/** Rows of x, and warps of a block. */
export const QUANT_BATCH_ROWS = 16;
const QUANT_BATCH_WARPS = 16;
/** Rows of weights that a warp multiplies. */
const LINES = 16;

export interface QuantBatchPlan {
  /** Warps that share the depth of 16 rows of weights. */
  readonly splits: number;
  /** Weights of a row that come at once. */
  readonly chunk: number;
  readonly blocks: number;
  readonly shared_bytes: number;
}

/** x (rows, k) · wᵀ (n, k), as kernels/quant-batch.h goes about it. */
export function planQuantBatch(
  { n, k }: { readonly n: number; readonly k: number },
  type: QuantType,
  { multiprocessors, arch }: { readonly multiprocessors: number; readonly arch: string },
): QuantBatchPlan {
  const { size, bytes } = quantTypes[type];
  const align = [16, 4, 2, 1].find((unit) => bytes % unit === 0)!;
  const chunks = size < QUANT_NEAR && bytes >= size ? [QUANT_FAR, QUANT_NEAR] : [QUANT_FAR];
  const plans = chunks.flatMap((chunk) =>
    [1, 2, 4, 8, 16].map((splits) => {
      const vectors = Math.floor(((chunk / size) * bytes + 31 - align) / 16) | 1;
      const tiles = Math.ceil(Math.ceil(n / LINES) / (QUANT_BATCH_WARPS / splits));
      const x = 4 * QUANT_BATCH_ROWS * (splits * chunk + 16);
      const shared_bytes = Math.max(x + QUANT_BATCH_WARPS * 2 * LINES * vectors * 16, QUANT_BATCH_WARPS * 1024);
      const time = Math.ceil(k / (splits * chunk)) * (chunk === QUANT_FAR ? 1 : NEAR_COST);
      const cost = Math.ceil(tiles / multiprocessors) * (time + ROUND_COST);
      return { splits, chunk, blocks: Math.min(tiles, multiprocessors), shared_bytes, cost };
    }),
  );
  // Static shared memory and the alignment of the rest take a little of it.
  const fitting = plans.filter(({ shared_bytes }) => shared_bytes <= sharedBudget(arch) - 2048);
  const { cost: _, ...best } = fitting.reduce((least, plan) => (plan.cost < least.cost ? plan : least));
  return best;
}

/** What begins and ends a round, and what a near chunk takes, in far chunks: measured. */
const ROUND_COST = 2;
const NEAR_COST = 0.6;

export const quantBatch = [
  family({
    file: "quant-batch",
    pattern: "quant_batch_{Q}_{T}",
    over: { Q: quants, T: ["bf16", "f16"] },
    apart: ["T"],
    args: "x* w* out* rows n k splits:u32 chunk:u32",
    plan: "blocks shared_bytes",
    defines: {
      ...{ ...streamDefines, ...unitDefines, QUANT_FAR, QUANT_NEAR, QUANT_BATCH_ROWS, QUANT_BATCH_WARPS },
    },
    launch: (s) => ({
      grid: gridFor(s.blocks, QUANT_BATCH_WARPS * 32),
      block: QUANT_BATCH_WARPS * 32,
      shared: s.shared_bytes,
    }),
  }),
] as const;
