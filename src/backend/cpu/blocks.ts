/**
 * Where the memory of the CPU's tensors is: in the heap, which is WebAssembly's memory and the only one that its kernels
 * reach, or in native memory, which holds what does not fit there. Every block has an address that machine code can use.
 */
import { sizeOf } from "../../core/dtype.ts";
import type { Block, View } from "../backend.ts";
import type { Storage } from "../storage.ts";
import type { Engine } from "./engine.ts";
import { recording } from "./recording.ts";

export interface HeapBlock extends Block {
  /** Where it lies in WebAssembly's memory. */
  readonly at: number;
  /** It is a part of a file, whose pages stand in the place of the heap's own. */
  readonly mapped?: PagesInHeap;
}

export interface PagesInHeap {
  /** What the heap gave. */
  readonly start: number;
  /** The pages in it, which are whole. */
  readonly first: number;
  readonly bytes: number;
  /** What of them is the block's. */
  readonly length: number;
}

export interface NativeBlock extends Block {
  readonly address: number;
  /** Bytes there are; `bytes` are none where they are a file's. */
  readonly length: number;
  release(): void;
}

export type CpuBlock = HeapBlock | NativeBlock;

export const blockOf = (storage: Storage): CpuBlock => storage.block as CpuBlock;
export const isNativeBlock = (block: CpuBlock): block is NativeBlock => "address" in block;

/** Whether WebAssembly's kernels cannot reach it. */
export const isNative = (view: View): boolean => isNativeBlock(blockOf(view.storage));

/** The address of a view's first element in the process, whichever memory it is in. */
export const addressOf = ({ storage, layout }: View): number =>
  addressOfStorage(storage) + layout.offset * sizeOf(storage.dtype);

export function addressOfStorage({ block, backend }: Storage): number {
  const own = block as CpuBlock;
  recording()?.used.add(own);
  return isNativeBlock(own) ? own.address : (backend as unknown as { readonly engine: Engine }).engine.base + own.at;
}
