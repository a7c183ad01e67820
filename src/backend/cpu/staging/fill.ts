/** Storages that are made of nothing but numbers, in pieces where they are outside the heap. */
import { type DType, sizeOf } from "../../../core/dtype.ts";
import { Layout } from "../../../core/layout.ts";
import { Storage } from "../../storage.ts";
import type { MemoryBackend } from "../memory-backend.ts";
import { copyContiguous } from "./stage.ts";

/** n elements; `make` gives `count` of them from `first` on, which is even. Where they are all alike, it is asked once. */
export function fillPieces(
  backend: MemoryBackend,
  dtype: DType,
  n: number,
  pieceBytes: number,
  make: (count: number, first: number) => Storage,
  areAlike: boolean,
): Storage {
  const step = Math.max(2, 2 * Math.floor(pieceBytes / sizeOf(dtype) / 2));
  if (n <= step || backend.takesHeap(n * sizeOf(dtype))) return make(n, 0);
  const result = Storage.alloc(backend, dtype, n);
  let part: Storage | undefined;
  try {
    for (let first = 0; first < n; first += step) {
      const count = Math.min(step, n - first);
      if (!areAlike) {
        part?.discard();
        part = undefined;
      }
      part ??= backend.inHeap(() => make(count, first));
      copyContiguous(
        { storage: part, layout: Layout.contiguous([count]) },
        { storage: result, layout: Layout.contiguous([count], first) },
      );
    }
  } catch (error) {
    result.discard();
    throw error;
  } finally {
    part?.discard();
  }
  return result;
}
