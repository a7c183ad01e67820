import type { Device, scope, Tensor } from "../../src/index.ts";
import type * as nn from "../../src/nn/index.ts";
import type { Composed } from "../../src/ops/composed/index.ts";

export interface Draw {
  int(least: number, most: number): number;
  pick<T>(list: readonly T[]): T;
}
export interface Size {
  readonly rows: number;
  readonly columns: number;
  readonly elements: number;
  readonly positions: number;
  readonly heads: number;
  readonly scores: number;
}
export interface NnCase {
  readonly kind: string;
  readonly dtype: string;
  readonly seed: number;
}
export interface Library {
  readonly Tensor: typeof Tensor;
  readonly scope: typeof scope;
  readonly nn: typeof nn;
  readonly sdpaReference: Composed["sdpa"];
}
export const sizes: { readonly small: Size; readonly large: Size };
export function drawCase(draw: Draw, size: Size): NnCase;
export function checkCase(library: Library, device: Device, c: NnCase, other?: Device): string | null;
