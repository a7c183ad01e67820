/**
 * The allocator of the CPU device's memory: best fit over free ranges kept in size classes, neighbours merged on free.
 * WebAssembly memory never shrinks, so what is free is cached by nature.
 */

import { fail } from "../../core/errors.ts";

const ALIGN = 64;
const CLASSES = 33;

const classOf = (size: number): number => 31 - Math.clz32(size / ALIGN);

export class Heap {
  readonly #limit: number;
  readonly #grow: (bytes: number) => number;
  /** Free ranges by start, and by end for merging; sizes per class for the search. */
  readonly #sizeAt = new Map<number, number>();
  readonly #startOfEnd = new Map<number, number>();
  readonly #classes: Set<number>[] = Array.from({ length: CLASSES }, () => new Set());
  readonly #used = new Map<number, number>();
  #end: number;
  #free = 0;

  constructor(start: number, end: number, limit: number, grow: (bytes: number) => number) {
    const first = Math.ceil(start / ALIGN) * ALIGN;
    this.#limit = limit;
    this.#grow = grow;
    this.#end = end;
    this.#insert(first, end - first);
  }

  alloc(bytes: number): number {
    const size = Math.max(ALIGN, Math.ceil(bytes / ALIGN) * ALIGN);
    const at = this.#take(size) ?? (this.#extend(size) ? this.#take(size) : undefined);
    if (at === undefined) {
      const mib = (n: number) => `${(n / 2 ** 20).toFixed(1)} MiB`;
      fail(
        "OutOfMemory",
        `cpu: cannot allocate ${mib(bytes)}: ${mib(this.#end - this.#free)} are in use, ${mib(this.#free)} are free in pieces, and the device holds at most ${mib(this.#limit)}. Dispose tensors, use a scope(), or a smaller dtype`,
      );
    }
    this.#used.set(at, size);
    return at;
  }

  release(at: number): void {
    const size = this.#used.get(at)!;
    this.#used.delete(at);
    this.#insert(at, size);
  }

  /** Bytes free in the memory that the system has given so far. */
  get free(): number {
    return this.#free;
  }

  #take(size: number): number | undefined {
    const at = this.#find(size);
    if (at === undefined) return undefined;
    const have = this.#sizeAt.get(at)!;
    this.#remove(at, have);
    if (have > size) this.#insert(at + size, have - size);
    return at;
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

  #extend(size: number): boolean {
    const tail = this.#startOfEnd.get(this.#end);
    const missing = size - (tail === undefined ? 0 : this.#sizeAt.get(tail)!);
    if (this.#end + missing > this.#limit) return false;
    const end = this.#grow(missing);
    if (end === 0) return false;
    const start = this.#end;
    this.#end = end;
    this.#insert(start, end - start);
    return true;
  }

  #insert(start: number, size: number): void {
    const before = this.#startOfEnd.get(start);
    if (before !== undefined) {
      const n = this.#sizeAt.get(before)!;
      this.#remove(before, n);
      start = before;
      size += n;
    }
    const after = this.#sizeAt.get(start + size);
    if (after !== undefined) {
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
