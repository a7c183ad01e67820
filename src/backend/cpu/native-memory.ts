/** Memory outside WebAssembly's: pages of the system, and files mapped whole, of which blocks are parts. */
import { fstatSync } from "node:fs";
import { freemem, totalmem } from "node:os";
import { fail } from "../../core/errors.ts";
import type { FileRange, OpenFile } from "../backend.ts";
import type { NativeBlock } from "./blocks.ts";
import type { Libc } from "./libc.ts";

/** Bytes from which on large pages are worth it. */
export const LARGE_FROM = 4 * 2 ** 20;

/** Pages of `bytes` bytes, which are given back as soon as they are released; null where the system has none. */
export function allocatePages(libc: Libc, bytes: number): NativeBlock | null {
  const length = Math.max(bytes, 1);
  const address = libc.allocate(length);
  if (address === null) return null;
  if (length >= LARGE_FROM) libc.preferLargePages(address, length);
  return { bytes, length: bytes, address, release: () => void libc.calls.munmap(address, length) };
}

/** A whole file in memory, for as long as one of its blocks lives. */
export class MappedFile {
  readonly #libc: Libc;
  readonly #address: number;
  readonly #size: number;
  readonly #gone: () => void;
  #blocks = 0;

  private constructor(libc: Libc, address: number, size: number, gone: () => void) {
    this.#libc = libc;
    this.#address = address;
    this.#size = size;
    this.#gone = gone;
  }

  /** Null where the system refuses. */
  static over(libc: Libc, { descriptor, size }: OpenFile, gone: () => void): MappedFile | null {
    const address = libc.mapFile(descriptor, 0, size);
    return address === null ? null : new MappedFile(libc, address, size, gone);
  }

  block(start: number, length: number): NativeBlock {
    this.#blocks++;
    return { bytes: 0, length, address: this.#address + start, release: () => this.#release() };
  }

  #release(): void {
    if (--this.#blocks > 0) return;
    this.#gone();
    this.#libc.calls.munmap(this.#address, this.#size);
  }
}

/** A read beyond the end of a mapped file would end the process, so its size is looked at anew. */
export function requireFileRange({ file, start, bytes }: FileRange): void {
  const { size } = fstatSync(file.descriptor);
  if (start + bytes <= size) return;
  fail("InvalidFile", `${file.path} ended at byte ${size}, but had ${file.size} bytes when it was opened`);
}

/** Bytes that the system can give to this process without swapping: what is free, or what its control group has left. */
export function systemBytes(): number {
  // macOS counts pages as used that it would give at once; of three quarters of all it keeps a process from swapping.
  const free =
    process.platform === "darwin" ? Math.max(freemem(), 0.75 * totalmem() - process.memoryUsage.rss()) : freemem();
  return Math.min(free, process.availableMemory?.() ?? Number.POSITIVE_INFINITY);
}
