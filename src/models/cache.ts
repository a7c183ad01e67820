/** The keys and values of every layer for a batch of sequences, and where each sequence starts. */

import type { Device } from "../backend/device.ts";
import { type DType, sizeOf } from "../core/dtype.ts";
import { fail } from "../core/errors.ts";
import { KvCache, LatentCache, RotatingKvCache } from "../nn/index.ts";
import { capacityFor } from "../nn/kv-cache.ts";
import { Tensor } from "../ops/index.ts";
import { ByteKvCache, RotatingByteKvCache, rowWidth } from "./byte-cache.ts";
import type { ModelConfig } from "./config.ts";
import type { Positions } from "./positions.ts";

/**
 * Added to the scores of padding. Finite, so that rows of padding, which see nothing else, stay finite too: a NaN in
 * their keys and values would reach every other row through 0 · NaN.
 */
const MASKED = -30_000;

/** Whether a device attends over caches by itself, with all of a text in them. */
export const deviceAttends = (
  { headDim, latent, rope }: ModelConfig,
  { backend }: Device,
  dtype: DType,
  stored: DType,
): boolean =>
  (latent
    ? backend.latentAttention?.supports(dtype, latent.rank, rope.dims)
    : backend.cachedAttention?.supports(dtype, headDim, stored)) ?? false;

/** What the caches of one sequence take when `positions` have been fed. */
export function cacheBytes(
  config: ModelConfig,
  device: Device,
  dtype: DType,
  positions: number,
  stored: DType = dtype,
): number {
  const { windows } = config;
  const whole = deviceAttends(config, device, dtype, stored);
  const room = capacityFor(positions);
  const rows = windows.reduce((sum, window) => sum + (whole || window === 0 ? room : Math.min(window, room)), 0);
  // One layer at a time is read as what is computed in.
  const work = stored === dtype ? 0 : room * bytesPerPosition(config, dtype);
  return rows * bytesPerPosition(config, stored) + work;
}

/** What a layer keeps of a position: keys and values of every head that has its own, or what they are made of. */
export const bytesPerPosition = ({ kvHeads, headDim, latent, rope }: ModelConfig, stored: DType): number =>
  sizeOf(stored) * (latent ? latent.rank + rope.dims : 2 * kvHeads * rowWidth(headDim, stored));

/** Caches that keep everything. */
type Whole = KvCache | LatentCache;
const isWhole = (layer: Whole | RotatingKvCache): layer is Whole => !(layer instanceof RotatingKvCache);

export interface ModelCacheOptions {
  /** How many sequences are fed side by side. Default 1. */
  readonly batch?: number;
  /** How many of each sequence's first positions are padding. Default none. */
  readonly padding?: readonly number[];
  /** Sliding windows keep what is before them, too, so that any position can be gone back to. Default false. */
  readonly rewindable?: boolean;
  /** What keys and values are kept as. Default: what is computed in. */
  readonly stored?: DType;
}

export class ModelCache implements Disposable {
  readonly layers: readonly (KvCache | RotatingKvCache | LatentCache)[];
  readonly batch: number;
  readonly #config: ModelConfig;
  readonly #padding: readonly number[] | null;
  readonly #device: Device;
  readonly #dtype: DType;
  #length = 0;
  #mask: Tensor | null = null;
  #paddingTensor: Tensor | null = null;
  /** By the number of positions that are asked for: how far each is from the end. */
  readonly #before = new Map<number, Tensor>();
  #lastPosition: Tensor | null = null;

  constructor(config: ModelConfig, device: Device, dtype: DType, options: ModelCacheOptions = {}) {
    const { padding, rewindable = false, stored = dtype } = options;
    this.batch = options.batch ?? padding?.length ?? 1;
    if (padding && padding.length !== this.batch) {
      fail("InvalidArgument", `a cache for ${this.batch} sequences was given ${padding.length} paddings`);
    }
    this.#padding = padding?.some((n) => n > 0) ? padding : null;
    this.#config = config;
    this.#device = device;
    this.#dtype = dtype;
    const whole = rewindable || deviceAttends(config, device, dtype, stored);
    const [Whole, Rotating] = stored === dtype ? [KvCache, RotatingKvCache] : [ByteKvCache, RotatingByteKvCache];
    this.layers = config.windows.map((window) => {
      if (config.latent) return new LatentCache();
      return whole || window === 0 ? new Whole() : new Rotating(window);
    });
  }

  /** Positions fed so far, padding included. */
  get length(): number {
    return this.#length;
  }

  /** Counts positions that every layer has appended. */
  advance(positions: number): void {
    this.#length += positions;
  }

  /** Counts positions that recorded steps have written; the layers know nothing of them. */
  accept(positions: number): void {
    for (const layer of this.layers) (layer as Whole).advance(positions);
    this.advance(positions);
  }

