export interface CountingSource {
  readonly path: string;
  readonly size: number;
  readonly bytesRead: number;
  read(offset: number, length: number): Promise<Uint8Array>;
}
export function random(seed: number): (below: number) => number;
export function sample(
  version: 1 | 2 | 3,
  alignment?: number,
): { bytes: Buffer; fields: { at: number; size: number }[] };
export function mutated(seed: number): Buffer;
export function memorySource(bytes: Uint8Array, path?: string): CountingSource;
