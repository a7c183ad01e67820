/** Counts what tensors hold on a device. */
import type { MemoryStats } from "./backend.ts";

export class Usage {
  #storages = 0;
  #live = 0;
  #peak = 0;

  add(bytes: number): void {
    this.#storages++;
    this.#live += bytes;
    this.#peak = Math.max(this.#peak, this.#live);
  }

  remove(bytes: number): void {
    this.#storages--;
    this.#live -= bytes;
  }

  get live(): number {
    return this.#live;
  }

  stats(cached: number): MemoryStats {
    return { live: this.#live, cached, peak: this.#peak, storages: this.#storages };
  }
}

/** What tensors show, be it the device's memory or a file's pages. */
export const shownBytes = ({ live, mapped = 0 }: MemoryStats): number => live + mapped;

/** Bytes for people. */
export function formatBytes(n: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const i = n < 1024 ? 0 : Math.min(units.length - 1, Math.floor(Math.log2(n) / 10));
  return `${i === 0 ? n : (n / 1024 ** i).toFixed(1)} ${units[i]}`;
}
