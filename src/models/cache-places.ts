/** What a device's kernels are told of where the sequences of a cache stand: what of them is padding. */
import type { Device } from "../backend/device.ts";
import type { DType } from "../core/dtype.ts";
import { Tensor } from "../ops/index.ts";

/**
 * Added to the scores of padding. Finite, so that rows of padding, which see nothing else, stay finite too: a NaN in
 * their keys and values would reach every other row through 0 · NaN.
 */
const MASKED = -30_000;

export interface CachePlacesOptions {
  readonly device: Device;
  readonly dtype: DType;
  readonly batch: number;
  /** How many of each sequence's first positions are padding; null where none is. */
  readonly paddings: readonly number[] | null;
  readonly contextLength: number;
}

export class CachePlaces {
  readonly #options: CachePlacesOptions;
  #mask: Tensor | null = null;
  #padding: Tensor | null = null;
  /** By the number of positions that are asked for: how far each is from the end. */
  readonly #before = new Map<number, Tensor>();
  #lastPosition: Tensor | null = null;

  constructor(options: CachePlacesOptions) {
    this.#options = options;
  }

  /** How many of each sequence's first positions are padding, as a tensor, where there is any. */
  get padding(): Tensor | null {
    const { paddings, device } = this.#options;
    if (!paddings) return null;
    this.#padding ??= Tensor.from(BigInt64Array.from(paddings, BigInt), { device }).keep();
    return this.#padding;
  }

  /**
   * The positions (b · count) of the last `count` of `lengths` slots, i64 (b) in device memory. Recorded passes may have
   * some beyond the context that count for nothing: they stand at its end. Call it inside a scope.
   */
  lastPositions(lengths: Tensor, count: number): Tensor {
    const { batch, paddings, device, contextLength } = this.#options;
    let before = this.#before.get(count);
    if (!before) {
      const distances = Array.from({ length: batch }, (_, i) =>
        Array.from({ length: count }, (_, j) => BigInt(count - j + (paddings?.[i] ?? 0))),
      );
      before = Tensor.from(BigInt64Array.from(distances.flat()), { shape: [batch, count], device }).keep();
      this.#before.set(count, before);
    }
    const end = BigInt64Array.of(BigInt(contextLength - 1));
    this.#lastPosition ??= Tensor.from(end, { device }).keep();
    const positions = lengths.unsqueeze(1).sub(before);
    return positions.minimum(this.#lastPosition).reshape([batch * count]);
  }

  /** What is added to the scores of the last `keys` of `total` positions: (b, 1, 1, keys). Call it inside a scope. */
  mask(keys: number, total: number): Tensor | null {
    const { paddings } = this.#options;
    if (!paddings) return null;
    const have = this.#mask?.shape[3] ?? 0;
    if (have < total) {
      this.#mask?.dispose();
      this.#mask = this.#makeMask(paddings, Math.max(total, 2 * have, 128));
    }
    return this.#mask!.narrow(3, total - keys, keys);
  }

  dispose(): void {
    for (const tensor of [this.#mask, this.#padding, this.#lastPosition, ...this.#before.values()]) tensor?.dispose();
    this.#before.clear();
    this.#mask = null;
    this.#padding = null;
    this.#lastPosition = null;
  }

  #makeMask(paddings: readonly number[], width: number): Tensor {
    const { batch, dtype, device } = this.#options;
    const values = new Float32Array(batch * width);
    for (const [i, pad] of paddings.entries()) values.fill(MASKED, i * width, i * width + Math.min(pad, width));
    return Tensor.from(values, { shape: [batch, 1, 1, width], dtype, device }).keep();
  }
}
