/**
 * Transfers through page-locked memory, the only kind a GPU copies asynchronously. Uploads go through a ring that is
 * waited for only when it wraps; each download in flight holds a buffer of its own.
 */
import type { DevicePtr, GpuContext, PinnedBuffer } from "./driver.ts";

const RING_BYTES = 16 * 2 ** 20;
const DOWNLOAD_BYTES = 8 * 2 ** 20;
const LEAST_DOWNLOAD = 4096;

export class Staging {
  readonly #context: GpuContext;
  #ring: PinnedBuffer | undefined;
  #head = 0;
  /** Download buffers at rest, by size. */
  readonly #idle = new Map<number, PinnedBuffer[]>();

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

  async download(src: DevicePtr, bytes: number): Promise<Uint8Array> {
    const out = new Uint8Array(bytes);
    for (let done = 0; done < bytes; ) {
      const n = Math.min(DOWNLOAD_BYTES, bytes - done);
      const buffer = this.#borrow(n);
      const event = this.#context.createEvent();
      try {
        this.#context.copyToHost(buffer.address, src + BigInt(done), n);
        this.#context.recordEvent(event);
        await this.#context.waitEvent(event);
        out.set(buffer.bytes.subarray(0, n), done);
      } finally {
        this.#context.destroyEvent(event);
        this.#idle.get(buffer.bytes.byteLength)!.push(buffer);
      }
      done += n;
    }
    return out;
  }

  downloadSync(src: DevicePtr, bytes: number): Uint8Array {
    const out = new Uint8Array(bytes);
    for (let done = 0; done < bytes; ) {
      const n = Math.min(DOWNLOAD_BYTES, bytes - done);
      const buffer = this.#borrow(n);
      try {
        this.#context.copyToHost(buffer.address, src + BigInt(done), n);
        this.#context.synchronizeSync();
        out.set(buffer.bytes.subarray(0, n), done);
      } finally {
        this.#idle.get(buffer.bytes.byteLength)!.push(buffer);
      }
      done += n;
    }
    return out;
  }

  #borrow(bytes: number): PinnedBuffer {
    const size = 2 ** Math.ceil(Math.log2(Math.max(bytes, LEAST_DOWNLOAD)));
    let idle = this.#idle.get(size);
    if (!idle) {
      idle = [];
      this.#idle.set(size, idle);
    }
    return idle.pop() ?? this.#context.pinned(size);
  }
}
