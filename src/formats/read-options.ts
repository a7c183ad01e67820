import type { Device } from "../backend/device.ts";

export interface ReadOptions {
  /** Where the tensors go; the CPU unless told. */
  readonly device?: Device | string | undefined;
  readonly signal?: AbortSignal | undefined;
}

/** From `start` up to but without `end`. */
export interface ByteRange {
  readonly start: number;
  readonly end: number;
}
