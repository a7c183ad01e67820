/**
 * Copies of weights in the order in which a kernel reads them. Weights that are mapped should stay the system's pages, so there
 * are copies of so many bytes and no more: small models have all of theirs. A copy goes when its weights are written to or go.
 */
import type { Block } from "../../../backend.ts";
import type { NativeBlock } from "../../blocks.ts";
import { libc } from "../../libc.ts";
import { allocatePages } from "../../native-memory.ts";
import { forgetRecorded } from "../../recorder.ts";
import type { NativeQuantType } from "../kernels/quant-blocks.ts";
import { settle } from "../pending.ts";

/** Of all copies. */
const MOST_BYTES = 2 ** 28;

/** What a copy is of: views of one matrix may begin where others do. */
export interface Copied {
  readonly type: NativeQuantType | "conv" | "winograd";
  readonly offset: number;
  /** Rows, in how many groups, and elements of each. */
  readonly n: number;
  readonly groups: number;
  readonly k: number;
  /** Rows that lie side by side. */
  readonly lanes: number;
}

interface Copy extends Copied {
  /** Null where there is no room for it. */
  readonly block: NativeBlock | null;
}

let held = 0;
/** By the weights' memory. */
const copies = new WeakMap<Block, Copy[]>();
const refused = new WeakSet<Block>();

/** The address of a copy of `length` bytes, which `make` fills at its first use; undefined where there is none. */
export function copyOf(
  weights: Block,
  of: Copied,
  length: number,
  make: (address: number) => void,
): number | undefined {
  let own = copies.get(weights);
  const known = own?.find(
    (c) =>
      c.offset === of.offset &&
      c.n === of.n &&
      c.k === of.k &&
      c.type === of.type &&
      c.groups === of.groups &&
      c.lanes === of.lanes,
  );
  if (known !== undefined) return known.block?.address;
  const system = held + length <= MOST_BYTES && !refused.has(weights) ? libc() : null;
  const block = system && allocatePages(system, length);
  if (!own) {
    own = [];
    copies.set(weights, own);
  }
  own.push({ ...of, block });
  if (!block) return undefined;
  held += length;
  make(block.address);
  return block.address;
}

/** Lets go of the copies of what was in a block. */
export function forgetCopies(weights: Block): void {
  const own = copies.get(weights);
  if (!own) return;
  settle();
  forgetRecorded(weights);
  for (const { block } of own) {
    if (!block) continue;
    held -= block.length;
    block.release();
  }
  copies.delete(weights);
}

/** From now on there are none of a block, which is written to in ways that nobody hears of. */
export function refuseCopies(weights: Block): void {
  forgetCopies(weights);
  refused.add(weights);
}