  /** Makes room for `positions` in every layer's buffers; says for how many there is. */
  reserve(positions: number): number {
    const { kvHeads, headDim, latent, rope } = this.#config;
    const shape = latent ? [this.batch, 1, 0, latent.rank + rope.dims] : [this.batch, kvHeads, 0, headDim];
    const kind = { dtype: this.#dtype, device: this.#device };
    const rooms = this.layers.map((layer) => {
      const whole = layer as Whole;
      const room = whole.reserve(positions - whole.length, shape, kind);
      return ("k" in room ? room.k : room).shape[2]!;
    });
    return Math.min(...rooms);
  }

  /** Where the next `length` positions of each sequence stand; padding counts as position 0. */
  positions(length: number): Positions {
    const start = this.#length;
    if (!this.#padding) return { start, length };
    return { each: this.#padding.map((pad) => Array.from({ length }, (_, i) => Math.max(start + i - pad, 0))) };
  }

  /** How many of each sequence's first positions are padding, as a tensor, where there is any. */
  get padding(): Tensor | null {
    if (!this.#padding) return null;
    this.#paddingTensor ??= Tensor.from(BigInt64Array.from(this.#padding, BigInt), { device: this.#device }).keep();
    return this.#paddingTensor;
  }

  /**
   * The positions (b · count) of the last `count` of `lengths` slots, i64 (b) in device memory. Recorded passes may have
   * some beyond the context that count for nothing: they stand at its end. Call it inside a scope.
   */
  lastPositions(lengths: Tensor, count: number): Tensor {
    let before = this.#before.get(count);
    if (!before) {
      const distances = Array.from({ length: this.batch }, (_, i) =>
        Array.from({ length: count }, (_, j) => BigInt(count - j + (this.#padding?.[i] ?? 0))),
      );
      const shape = [this.batch, count];
      before = Tensor.from(BigInt64Array.from(distances.flat()), { shape, device: this.#device }).keep();
      this.#before.set(count, before);
    }
    const end = BigInt64Array.of(BigInt(this.#config.contextLength - 1));
    this.#lastPosition ??= Tensor.from(end, { device: this.#device }).keep();
    const positions = lengths.unsqueeze(1).sub(before);
    return positions.minimum(this.#lastPosition).reshape([this.batch * count]);
  }

  /** What is added to the scores of the last `keys` of `total` positions: (b, 1, 1, keys). Call it inside a scope. */
  mask(keys: number, total: number): Tensor | null {
    if (!this.#padding) return null;
    const have = this.#mask?.shape[3] ?? 0;
    if (have < total) {
      this.#mask?.dispose();
      this.#mask = this.#makeMask(this.#padding, Math.max(total, 2 * have, 128));
    }
    return this.#mask!.narrow(3, total - keys, keys);
  }

  get rewindable(): boolean {
    return this.layers.every(isWhole);
  }

  /** Forgets all but the first `length` positions; says whether it could. Sliding windows have lost what was before. */
  rewind(length: number): boolean {
    if (length === this.#length) return true;
    if (length > 0 && !this.rewindable) return false;
    for (const layer of this.layers) {
      if (isWhole(layer)) layer.truncate(length);
      else layer.reset();
    }
    this.#length = length;
    return true;
  }

  /** After a step that failed half-way some layers hold more than others: what they had before stays, or nothing. */
  recover(): void {
    const { rewindable } = this;
    for (const layer of this.layers) {
      if (rewindable && isWhole(layer)) layer.truncate(Math.min(layer.length, this.#length));
      else layer.reset();
    }
    if (!rewindable) this.#length = 0;
  }

  dispose(): void {
    for (const layer of this.layers) layer.dispose();
    this.#mask?.dispose();
    this.#mask = null;
    this.#paddingTensor?.dispose();
    this.#paddingTensor = null;
    for (const before of this.#before.values()) before.dispose();
    this.#before.clear();
    this.#lastPosition?.dispose();
    this.#lastPosition = null;
    this.#length = 0;
  }

  [Symbol.dispose](): void {
    this.dispose();
  }

  toString(): string {
    const sizes = `${this.layers.length} layers, batch ${this.batch}, ${this.#length} positions`;
    return `ModelCache(${sizes}, ${this.#dtype}, ${this.#device.name})`;
  }

  [Symbol.for("nodejs.util.inspect.custom")](): string {
    return this.toString();
  }

  #makeMask(padding: readonly number[], width: number): Tensor {
    const values = new Float32Array(this.batch * width);
    for (const [i, pad] of padding.entries()) values.fill(MASKED, i * width, i * width + Math.min(pad, width));
    const shape = [this.batch, 1, 1, width];
    return Tensor.from(values, { shape, dtype: this.#dtype, device: this.#device }).keep();
  }
}
