/**
 * Who holds which page of the cache. A page whose tokens are known is registered behind the page before it, by the tokens
 * themselves, so that requests that begin alike hold the same pages; those that nobody holds are kept until memory is
 * needed, the least recently used first. A page has one writer, who was there before those that read it.
 */

/** Pages by their tokens, in full: two texts with one hash are still two. */
type Registered = Map<string, Page>;

export class Page {
  readonly index: number;
  /** Requests that hold it. */
  holders = 0;
  /** Whether what it holds has been computed, or will be by steps that are enqueued. */
  ready = false;
  /** The one that computes it; where there is none, and it is not ready, the next holder that needs it does. */
  writer: object | null;
  /** Its tokens, once it is registered. */
  key: string | null = null;
  parent: Page | null = null;
  readonly children: Registered = new Map();

  constructor(index: number, writer: object) {
    this.index = index;
    this.writer = writer;
  }
}

/** Where a page's tokens become a string: a long prompt has many pages, and a first token waits for their keys. */
let words = new Uint32Array(0);
let letters = Buffer.alloc(0);

/** The tokens of a page as a key; the first page's says by what else texts must be alike. */
export function pageKey(tokens: readonly number[], page: number, size: number, kind: number): string {
  if (words.length !== size) {
    words = new Uint32Array(size);
    letters = Buffer.from(words.buffer);
  }
  for (let i = 0; i < size; i++) words[i] = tokens[page * size + i]!;
  const key = letters.toString("utf16le");
  return page === 0 ? `${kind}:${key}` : key;
}

export class PagePool {
  readonly total: number;
  readonly #first: Registered = new Map();
  /** Indices that no page has. */
  readonly #free: number[];
  /** Registered pages that nobody holds, the least recently used first: those behind come before those they follow. */
  readonly #kept = new Set<Page>();

  constructor(total: number) {
    this.total = total;
    this.#free = Array.from({ length: total }, (_, i) => total - 1 - i);
  }

  /** Pages that can be had. */
  get available(): number {
    return this.#free.length + this.#kept.size;
  }

  get kept(): number {
    return this.#kept.size;
  }

  /** The registered pages that these tokens begin with; nobody holds them yet. */
  find(keys: Iterable<string>): Page[] {
    const found: Page[] = [];
    let level = this.#first;
    for (const key of keys) {
      const page = level.get(key);
      if (!page) break;
      found.push(page);
      level = page.children;
    }
    return found;
  }

  hold(page: Page): void {
    page.holders++;
    this.#kept.delete(page);
  }

  /** A page of its own for `writer`, or null where all are held. */
  allocate(writer: object): Page | null {
    if (this.#free.length === 0) {
      const [oldest] = this.#kept;
      if (!oldest) return null;
      this.#forget(oldest);
    }
    const page = new Page(this.#free.pop()!, writer);
    page.holders = 1;
    return page;
  }

  /** Lets others find the page behind `parent`. Gives the one that is there already, if one is. */
  register(page: Page, parent: Page | null, key: string): Page {
    const level = parent ? parent.children : this.#first;
    const there = level.get(key);
    if (there) return there;
    page.key = key;
    page.parent = parent;
    level.set(key, page);
    return page;
  }

  /** A holder less. Of a request's pages the last is released first. */
  release(page: Page): void {
    if (--page.holders > 0) return;
    if (page.ready && page.key !== null) this.#kept.add(page);
    else this.#forget(page);
  }

  /** What was to be computed was not. */
  spoil(page: Page): void {
    page.ready = false;
    if (page.holders === 0 && this.#kept.has(page)) this.#forget(page);
  }

  /** Frees a page that nobody holds, and what follows it, which can be found no more. */
  #forget(page: Page): void {
    for (const child of page.children.values()) this.#forget(child);
    if (page.key !== null) {
      const level = page.parent ? page.parent.children : this.#first;
      level.delete(page.key);
      page.key = null;
    }
    this.#kept.delete(page);
    this.#free.push(page.index);
  }
}
