/**
 * Transfers through page-locked memory, the only kind a GPU copies asynchronously. Uploads of what the host has go through
 * a ring that is waited for only when it wraps. What is still to be read is read into page-locked memory in the first
 * place; such a transfer, and each download in flight, holds a buffer of its own.
 */
import type { ReadInto } from "../backend.ts";
import type { DevicePtr, GpuContext, Handle, PinnedBuffer } from "./driver.ts";

const RING_BYTES = 16 * 2 ** 20;
const BUFFER_BYTES = 8 * 2 ** 20;
const LEAST_BUFFER = 4096;
/** Transfers of more than this take a buffer for the largest, so that few sizes are kept: taking one is slow. */
const SMALL_BYTES = 2 ** 16;

/** A part of a download, `start` bytes behind its beginning. */
interface Piece {
  readonly start: number;
  readonly address: bigint;
  readonly bytes: Uint8Array;
}

/** Device memory on its way to the host: the pieces are there once the event has passed. */
export interface Download extends Disposable {
  readonly event: Handle;
  readonly pieces: readonly Piece[];
}

export class Staging {
  readonly #context: GpuContext;
  #ring: PinnedBuffer | undefined;
  #head = 0;
  /** Buffers at rest, by size, and events: making one takes the host as long as a launch. */
  readonly #idle = new Map<number, PinnedBuffer[]>();
  readonly #events: Handle[] = [];

  constructor(context: GpuContext) {
    this.#context = context;
  }

  upload(dst: DevicePtr, data: Uint8Array): void {
    this.#ring ??= this.#context.pinned(RING_BYTES);
    for (let done = 0; done < data.byteLength; ) {
      if (this.#head === RING_BYTES) {
        this.#context.synchronizeSync();
        this.#head = 0;
      }
      // A quarter at a time, so that filling the next quarter overlaps with the copy of this one.
      const n = Math.min(data.byteLength - done, RING_BYTES - this.#head, RING_BYTES / 4);
      this.#ring.bytes.set(data.subarray(done, done + n), this.#head);
      this.#context.copyToDevice(dst + BigInt(done), this.#ring.address + BigInt(this.#head), n);
      this.#head = Math.min(RING_BYTES, Math.ceil((this.#head + n) / 256) * 256);
      done += n;
    }
  }

  async receive(dst: DevicePtr, bytes: number, read: ReadInto): Promise<void> {
    const buffer = this.#borrow(bytes);
    try {
      await read(buffer.bytes.subarray(0, bytes));
      await this.#passed(() => this.#context.copyToDevice(dst, buffer.address, bytes));
    } finally {
      this.#giveBack(buffer);
    }
  }

  async download(src: DevicePtr, bytes: number): Promise<Uint8Array> {
    const out = new Uint8Array(bytes);
    for (let done = 0; done < bytes; ) {
      const n = Math.min(BUFFER_BYTES, bytes - done);
      const from = src + BigInt(done);
      await this.fetch(
        n,
        (to) => this.#context.copyToHost(to, from, n),
        (piece) => out.set(piece, done),
      );
      done += n;
    }
    return out;
  }

  /** What `enqueue` asks the device to bring to the page-locked memory at an address is taken from there. */
  async fetch(bytes: number, enqueue: (to: bigint) => void, take: (piece: Uint8Array) => void): Promise<void> {
    const buffer = this.#borrow(bytes);
    try {
      await this.#passed(() => enqueue(buffer.address));
      take(buffer.bytes.subarray(0, bytes));
    } finally {
      this.#giveBack(buffer);
    }
  }

  downloadSync(src: DevicePtr, bytes: number): Uint8Array {
    const out = new Uint8Array(bytes);
    for (let done = 0; done < bytes; ) {
      const n = Math.min(BUFFER_BYTES, bytes - done);
      const buffer = this.#borrow(n);
      try {
        this.#context.copyToHost(buffer.address, src + BigInt(done), n);
        this.#context.synchronizeSync();
        out.set(buffer.bytes.subarray(0, n), done);
      } finally {
        this.#giveBack(buffer);
      }
      done += n;
    }
    return out;
  }

  /** Enqueues the copy of device memory into buffers that are the download's until it is disposed. */
  begin(src: DevicePtr, bytes: number): Download {
    const buffers: PinnedBuffer[] = [];
    const event = this.#context.createEvent();
    const pieces: Piece[] = [];
    for (let start = 0; start < bytes; start += BUFFER_BYTES) {
      const length = Math.min(BUFFER_BYTES, bytes - start);
      const buffer = this.#borrow(length);
      buffers.push(buffer);
      pieces.push({ start, address: buffer.address, bytes: buffer.bytes.subarray(0, length) });
      this.#context.copyToHost(buffer.address, src + BigInt(start), length);
    }
    this.#context.recordEvent(event);
    return {
      event,
      pieces,
      [Symbol.dispose]: () => {
        this.#context.destroyEvent(event);
        for (const buffer of buffers) this.#giveBack(buffer);
      },
    };
  }

  /** Frees what is at rest; what is in flight keeps its own. */
  trim(): void {
    for (const event of this.#events.splice(0)) this.#context.destroyEvent(event);
    for (const idle of this.#idle.values()) {
      for (const buffer of idle.splice(0)) this.#context.freePinned(buffer);
    }
  }

  /** Waits, without blocking this thread, until the device has done what `enqueue` asks of it. */
  async #passed(enqueue: () => void): Promise<void> {
    const event = this.#events.pop() ?? this.#context.createEvent();
    try {
      enqueue();
      this.#context.recordEvent(event);
      await this.#context.waitEvent(event);
    } finally {
      this.#events.push(event);
    }
  }

  #borrow(bytes: number): PinnedBuffer {
    const least = bytes > SMALL_BYTES ? BUFFER_BYTES : LEAST_BUFFER;
    const size = 2 ** Math.ceil(Math.log2(Math.max(bytes, least)));
    let idle = this.#idle.get(size);
    if (!idle) {
      idle = [];
      this.#idle.set(size, idle);
    }
    return idle.pop() ?? this.#context.pinned(size);
  }

  #giveBack(buffer: PinnedBuffer): void {
    this.#idle.get(buffer.bytes.byteLength)!.push(buffer);
  }
}
