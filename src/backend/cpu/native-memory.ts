/** Memory outside WebAssembly's: pages of the system, and files mapped whole, of which blocks are parts. */
import { fstatSync } from "node:fs";
import { freemem, totalmem } from "node:os";
import { fail } from "../../core/errors.ts";
import type { FileRange, OpenFile } from "../backend.ts";
import type { NativeBlock } from "./blocks.ts";
import type { Libc } from "./libc.ts";

/** Linux's MADV_HUGEPAGE: fewer and larger pages, which are had and found faster. */
const HUGE = 14;
const HUGE_FROM = 4 * 2 ** 20;

/** A part of a file, in memory that the file backs. */
export interface FileBlock extends NativeBlock {
  readonly file: MappedFile;
  readonly start: number;
  /** Written to: those pages are no longer the file's. */
  isWritten: boolean;
}

export const isFileBlock = (block: NativeBlock): block is FileBlock => "file" in block;

/** Pages of `bytes` bytes, which are given back as soon as they are released; null where the system has none. */
export function allocatePages(libc: Libc, bytes: number): NativeBlock | null {
  const length = Math.max(bytes, 1);
  const address = libc.allocate(length);
  if (address === null) return null;
  if (process.platform === "linux" && length >= HUGE_FROM) libc.calls.madvise(address, length, HUGE);
  return { bytes, length: bytes, address, release: () => void libc.calls.munmap(address, length) };
}

/** A whole file in memory, for as long as one of its blocks lives. */
export class MappedFile {
  /** Its own: the file may be closed by whoever opened it. */
  readonly descriptor: number;
  readonly address: number;
  readonly #libc: Libc;
  readonly #size: number;
  readonly #gone: () => void;
  #blocks = 0;

  private constructor(libc: Libc, descriptor: number, address: number, size: number, gone: () => void) {
    this.#libc = libc;
    this.descriptor = descriptor;
    this.address = address;
    this.#size = size;
    this.#gone = gone;
  }

  static over(libc: Libc, { descriptor, size }: OpenFile, gone: () => void): MappedFile | null {
    const own = libc.calls.dup(descriptor);
    if (own < 0) return null;
    const address = libc.mapFile(own, 0, size);
    if (address !== null) return new MappedFile(libc, own, address, size, gone);
    libc.calls.close(own);
    return null;
  }

  block(start: number, length: number): FileBlock {
    this.#blocks++;
    const address = this.address + start;
    return { bytes: 0, length, address, file: this, start, isWritten: false, release: () => this.#release() };
  }

  #release(): void {
    if (--this.#blocks > 0) return;
    this.#gone();
    this.#libc.calls.munmap(this.address, this.#size);
    this.#libc.calls.close(this.descriptor);
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
