/** The pages of a cache: found by their tokens, kept while there is room, given away the least recently used first. */
import { describe, expect, it } from "vitest";
import { type Page, PagePool, type TextPart } from "../../src/serving/pages.ts";

const writer = {};
const SIZE = 2;
const textOf = (tokens: readonly number[], page = 0, kind = 7): TextPart => ({ tokens, from: page * SIZE, kind });
const find = (pool: PagePool, ...tokens: number[]): Page[] =>
  pool.find(textOf(tokens), Math.floor(tokens.length / SIZE));

/** Registers the pages of a text, or lays the last, computes and releases them. */
function keep(pool: PagePool, tokens: readonly number[], kind = 7): Page[] {
  const pages: Page[] = [];
  for (let i = 0; i * SIZE < tokens.length; i++) {
    const page = pool.allocate(writer)!;
    const parent = pages.at(-1) ?? null;
    page.filled = Math.min(SIZE, tokens.length - i * SIZE);
    const text = textOf(tokens, i, kind);
    const whole = page.filled === SIZE ? pool.register(page, parent, text) : page;
    if (whole !== page) {
      pool.hold(whole);
      pool.release(page);
    } else if (page.filled < SIZE) pool.lay(page, parent, text);
    pages.push(whole);
  }
  for (const page of pages.toReversed()) pool.release(page);
  return pages;
}

describe("Pages", () => {
  it("are known by all their tokens, by what came before them, and by how they were turned", () => {
    const pool = new PagePool(8, SIZE);
    const [a, b] = keep(pool, [1, 2, 3, 4]);
    expect(find(pool, 1, 2, 3, 4, 5, 6)).toEqual([a, b]);
    expect(find(pool, 1, 2, 3, 4).length).toBe(2);
    expect(find(pool, 3, 4)).toEqual([]);
    expect(find(pool, 1, 2, 1, 2)).toEqual([a]);
    expect(find(pool, 1, 65_538)).toEqual([]);
    expect(pool.find(textOf([1, 2], 0, 8), 1)).toEqual([]);
    expect(pool.find(textOf([1, 2, 3, 4]), 1)).toEqual([a]);
  });

  it("are given away the least recently used first, and the last of a text before its first", () => {
    const pool = new PagePool(4, SIZE);
    const [a, b] = keep(pool, [1, 2, 3, 4]);
    const [c] = keep(pool, [5, 6]);
    for (const page of find(pool, 1, 2)) {
      pool.hold(page);
      pool.release(page);
    }
    expect(pool).toMatchObject({ available: 4, kept: 3 });
    const taken = Array.from({ length: 3 }, () => pool.allocate(writer)!.index);
    expect(taken.slice(1)).toEqual([b!.index, c!.index]);
    expect(find(pool, 1, 2, 3, 4)).toEqual([a]);
    expect(find(pool, 5, 6)).toEqual([]);
    expect(pool.allocate(writer)!.index).toBe(a!.index);
    expect(pool.allocate(writer)).toBeNull();
  });

  it("that were never computed, or spoilt, are forgotten with what follows them", () => {
    const pool = new PagePool(4, SIZE);
    const page = pool.allocate(writer)!;
    expect(pool.register(page, null, textOf([1, 2]))).toBe(page);
    const twin = pool.allocate(writer)!;
    expect(pool.register(twin, null, textOf([1, 2]))).toBe(page);
    pool.release(twin);
    pool.release(page);
    expect(find(pool, 1, 2)).toEqual([]);
    const [first] = keep(pool, [1, 2, 3, 4, 5]);
    expect(pool.kept).toBe(3);
    pool.spoil(first!, 0);
    expect(pool).toMatchObject({ available: 4, kept: 0 });
    expect(find(pool, 1, 2)).toEqual([]);
  });
});

describe("A page that begins as another", () => {
  it("is a copy of the one that has most in common with it, behind the same page", () => {
    const pool = new PagePool(8, SIZE);
    const [a, b] = keep(pool, [1, 2, 3, 4]);
    keep(pool, [1, 2, 5, 6]);
    const text = [1, 2, 3, 9];
    pool.hold(a!);
    const begun = pool.begun(writer, a!, textOf(text, 1), 2)!;
    expect(begun).toMatchObject({ filled: 1, holders: 1, writer });
    expect(pool.takeCopies()).toEqual([{ from: b!.index, to: begun.index, page: begun }]);
    expect(pool.takeCopies()).toEqual([]);
    // Nothing in common, other pages before it, or turned otherwise.
    expect(pool.begun(writer, a!, textOf([1, 2, 9, 9], 1), 2)).toBeNull();
    expect(pool.begun(writer, null, textOf([3, 4]), 2)).toBeNull();
    expect(pool.begun(writer, null, textOf([1, 9], 0, 8), 2)).toBeNull();
    expect(pool.begun(writer, a!, textOf(text, 1), 0)).toBeNull();
  });

  it("is the other itself where nobody holds that and it goes no further", () => {
    const pool = new PagePool(4, SIZE);
    const [a, tail] = keep(pool, [1, 2, 3]);
    pool.hold(a!);
    expect(pool.begun(writer, a!, textOf([1, 2, 3, 4], 1), 2)).toBe(tail);
    expect(tail).toMatchObject({ filled: 1, holders: 1, level: null });
    expect(pool.takeCopies()).toEqual([]);
    // Who holds it now says what it goes on with; another that comes gets a copy.
    pool.lay(tail!, a!, textOf([1, 2, 3], 1));
    tail!.tokens.push(4);
    tail!.filled = 2;
    const copy = pool.begun(writer, a!, textOf([1, 2, 3, 4], 1), 2)!;
    expect(copy.filled).toBe(2);
    expect(pool.takeCopies()).toEqual([{ from: tail!.index, to: copy.index, page: copy }]);
  });

  it("may be given the memory of the other, and is not kept where the other says as much", () => {
    const pool = new PagePool(1, SIZE);
    const [other] = keep(pool, [1, 2]);
    const begun = pool.begun(writer, null, textOf([1, 3]), 2)!;
    expect(begun.filled).toBe(1);
    expect(pool.takeCopies()).toEqual([{ from: other!.index, to: other!.index, page: begun }]);
    const more = new PagePool(4, SIZE);
    keep(more, [1, 2]);
    keep(more, [1]);
    expect(more).toMatchObject({ available: 4, kept: 1 });
  });
});
