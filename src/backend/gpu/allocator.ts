/**
 * Device memory with a cache: freeing on a GPU drains it, so blocks are cut from large regions and reused. All work of
 * a device runs on one stream, in order; a block freed by the host may therefore be handed out again at once.
 */
import { fail, WickError } from "../../core/errors.ts";
import { Heap } from "../heap.ts";
import { formatBytes } from "../usage.ts";
import type { GpuContext } from "./driver.ts";

const MIB = 2 ** 20;

/** What a pool reserves at least at a time. */
const POOL_REGION = MIB;

/** Small blocks share regions; large ones get a region of their own, rounded up so that similar sizes reuse it. */
function regionSize(bytes: number): number {
  if (bytes <= MIB) return 8 * MIB;
  if (bytes <= 16 * MIB) return 32 * MIB;
  return Math.ceil(bytes / (2 * MIB)) * 2 * MIB;
}

export class Allocator {
  readonly #context: GpuContext;
  readonly #device: string;
  readonly #heap = new Heap();
  #reserved = 0;
  readonly #sizes = new Map<number, number>();
  /** Blocks of pools. */
  readonly #pooled = new Map<number, Pool>();
  #pool: Pool | null = null;

  constructor(context: GpuContext, device: string) {
    this.#context = context;
    this.#device = device;
  }

  /** Bytes taken from the driver. */
  get reserved(): number {
    return this.#reserved;
  }

  get cached(): number {
    return this.#heap.free;
  }

  /** What `run` allocates comes from a pool of its own, which is reserved until the caller releases it. */
  intoPool(run: () => void): Pool {
    const pool = new Pool((bytes) => this.#allocate(bytes));
    this.#pool = pool;
    try {
      run();
      return pool;
    } catch (error) {
      this.releasePool(pool);
      throw error;
    } finally {
      this.#pool = null;
    }
  }

  /** Gives a pool's memory back, except what is still in use, which follows when it is released. */
  releasePool(pool: Pool): void {
    for (const start of pool.close()) this.#heap.release(start);
  }

  alloc(bytes: number): number {
    if (!this.#pool) return this.#allocate(bytes);
    const at = this.#pool.take(bytes);
    this.#pooled.set(at, this.#pool);
    return at;
  }

  release(at: number): void {
    const pool = this.#pooled.get(at);
    if (!pool) {
      this.#heap.release(at);
      return;
    }
    this.#pooled.delete(at);
    for (const start of pool.release(at)) this.#heap.release(start);
  }

  /** Out of memory: returns unused regions to the driver and tries once more before it throws. */
  #allocate(bytes: number): number {
    const at = this.#heap.take(bytes) ?? this.#extend(bytes);
    if (at !== undefined) return at;
    this.trim();
    const again = this.#extend(bytes);
    if (again !== undefined) return again;
    const { free, total } = this.#context.memoryInfo();
    return fail(
      "OutOfMemory",
      `${this.#device}: cannot allocate ${formatBytes(bytes)}: tensors hold ${formatBytes(this.#reserved - this.cached)}, ${formatBytes(this.cached)} are cached in pieces, and the device has ${formatBytes(free)} of ${formatBytes(total)} free. Dispose tensors, use a scope(), or a smaller dtype or batch`,
    );
  }

  trim(): void {
    for (const start of this.#heap.takeFreeRegions()) {
      this.#context.free(BigInt(start));
      this.#reserved -= this.#sizes.get(start)!;
      this.#sizes.delete(start);
    }
  }

  #extend(bytes: number): number | undefined {
    const wanted = Heap.roundUp(bytes);
    // The rounded region may not fit where the exact one does.
    for (const size of new Set([regionSize(wanted), wanted])) {
      const start = this.#malloc(size);
      if (start === undefined) continue;
      this.#sizes.set(start, size);
      this.#reserved += size;
      this.#heap.addRegion(start, size);
      return this.#heap.take(bytes);
    }
    return undefined;
  }

  #malloc(bytes: number): number | undefined {
    try {
      return Number(this.#context.malloc(bytes));
    } catch (error) {
      if (error instanceof WickError && error.code === "OutOfMemory") return undefined;
      throw error;
    }
  }
}

/** Memory that recorded work writes to at every replay: blocks are reused within the recording, and by nobody else. */
export class Pool {
  readonly #reserve: (bytes: number) => number;
  readonly #heap = new Heap();
  #regions: number[] = [];
  #used = 0;
  #bytes = 0;
  #closed = false;

  constructor(reserve: (bytes: number) => number) {
    this.#reserve = reserve;
  }

  /** Bytes reserved. */
  get bytes(): number {
    return this.#bytes;
  }

  take(bytes: number): number {
    let at = this.#heap.take(bytes);
    if (at === undefined) {
      const size = Math.max(POOL_REGION, Heap.roundUp(bytes));
      const start = this.#reserve(size);
      this.#regions.push(start);
      this.#bytes += size;
      this.#heap.addRegion(start, size);
      at = this.#heap.take(bytes)!;
    }
    this.#used++;
    return at;
  }

  /** The regions to give back: all, when a closed pool's last block is released. */
  release(at: number): number[] {
    this.#heap.release(at);
    this.#used--;
    return this.#closed ? this.close() : [];
  }

  close(): number[] {
    this.#closed = true;
    if (this.#used > 0) return [];
    const regions = this.#regions;
    this.#regions = [];
    return regions;
  }
}
