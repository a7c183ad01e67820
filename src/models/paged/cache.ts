/** Keys and values of many sequences in pages that any of them may hold: which holds which is the caller's to say. */
import type { Device } from "../../backend/device.ts";
import { PAGE_SIZE, type PageCopier } from "../../backend/paged-attention.ts";
import type { DType } from "../../core/dtype.ts";
import { fail } from "../../core/errors.ts";
import type { KvPair } from "../../nn/kv-cache.ts";
import { scope, Tensor } from "../../ops/index.ts";
import { rowWidth } from "../byte-cache.ts";
import { bytesPerPosition, namesOf, perLayer } from "../cache.ts";
import type { ModelConfig } from "../config.ts";

/** The pages of one layer: keys and values (pages, kv heads, PAGE_SIZE, headDim), or latents (pages, 1, PAGE_SIZE, width). */
export type PagedLayer = KvPair | { readonly latents: Tensor };

export class PagedCache implements Disposable {
  /** Positions of a page. */
  readonly pageSize = PAGE_SIZE;
  readonly pages: number;
  readonly layers: readonly PagedLayer[];
  /** What keys and values are kept as. */
  readonly dtype: DType;
  /** Of each layer. */
  readonly devices: readonly Device[];
  readonly #owned: Tensor[] = [];
  /** The pools of each device, and what copies their pages, once there is something to copy. */
  readonly #pools = new Map<Device, Tensor[]>();
  #copiers: readonly PageCopier[] | null = null;

  /** Each layer's pages lie on one device, or on its own. */
  constructor(config: ModelConfig, device: Device | readonly Device[], dtype: DType, pages: number) {
    if (!Number.isSafeInteger(pages) || pages < 1) {
      fail("InvalidArgument", `PagedCache: there must be 1 page or more, not ${pages}`);
    }
    const { kvHeads, latent, rope } = config;
    const rows = rowWidth(config.headDim, dtype);
    this.pages = pages;
    this.devices = perLayer(device, config);
    this.dtype = dtype;
    const pool = (layer: number, heads: number, width: number): Tensor => {
      const device = this.devices[layer]!;
      const tensor = Tensor.empty([pages, heads, PAGE_SIZE, width], { dtype, device }).keep();
      this.#owned.push(tensor);
      this.#pools.set(device, [...(this.#pools.get(device) ?? []), tensor]);
      return tensor;
    };
    try {
      this.layers = config.windows.map((_, i) =>
        latent
          ? { latents: pool(i, 1, latent.rank + rope.dims) }
          : { k: pool(i, kvHeads, rows), v: pool(i, kvHeads, rows) },
      );
    } catch (error) {
      this.dispose();
      throw error;
    }
  }

  /** What a page takes in all layers together. */
  static pageBytes(config: ModelConfig, dtype: DType): number {
    return config.layers * PAGE_SIZE * bytesPerPosition(config, dtype);
  }

  /** How many pages hold so many positions. */
  static pagesFor(positions: number): number {
    return Math.ceil(positions / PAGE_SIZE);
  }

  /** Page `to` holds what page `from` does, in all layers. */
  copyPage(from: number, to: number): void {
    this.#copiers ??= [...this.#pools].map(([{ backend }, pools]) => backend.pageCopier?.(pools) ?? copierOf(pools));
    for (const copier of this.#copiers) copier.copy(from, to);
  }

  dispose(): void {
    for (const copier of this.#copiers ?? []) copier[Symbol.dispose]();
    this.#copiers = null;
    for (const tensor of this.#owned.splice(0)) tensor.dispose();
  }

  [Symbol.dispose](): void {
    this.dispose();
  }

  toString(): string {
    const sizes = `${this.layers.length} layers, ${this.pages} pages of ${PAGE_SIZE} positions`;
    return `PagedCache(${sizes}, ${this.dtype}, ${namesOf(this.devices)})`;
  }

  [Symbol.for("nodejs.util.inspect.custom")](): string {
    return this.toString();
  }
}

/** Pool by pool. */
const copierOf = (pools: readonly Tensor[]): PageCopier => ({
  copy(from, to) {
    for (const pool of pools) scope(() => pool.sliceSet(pool.narrow(0, from, 1).copy(), 0, to));
  },
  [Symbol.dispose]() {},
});
