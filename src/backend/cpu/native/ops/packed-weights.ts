/** Copies of weights of floats in the panels of the tiles, which products of any number of rows read from end to end. */
import type { View } from "../../../backend.ts";
import { addressInside } from "../bounds.ts";
import { kernels } from "../catalogue.ts";
import { type ProductType, packArguments } from "../kernels/panels.ts";
import { tileShape } from "../kernels/tile.ts";
import type { Native } from "../native.ts";
import type { Job } from "../pool.ts";
import { copyOfReturning } from "./copies.ts";

/** Elements that are worth a chunk. */
const CHUNK = 32768;
/** Bytes of weights that are worth a copy. */
const LEAST_BYTES = 2 ** 15;

interface Weights {
  /** What a panel's words are: as wide as the weights, or a copy would be larger. */
  readonly type: ProductType;
  /** Columns of the product, whose steps of k lie one behind the other. */
  readonly n: number;
  readonly k: number;
  readonly panelBytes: number;
}

/** The address of the copy; undefined where there is none, or not yet. */
export function packedWeights(native: Native, threads: number, w: View, of: Weights): number | undefined {
  const { type, n, k, panelBytes } = of;
  const { columns: panel } = tileShape(native.isa);
  const bytes = type === "pairs" ? 2 : 4;
  if ((type !== "f32" && type !== "pairs") || n < panel || k === 1 || n * k * bytes < LEAST_BYTES) return undefined;
  const panels = Math.ceil(n / panel);
  const { block } = w.storage;
  const key = { type: "panels", offset: w.layout.offset, n, groups: 1, k, lanes: panel } as const;
  return copyOfReturning(block, key, panels * panelBytes, (packed) => {
    const b = { address: addressInside(w), row: bytes, col: k * bytes };
    native.prepare(threads, packing(native, type, b, { n, k, packed, panelBytes }));
  });
}

/** The job that writes the panels of n columns of k steps each, which lie so many bytes apart. */
export function packing(
  native: Native,
  type: ProductType,
  b: { readonly address: number; readonly row: number; readonly col: number },
  { n, k, packed, panelBytes }: Omit<Weights, "type"> & { readonly packed: number },
): Job {
  const { columns: panel } = tileShape(native.isa);
  return {
    kernel: native.kernel(kernels.pack(type)),
    args: packArguments.words({
      b: b.address,
      alongK: b.row,
      acrossColumns: b.col,
      steps: k,
      columns: n,
      packed,
      panelBytes,
    }),
    total: Math.ceil(n / panel),
    grain: Math.max(1, Math.floor(CHUNK / (panel * k))),
  };
}
