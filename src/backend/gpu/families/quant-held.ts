/** Linear layers of up to 16 rows of halves with quantized weights whose rows are whole pieces of 256, on mma.sync with x in registers. */
import { type QuantType, quantTypes } from "../../../core/quant-types.ts";
import { sharedBudget, unitDefines } from "../attention-plan.ts";
import { family, gridFor } from "./family.ts";
import { streamDefines } from "./quantized.ts";

/** Rows of x, and warps of a block at most. */
const QUANT_HELD_ROWS = 16;
const QUANT_HELD_WARPS = 16;
/** Boxes on their way to a warp: of pieces of up to 256 bytes, and of others. */
const QUANT_HELD_PLACES = 4;
const QUANT_HELD_WIDE_PLACES = 2;
/** Rows of weights that are multiplied at a time; weights of a piece; bytes of shared memory that a warp has for x and sums. */
const LINES = 16;
const PIECE = 256;
const STAGE = 4096;

/** Types that have such kernels (kernels/quant-pieces.h). */
const held = { Q8_0: "q8_0", Q4_0: "q4_0" } as const;
type HeldType = keyof typeof held;
export const heldQuants = Object.values(held);

export interface QuantHeldPlan {
  readonly kernel: `quant_held_${(typeof held)[HeldType]}`;
  /** Floats for what several blocks of a share add up. */
  readonly scratch: number;
  /** The pieces of a row and the rows of a box of them. */
  readonly boxes: { readonly pieces: number; readonly pieceBytes: number; readonly lines: number };
  readonly launch: {
    readonly threads: number;
    /** Warps that share the depth of 16 rows of weights, and blocks that do. */
    readonly splits: number;
    readonly parts: number;
    readonly blocks: number;
    readonly shared_bytes: number;
  };
}

/** x (rows, k) · wᵀ (n, k), as kernels/quant-held.h goes about it; null for other types and depths. */
export function planQuantHeld(
  { n, k }: { readonly n: number; readonly k: number },
  type: QuantType,
  { multiprocessors, arch }: { readonly multiprocessors: number; readonly arch: string },
): QuantHeldPlan | null {
  if (!(type in held) || k % PIECE !== 0) return null;
  const { size, bytes } = quantTypes[type];
  const pieces = k / PIECE;
  const pieceBytes = (PIECE / size) * bytes;
  const places = pieceBytes > PIECE ? QUANT_HELD_WIDE_PLACES : QUANT_HELD_PLACES;
  const budget = sharedBudget(arch);
  const warpBytes = STAGE + places * LINES * pieceBytes;
  const most = Math.min(QUANT_HELD_WARPS, Math.floor((budget - 2048) / warpBytes));
  const groups = Math.ceil(n / LINES);
  let best: QuantHeldPlan | null = null;
  let least = Number.POSITIVE_INFINITY;
  for (let parts = Math.ceil(pieces / most); parts <= Math.min(pieces, multiprocessors); parts++) {
    if (parts > MOST_PARTS && best) break;
    const splits = Math.ceil(pieces / parts);
    for (let together = 1; together * splits <= most; together++) {
      const warps = together * splits;
      const sets = Math.ceil(groups / together);
      const rounds = Math.ceil(sets / Math.max(1, Math.floor(multiprocessors / parts)));
      const busy = Math.max(Math.ceil(warps / SCHEDULERS) * SCHEDULERS, ENOUGH_WARPS);
      const cost = rounds * (busy + ROUND_COST) + PART_COST * (parts - 1) + X_COST * splits;
      if (cost > least) continue;
      least = cost;
      const blocks = Math.ceil(sets / rounds) * parts;
      // More than half of it, so that blocks which begin while others end do not gather where there is room.
      const shared_bytes = Math.max(warps * warpBytes, budget / 2);
      const scratch = parts === 1 ? 0 : parts * groups * LINES * QUANT_HELD_ROWS;
      best = {
        kernel: `quant_held_${held[type as HeldType]}`,
        scratch,
        boxes: { pieces, pieceBytes, lines: LINES },
        launch: { threads: 32 * warps, splits, parts, blocks, shared_bytes },
      };
    }
  }
  return best;
}

/** What takes time, in pieces of a warp: warps go by fours, as a multiprocessor has so many schedulers, and two for each are few. */
const SCHEDULERS = 4;
const ENOUGH_WARPS = 8;
const ROUND_COST = 2;
const PART_COST = 8;
const X_COST = 2;
const MOST_PARTS = 8;

export const quantHeld = [
  family({
    file: "quant-held",
    pattern: "quant_held_{Q}",
    over: { Q: heldQuants },
    args: "x* w* map* bias* residual* out* sums* counters* n k batch:u32 glu:u32 splits:u32 parts:u32 dtype:u32",
    plan: "blocks threads shared_bytes",
    defines: {
      ...{ ...streamDefines, ...unitDefines, QUANT_HELD_ROWS, QUANT_HELD_WARPS },
      ...{ QUANT_HELD_PLACES, QUANT_HELD_WIDE_PLACES },
    },
    launch: (s) => ({ grid: gridFor(s.blocks, s.threads), block: s.threads, shared: s.shared_bytes }),
  }),
] as const;
