/** Results that come in the order of the products that they go into, too (kernels/x-order.h): nothing else then brings them there. */
import { type DType, sizeOf } from "../../../core/dtype.ts";
import { f16ToF32 } from "../../../core/halves.ts";
import type { QuantType } from "../../../core/quant-types.ts";
import type { View } from "../../backend.ts";
import type { NextProduct } from "../../fused-ops.ts";
import type { Storage } from "../../storage.ts";
import { QUANT_BATCH_FEW, QUANT_BATCH_ROWS } from "../families/quant-batch.ts";
import { isEvenly } from "../families/quant-even.ts";
import { orderOf, planOrder, QUANT_WIDE_CHUNK, QUANT_WIDE_FEW, takesWide } from "../families/quant-wide.ts";
import { addressOf, at, type Gpu } from "../gpu.ts";

/** Elements whose squares are told together, where a norm comes between: by quant-even, and by others. */
const TOLD_EVEN = 16;
const TOLD = 128;

/** x in order: where it is, sums of squares that are told of each row (0: what its products are multiplied with), and the power of two that its norm's weights were divided by. */
export interface Ordered {
  readonly x: number;
  readonly told: number;
  readonly raise: number;
}

interface Known extends Omit<Ordered, "x"> {
  readonly rows: number;
  readonly k: number;
  readonly order: number;
  /** The address of the norm's weights, 0 for none. */
  readonly alpha: number;
}
/** Storages that have it behind their rows. */
const known = new WeakMap<Storage, Known>();

/** Where a kernel puts a result in order, 0 for nowhere, which order that is, and what the norm between multiplies with. */
export interface OrderedTo {
  readonly ordered: number;
  readonly order: number;
  readonly next_alpha: number;
  readonly lower: number;
}
export const nowhere: OrderedTo = { ordered: 0, order: 0, next_alpha: 0, lower: 1 };

/**
 * As Gpu.filled for rows of `k` elements that go into `next`. Of more rows than quant-even takes in f16 alone: rows of bf16 are lifted by
 * a power of two, which depends on all of a row, and only quant-even does that by itself, where no norm comes between.
 */
export function filledInOrder(
  gpu: Gpu,
  dtype: DType,
  { rows, k }: { readonly rows: number; readonly k: number },
  next: NextProduct | null | undefined,
  run: (out: number, to: OrderedTo) => void,
): Storage {
  const isWide = rows > QUANT_BATCH_FEW && rows <= QUANT_WIDE_FEW && takesWide(dtype, gpu.context.properties.arch);
  const norm = next?.norm ?? null;
  const isFew = rows <= QUANT_BATCH_ROWS;
  const isTaken = isFew ? next && isEvenly(next.type) && (dtype === "f16" || !norm) : dtype === "f16";
  const fits = isWide && isTaken && k % QUANT_WIDE_CHUNK === 0;
  const raise = fits && norm ? raiseOf(gpu, norm.weight) : 1;
  if (!next || !fits || raise === null) return gpu.filled(dtype, rows * k, (out) => run(out, nowhere));
  const { bytes, order } = planOrder({ rows, k }, next.type, QUANT_WIDE_FEW);
  const told = norm ? k / (isFew ? TOLD_EVEN : TOLD) : 0;
  const size = sizeOf(dtype);
  // With one number for each row, or several.
  const all = bytes + Math.max(0, told - 1) * Math.ceil(rows / 8) * 8 * 4;
  const alpha = norm ? at(norm.weight) : 0;
  const storage = gpu.filled(dtype, rows * k + all / size, (out) =>
    run(out, { ordered: out + rows * k * size, order, next_alpha: alpha, lower: 1 / raise }),
  );
  known.set(storage, { rows, k, order, alpha, told, raise });
  return storage;
}

/** x (rows, k) in the order of weights of a type, as the norm before leaves it; null where it did not come so. */
export function orderedAs(
  { storage, layout }: View,
  { rows, k }: { readonly rows: number; readonly k: number },
  type: QuantType,
  norm: { readonly weight: View } | null,
): Ordered | null {
  const own = known.get(storage);
  if (own?.rows !== rows || own.k !== k || layout.offset !== 0 || !layout.isContiguous()) return null;
  if (own.order !== orderOf(type) || own.alpha !== (norm ? at(norm.weight) : 0)) return null;
  return { x: addressOf(storage) + rows * k * sizeOf(storage.dtype), told: own.told, raise: own.raise };
}

/** The least power of two from 1 on that no weight of a norm is above; null where nobody can tell now, or one is not finite. */
const raises = new WeakMap<Storage, Map<number, number | null>>();
function raiseOf(gpu: Gpu, { storage, layout }: View): number | null {
  if (storage.dtype !== "f16" || !layout.isContiguous() || (2 * layout.offset) % 16 !== 0) return null;
  const here = raises.get(storage) ?? new Map<number, number | null>();
  raises.set(storage, here);
  const before = here.get(layout.offset);
  if (before !== undefined || gpu.recording) return before ?? null;
  const { buffer, byteOffset } = storage.readSync(2 * layout.offset, 2 * layout.numel);
  // Those of positive numbers are in their order.
  const most = f16ToF32(
    new Uint16Array(buffer, byteOffset, layout.numel).reduce((top, bits) => Math.max(top, bits & 0x7fff), 0),
  );
  const raise = Number.isFinite(most) ? 2 ** Math.max(0, Math.ceil(Math.log2(most))) : null;
  here.set(layout.offset, raise);
  return raise;
}
