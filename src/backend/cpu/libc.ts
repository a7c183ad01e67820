/**
 * The system's calls for memory, on Linux and macOS. Addresses are plain numbers: those of a process are below 2^53. Bound at
 * the first use, and not there where the FFI or the system is another: the CPU device then has WebAssembly's memory alone.
 */
import { ffi } from "../ffi.ts";

type Address = number;
interface Calls {
  /** The address, or −1. */
  mmap(at: Address, bytes: number, protection: number, flags: number, file: number, offset: number): number;
  munmap(at: Address, bytes: number): number;
  mprotect(at: Address, bytes: number, protection: number): number;
  madvise(at: Address, bytes: number, advice: number): number;
  memmove(to: Address, from: Address, bytes: number): number;
  sysconf(name: number): number;
}

const prototypes: Readonly<Record<keyof Calls, string>> = {
  mmap: "int64_t mmap(int64_t at, size_t bytes, int protection, int flags, int file, int64_t offset)",
  munmap: "int munmap(int64_t at, size_t bytes)",
  mprotect: "int mprotect(int64_t at, size_t bytes, int protection)",
  madvise: "int madvise(int64_t at, size_t bytes, int advice)",
  memmove: "int64_t memmove(int64_t to, int64_t from, size_t bytes)",
  sysconf: "long sysconf(int name)",
};

/** What the systems number differently; the rest is the same on both. */
const systems = {
  linux: { anonymous: 0x20, noReserve: 0x4000, discard: 4, large: 14, pageSize: 30 },
  darwin: { anonymous: 0x1000, noReserve: 0x40, discard: 5, pageSize: 29 },
} as const;

export const protections = { none: 0, read: 1, write: 2, execute: 4 } as const;
const PRIVATE = 2;
const FIXED = 16;

export class Libc {
  readonly calls: Calls;
  readonly pageBytes: number;
  readonly #system: (typeof systems)[keyof typeof systems];

  constructor(system: (typeof systems)[keyof typeof systems]) {
    const process = ffi().load(null);
    const bound = Object.entries(prototypes).map(([name, prototype]) => [name, process.func(prototype)]);
    this.calls = Object.fromEntries(bound) as Calls;
    this.#system = system;
    this.pageBytes = Number(this.calls.sysconf(system.pageSize));
  }

  /** New memory, all zeros; at `at`, which it replaces, or wherever there is room. Null where the system gives none. */
  allocate(bytes: number, at?: Address): Address | null {
    const { anonymous, noReserve } = this.#system;
    return this.#map(bytes, anonymous | noReserve, -1, 0, at);
  }

  /** A file's pages from `offset` on, a whole page. What is written to them is this process's own, and not the file's. */
  mapFile(file: number, offset: number, bytes: number, at?: Address): Address | null {
    return this.#map(bytes, 0, file, offset, at);
  }

  /** The pages stay, and are given back to the system until they are used again: then they may be zeros. */
  discard(at: Address, bytes: number): void {
    const { pageBytes } = this;
    const start = Math.ceil(at / pageBytes) * pageBytes;
    const end = Math.floor((at + bytes) / pageBytes) * pageBytes;
    if (end > start) this.calls.madvise(start, end - start, this.#system.discard);
  }

  /** Fewer and larger pages for what is used from now on, which are had and found faster; only Linux is told. */
  preferLargePages(at: Address, bytes: number): void {
    if (this.#system === systems.linux) this.calls.madvise(at, bytes, systems.linux.large);
  }

  #map(bytes: number, flags: number, file: number, offset: number, at: Address | undefined): Address | null {
    const place = at === undefined ? 0 : FIXED;
    const got = this.calls.mmap(
      at ?? 0,
      bytes,
      protections.read | protections.write,
      PRIVATE | flags | place,
      file,
      offset,
    );
    return got === -1 ? null : got;
  }
}

let found: Libc | null | undefined;

const systemHere = () =>
  process.platform === "linux" || process.platform === "darwin" ? systems[process.platform] : null;

/** Whether there should be such calls: this loads nothing. */
export const hasLibc = (): boolean => found !== null && systemHere() !== null;

/** Null where there are no such calls. */
export function libc(): Libc | null {
  if (found !== undefined) return found;
  const system = systemHere();
  try {
    found = system && new Libc(system);
  } catch {
    found = null;
  }
  return found;
}

/** The address of a buffer that does not move: a WebAssembly memory's, as long as that lives. */
export const addressOfBuffer = (buffer: ArrayBuffer | SharedArrayBuffer): Address =>
  Number(ffi().address(new Uint8Array(buffer)));
