/** Results that come in the order of the products that they go into, too (kernels/x-order.h): nothing else then brings them there. */
import { type DType, sizeOf } from "../../../core/dtype.ts";
import type { QuantType } from "../../../core/quant-types.ts";
import type { View } from "../../backend.ts";
import type { Storage } from "../../storage.ts";
import { QUANT_BATCH_FEW, QUANT_BATCH_ROWS } from "../families/quant-batch.ts";
import { isEvenly } from "../families/quant-even.ts";
import { orderOf, planOrder, QUANT_WIDE_CHUNK, QUANT_WIDE_FEW, takesWide } from "../families/quant-wide.ts";
import { addressOf, type Gpu } from "../gpu.ts";

interface Ordered {
  readonly rows: number;
  readonly k: number;
  readonly order: number;
}
/** Storages that have it behind their rows. */
const known = new WeakMap<Storage, Ordered>();

/** Where a kernel puts a result in order, 0 for nowhere, and which order that is. */
export interface OrderedTo {
  readonly ordered: number;
  readonly order: number;
}
export const nowhere: OrderedTo = { ordered: 0, order: 0 };

/**
 * As Gpu.filled for rows of `k` elements that are multiplied with weights of type `next`. Of more rows than quant-even takes in f16 alone:
 * rows of bf16 are lifted by a power of two, which depends on all of a row, and only quant-even does that by itself.
 */
export function filledInOrder(
  gpu: Gpu,
  dtype: DType,
  { rows, k }: { readonly rows: number; readonly k: number },
  next: QuantType | null | undefined,
  run: (out: number, to: OrderedTo) => void,
): Storage {
  const isWide = rows > QUANT_BATCH_FEW && rows <= QUANT_WIDE_FEW && takesWide(dtype, gpu.context.properties.arch);
  const takesOrder = (type: QuantType): boolean => (rows > QUANT_BATCH_ROWS ? dtype === "f16" : isEvenly(type));
  if (!next || !isWide || !takesOrder(next) || k % QUANT_WIDE_CHUNK !== 0)
    return gpu.filled(dtype, rows * k, (out) => run(out, nowhere));
  const { bytes, order } = planOrder({ rows, k }, next, QUANT_WIDE_FEW);
  const plain = rows * k * sizeOf(dtype);
  const storage = gpu.filled(dtype, rows * k + bytes / sizeOf(dtype), (out) =>
    run(out, { ordered: out + plain, order }),
  );
  known.set(storage, { rows, k, order });
  return storage;
}

/** The address of x (rows, k) in the order of weights of a type; 0 where it did not come so. */
export function orderedAt({ storage, layout }: View, rows: number, k: number, type: QuantType): number {
  const own = known.get(storage);
  const isWhole = own?.rows === rows && own.k === k && layout.offset === 0 && layout.isContiguous();
  return isWhole && own.order === orderOf(type) ? addressOf(storage) + rows * k * sizeOf(storage.dtype) : 0;
}
