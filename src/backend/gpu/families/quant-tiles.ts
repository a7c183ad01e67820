/** Linear layers of many rows of halves with quantized weights whose rows are whole pieces of 256, by Hopper's warpgroups. */
import { type QuantType, quantTypes } from "../../../core/quant-types.ts";
import { family, gridFor } from "./family.ts";
import { planOrder, planShares, QUANT_WIDE_ROWS, type QuantOrderPlan, wideDefines } from "./quant-wide.ts";

/** Rows of weights that a block multiplies, by two threads each; four warps more bring them and x. */
const LINES = 128;
const QUANT_TILES_THREADS = 2 * LINES + 128;
/** Weights of a row that come at once, and how many such pieces there is room for; x has room for one, in slices. */
const PIECE = 256;
const PLACES = 2;
const SLICES = PIECE / 64;
/** Bytes by way of which a warp stores its results. */
const TURNED = 32 * 24 * 2;

/** Types that have such kernels (kernels/quant-pieces.h). */
const tiled = { Q8_0: "q8_0", Q4_0: "q4_0" } as const;
type Tiled = keyof typeof tiled;
const tileQuants = Object.values(tiled);
export const isTiled = (name: string): name is (typeof tileQuants)[number] =>
  tileQuants.some((known) => known === name);

export interface QuantTilesPlan {
  readonly kernel: `quant_tiles_${(typeof tiled)[Tiled]}`;
  readonly order: QuantOrderPlan;
  /** Floats of memory for what blocks that share tiles add up. */
  readonly scratch: number;
  /** The pieces of a row, and the rows of a box of them. */
  readonly boxes: { readonly pieces: number; readonly pieceBytes: number; readonly lines: number };
  readonly launch: {
    readonly alone: number;
    readonly sharers: number;
    readonly blocks: number;
    readonly shared_bytes: number;
  };
}

/** x (rows, k) · wᵀ (n, k), as kernels/quant-tiles.h goes about it; null where there is no such kernel. */
export function planQuantTiles(
  shape: { readonly rows: number; readonly n: number; readonly k: number },
  type: QuantType,
  multiprocessors: number,
): QuantTilesPlan | null {
  if (!(type in tiled) || shape.k % PIECE !== 0) return null;
  const { size: elements, bytes } = quantTypes[type];
  const pieces = shape.k / PIECE;
  const pieceBytes = (PIECE / elements) * bytes;
  const tiles = Math.ceil(shape.n / LINES) * Math.ceil(shape.rows / QUANT_WIDE_ROWS);
  const { alone, sharers, blocks } = planShares(tiles, pieces, multiprocessors, false);
  const left = tiles - alone;
  const room = 2 * QUANT_WIDE_ROWS * PIECE + PLACES * LINES * pieceBytes + (QUANT_TILES_THREADS / 32) * TURNED;
  return {
    kernel: `quant_tiles_${tiled[type as Tiled]}`,
    order: planOrder(shape, type, QUANT_WIDE_ROWS),
    scratch: sharers === left ? 0 : (sharers + left) * LINES * QUANT_WIDE_ROWS,
    boxes: { pieces, pieceBytes, lines: LINES },
    launch: { alone, sharers, blocks, shared_bytes: room + 16 * (PLACES + SLICES) + 16 },
  };
}

export const quantTiles = [
  family({
    file: "quant-tiles",
    pattern: "quant_tiles_{Q}",
    over: { Q: tileQuants },
    args: "x* w* map* bias* residual* out* parts* counters* n k batch:u32 glu:u32 alone:u32 sharers:u32 dtype:u32",
    plan: "blocks shared_bytes",
    defines: { ...wideDefines, QUANT_TILES_THREADS },
    launch: (s) => ({
      grid: gridFor(s.blocks, QUANT_TILES_THREADS),
      block: QUANT_TILES_THREADS,
      shared: s.shared_bytes,
    }),
  }),
] as const;
