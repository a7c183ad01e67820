/**
 * Device memory with a cache: freeing on a GPU drains it, so blocks are cut from large regions and reused. All work of
 * a device runs on one stream, in order; a block freed by the host may therefore be handed out again at once.
 */
import { fail, WickError } from "../../core/errors.ts";
import { Heap } from "../heap.ts";
import { formatBytes } from "../usage.ts";
import type { GpuContext } from "./driver.ts";

const MIB = 2 ** 20;

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

  /** Out of memory: returns unused regions to the driver and tries once more before it throws. */
  alloc(bytes: number): number {
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

  release(at: number): void {
    this.#heap.release(at);
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
