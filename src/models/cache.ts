/** The keys and values of every layer for a batch of sequences, and where each sequence starts. */

import type { Device } from "../backend/device.ts";
import { type DType, sizeOf } from "../core/dtype.ts";
import { fail } from "../core/errors.ts";
import { KvCache, LatentCache, RotatingKvCache } from "../nn/index.ts";
import { capacityFor } from "../nn/kv-cache.ts";
import { ByteKvCache, RotatingByteKvCache, rowWidth } from "./byte-cache.ts";
import { CachePlaces } from "./cache-places.ts";
import type { ModelConfig } from "./config.ts";
import type { Positions } from "./positions.ts";

/** Whether a device attends over caches by itself, with all of a text in them. */
export const deviceAttends = (
  { headDim, latent, rope, ropes, windows }: ModelConfig,
  { backend }: Device,
  dtype: DType,
  stored: DType,
): boolean =>
  (latent
    ? backend.latentAttention?.supports(dtype, latent.rank, rope.dims)
    : backend.cachedAttention?.supports(dtype, headDim, stored, {
        rotary: [...new Set(ropes)].map(({ dims }) => dims),
        windowed: windows.some((window) => window > 0),
      })) ?? false;

/** Positions of a prompt that devices without attention over caches compute at once. */
export const PART = 512;

/** What the cache of one layer, kept as `stored`, takes of a sequence when `positions` have been fed; `whole` where windows keep all, too. */
export function layerCacheBytes(
  config: ModelConfig,
  layer: number,
  stored: DType,
  positions: number,
  whole: boolean,
): number {
  const window = config.windows[layer]!;
  const room = capacityFor(positions);
  // A window's buffer is twice its size.
  const rows = whole || config.latent || window === 0 ? room : 2 * window;
  return rows * bytesPerPosition(config, stored);
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

/** One device for all layers, or each its own. */
export const perLayer = (device: Device | readonly Device[], { layers }: ModelConfig): readonly Device[] =>
  Array.isArray(device) ? device : new Array<Device>(layers).fill(device as Device);

export const namesOf = (devices: readonly Device[]): string =>
  [...new Set(devices.map((device) => device.name))].join(" + ");

export class ModelCache implements Disposable {
  readonly layers: readonly (KvCache | RotatingKvCache | LatentCache)[];
  readonly batch: number;
  readonly #config: ModelConfig;
  readonly #padding: readonly number[] | null;
  /** Of each layer. */
  readonly #devices: readonly Device[];
  readonly #dtype: DType;
  readonly #places = new Map<Device, CachePlaces>();
  #length = 0;

  /** Each layer's keys and values lie on one device, or on its own. */
  constructor(config: ModelConfig, device: Device | readonly Device[], dtype: DType, options: ModelCacheOptions = {}) {
    const { padding, rewindable = false, stored = dtype } = options;
    this.batch = options.batch ?? padding?.length ?? 1;
    if (padding && padding.length !== this.batch) {
      fail("InvalidArgument", `a cache for ${this.batch} sequences was given ${padding.length} paddings`);
    }
    this.#padding = padding?.some((n) => n > 0) ? padding : null;
    this.#config = config;
    this.#devices = perLayer(device, config);
    this.#dtype = dtype;
    const [Whole, Rotating] = stored === dtype ? [KvCache, RotatingKvCache] : [ByteKvCache, RotatingByteKvCache];
    this.layers = config.windows.map((window, i) => {
      if (config.latent) return new LatentCache();
      const whole = rewindable || window === 0 || deviceAttends(config, this.#devices[i]!, dtype, stored);
      return whole ? new Whole() : new Rotating(window);
    });
  }

  /** Whether some sequence begins behind positions that count for nothing. */
  get isPadded(): boolean {
    return this.#padding !== null;
  }

  /** Positions fed so far, padding included. */
  get length(): number {
    return this.#length;
  }

  /** Counts positions that every layer has appended. */
  advance(positions: number): void {
    this.#length += positions;
  }

  /** Counts positions that a step has written; layers whose step was recorded know nothing of them. */
  accept(positions: number): void {
    this.advance(positions);
    for (const layer of this.layers) if (isWhole(layer)) layer.advance(this.#length - layer.length);
  }

  /** Makes room for `positions` in every layer's buffers; says for how many there is. */
  reserve(positions: number): number {
    const { kvHeads, headDim, latent, rope } = this.#config;
    const shape = latent ? [this.batch, 1, 0, latent.rank + rope.dims] : [this.batch, kvHeads, 0, headDim];
    const rooms = this.layers.map((layer, i) => {
      if (!isWhole(layer)) return Number.POSITIVE_INFINITY;
      const kind = { dtype: this.#dtype, device: this.#devices[i]! };
      const room = layer.reserve(positions - layer.length, shape, kind);
      return ("k" in room ? room.k : room).shape[2]!;
    });
    return Math.min(...rooms);
  }

  /** Where `length` positions of each sequence stand, those from `start` on; padding counts as position 0. */
  positions(start: number, length: number): Positions {
    if (!this.#padding) return { start, length };
    return { each: this.#padding.map((pad) => Array.from({ length }, (_, i) => Math.max(start + i - pad, 0))) };
  }

  /** What a device that has layers is told of the sequences. */
  on(device: Device): CachePlaces {
    let places = this.#places.get(device);
    if (!places) {
      const { contextLength } = this.#config;
      places = new CachePlaces({
        device,
        dtype: this.#dtype,
        batch: this.batch,
        paddings: this.#padding,
        contextLength,
      });
      this.#places.set(device, places);
    }
    return places;
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
    for (const places of this.#places.values()) places.dispose();
    this.#places.clear();
    this.#length = 0;
  }

  [Symbol.dispose](): void {
    this.dispose();
  }

  toString(): string {
    const sizes = `${this.layers.length} layers, batch ${this.batch}, ${this.#length} positions`;
    return `ModelCache(${sizes}, ${this.#dtype}, ${namesOf(this.#devices)})`;
  }

  [Symbol.for("nodejs.util.inspect.custom")](): string {
    return this.toString();
  }
}
