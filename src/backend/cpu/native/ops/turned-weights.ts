/**
 * Copies of quantized weights that lie as few rows read them fastest, made when a layer first decodes. Weights that are
 * mapped should stay the system's pages, so there are copies of so many bytes and no more: small models have all of theirs.
 */

import { quantTypes } from "../../../../core/quant-types.ts";
import type { Block, View } from "../../../backend.ts";
import type { NativeBlock } from "../../blocks.ts";
import { libc } from "../../libc.ts";
import { allocatePages } from "../../native-memory.ts";
import { forgetRecorded } from "../../recorder.ts";
import { addressInside } from "../bounds.ts";
import { kernels } from "../catalogue.ts";
import type { NativeQuantType } from "../kernels/quant-blocks.ts";
import { turningArguments } from "../kernels/quant-turning.ts";
import { settle } from "../pending.ts";
import type { QuantRunner } from "./qmatmul.ts";

/** Of all copies. */
const MOST_BYTES = 2 ** 28;
/** Weights that are worth a chunk. */
const CHUNK = 2 ** 17;

/** What a copy is of: views of one matrix may begin where others do. */
interface Copy {
  readonly type: NativeQuantType;
  readonly offset: number;
  readonly n: number;
  readonly k: number;
  /** Rows that lie side by side. */
  readonly lanes: number;
  /** Null where there is no room for it. */
  readonly block: NativeBlock | null;
}

let held = 0;
/** By the weights' memory. */
const copies = new WeakMap<Block, Copy[]>();

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
  let own = copies.get(w.storage.block);
  const known = own?.find((c) => c.offset === offset && c.n === n && c.k === k && c.type === type && c.lanes === lanes);
  if (known !== undefined) return known.block?.address;
  const { size, bytes } = quantTypes[type];
  const [groups, line] = [Math.ceil(n / lanes), (k / size) * bytes];
  const length = groups * lanes * line;
  const system = held + length <= MOST_BYTES ? libc() : null;
  const block = system && allocatePages(system, length);
  if (!own) {
    own = [];
    copies.set(w.storage.block, own);
  }
  own.push({ type, offset, n, k, lanes, block });
  if (!block) return undefined;
  held += length;
  native.prepare(threads, {
    kernel: native.kernel(kernels.turning(type)),
    args: turningArguments.words({ w: addressInside(w), line, blocks: k / size, rows: n, out: block.address }),
    total: groups,
    grain: Math.max(1, Math.floor(CHUNK / (lanes * k))),
  });
  return block.address;
}

/** Lets go of the copies of what was in a block. */
export function forgetTurned(block: Block): void {
  const own = copies.get(block);
  if (!own) return;
  settle();
  forgetRecorded(block);
  for (const { block: copy } of own) {
    if (!copy) continue;
    held -= copy.length;
    copy.release();
  }
  copies.delete(block);
}
