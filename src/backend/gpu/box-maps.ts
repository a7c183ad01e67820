/**
 * Maps of matrices in device memory, which kernels bring boxes of rows to shared memory by (kernels/gpu/boxes.h). A map says where a
 * matrix lies and what its boxes are, and nothing else: whatever comes to lie there in the same shape can be read by it. So each is
 * made once, and a place is never written again, because the device keeps what it has read of one.
 */
import type { Boxes, GpuContext } from "./driver.ts";

/** Bytes of a map, and maps that are given room at a time. */
const MAP = 128;
const ROOM = 256;

export class BoxMaps {
  readonly #context: GpuContext;
  readonly #alloc: (bytes: number) => number;
  readonly #upload: (to: number, bytes: Uint8Array) => void;
  /** 0 where the driver refuses. */
  readonly #known = new Map<string, number>();
  #next = 0;
  #left = 0;

  constructor(context: GpuContext, alloc: (bytes: number) => number, upload: (to: number, bytes: Uint8Array) => void) {
    this.#context = context;
    this.#alloc = alloc;
    this.#upload = upload;
  }

  /** The map's address, 0 where there is none; `making` is called before one is made. */
  find(boxes: Boxes, making: () => void): number {
    const { at, rows, halves, pieces, pieceBytes, boxRows, boxPieces } = boxes;
    const key = [at, rows, halves, pieces, pieceBytes, boxRows, boxPieces].join();
    const known = this.#known.get(key);
    if (known !== undefined) return known;
    making();
    const map = this.#context.boxMap(boxes);
    const address = map ? this.#place() : 0;
    if (map) this.#upload(address, map);
    this.#known.set(key, address);
    return address;
  }

  #place(): number {
    if (this.#left === 0) {
      this.#next = this.#alloc(MAP * ROOM);
      this.#left = ROOM;
    }
    this.#left--;
    this.#next += MAP;
    return this.#next - MAP;
  }
}
