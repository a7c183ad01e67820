/** The pages of a cache: found by their tokens, kept while there is room, given away the least recently used first. */
import { describe, expect, it } from "vitest";
import { type Page, PagePool, pageKey } from "../../src/serving/pages.ts";

const writer = {};

/** Registers a chain of pages, computes and releases it. */
function keep(pool: PagePool, ...keys: string[]): Page[] {
  let parent: Page | null = null;
  const pages = keys.map((key) => {
    const page: Page = pool.allocate(writer)!;
    pool.register(page, parent, key);
    page.ready = true;
    parent = page;
    return page;
  });
  for (const page of pages.toReversed()) pool.release(page);
  return pages;
}

describe("Pages", () => {
  it("are known by all their tokens, and by what came before them", () => {
    const pool = new PagePool(8);
    const [a, b] = keep(pool, "a", "b");
    expect(pool.find(["a", "b", "c"])).toEqual([a, b]);
    expect(pool.find(["b"])).toEqual([]);
    expect(pool.find(["a", "a"])).toEqual([a]);
    expect(pageKey([1, 2, 3, 4], 0, 2, 7)).not.toBe(pageKey([1, 2, 3, 4], 0, 2, 8));
    expect(pageKey([1, 2, 65_536, 4], 1, 2, 7)).not.toBe(pageKey([1, 2, 0, 4], 1, 2, 7));
    expect(pageKey([1, 2, 3, 4], 1, 2, 7)).toBe(pageKey([9, 9, 3, 4], 1, 2, 8));
  });

  it("are given away the least recently used first, and the last of a text before its first", () => {
    const pool = new PagePool(4);
    const [a, b] = keep(pool, "a", "b");
    const [c] = keep(pool, "c");
    for (const page of pool.find(["a"])) {
      pool.hold(page);
      pool.release(page);
    }
    expect(pool).toMatchObject({ available: 4, kept: 3 });
    const taken = Array.from({ length: 3 }, () => pool.allocate(writer)!.index);
    expect(taken.slice(1)).toEqual([b!.index, c!.index]);
    expect(pool.find(["a", "b"])).toEqual([a]);
    expect(pool.find(["c"])).toEqual([]);
    expect(pool.allocate(writer)!.index).toBe(a!.index);
    expect(pool.allocate(writer)).toBeNull();
  });

  it("that were never computed, or spoilt, are forgotten with what follows them", () => {
    const pool = new PagePool(4);
    const page = pool.allocate(writer)!;
    expect(pool.register(page, null, "a")).toBe(page);
    const twin = pool.allocate(writer)!;
    expect(pool.register(twin, null, "a")).toBe(page);
    pool.release(twin);
    pool.release(page);
    expect(pool.find(["a"])).toEqual([]);
    const [first] = keep(pool, "x", "y", "z");
    expect(pool.kept).toBe(3);
    pool.spoil(first!);
    expect(pool).toMatchObject({ available: 4, kept: 0 });
    expect(pool.find(["x"])).toEqual([]);
  });
});
