import type { OpenFile } from "../backend/backend.ts";
import type { Device } from "../backend/device.ts";

export interface ReadOptions {
  /** Where the tensors go; the CPU unless told. */
  readonly device?: Device | string | undefined;
  readonly signal?: AbortSignal | undefined;
}

/** Where bytes lie. */
export interface FilePlace {
  readonly file: OpenFile;
  readonly offset: number;
}

/** From `start` up to but without `end`. */
export interface ByteRange {
  readonly start: number;
  readonly end: number;
}
