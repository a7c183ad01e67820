/**
 * Walks through the first part of a GGUF file without trusting it. Every length is compared with what is left of the
 * file before memory is taken, and only a window of the file is held, so a lie costs no more than an error.
 */
import { isUtf8 } from "node:buffer";
import { fail } from "../../core/errors.ts";

/** Where the bytes come from: a `BinaryFile`, or memory. */
export interface ByteSource {
  readonly path: string;
  readonly size: number;
  /** A copy of `length` bytes from `offset`, which lie within `size`. */
  read(offset: number, length: number, signal?: AbortSignal): Promise<Uint8Array>;
}

export const WINDOW = 2 ** 20;
/** JavaScript's strings end at 2^29 - 24 characters. */
const MAX_STRING = 2 ** 28;

export class GgufCursor {
  /** What is being read; opens the error messages. */
  field = "the header";
  /** Version 1 has 32-bit counts and lengths. */
  lengthBytes: 4 | 8 = 8;
  readonly #source: ByteSource;
  readonly #signal: AbortSignal | undefined;
  readonly #windowSize: number;
  #window: Buffer = Buffer.alloc(0);
  #start = 0;
  #at = 0;

  constructor(source: ByteSource, signal: AbortSignal | undefined, windowSize: number) {
    this.#source = source;
    this.#signal = signal;
    this.#windowSize = windowSize;
  }

  get at(): number {
    return this.#at;
  }

  get remaining(): number {
    return this.#source.size - this.#at;
  }

  invalid(problem: string): never {
    return fail("InvalidFile", `${this.#source.path}: ${this.field} ${problem}`);
  }

  /** A view of the next `length` bytes, which counts as read; valid until the next call. */
  async view(length: number, what: string): Promise<DataView> {
    await this.#hold(length, what);
    const { buffer, byteOffset } = this.#window;
    const view = new DataView(buffer, byteOffset + this.#at - this.#start, length);
    this.#at += length;
    return view;
  }

  async u32(what: string): Promise<number> {
    await this.#hold(4, what);
    const value = this.#window.readUInt32LE(this.#at - this.#start);
    this.#at += 4;
    return value;
  }

  /** A 64-bit number that must be small enough to be counted with. */
  async u64(what: string): Promise<number> {
    await this.#hold(8, what);
    const value = this.#window.readBigUInt64LE(this.#at - this.#start);
    this.#at += 8;
    return value <= Number.MAX_SAFE_INTEGER
      ? Number(value)
      : this.invalid(`has ${what} ${value}; 2^53 - 1 is the most`);
  }

  /** A count, length or dim, as wide as the version has it. */
  length(what: string): Promise<number> {
    return this.lengthBytes === 4 ? this.u32(what) : this.u64(what);
  }

  /** A number of things that take `each` bytes or more of what is left. */
  async count(what: string, each: number, most = Number.MAX_SAFE_INTEGER): Promise<number> {
    const count = await this.length(what);
    if (count > most) this.invalid(`has ${what} ${count}; no more than ${most} are read`);
    if (count * each > this.remaining) {
      this.invalid(`has ${what} ${count}, which take ${each} bytes each or more, but only ${this.remaining} are left`);
    }
    return count;
  }

  /** Bytes that are no UTF-8 become U+FFFD. */
  async string(what: string): Promise<string> {
    return (await this.#text(what, MAX_STRING)).toString("utf8");
  }

  /** A string that must survive being written again. */
  async name(what: string, most: number): Promise<string> {
    const bytes = await this.#text(what, most);
    return isUtf8(bytes) ? bytes.toString("utf8") : this.invalid(`has a ${what} that is not UTF-8`);
  }

  /** The next string if the window holds all of it: the fast path for long arrays. */
  heldString(): string | undefined {
    const from = this.#at - this.#start + this.lengthBytes;
    if (from > this.#window.length) return undefined;
    const low = this.#window.readUInt32LE(from - this.lengthBytes);
    const high = this.lengthBytes === 8 ? this.#window.readUInt32LE(from - 4) : 0;
    if (high !== 0 || from + low > this.#window.length) return undefined;
    this.#at += this.lengthBytes + low;
    return this.#window.toString("utf8", from, from + low);
  }

  /** A copy of the next `length` bytes at the start of a buffer of their own. */
  async bytes(length: number, what: string): Promise<Uint8Array> {
    if (length > this.#windowSize) {
      this.#check(length, what);
      const bytes = await this.#source.read(this.#at, length, this.#signal);
      this.#at += length;
      return bytes;
    }
    await this.#hold(length, what);
    const from = this.#at - this.#start;
    this.#at += length;
    return Uint8Array.from(this.#window.subarray(from, from + length));
  }

  async #text(what: string, most: number): Promise<Buffer> {
    const length = await this.length(`${what} length`);
    if (length > most) this.invalid(`has ${what} length ${length}; no more than ${most} are read`);
    await this.#hold(length, what);
    const from = this.#at - this.#start;
    this.#at += length;
    return this.#window.subarray(from, from + length);
  }

  #check(length: number, what: string): void {
    if (length > this.remaining) {
      this.invalid(`needs ${length} bytes for its ${what} at byte ${this.#at}, but the file ends ${this.remaining} on`);
    }
  }

  async #hold(length: number, what: string): Promise<void> {
    this.#check(length, what);
    if (this.#at + length <= this.#start + this.#window.length) return;
    const bytes = await this.#source.read(
      this.#at,
      Math.min(Math.max(length, this.#windowSize), this.remaining),
      this.#signal,
    );
    this.#window = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.#start = this.#at;
  }
}
