/** Linear layers of up to 16 rows of halves with quantized weights whose rows are whole pieces of 256, as decoding several texts at once has them. */
import type { DType } from "../../../core/dtype.ts";
import { type QuantType, quantTypes } from "../../../core/quant-types.ts";
import { MAX_COUNTERS, sharedBudget } from "../attention-plan.ts";
import { family, gridFor } from "./family.ts";
import { productDefines } from "./product.ts";
import { planOrder, QUANT_ORDER_BLOCK, type QuantOrderPlan, quantOrders } from "./quant-wide.ts";
import { streamDefines } from "./quantized.ts";

/** Rows of x. */
const sizes = ["8", "16"] as const;
/** What comes behind the product, where a kernel knows it when it is compiled (kernels/quant-even.hip). */
const kinds = ["any", "plain", "gate", "add"] as const;
export type EvenKind = (typeof kinds)[number];
/** Those for rows of a dtype. */
export const evenKinds = (dtype: DType): readonly EvenKind[] => (dtype === "f16" ? kinds : ["any"]);
/** Rows of weights that a warp takes at a time, by pieces of so many weights. */
const LINES = 16;
const PIECE = 256;
/** Pieces of a warp that are on their way or multiplied. */
const QUANT_EVEN_PLACES = 2;
const QUANT_EVEN_WARPS = 16;
/** Shared memory of a block, which is alone on its multiprocessor. */
const SHARED = sharedBudget("sm_90a") - 1024;
/** Warps for a block of few pieces, and of many; and where many begin. */
const FEW_WARPS = 8;
const MANY_WARPS = 12;
const MANY_PIECES = 64;
const MOST_CUTS = 8;
/** What takes time, in pieces of a block, measured: bringing a piece of x, the same where it is lifted by the block, too, and adding up what several blocks have. */
const X_COST = 0.15;
const LIFT_COST = 1;
const JOIN_COST = 3;

/** The longest rows that one vector to a thread brings into order. */
const ORDERED_DEPTH = 8 * QUANT_ORDER_BLOCK;
/** Whether rows are short enough for a kernel that brings them into order with few registers. */
export const hasEvenOrder = (k: number): boolean => k <= ORDERED_DEPTH;

/** Types that have such kernels (kernels/quant-pieces.h). */
const evenly = { Q8_0: "q8_0", Q4_0: "q4_0" } as const;
type Evenly = keyof typeof evenly;
export const evenQuants = Object.values(evenly);
export const isEvenly = (type: QuantType): type is Evenly => type in evenly;

export interface QuantEvenPlan {
  /** What follows the kind in the name of its kernel. */
  readonly name: `${(typeof sizes)[number]}_${(typeof evenly)[Evenly]}`;
  readonly order: QuantOrderPlan;
  /** Floats of memory for what blocks that share groups of rows add up. */
  readonly scratch: number;
  /** The pieces of a row, and the rows of a box of them. */
  readonly boxes: { readonly pieces: number; readonly pieceBytes: number; readonly lines: number };
  readonly launch: {
    /** Blocks that have a part of k each. */
    readonly cuts: number;
    readonly threads: number;
    readonly blocks: number;
    readonly shared_bytes: number;
  };
}

/** x (rows, k) · wᵀ (n, k), as kernels/quant-even.h goes about it, of x in order with the bits of bf16 where `isLifted`; null where rows of weights are no whole pieces. */
export function planQuantEven(
  shape: { readonly rows: number; readonly n: number; readonly k: number },
  type: QuantType,
  multiprocessors: number,
  isLifted = false,
): QuantEvenPlan | null {
  const size = sizes.find((most) => shape.rows <= Number(most));
  if (!isEvenly(type) || shape.k % PIECE !== 0 || size === undefined) return null;
  const rows = Number(size);
  const { size: elements, bytes } = quantTypes[type];
  const pieces = shape.k / PIECE;
  const pieceBytes = (PIECE / elements) * bytes;
  const groups = Math.ceil(shape.n / LINES);
  let best: QuantEvenPlan | null = null;
  let least = Number.POSITIVE_INFINITY;
  for (let cuts = 1; cuts <= Math.min(pieces, multiprocessors); cuts++) {
    if ((cuts > MOST_CUTS && best) || (cuts > 1 && groups > MAX_COUNTERS)) break;
    const most = Math.ceil(pieces / cuts);
    const shares = Math.min(groups, Math.floor(multiprocessors / cuts));
    const dealt = Math.ceil(groups / shares) * most;
    // x, a signal for each of its pieces, what rows are multiplied with, a number of each row from each warp; and places with signals.
    const x = most * (2 * rows * PIECE + 8) + 8 + 4 * rows * (1 + QUANT_EVEN_WARPS);
    const fit = Math.floor((SHARED - x) / (QUANT_EVEN_PLACES * (LINES * pieceBytes + 8)) / 4) * 4;
    const warps = Math.min(fit, dealt > MANY_PIECES ? (isLifted ? QUANT_EVEN_WARPS : MANY_WARPS) : FEW_WARPS);
    const cost = dealt + (isLifted ? LIFT_COST : X_COST) * most + (cuts > 1 ? JOIN_COST + cuts : 0);
    if (warps < FEW_WARPS || cost >= least) continue;
    least = cost;
    const shared = x + warps * QUANT_EVEN_PLACES * (LINES * pieceBytes + 8);
    best = {
      name: `${size}_${evenly[type]}`,
      order: planOrder(shape, type, rows),
      scratch: cuts === 1 ? 0 : cuts * groups * LINES * rows,
      boxes: { pieces, pieceBytes, lines: LINES },
      // More than half of it, so that blocks which begin while others end do not gather where there is room.
      launch: { cuts, threads: 32 * warps, blocks: shares * cuts, shared_bytes: Math.max(shared, SHARED / 2 + 1024) },
    };
  }
  return best;
}

const defines = {
  ...{ ...streamDefines, ...productDefines, QUANT_EVEN_PLACES, QUANT_EVEN_WARPS },
  ...{ QUANT_ORDER_BLOCK, ...quantOrders },
};

export const quantEven = [
  family({
    file: "quant-even",
    pattern: "quant_even_{kind}_{size}_{Q}",
    over: { kind: kinds, size: sizes, Q: evenQuants },
    apart: ["kind", "size"],
    args: "x* w* map* bias* residual* out* parts* counters* ordered* next_alpha* n k batch:u32 glu:u32 cuts:u32 dtype:u32 order:u32 raw:u32 told:u32 lower:f64 raise:f64 eps:f64",
    plan: "threads blocks shared_bytes",
    defines,
    launch: (s) => ({ grid: gridFor(s.blocks, s.threads), block: s.threads, shared: s.shared_bytes }),
  }),
  family({
    file: "quant-even",
    pattern: "even_order_{T}",
    over: { T: ["bf16", "f16"] },
    args: "x* alpha* out* rows:u32 k:u32 order:u32 eps:f64",
    plan: "threads",
    defines,
    launch: (s) => ({ grid: gridFor(Math.ceil(s.rows / 8) * 8, s.threads), block: s.threads, shared: 0 }),
  }),
] as const;
