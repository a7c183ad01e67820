/** Views of native memory, for the time of an op in the heap. */
import { sizeOf } from "../../../core/dtype.ts";
import { fail } from "../../../core/errors.ts";
import type { View } from "../../backend.ts";
import { Storage } from "../../storage.ts";
import { formatBytes } from "../../usage.ts";
import { addressOf, addressOfStorage, blockOf, type HeapBlock, isNativeBlock } from "../blocks.ts";
import { copyBytes, type MemoryBackend, markWritten } from "../memory-backend.ts";
import { isFileBlock } from "../native-memory.ts";
import { eachRun, type Packing, packing } from "./packing.ts";

/** Parts of a file of this size and more are mapped into the heap and not copied. */
const WINDOW_FROM = 2 ** 17;

export interface Stage extends Disposable {
  readonly view: View;
  /** Writes back what was written. */
  leave(): void;
}

/** What is done with a view: "overwrite" leaves none of its elements as it was. */
export type Use = "read" | "update" | "overwrite";

const packingOf = (view: View): Packing => packing(view.layout, sizeOf(view.storage.dtype));

/** The bytes that a view would take in the heap; none where it is there already. */
export const stagedBytes = (view: View | null): number =>
  view && isNativeBlock(blockOf(view.storage)) ? packingOf(view).elements * sizeOf(view.storage.dtype) : 0;

/** The view in the heap: itself where it is there, a part of its file, or a copy. */
export function stage(backend: MemoryBackend, view: View, use: Use): Stage {
  const { storage } = view;
  if (!isNativeBlock(blockOf(storage))) return { view, leave: () => {}, [Symbol.dispose]: () => {} };
  const { dtype } = storage;
  const size = sizeOf(dtype);
  const plan = packingOf(view);
  const window = use === "read" ? fileWindow(backend, view, plan) : null;
  const copy = Storage.over(backend, window ?? heapBlock(backend, plan.elements * size), dtype, plan.elements);
  const [there, here] = [addressOfStorage(storage), addressOfStorage(copy)];
  if (!window && (use !== "overwrite" || plan.hasGaps)) {
    eachRun(plan, (from, to) => copyBytes(here + to * size, there + from * size, plan.run * size));
  }
  return {
    view: { storage: copy, layout: plan.layout },
    leave: () => {
      markWritten(storage);
      eachRun(plan, (from, to) => copyBytes(there + from * size, here + to * size, plan.run * size));
    },
    [Symbol.dispose]: () => copy.discard(),
  };
}

/** The file's own pages, where the view is one run of them. */
function fileWindow(backend: MemoryBackend, { storage }: View, { start, run, loops }: Packing): HeapBlock | null {
  const block = blockOf(storage);
  const size = sizeOf(storage.dtype);
  if (loops.length > 0 || run * size < WINDOW_FROM) return null;
  if (!isNativeBlock(block) || !isFileBlock(block) || block.isWritten) return null;
  return backend.window(block, start * size, run * size);
}

const heapBlock = (backend: MemoryBackend, bytes: number): HeapBlock =>
  backend.allocInHeap(bytes) ??
  fail(
    "OutOfMemory",
    `cpu: cannot allocate ${formatBytes(bytes)} of WebAssembly's memory, where this op needs its operand in one piece; ${formatBytes(backend.engine.available)} are left of it. Make the operand smaller along the dim that the op goes over`,
  );

/** Copies between contiguous views, wherever they are. */
export function copyContiguous(src: View, dst: View): void {
  markWritten(dst.storage);
  copyBytes(addressOf(dst), addressOf(src), dst.layout.numel * sizeOf(dst.storage.dtype));
}
