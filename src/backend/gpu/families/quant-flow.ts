/** Linear layers of 17 to 64 rows of halves with quantized weights whose rows are whole pieces of 256, by Hopper's warpgroups. */
import { type QuantType, quantTypes } from "../../../core/quant-types.ts";
import { sharedBudget } from "../attention-plan.ts";
import { family, gridFor } from "./family.ts";
import { productDefines } from "./product.ts";
import { planOrder, type QuantOrderPlan, xOrders } from "./quant-wide.ts";
import { streamDefines } from "./quantized.ts";

/**
 * By the rows of weights that a block multiplies, by two threads each; four warps more bring them and x. A pair are two blocks of a cluster
 * that share a tile. `least`: pieces that a block must have; with fewer, two blocks to a multiprocessor (kernels/quant-wide.h) are faster.
 */
const forms = { 128: { lines: 128, least: 4 }, 256: { lines: 256, least: 6 }, pair: { lines: 128, least: 4 } } as const;
type Form = keyof typeof forms;
const formNames = ["128", "256", "pair"] as const;
/** Weights of a row that come at once. */
const PIECE = 256;
/** Bytes of shared memory for x and weights; the rest is for signals. */
const QUANT_FLOW_SHARED = sharedBudget("sm_90a") - 512;
const MOST_PLACES = 4;
/** Those of rows, and a signal. */
const FACTORS = 4 * 64 + 16;
/** Pieces that could be multiplied while blocks write what they share and add it up. */
const JOINING = 1;

/** Types that have such kernels (kernels/quant-pieces.h). */
const flowing = { Q8_0: "q8_0", Q4_0: "q4_0" } as const;
type Flowing = keyof typeof flowing;
export const flowQuants = Object.values(flowing);
/** Rows of x that a block takes. */
const sizes = ["24", "32", "40", "48", "56", "64"] as const;

export interface QuantFlowPlan {
  readonly kernel: `quant_flow_${Form}_${(typeof sizes)[number]}_${(typeof flowing)[Flowing]}`;
  readonly order: QuantOrderPlan;
  /** Floats of memory for what blocks that share tiles add up. */
  readonly scratch: number;
  /** The pieces of a row, and the rows of a box of them. */
  readonly boxes: { readonly pieces: number; readonly pieceBytes: number; readonly lines: number };
  readonly launch: {
    readonly cuts: number;
    readonly blocks: number;
    readonly threads: number;
    readonly shared_bytes: number;
  };
}

/** x (rows, k) · wᵀ (n, k), as kernels/quant-flow.h goes about it; null where those of quant-wide.h are for it. */
export function planQuantFlow(
  shape: { readonly rows: number; readonly n: number; readonly k: number },
  type: QuantType,
  multiprocessors: number,
  isGated = false,
): QuantFlowPlan | null {
  const size = sizes.find((most) => shape.rows <= Number(most));
  if (!(type in flowing) || shape.k % PIECE !== 0 || size === undefined) return null;
  const rows = Number(size);
  const { size: elements, bytes } = quantTypes[type];
  const pieces = shape.k / PIECE;
  const cutsFor = (lines: number): number => cutsOf(Math.ceil(shape.n / lines), pieces, multiprocessors);
  // Fewer rows to a block are cut less; with a gate they would have too few columns for the order of the next product.
  const form = isGated || cutsFor(256) === 1 ? 256 : cutsFor(128) === 2 ? "pair" : 128;
  const { lines, least } = forms[form];
  const cuts = cutsFor(lines);
  if (pieces / cuts < least) return null;
  const tiles = Math.ceil(shape.n / lines);
  const pieceBytes = (PIECE / elements) * bytes;
  const place = lines * pieceBytes;
  const x = 2 * PIECE * rows;
  const xPlaces = 3 * x + 2 * place <= QUANT_FLOW_SHARED ? 3 : 2;
  // Sums of every other eight rows by both blocks.
  const sent = form === "pair" ? 2 * Math.ceil(rows / 16) * 8 * lines * 4 : 0;
  const places = Math.min(MOST_PLACES, Math.floor((QUANT_FLOW_SHARED - xPlaces * x - sent) / place));
  return {
    kernel: `quant_flow_${form}_${size}_${flowing[type as Flowing]}`,
    order: planOrder(shape, type, rows),
    scratch: cuts === 1 || form === "pair" ? 0 : cuts * tiles * lines * rows,
    boxes: { pieces, pieceBytes, lines },
    launch: {
      cuts,
      blocks: cuts * tiles,
      threads: 2 * lines + 128,
      shared_bytes: xPlaces * x + places * place + sent + 16 * (places + xPlaces) + FACTORS,
    },
  };
}

/** How many blocks share a tile: all of a launch are on the device at once, one on each multiprocessor, as they wait for each other. */
function cutsOf(tiles: number, pieces: number, multiprocessors: number): number {
  let best = 1;
  let least = Math.ceil(tiles / multiprocessors) * pieces;
  for (const cuts of [2, 4, 8]) {
    if (cuts * tiles > multiprocessors || 2 * cuts > pieces) break;
    const cost = Math.ceil(pieces / cuts) + JOINING;
    if (cost >= least) continue;
    [best, least] = [cuts, cost];
  }
  return best;
}

export const quantFlow = [
  family({
    file: "quant-flow",
    pattern: "quant_flow_{form}_{size}_{Q}",
    over: { form: formNames, size: sizes, Q: flowQuants },
    apart: ["form", "size"],
    args: "x* w* map* bias* residual* out* parts* counters* ordered* next_alpha* n k batch:u32 glu:u32 cuts:u32 dtype:u32 order:u32 told:u32 lower:f64 raise:f64 eps:f64",
    plan: "blocks threads shared_bytes",
    defines: {
      ...{ ...streamDefines, ...productDefines, QUANT_FLOW_SHARED },
      ...xOrders,
    },
    launch: (s) => ({ grid: gridFor(s.blocks, s.threads), block: s.threads, shared: s.shared_bytes }),
  }),
] as const;
