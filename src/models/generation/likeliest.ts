/** A heap of ids: taking the few likeliest of a large vocabulary costs less than sorting it. Equal shares: lower id. */
export class Likeliest {
  readonly #shares: Float64Array;
  readonly #heap: Uint32Array;
  #size: number;

  constructor(shares: Float64Array) {
    this.#shares = shares;
    this.#size = shares.length;
    this.#heap = new Uint32Array(this.#size);
    for (let i = 0; i < this.#size; i++) this.#heap[i] = i;
    for (let i = (this.#size >> 1) - 1; i >= 0; i--) this.#sink(i);
  }

  pop(): number {
    const top = this.#heap[0]!;
    this.#heap[0] = this.#heap[--this.#size]!;
    this.#sink(0);
    return top;
  }

  #sink(start: number): void {
    const heap = this.#heap;
    const id = heap[start]!;
    let at = start;
    for (let child = 2 * at + 1; child < this.#size; child = 2 * at + 1) {
      if (child + 1 < this.#size && this.#before(heap[child + 1]!, heap[child]!)) child++;
      if (!this.#before(heap[child]!, id)) break;
      heap[at] = heap[child]!;
      at = child;
    }
    heap[at] = id;
  }

  #before(a: number, b: number): boolean {
    const x = this.#shares[a]!;
    const y = this.#shares[b]!;
    return x > y || (x === y && a < b);
  }
}
