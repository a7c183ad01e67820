/**
 * Divides regions of memory among blocks: best fit over free ranges kept in size classes, neighbours merged. It only does
 * arithmetic on addresses, so it serves WebAssembly memory and GPU memory alike.
 *
 * Blocks are not merged when they are released but parked by size, since the next step of a loop wants the same sizes
 * again; they are merged when a block is not found otherwise, or many are parked.
 */
const ALIGN = 256;
const CLASSES = 48;
const MOST_PARKED = 512;
const MOST_PARKED_BYTES = 2 ** 26;

const classOf = (size: number): number => Math.floor(Math.log2(size / ALIGN));

export class Heap {
  /** Free ranges: size by start, start by end for merging, and starts by size class for the search. */
  readonly #sizeAt = new Map<number, number>();
  readonly #startOfEnd = new Map<number, number>();
  readonly #classes: Set<number>[] = Array.from({ length: CLASSES }, () => new Set());
  readonly #used = new Map<number, number>();
  /** Starts of released blocks by size. */
  readonly #parked = new Map<number, number[]>();
  #parkedCount = 0;
  #parkedBytes = 0;
  /** Where ranges must not merge with what lies before: the starts of regions that are returned as a whole. */
  readonly #regions = new Map<number, number>();
  #free = 0;

  /** Bytes that are free in all regions. */
  get free(): number {
    return this.#free;
  }

  /** Adds memory that goes on where a region ends. */
  extend(start: number, size: number): void {
    this.#insert(start, size);
  }

  /** Adds memory that can be taken back by `takeFreeRegions`. */
  addRegion(start: number, size: number): void {
    this.#regions.set(start, size);
    this.#insert(start, size);
  }

  /** Removes and returns the regions in which nothing is allocated. */
  takeFreeRegions(): number[] {
    this.#unpark();
    const starts: number[] = [];
    for (const [start, size] of this.#regions) {
      if (this.#sizeAt.get(start) !== size) continue;
      this.#remove(start, size);
      this.#regions.delete(start);
      starts.push(start);
    }
    return starts;
  }

  static roundUp(bytes: number): number {
    return Math.max(ALIGN, Math.ceil(bytes / ALIGN) * ALIGN);
  }

  /** The address of `bytes` free bytes, or undefined when no range is large enough. */
  take(bytes: number): number | undefined {
    const size = Heap.roundUp(bytes);
    const parked = this.#parked.get(size)?.pop();
    if (parked !== undefined) {
      this.#parkedCount--;
      this.#parkedBytes -= size;
      this.#free -= size;
      this.#used.set(parked, size);
      return parked;
    }
    const at = this.#find(size) ?? (this.#unpark() ? this.#find(size) : undefined);
    if (at === undefined) return undefined;
    const have = this.#sizeAt.get(at)!;
    this.#remove(at, have);
    if (have > size) this.#insert(at + size, have - size);
    this.#used.set(at, size);
    return at;
  }

  release(at: number): void {
    const size = this.#used.get(at)!;
    this.#used.delete(at);
    if (size > MOST_PARKED_BYTES / 4) {
      this.#insert(at, size);
      return;
    }
    if (this.#parkedCount === MOST_PARKED || this.#parkedBytes + size > MOST_PARKED_BYTES) this.#unpark();
    const same = this.#parked.get(size);
    if (same) same.push(at);
    else this.#parked.set(size, [at]);
    this.#parkedCount++;
    this.#parkedBytes += size;
    this.#free += size;
  }

  /** Calls `visit` with every free range. */
  eachFree(visit: (start: number, size: number) => void): void {
    this.#unpark();
    for (const [start, size] of this.#sizeAt) visit(start, size);
  }

  /** Merges what is parked; false where nothing was. */
  #unpark(): boolean {
    if (this.#parkedCount === 0) return false;
    for (const [size, starts] of this.#parked) {
      this.#free -= size * starts.length;
      for (const at of starts) this.#insert(at, size);
    }
    this.#parked.clear();
    this.#parkedCount = 0;
    this.#parkedBytes = 0;
    return true;
  }

  /** The length of the free range that ends at `end`. */
  freeBefore(end: number): number {
    this.#unpark();
    const start = this.#startOfEnd.get(end);
    return start === undefined ? 0 : this.#sizeAt.get(start)!;
  }

  /** The best of the first few ranges that fit; every range of a higher class fits. */
  #find(size: number): number | undefined {
    const own = classOf(size);
    let best: number | undefined;
    let looked = 0;
    for (const at of this.#classes[own]!) {
      const have = this.#sizeAt.get(at)!;
      if (have === size) return at;
      if (have > size && (best === undefined || have < this.#sizeAt.get(best)!)) best = at;
      if (best !== undefined && ++looked === 32) break;
    }
    if (best !== undefined) return best;
    for (let c = own + 1; c < CLASSES; c++) for (const at of this.#classes[c]!) return at;
    return undefined;
  }

  #insert(start: number, size: number): void {
    const before = this.#startOfEnd.get(start);
    if (before !== undefined && !this.#regions.has(start)) {
      const n = this.#sizeAt.get(before)!;
      this.#remove(before, n);
      start = before;
      size += n;
    }
    const after = this.#sizeAt.get(start + size);
    if (after !== undefined && !this.#regions.has(start + size)) {
      this.#remove(start + size, after);
      size += after;
    }
    this.#sizeAt.set(start, size);
    this.#startOfEnd.set(start + size, start);
    this.#classes[classOf(size)]!.add(start);
    this.#free += size;
  }

  #remove(start: number, size: number): void {
    this.#sizeAt.delete(start);
    this.#startOfEnd.delete(start + size);
    this.#classes[classOf(size)]!.delete(start);
    this.#free -= size;
  }
}
