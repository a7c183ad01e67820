/** Linear layers of up to 16 rows of halves with quantized weights, as decoding several texts at once has them, on mma.sync. */
import { type QuantType, quantTypes } from "../../../core/quant-types.ts";
import { sharedBudget, unitDefines } from "../attention-plan.ts";
import { family, gridFor, quants } from "./family.ts";
import { quantOrders } from "./quant-wide.ts";
import { streamDefines } from "./quantized.ts";

/** Rows of x, those that kernels for few rows (linear.ts) are faster with, and warps of a block at most. */
export const QUANT_BATCH_ROWS = 16;
export const QUANT_BATCH_FEW = 4;
const QUANT_BATCH_WARPS = 16;
/** Weights of a row that come at once: of types with less than eight bits, and of others. */
const QUANT_BATCH_CHUNK = 512;
const QUANT_BATCH_FINE = 256;
/** Places of a warp's chunks. */
const QUANT_BATCH_PLACES = 2;
/** Rows of weights that a warp takes at a time. */
const LINES = 16;

export interface QuantBatchPlan {
  /** Floats for what several blocks of a share add up. */
  readonly scratch: number;
  readonly launch: {
    readonly threads: number;
    /** Warps that share the depth of 16 rows of weights, and blocks that do. */
    readonly splits: number;
    readonly parts: number;
    readonly blocks: number;
    readonly shared_bytes: number;
  };
}

/** x (rows, k) · wᵀ (n, k), as kernels/quant-batch.h goes about it. */
export function planQuantBatch(
  { n, k }: { readonly n: number; readonly k: number },
  type: QuantType,
  { multiprocessors, arch }: { readonly multiprocessors: number; readonly arch: string },
): QuantBatchPlan {
  const width = QUANT_BATCH_ROWS;
  const { size: elements, bytes } = quantTypes[type];
  const align = [16, 4, 2, 1].find((unit) => bytes % unit === 0)!;
  const chunk = bytes >= elements ? QUANT_BATCH_FINE : QUANT_BATCH_CHUNK;
  const stage = LINES * (Math.floor(((chunk / elements) * bytes + 31 - align) / 16) | 1) * 16;
  const budget = sharedBudget(arch);
  const groups = Math.ceil(n / LINES);
  const chunks = Math.ceil(k / chunk);
  let best: QuantBatchPlan | null = null;
  let least = Number.POSITIVE_INFINITY;
  for (let parts = 1; parts <= Math.min(chunks, multiprocessors); parts++) {
    if (parts > MOST_PARTS && best) break;
    const most = Math.ceil(chunks / parts);
    const x = 2 * width * (most * chunk + 32) + 4 * 32;
    for (let splits = 1; splits <= Math.min(most, QUANT_BATCH_WARPS); splits *= 2) {
      for (let together = 1; together * splits <= QUANT_BATCH_WARPS; together++) {
        const warps = together * splits;
        const shared = x + warps * (QUANT_BATCH_PLACES * stage + (splits > 1 ? 4 * LINES * width : 0));
        // Static shared memory and the alignment of the rest take a little of it.
        if (shared > budget - 2048) continue;
        const sets = Math.ceil(groups / together);
        const rounds = Math.ceil(sets / Math.max(1, Math.floor(multiprocessors / parts)));
        const busy = Math.max(Math.ceil(warps / SCHEDULERS) * SCHEDULERS, ENOUGH_WARPS);
        const cost =
          rounds * ((Math.ceil(most / splits) * busy * chunk) / QUANT_BATCH_CHUNK + ROUND_COST) +
          PART_COST * (parts - 1) +
          (splits > 1 ? SPLIT_COST : 0) +
          (X_COST * most * chunk) / QUANT_BATCH_CHUNK;
        if (cost > least) continue;
        least = cost;
        const blocks = Math.ceil(sets / rounds) * parts;
        // More than half of it, so that blocks which begin while others end do not gather where there is room.
        const shared_bytes = Math.max(shared, budget / 2);
        const scratch = parts === 1 ? 0 : parts * groups * LINES * width;
        best = { scratch, launch: { threads: 32 * warps, splits, parts, blocks, shared_bytes } };
      }
    }
  }
  return best!;
}

/** What takes time, in chunks of a warp, measured: warps go by fours, as a multiprocessor has so many schedulers, and two for each are few. */
const SCHEDULERS = 4;
const ENOUGH_WARPS = 8;
const ROUND_COST = 7;
const PART_COST = 1;
const SPLIT_COST = 2;
const X_COST = 3.2;
const MOST_PARTS = 8;

export const quantBatch = [
  family({
    file: "quant-batch",
    pattern: "quant_batch_{Q}",
    over: { Q: quants },
    args: "x* w* bias* residual* out* sums* counters* n k batch:u32 glu:u32 splits:u32 parts:u32 dtype:u32",
    plan: "blocks threads shared_bytes",
    defines: {
      ...{ ...streamDefines, ...unitDefines, QUANT_BATCH_ROWS, QUANT_BATCH_WARPS, QUANT_BATCH_CHUNK, QUANT_BATCH_FINE },
      ...{ QUANT_BATCH_PLACES, ...quantOrders },
    },
    launch: (s) => ({ grid: gridFor(s.blocks, s.threads), block: s.threads, shared: s.shared_bytes }),
  }),
] as const;
