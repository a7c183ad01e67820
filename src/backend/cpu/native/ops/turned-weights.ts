/** Copies of quantized weights that lie as few rows read them fastest, made when a layer first decodes. */
import { quantTypes } from "../../../../core/quant-types.ts";
import type { View } from "../../../backend.ts";
import { addressInside } from "../bounds.ts";
import { kernels } from "../catalogue.ts";
import type { NativeQuantType } from "../kernels/quant-blocks.ts";
import { turningArguments } from "../kernels/quant-turning.ts";
import { copyOf } from "./copies.ts";
import type { QuantRunner } from "./qmatmul.ts";

/** Weights that are worth a chunk. */
const CHUNK = 2 ** 17;

/** The address of the copy, for weights (n, bytes of k) that nobody writes to any more; undefined where there is none. */
export function turnedWeights(
  { native, threads }: QuantRunner,
  type: NativeQuantType,
  w: View,
  k: number,
): number | undefined {
  const { lanes } = native.isa;
  const { offset, shape } = w.layout;
  const n = shape[0]!;
  const { size, bytes } = quantTypes[type];
  const [groups, line] = [Math.ceil(n / lanes), (k / size) * bytes];
  return copyOf(w.storage.block, { type, offset, n, groups: 1, k, lanes }, groups * lanes * line, (out) =>
    native.prepare(threads, {
      kernel: native.kernel(kernels.turning(type)),
      args: turningArguments.words({ w: addressInside(w), line, blocks: k / size, rows: n, out }),
      total: groups,
      grain: Math.max(1, Math.floor(CHUNK / (lanes * k))),
    }),
  );
}
