/** Reads ranges of a file, checked against its size before any memory is taken. */
import { type FileHandle, open, stat } from "node:fs/promises";
import type { OpenFile } from "../backend/backend.ts";
import { fail } from "../core/errors.ts";

/** A read returns to the event loop, and looks at its signal, once per chunk. */
const CHUNK = 16 * 2 ** 20;

export class BinaryFile implements OpenFile, AsyncDisposable {
  readonly path: string;
  readonly size: number;
  #handle: FileHandle | null;

  private constructor(path: string, size: number, handle: FileHandle) {
    this.path = path;
    this.size = size;
    this.#handle = handle;
  }

  static async open(path: string): Promise<BinaryFile> {
    const cannotOpen = (cause: Error): never =>
      fail("InvalidFile", `${path} cannot be opened: ${cause.message}`, { cause });
    // Asked before opening: to open a pipe would wait for its writer.
    const { size } = await stat(path).then(
      (found) => (found.isFile() ? found : fail("InvalidFile", `${path} is not a regular file; name a file to read`)),
      cannotOpen,
    );
    return new BinaryFile(path, size, await open(path, "r").catch(cannotOpen));
  }

  /** The system's number of the open file. */
  get descriptor(): number {
    return this.#open().fd;
  }

  /** Exactly `length` bytes from `offset`; both must lie in the file. */
  async read(offset: number, length: number, signal?: AbortSignal): Promise<Uint8Array> {
    signal?.throwIfAborted();
    this.#requireRange(offset, length);
    const out = this.#allocate(length);
    await this.readInto(out, offset, signal);
    return out;
  }

  /** Fills `out` with the bytes from `offset`, which must lie in the file. */
  async readInto(out: Uint8Array, offset: number, signal?: AbortSignal): Promise<void> {
    signal?.throwIfAborted();
    const length = out.byteLength;
    this.#requireRange(offset, length);
    for (let done = 0; done < length; ) {
      const step = Math.min(CHUNK, length - done);
      const { bytesRead } = await this.#open()
        .read(out, done, step, offset + done)
        .catch((cause: Error) => {
          return fail("InvalidFile", `${this.path} cannot be read: ${cause.message}`, { cause });
        });
      if (bytesRead === 0) {
        fail(
          "InvalidFile",
          `${this.path} ended at byte ${offset + done}, but had ${this.size} bytes when it was opened`,
        );
      }
      done += bytesRead;
      signal?.throwIfAborted();
    }
  }

  /** Closing twice is fine; reading afterwards is not. */
  async close(): Promise<void> {
    const handle = this.#handle;
    this.#handle = null;
    await handle?.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  #requireRange(offset: number, length: number): void {
    if (offset >= 0 && length >= 0 && offset + length <= this.size) return;
    fail(
      "InvalidFile",
      `${this.path}: bytes ${offset} to ${offset + length} were asked for, but the file has ${this.size}`,
    );
  }

  #open(): FileHandle {
    return this.#handle ?? fail("Disposed", `${this.path} was closed; open it again to read from it`);
  }

  #allocate(length: number): Uint8Array {
    this.#open();
    try {
      return new Uint8Array(length);
    } catch (cause) {
      return fail("OutOfMemory", `${this.path}: no memory for ${length} bytes in one piece`, { cause });
    }
  }
}
