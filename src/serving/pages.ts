/**
 * Who holds which page of the cache. A page whose tokens are known is registered behind the page before it, by the tokens
 * themselves, so that requests that begin alike hold the same pages; the last of a text, which has fewer tokens, is laid beside
 * those, and whoever begins with some of the same tokens begins with a copy. Pages that nobody holds are kept until memory is
 * needed, the least recently used first. A page has one writer, who was there before those that read it.
 */
import { randomInt } from "node:crypto";
import type { PageCopy } from "./runner.ts";

/** Tokens from `from` on. */
export interface TextPart {
  readonly tokens: readonly number[];
  readonly from: number;
  /** By what else texts must be alike for their pages to be. */
  readonly kind: number;
}

/** The pages behind one, or the first ones. */
interface Level {
  /** By a hash of their tokens; two texts with one hash are still two. */
  readonly whole: Map<number, Page[]>;
  /** Of these the one that was registered last: behind most pages there is one, and a look at it takes less than the hash. */
  latest: Page | null;
  /** Those that are not full yet, or were not when their request left them. */
  readonly tails: Set<Page>;
}

const newLevel = (): Level => ({ whole: new Map(), latest: null, tails: new Set() });

export class Page {
  readonly index: number;
  /** Requests that hold it. */
  holders = 0;
  /** How many of its first positions have been computed, or will be by steps that are enqueued. */
  filled = 0;
  /** The one that computes it; where there is none, and it is not full, the next holder that needs it does. */
  writer: object | null;
  /** What it is found by, once it is laid, or registered, which it has a hash for: its tokens as far as they are known. */
  tokens: number[] = [];
  kind = 0;
  hash: number | null = null;
  level: Level | null = null;
  /** What is behind it. */
  readonly next = newLevel();

  constructor(index: number, writer: object) {
    this.index = index;
    this.writer = writer;
  }
}

/** A page that begins as another does, which is copied. */
export interface BegunPage extends PageCopy {
  readonly page: Page;
}

/** Pages behind another that are looked at for what they have in common with a text. */
const LOOKED_AT = 256;
/** A copy must spare at least this part of a page. */
const LEAST_COPIED = 1 / 4;

/** Nobody can make texts whose hashes are the same. */
const SEED = randomInt(2 ** 32);

function hashOf({ tokens, kind }: TextPart, from: number, size: number): number {
  let hash = SEED ^ kind;
  for (let i = from; i < from + size; i++) {
    hash = Math.imul(hash ^ tokens[i]!, 0x9e3779b1);
    hash ^= hash >>> 15;
  }
  return hash;
}

/** How many tokens, `most` at most, a page has in common with a text from `from` on. */
function inCommon(page: Page, { tokens, kind }: TextPart, from: number, most: number): number {
  if (page.kind !== kind) return 0;
  const own = page.tokens;
  const count = Math.min(most, own.length, tokens.length - from);
  for (let i = 0; i < count; i++) if (own[i] !== tokens[from + i]) return i;
  return count;
}

function* someOf({ tails, whole }: Level): Generator<Page> {
  let left = LOOKED_AT;
  for (const page of tails) {
    if (left-- <= 0) return;
    yield page;
  }
  for (const pages of whole.values()) {
    for (const page of pages) {
      if (left-- <= 0) return;
      yield page;
    }
  }
}

export class PagePool {
  readonly total: number;
  readonly pageSize: number;
  readonly #first = newLevel();
  /** Indices that no page has. */
  readonly #free: number[];
  /** Pages that nobody holds, the least recently used first: those behind come before those they follow. */
  readonly #kept = new Set<Page>();
  readonly #copies: BegunPage[] = [];

  constructor(total: number, pageSize: number) {
    this.total = total;
    this.pageSize = pageSize;
    this.#free = Array.from({ length: total }, (_, i) => total - 1 - i);
  }

  /** Pages that can be had. */
  get available(): number {
    return this.#free.length + this.#kept.size;
  }

  get kept(): number {
    return this.#kept.size;
  }

  isFull(page: Page): boolean {
    return page.filled === this.pageSize;
  }

