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
  readonly type: NativeQuantType | "conv" | "winograd" | "panels";
  readonly offset: number;
  /** Rows, in how many groups, and elements of each. */
  readonly n: number;
  readonly groups: number;
  readonly k: number;
  /** Rows that lie side by side. */
  readonly lanes: number;
}

interface Copy extends Copied {
  /** Null where there is no room for it, undefined where it has been asked for once. */
  block: NativeBlock | null | undefined;
}

let held = 0;
/** By the weights' memory. */
const copies = new WeakMap<Block, Copy[]>();
const refused = new WeakSet<Block>();

/** Views of one block that are remembered before they come again: a large one may be walked through, a view at a time. */
const MOST_SEEN = 64;

/** The address of a copy of `length` bytes, which `make` fills at its first use; undefined where there is none. */
export function copyOf(
  weights: Block,
  of: Copied,
  length: number,
  make: (address: number) => void,
): number | undefined {
  const known = find(weights, of);
  return known?.block === undefined
    ? makeCopy(weights, known ?? remember(weights, of), length, make)
    : known.block?.address;
}

/** The same of what may be no weights at all: from the second time on that it is asked for and nobody has written to it between. */
export function copyOfReturning(
  weights: Block,
  of: Copied,
  length: number,
  make: (address: number) => void,
): number | undefined {
  const known = find(weights, of);
  if (known) return known.block === undefined ? makeCopy(weights, known, length, make) : known.block?.address;
  if ((copies.get(weights)?.length ?? 0) < MOST_SEEN) remember(weights, of);
  return undefined;
}

const find = (weights: Block, of: Copied): Copy | undefined =>
  copies
    .get(weights)
    ?.find(
      (c) =>
        c.offset === of.offset &&
        c.n === of.n &&
        c.k === of.k &&
        c.type === of.type &&
        c.groups === of.groups &&
        c.lanes === of.lanes,
    );

function remember(weights: Block, of: Copied): Copy {
  let own = copies.get(weights);
  if (!own) {
    own = [];
    copies.set(weights, own);
  }
  const copy = { ...of, block: undefined };
  own.push(copy);
  return copy;
}

function makeCopy(weights: Block, copy: Copy, length: number, make: (address: number) => void): number | undefined {
  const system = held + length <= MOST_BYTES && !refused.has(weights) ? libc() : null;
  copy.block = system && allocatePages(system, length);
  if (!copy.block) return undefined;
  held += length;
  make(copy.block.address);
  return copy.block.address;
}

/** Lets go of the copies of what was in a block. */
export function forgetCopies(weights: Block): void {
  const own = copies.get(weights);
  if (!own) return;
  copies.delete(weights);
  if (own.every(({ block }) => !block)) return;
  settle();
  forgetRecorded(weights);
  for (const { block } of own) {
    if (!block) continue;
    held -= block.length;
    block.release();
  }
}

/** From now on there are none of a block, which is written to in ways that nobody hears of. */
export function refuseCopies(weights: Block): void {
  forgetCopies(weights);
  refused.add(weights);
}
