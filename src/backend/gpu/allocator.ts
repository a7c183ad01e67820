/**
 * Device memory with a cache: freeing on a GPU drains it, so blocks are cut from large regions and reused. All work of
 * a device runs on one stream, in order; a block freed by the host may therefore be handed out again at once.
 *
 * Regions are of the device's own memory, or, where the policy has it so, of the host's that the device maps. Each kind
 * is divided by itself: what is small stays in the device's own for as long as there is any.
 */
import { fail, WickError } from "../../core/errors.ts";
import { Heap } from "../heap.ts";
import { formatBytes } from "../usage.ts";
import type { DevicePtr, GpuContext } from "./driver.ts";
import type { MemorySource } from "./memory-policy.ts";

const MIB = 2 ** 20;

/** What a pool reserves at least at a time. */
const POOL_REGION = MIB;

/** Small blocks share regions of at most this size. */
const SHARED_REGION = 32 * MIB;
/** Of the device's own memory, what large blocks leave to small ones where there is host memory to go to. */
const KEPT_FOR_SMALL = 64 * MIB;

/** Small blocks share regions; large ones get a region of their own, rounded up so that similar sizes reuse it. */
function regionSize(bytes: number): number {
  if (bytes <= MIB) return 8 * MIB;
  if (bytes <= 16 * MIB) return SHARED_REGION;
  return Math.ceil(bytes / (2 * MIB)) * 2 * MIB;
}

/** The rounded region may not fit where the exact one does. */
const roundedOrExact = (bytes: number): Iterable<number> => new Set([regionSize(bytes), bytes]);

/** Ever smaller regions, so that the last of a small memory is used; tiny ones are not worth a call each. */
function* halves(bytes: number): Iterable<number> {
  for (let size = regionSize(bytes); size >= Math.max(bytes, MIB); size /= 2) yield Heap.roundUp(size);
}

interface Region {
  readonly address: DevicePtr;
  free(): void;
}

/** Regions of one kind of memory, and the blocks cut from them. */
class Area {
  readonly heap = new Heap();
  readonly #regions = new Map<number, { readonly size: number; free(): void }>();
  readonly #take: (bytes: number) => Region | undefined;
  #reserved = 0;
  /** The least that was refused since memory was given back: asking for as much again is slow and in vain. */
  #refused = Number.POSITIVE_INFINITY;

  constructor(take: (bytes: number) => Region | undefined) {
    this.#take = take;
  }

  get reserved(): number {
    return this.#reserved;
  }

  alloc(bytes: number, sizes: (bytes: number) => Iterable<number>): number | undefined {
    return this.heap.take(bytes) ?? this.#extend(bytes, sizes);
  }

  trim(): void {
    this.#refused = Number.POSITIVE_INFINITY;
    for (const start of this.heap.takeFreeRegions()) {
      const region = this.#regions.get(start)!;
      region.free();
      this.#reserved -= region.size;
      this.#regions.delete(start);
    }
  }

  #extend(bytes: number, sizes: (bytes: number) => Iterable<number>): number | undefined {
    for (const size of sizes(Heap.roundUp(bytes))) {
      if (size >= this.#refused) continue;
      const region = this.#take(size);
      if (!region) {
        this.#refused = size;
        continue;
      }
      const start = Number(region.address);
      this.#regions.set(start, { size, free: region.free });
      this.#reserved += size;
      this.heap.addRegion(start, size);
      return this.heap.take(bytes);
    }
    return undefined;
  }
}

export class Allocator {
  readonly #context: GpuContext;
  readonly #device: string;
  readonly #source: MemorySource;
  readonly #own: Area;
  readonly #mapped: Area;
  /** Blocks in mapped memory. */
  readonly #inMapped = new Set<number>();
  /** Blocks of pools. */
  readonly #pooled = new Map<number, Pool>();
  #pool: Pool | null = null;

  constructor(context: GpuContext, device: string, source: MemorySource) {
    this.#context = context;
    this.#device = device;
    this.#source = source;
    this.#own = new Area((bytes) => this.#takeOwn(bytes));
    this.#mapped = new Area((bytes) => this.#takeMapped(bytes));
  }

  /** Bytes taken from the driver. */
  get reserved(): number {
    return this.#own.reserved + this.#mapped.reserved;
  }

  /** Those of them that are the host's, mapped. */
  get mapped(): number {
    return this.#mapped.reserved;
  }

  get cached(): number {
    return this.#own.heap.free + this.#mapped.heap.free;
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
    for (const start of pool.close()) this.#release(start);
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
      this.#release(at);
      return;
    }
    this.#pooled.delete(at);
    for (const start of pool.release(at)) this.#release(start);
  }

  /** Whether a block is of a pool. */
  isPooled(at: number): boolean {
    return this.#pooled.has(at);
  }

  trim(): void {
    this.#own.trim();
    this.#mapped.trim();
  }

  #release(at: number): void {
    (this.#inMapped.delete(at) ? this.#mapped : this.#own).heap.release(at);
  }

  /** Out of memory: returns unused regions to the driver and tries once more before it throws. */
  #allocate(bytes: number): number {
    const at = this.#find(bytes);
    if (at !== undefined) return at;
    this.trim();
    const again = this.#find(bytes);
    if (again !== undefined) return again;
    const { free, total } = this.#context.memoryInfo();
    return fail(
      "OutOfMemory",
      `${this.#device}: cannot allocate ${formatBytes(bytes)}: tensors hold ${formatBytes(this.reserved - this.cached)}, ${formatBytes(this.cached)} are cached in pieces, and the device has ${formatBytes(free)} of ${formatBytes(total)} free; ${this.#source.text}. Dispose tensors, use a scope(), or a smaller dtype or batch`,
    );
  }

  #find(bytes: number): number | undefined {
    if (!this.#source.maps) return this.#own.alloc(bytes, roundedOrExact);
    const own = this.#own.alloc(bytes, halves);
    if (own !== undefined) return own;
    const at = this.#mapped.alloc(bytes, roundedOrExact);
    if (at !== undefined) this.#inMapped.add(at);
    return at;
  }

  #takeOwn(bytes: number): Region | undefined {
    if (this.#source.limits && !this.#mayTakeOwn(bytes)) return undefined;
    return orNone(() => {
      const address = this.#context.malloc(bytes);
      return { address, free: () => this.#context.free(address) };
    });
  }

  #mayTakeOwn(bytes: number): boolean {
    const { own, host, sharesHost } = this.#source.room();
    if (sharesHost) return bytes <= host;
    return !this.#source.maps || bytes <= SHARED_REGION || own - bytes >= KEPT_FOR_SMALL;
  }

  #takeMapped(bytes: number): Region | undefined {
    if (bytes > this.#source.room().host) return undefined;
    return orNone(() => {
      const buffer = this.#context.mapped(bytes);
      return { address: buffer.address, free: () => this.#context.freeMapped(buffer) };
    });
  }
}

/** Nothing where the driver is out of memory. */
function orNone<T>(take: () => T): T | undefined {
  try {
    return take();
  } catch (error) {
    if (error instanceof WickError && error.code === "OutOfMemory") return undefined;
    throw error;
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
