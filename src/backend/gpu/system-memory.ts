/** What Linux says about memory: the host's, and what amdgpu has and may map. Every figure is read anew. */
import { readFileSync } from "node:fs";
import { release } from "node:os";
import { join } from "node:path";

/** In bytes: the card's own memory (VRAM), and the host's that it may map (GTT). */
export interface CardMemory {
  readonly vramTotal: number;
  readonly vramUsed: number;
  readonly gttTotal: number;
  readonly gttUsed: number;
}

export interface HostMemory {
  readonly total: number;
  /** What can be taken without swapping. */
  readonly available: number;
}

export interface SystemMemory {
  /** By its address on the PCI bus, "0000:c5:00.0"; null where the kernel does not tell. */
  card(busId: string): CardMemory | null;
  host(): HostMemory | null;
  readonly kernel: string | null;
}

/** `root` is where /sys and /proc are. */
export function systemMemory(root = "/"): SystemMemory {
  const read = (...path: string[]): string => {
    try {
      return readFileSync(join(root, ...path), "utf8");
    } catch {
      return ""; // not Linux, not amdgpu, or not for this user
    }
  };
  return {
    kernel: process.platform === "linux" ? release() : null,
    card(busId) {
      const figure = (name: string): number =>
        Number.parseInt(read("sys/bus/pci/devices", busId.toLowerCase(), `mem_info_${name}`), 10);
      const card = {
        vramTotal: figure("vram_total"),
        vramUsed: figure("vram_used"),
        gttTotal: figure("gtt_total"),
        gttUsed: figure("gtt_used"),
      };
      return Object.values(card).every(Number.isFinite) ? card : null;
    },
    host() {
      const text = read("proc/meminfo");
      const [total, available] = ["MemTotal", "MemAvailable"].map(
        (name) => 1024 * Number(new RegExp(`^${name}:\\s+(\\d+) kB$`, "m").exec(text)?.[1]),
      ) as [number, number];
      return Number.isFinite(total) && Number.isFinite(available) ? { total, available } : null;
    },
  };
}
