/** Views of native memory, for the time of an op in the heap. */
import { sizeOf } from "../../../core/dtype.ts";
import { fail } from "../../../core/errors.ts";
import type { View } from "../../backend.ts";
import { Storage } from "../../storage.ts";
import { formatBytes } from "../../usage.ts";
import { addressOf, addressOfStorage, blockOf, type HeapBlock, isNativeBlock } from "../blocks.ts";
import { copyBytes, type MemoryBackend } from "../memory-backend.ts";
import { eachRun, type Packing, packing } from "./packing.ts";

const SHORT_RUN_BYTES = 2 ** 12;
const MANY_RUNS = 2 ** 12;

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

/** Whether the view is copied in very many short runs: larger pieces have longer ones. */
export function isScattered(view: View | null): boolean {
  if (!view || !isNativeBlock(blockOf(view.storage))) return false;
  const { run, elements } = packingOf(view);
  return run * sizeOf(view.storage.dtype) < SHORT_RUN_BYTES && elements > MANY_RUNS * run;
}

/** The view in the heap: itself where it is there, else a copy. */
export function stage(backend: MemoryBackend, view: View, use: Use): Stage {
  const { storage } = view;
  if (!isNativeBlock(blockOf(storage))) return { view, leave: () => {}, [Symbol.dispose]: () => {} };
  const { dtype } = storage;
  const size = sizeOf(dtype);
  const plan = packingOf(view);
  const copy = Storage.over(backend, heapBlock(backend, plan.elements * size), dtype, plan.elements);
  const [there, here] = [addressOfStorage(storage), addressOfStorage(copy)];
  if (use !== "overwrite" || plan.hasGaps) {
    eachRun(plan, (from, to) => copyBytes(here + to * size, there + from * size, plan.run * size));
  }
  return {
    view: { storage: copy, layout: plan.layout },
    leave: () => eachRun(plan, (from, to) => copyBytes(there + from * size, here + to * size, plan.run * size)),
    [Symbol.dispose]: () => copy.discard(),
  };
}

const heapBlock = (backend: MemoryBackend, bytes: number): HeapBlock =>
  backend.allocInHeap(bytes) ??
  fail(
    "OutOfMemory",
    `cpu: cannot allocate ${formatBytes(bytes)} of WebAssembly's memory, where this op needs its operand in one piece; ${formatBytes(backend.engine.available)} are left of it. Make the operand smaller along the dim that the op goes over`,
  );

/** Copies between contiguous views, wherever they are. */
export function copyContiguous(src: View, dst: View): void {
  copyBytes(addressOf(dst), addressOf(src), dst.layout.numel * sizeOf(dst.storage.dtype));
}
