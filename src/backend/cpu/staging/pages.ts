/** Attention over a paged cache that is outside the heap: the pages that a step's sequences have are in it while it runs. */
import { decode, encode, sizeOf } from "../../../core/dtype.ts";
import { Layout } from "../../../core/layout.ts";
import type { View } from "../../backend.ts";
import { PAGE_SIZE, type PagedAttentionParams } from "../../paged-attention.ts";
import { Storage } from "../../storage.ts";
import { isNative } from "../blocks.ts";
import type { MemoryBackend } from "../memory-backend.ts";

/** Calls `run` with the same step over a cache of those pages alone; what it writes there reaches the cache. */
export function withPagesInHeap(
  backend: MemoryBackend,
  p: PagedAttentionParams,
  run: (p: PagedAttentionParams) => Storage,
): Storage {
  if (!isNative(p.k) && !isNative(p.v)) return run(p);
  const numbers = ({ storage, layout }: View): number[] =>
    Array.from(
      decode(backend.readSync(storage, layout.offset * sizeOf("i64"), layout.numel * sizeOf("i64")), "i64"),
      Number,
    );
  const [tables, lengths, offsets] = [p.tables, p.lengths, p.offsets].map(numbers) as [number[], number[], number[]];
  const width = p.tables.layout.shape[1]!;
  // A page's place among those that are brought in, by its place in the cache; and which of them are written.
  const places = new Map<number, number>();
  const written = new Set<number>();
  const moved = tables.map((page, at) => {
    const sequence = Math.floor(at / width);
    const end = lengths[sequence]!;
    const start = (at % width) * PAGE_SIZE;
    if (start >= end) return 0;
    if (start + PAGE_SIZE > end - (offsets[sequence + 1]! - offsets[sequence]!)) written.add(page);
    if (!places.has(page)) places.set(page, places.size);
    return places.get(page)!;
  });
  const caches = [p.k, p.v].map((cache) => new Pages(backend, cache, places));
  const table = backend.inHeap(() => Storage.alloc(backend, "i64", moved.length));
  try {
    backend.write(table, 0, encode(moved, "i64"));
    const [k, v] = caches.map(({ view }) => view) as [View, View];
    const result = run({ ...p, k, v, tables: { storage: table, layout: Layout.contiguous(p.tables.layout.shape) } });
    for (const cache of caches) cache.leave(written);
    return result;
  } finally {
    table.discard();
    for (const cache of caches) cache.view.storage.discard();
  }
}

/** Some pages of a cache (pages, …), contiguous, one behind the other. */
class Pages {
  readonly view: View;
  readonly #backend: MemoryBackend;
  readonly #cache: View;
  readonly #places: ReadonlyMap<number, number>;

  constructor(backend: MemoryBackend, cache: View, places: ReadonlyMap<number, number>) {
    this.#backend = backend;
    this.#cache = cache;
    this.#places = places;
    const shape = cache.layout.shape.with(0, Math.max(places.size, 1));
    const layout = Layout.contiguous(shape);
    this.view = { storage: backend.inHeap(() => Storage.alloc(backend, cache.storage.dtype, layout.numel)), layout };
    for (const [page, place] of places) backend.copy(pageAt(cache, page), pageAt(this.view, place));
  }

  leave(pages: ReadonlySet<number>): void {
    for (const page of pages) this.#backend.copy(pageAt(this.view, this.#places.get(page)!), pageAt(this.#cache, page));
  }
}

const pageAt = ({ storage, layout }: View, page: number): View => ({ storage, layout: layout.narrow(0, page, 1) });
