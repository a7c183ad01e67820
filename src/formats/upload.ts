/**
 * The way of bytes from a file to a device: in pieces, so that only there is a tensor ever whole, and several pieces at a
 * time, so that reading and copying overlap.
 */
import type { ReadInto } from "../backend/backend.ts";
import { Device } from "../backend/device.ts";
import { Storage } from "../backend/storage.ts";
import { type DType, sizeOf } from "../core/dtype.ts";
import { numel, type Shape } from "../core/layout.ts";
import { Tensor } from "../ops/index.ts";
import { result } from "../tensor/tensor.ts";
import type { ByteRange, FilePlace, ReadOptions } from "./read-options.ts";

const PIECE_BYTES = 8 * 2 ** 20;
/** Node reads files on four threads; the others wait for the device's copy. */
const MOST_AT_ONCE = 6;

/** What is smaller is copied: pages of its own would cost more than they save. */
export const MAPPED_FROM = 2 ** 20;

/** A tensor that is the file's own pages, where the device can show them and it is large enough; else null. */
export function mapped(place: FilePlace | undefined, shape: Shape, dtype: DType, device: Device): Tensor | null {
  const bytes = numel(shape) * sizeOf(dtype);
  if (!place || bytes < MAPPED_FROM) return null;
  const storage = Storage.mapped(device.backend, { file: place.file, start: place.offset, bytes }, dtype);
  return storage && result(storage, shape);
}

/** A range of bytes in pieces of whole units. */
export function* piecesOf({ start, end }: ByteRange, unit = 1): Generator<ByteRange> {
  const step = Math.max(Math.floor(PIECE_BYTES / unit), 1) * unit;
  for (let at = start; at < end; at += step) yield { start: at, end: Math.min(at + step, end) };
}

/** Transfers side by side. What has begun when one fails runs to its end; nothing begins afterwards. */
export class Transfers {
  readonly #running = new Set<Promise<void>>();
  #failure: { readonly error: unknown } | undefined;

  /** Waits until there is room for one more. */
  async begin(transfer: () => Promise<void>): Promise<void> {
    while (this.#running.size >= MOST_AT_ONCE) await Promise.race(this.#running);
    this.#check();
    const running = transfer()
      .catch((error: unknown) => {
        this.#failure ??= { error };
      })
      .finally(() => this.#running.delete(running));
    this.#running.add(running);
  }

  /** Waits for all; throws what failed first. */
  async end(): Promise<void> {
    await Promise.all(this.#running);
    this.#check();
  }

  #check(): void {
    if (this.#failure) throw this.#failure.error;
  }
}

/** Whoever asked can abort what is there at once, too. */
async function unlessAborted(tensor: Tensor, signal: AbortSignal | undefined): Promise<Tensor> {
  await null;
  if (signal?.aborted) tensor.dispose();
  signal?.throwIfAborted();
  return tensor;
}

/** A tensor of the bytes at a place, which `reading` a range of them gives; where a piece fails, it is freed. */
export async function uploaded(
  place: FilePlace,
  range: ByteRange,
  reading: (piece: ByteRange) => ReadInto,
  shape: Shape,
  dtype: DType,
  { device = "cpu", signal }: ReadOptions,
): Promise<Tensor> {
  const whole = signal?.aborted ? null : mapped(place, shape, dtype, Device.from(device));
  if (whole) return unlessAborted(whole, signal);
  const tensor = Tensor.empty(shape, { dtype, device });
  const transfers = new Transfers();
  try {
    for (const piece of piecesOf(range)) {
      const { start, end } = piece;
      await transfers.begin(() => tensor.storage.receive(start - range.start, end - start, reading(piece)));
    }
    await transfers.end();
  } catch (error) {
    tensor.dispose();
    throw error;
  }
  return tensor;
}