  /** The registered pages that a text begins with, `most` at most; nobody holds them yet. */
  find(text: TextPart, most: number): Page[] {
    const found: Page[] = [];
    let level = this.#first;
    for (let from = 0; found.length < most; from += this.pageSize) {
      const page = this.#there(level, text, from);
      if (!page) break;
      found.push(page);
      level = page.next;
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

  /**
   * A page of its own for `writer`, behind `parent`, that begins with as many as there are of the text's next tokens, `most`
   * at most: left by another that went no further, or copied. Null where none is worth it.
   */
  begun(writer: object, parent: Page | null, text: TextPart, most: number): Page | null {
    let nearest: Page | null = null;
    let count = 0;
    for (const page of someOf(parent?.next ?? this.#first)) {
      const own = inCommon(page, text, text.from, Math.min(page.filled, most));
      if (own > count) [nearest, count] = [page, own];
    }
    if (!nearest) return null;
    if (nearest.holders === 0 && nearest.hash === null && nearest.filled === count) {
      this.#withdraw(nearest);
      this.hold(nearest);
      nearest.writer = writer;
      return nearest;
    }
    if (count < LEAST_COPIED * this.pageSize) return null;
    if (this.#kept.delete(nearest)) this.#kept.add(nearest);
    const page = this.allocate(writer);
    if (!page) return null;
    page.filled = count;
    this.#copies.push({ from: nearest.index, to: page.index, page });
    return page;
  }

  /**
   * What has to be copied, one after another, before the next step writes anything: by then a page may be another's already,
   * even the one that it is copied to.
   */
  takeCopies(): readonly BegunPage[] {
    return this.#copies.splice(0);
  }

  /** Lets others find the page behind `parent` by the text's next tokens. Gives the one that is there already, if one is. */
  register(page: Page, parent: Page | null, text: TextPart): Page {
    const level = parent?.next ?? this.#first;
    this.#withdraw(page);
    const there = this.#there(level, text, text.from);
    if (there) return there;
    this.#tell(page, text);
    page.hash = hashOf(text, text.from, this.pageSize);
    page.level = level;
    level.latest = page;
    const alike = level.whole.get(page.hash);
    if (alike) alike.push(page);
    else level.whole.set(page.hash, [page]);
    return page;
  }

  /** Lets others copy what there is of a page that is not full, behind `parent`; its tokens may become more. */
  lay(page: Page, parent: Page | null, text: TextPart): void {
    this.#tell(page, text);
    page.level = parent?.next ?? this.#first;
    page.level.tails.add(page);
  }

  /** A holder less. Of a request's pages the last is released first. */
  release(page: Page): void {
    if (--page.holders > 0) return;
    if (page.level && page.hash === null) this.#leave(page);
    if (page.level && page.filled > 0) this.#kept.add(page);
    else this.#forget(page);
  }

  /** What was to be computed was not, but for the first `filled` positions. */
  spoil(page: Page, filled: number): void {
    page.filled = Math.min(page.filled, filled);
    if (page.filled === 0 && this.#kept.has(page)) this.#forget(page);
  }

  #there({ latest, whole }: Level, text: TextPart, from: number): Page | null {
    const size = this.pageSize;
    if (latest && inCommon(latest, text, from, size) === size) return latest;
    const alike = whole.size > 0 ? whole.get(hashOf(text, from, size)) : undefined;
    return alike?.find((page) => inCommon(page, text, from, size) === size) ?? null;
  }

  #tell(page: Page, { tokens, from, kind }: TextPart): void {
    page.tokens = tokens.slice(from, from + this.pageSize);
    page.kind = kind;
  }

  /** The text goes no further: only what it says counts, and that is of no use where another page has as much. */
  #leave(page: Page): void {
    page.filled = page.tokens.length = Math.min(page.filled, page.tokens.length);
    const { filled, tokens, kind } = page;
    const text = { tokens, from: 0, kind };
    for (const other of someOf(page.level!)) {
      if (other === page || other.filled < filled || inCommon(other, text, 0, filled) < filled) continue;
      page.filled = 0;
      return;
    }
  }

  /** Others find it no more. */
  #withdraw(page: Page): void {
    const { level, hash } = page;
    if (!level) return;
    if (hash === null) level.tails.delete(page);
    else {
      const others = level.whole.get(hash)!.filter((other) => other !== page);
      if (others.length > 0) level.whole.set(hash, others);
      else level.whole.delete(hash);
      if (level.latest === page) level.latest = null;
    }
    page.tokens = [];
    page.hash = page.level = null;
  }

  /** Frees a page that nobody holds, and what follows it, which can be found no more. */
  #forget(page: Page): void {
    for (const next of [...page.next.tails, ...[...page.next.whole.values()].flat()]) this.#forget(next);
    this.#withdraw(page);
    this.#kept.delete(page);
    this.#free.push(page.index);
  }
}
