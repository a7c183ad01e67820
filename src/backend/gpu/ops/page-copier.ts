/** Copies of pages, of all layers in one launch. */
import { sizeOf } from "../../../core/dtype.ts";
import type { View } from "../../backend.ts";
import type { PageCopier } from "../../paged-attention.ts";
import type { Storage } from "../../storage.ts";
import type { ValuesFor } from "../catalogue.ts";
import { addressOf, at, type Gpu } from "../gpu.ts";

const VECTOR_BYTES = 16;

/** In vectors: pools are aligned, and 64 positions are a whole number of them, whatever each has. */
export class GpuPageCopier implements PageCopier {
  readonly #gpu: Gpu;
  readonly #starts: Storage;
  readonly #values: Omit<ValuesFor<"copy_page_i64">, "from" | "to">;

  constructor(gpu: Gpu, pools: readonly View[]) {
    const { layout, storage } = pools[0]!;
    const x = at(pools[0]!);
    const starts = BigInt64Array.from(pools, (pool) => BigInt((at(pool) - x) / VECTOR_BYTES));
    this.#gpu = gpu;
    this.#starts = gpu.make("i64", starts.length);
    this.#starts.retain();
    gpu.write(this.#starts, 0, new Uint8Array(starts.buffer));
    const vectors = (layout.strides[0]! * sizeOf(storage.dtype)) / VECTOR_BYTES;
    this.#values = { x, starts: addressOf(this.#starts), count: pools.length, vectors };
  }

  copy(from: number, to: number): void {
    this.#gpu.launch("copy_page_i64", { ...this.#values, from, to });
  }

  [Symbol.dispose](): void {
    this.#starts.release();
  }
}
