/** Caches of past keys and values, (b, h, t, d) by default, that grow along the time dim. */
import { fail } from "../core/errors.ts";
import { formatShape, normalizeDim, type Shape } from "../core/layout.ts";
import { Tensor } from "../ops/index.ts";

/** What a tensor is stored as, and where. */
type Kind = Pick<Tensor, "dtype" | "device">;

export interface KvPair {
  readonly k: Tensor;
  readonly v: Tensor;
}

/** Short texts share the size of their buffers, and what was recorded for one of them serves it for a while. */
const LEAST_CAPACITY = 256;

/** How many positions a buffer is made for that must hold `needed`. */
export const capacityFor = (needed: number): number => 2 ** Math.ceil(Math.log2(Math.max(needed, LEAST_CAPACITY)));

/** One growing tensor. Capacity doubles, so appending costs O(1) per token; views handed out stay valid. */
class Growing {
  readonly #dim: number;
  #buffer: Tensor | undefined;
  #length = 0;

  constructor(dim: number) {
    this.#dim = dim;
  }

  get length(): number {
    return this.#length;
  }

  get tensor(): Tensor | undefined {
    return this.#buffer?.narrow(this.#dim, 0, this.#length);
  }

  append(x: Tensor): Tensor {
    const d = normalizeDim(this.#dim, x.rank, "KvCache");
    const needed = this.#length + x.shape[d]!;
    const buffer = this.reserve(x.shape, x, needed);
    buffer.sliceSet(x, d, this.#length);
    this.#length = needed;
    return buffer.narrow(d, 0, needed);
  }

  /** The whole buffer, with room for `needed` positions of tensors like these. */
  reserve(shape: Shape, { dtype, device }: Kind, needed: number): Tensor {
    const d = normalizeDim(this.#dim, shape.length, "KvCache");
    const old = this.#buffer;
    if (old && needed <= old.shape[d]!) return old;
    const next = Tensor.empty(shape.with(d, capacityFor(needed)), { dtype, device }).keep();
    if (old) {
      // All of it: what recorded steps have written may not be counted yet.
      next.sliceSet(old, d, 0);
      old.dispose();
    }
    this.#buffer = next;
    return next;
  }

  advance(positions: number): void {
    this.#length += positions;
  }

  truncate(length: number): void {
    if (!Number.isInteger(length) || length < 0 || length > this.#length) {
      fail("InvalidArgument", `KvCache: cannot keep ${length} of ${this.#length} positions`);
    }
    this.#length = length;
  }

  reset(): void {
    this.#length = 0;
  }

  dispose(): void {
    this.#buffer?.dispose();
    this.#buffer = undefined;
    this.#length = 0;
  }
}

function checkLengths(op: string, k: Tensor, v: Tensor, dim: number): void {
  if (k.shape.at(dim) !== v.shape.at(dim)) {
    fail("ShapeMismatch", `${op}: keys ${formatShape(k.shape)} and values ${formatShape(v.shape)} differ in length`);
  }
}

/** Keeps everything. */
export class KvCache {
  readonly #k: Growing;
  readonly #v: Growing;
  readonly #dim: number;

  constructor(dim = 2) {
    this.#dim = dim;
    this.#k = new Growing(dim);
    this.#v = new Growing(dim);
  }

  /** Positions held. */
  get length(): number {
    return this.#k.length;
  }

  /** Appends and returns all keys and values so far, as views. */
  append(k: Tensor, v: Tensor): KvPair {
    checkLengths("KvCache", k, v, this.#dim);
    return { k: this.#k.append(k), v: this.#v.append(v) };
  }

  /**
   * The whole buffers, with room for `positions` more of keys and values of `shape` (its time dim does not matter). Who
   * writes into them says so by `advance`.
   */
  reserve(positions: number, shape: Shape, kind: Pick<Tensor, "dtype" | "device">): KvPair {
    const needed = this.length + positions;
    return { k: this.#k.reserve(shape, kind, needed), v: this.#v.reserve(shape, kind, needed) };
  }

  /** So many positions behind the last have been written. */
  advance(positions: number): void {
    this.#k.advance(positions);
    this.#v.advance(positions);
  }

  get current(): KvPair | undefined {
    const [k, v] = [this.#k.tensor, this.#v.tensor];
    return k && v ? { k, v } : undefined;
  }

  /** Forgets all but the first `length` positions. */
  truncate(length: number): void {
    this.#k.truncate(length);
    this.#v.truncate(length);
  }

  reset(): void {
    this.#k.reset();
    this.#v.reset();
  }

  dispose(): void {
    this.#k.dispose();
    this.#v.dispose();
  }

  [Symbol.dispose](): void {
    this.dispose();
  }

  toString(): string {
    using keys = this.#k.tensor;
    const what = keys ? `, keys ${formatShape(keys.shape)}, ${keys.dtype}, ${keys.device.name}` : "";
    return `KvCache(${this.length} positions${what})`;
  }

  [Symbol.for("nodejs.util.inspect.custom")](): string {
    return this.toString();
  }
}

/** Keeps everything, where keys and values are made of one vector per position: (b, 1, t, width). */
export class LatentCache {
  readonly #latents = new Growing(2);

  /** Positions held. */
  get length(): number {
    return this.#latents.length;
  }

  /** Appends and returns all latents so far, as a view. */
  append(latents: Tensor): Tensor {
    return this.#latents.append(latents);
  }

  /** The whole buffer, with room for `positions` more of `shape`; who writes into it says so by `advance`. */
  reserve(positions: number, shape: Shape, kind: Pick<Tensor, "dtype" | "device">): Tensor {
    return this.#latents.reserve(shape, kind, this.length + positions);
  }

  /** So many positions behind the last have been written. */
  advance(positions: number): void {
    this.#latents.advance(positions);
  }

  /** Forgets all but the first `length` positions. */
  truncate(length: number): void {
    this.#latents.truncate(length);
  }

  reset(): void {
    this.#latents.reset();
  }

  dispose(): void {
    this.#latents.dispose();
  }

  [Symbol.dispose](): void {
    this.dispose();
  }

  toString(): string {
    return `LatentCache(${this.length} positions)`;
  }

  [Symbol.for("nodejs.util.inspect.custom")](): string {
    return this.toString();
  }
}

/**
 * The last `size` positions in order, in a buffer of twice that: appending writes behind, and only when the end is
 * reached the window moves to the front, so a step costs O(1) on average and the result is one view.
 */
class Rotating {
  readonly size: number;
  readonly #dim: number;
  #buffer: Tensor | undefined;
  #start = 0;
  #length = 0;

  constructor(size: number, dim: number) {
    this.size = size;
    this.#dim = dim;
  }

  append(x: Tensor): Tensor {
    const d = normalizeDim(this.#dim, x.rank, "RotatingKvCache");
    const added = x.shape[d]!;
    const past = Math.min(this.#length, this.size);
    const needed = past + added;
    const capacity = this.#buffer?.shape[d] ?? 0;
    if (!this.#buffer || this.#start + this.#length + added > capacity) {
      const next = Tensor.empty(x.shape.with(d, Math.max(2 * this.size, needed)), {
        dtype: x.dtype,
        device: x.device,
      }).keep();
      if (this.#buffer) {
        using tail = this.#buffer.narrow(d, this.#start + this.#length - past, past);
        next.sliceSet(tail, d, 0);
        this.#buffer.dispose();
      }
      this.#buffer = next;
      this.#start = 0;
      this.#length = past;
    }
    this.#buffer.sliceSet(x, d, this.#start + this.#length);
    const from = this.#start + this.#length - past;
    this.#start = from;
    this.#length = needed;
    // Keep at most `size` for the next step; this step's queries may still see the older ones.
    const view = this.#buffer.narrow(d, from, needed);
    if (needed > this.size) {
      this.#start += needed - this.size;
      this.#length = this.size;
    }
    return view;
  }

  reset(): void {
    this.#start = 0;
    this.#length = 0;
  }

  dispose(): void {
    this.#buffer?.dispose();
    this.#buffer = undefined;
    this.reset();
  }
}

/**
 * Keeps the last `size` positions. `append` returns, in order, the kept positions before this call followed by the
 * new ones: with sdpa's `causal` and `window: size` each new query then sees just its own last `size` keys.
 */
export class RotatingKvCache {
  readonly #k: Rotating;
  readonly #v: Rotating;
  /** Positions seen since the start, which rope needs. */
  #seen = 0;

  constructor(size: number, dim = 2) {
    if (!Number.isInteger(size) || size < 1)
      fail("InvalidArgument", `RotatingKvCache: the size must be 1 or more, not ${size}`);
    this.#k = new Rotating(size, dim);
    this.#v = new Rotating(size, dim);
    this.#dim = dim;
  }
  readonly #dim: number;

  get seen(): number {
    return this.#seen;
  }

  append(k: Tensor, v: Tensor): KvPair {
    checkLengths("RotatingKvCache", k, v, this.#dim);
    this.#seen += k.shape.at(this.#dim)!;
    return { k: this.#k.append(k), v: this.#v.append(v) };
  }

  reset(): void {
    this.#k.reset();
    this.#v.reset();
    this.#seen = 0;
  }

  dispose(): void {
    this.#k.dispose();
    this.#v.dispose();
    this.#seen = 0;
  }

  [Symbol.dispose](): void {
    this.dispose();
  }

  toString(): string {
    return `RotatingKvCache(${this.#seen} positions seen, the last ${this.#k.size} kept)`;
  }

  [Symbol.for("nodejs.util.inspect.custom")](): string {
    return this.toString();
  }
}
