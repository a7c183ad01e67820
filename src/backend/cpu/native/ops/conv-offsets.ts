/** Where the inputs of a convolution's taps are: tables in the heap. */
import type { Engine } from "../../engine.ts";
import { recording } from "../../recording.ts";

/** Bytes from one channel to the next, from row to row, and from one of the stride's images to the next. */
export interface TapStrides {
  readonly channel: number;
  readonly row: number;
  readonly image: number;
}

/** Tables that were made, by what they depend on: making one takes as long as a small convolution. */
const tables = new WeakMap<Engine, Map<string, number>>();
const MOST_TABLES = 64;

/**
 * Where in the heap it says how many bytes behind an output's first input those of each tap are, where every `stride`-th row
 * and column are an image of their own.
 */
export function offsetsOf(
  engine: Engine,
  weights: readonly number[],
  dilation: readonly [number, number],
  stride: readonly [number, number],
  { channel, row, image }: TapStrides,
): number {
  const [, depth, height, width] = weights as [number, number, number, number];
  let own = tables.get(engine);
  if (own === undefined) {
    own = new Map<string, number>();
    tables.set(engine, own);
  }
  const key = `${depth} ${height} ${width} ${dilation} ${stride} ${channel} ${row} ${image}`;
  // Tables may go when there are many.
  recording()?.refuse("a convolution's offsets are looked up");
  const known = own.get(key);
  if (known !== undefined) return known;
  if (own.size >= MOST_TABLES) {
    for (const at of own.values()) engine.release(at);
    own.clear();
  }
  const start = newOffsets(engine, weights, dilation, stride, { channel, row, image });
  own.set(key, start);
  return start;
}

/** A table of its own, which is the caller's to give back. */
export function newOffsets(
  engine: Engine,
  weights: readonly number[],
  dilation: readonly [number, number],
  stride: readonly [number, number],
  { channel, row, image }: TapStrides,
): number {
  const [, depth, height, width] = weights as [number, number, number, number];
  const start = engine.alloc(4 * depth * height * width);
  const table = new Uint32Array(engine.memory.buffer, start, depth * height * width);
  let at = 0;
  for (let c = 0; c < depth; c++) {
    for (let i = 0; i < height; i++) {
      for (let j = 0; j < width; j++) {
        const [y, z] = [i * dilation[0], j * dilation[1]];
        const which = (y % stride[0]) * stride[1] + (z % stride[1]);
        const inside = Math.floor(y / stride[0]) * row + 4 * Math.floor(z / stride[1]);
        table[at++] = c * channel + which * image + inside;
      }
    }
  }
  return start;
}
