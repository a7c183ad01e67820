/**
 * How the elements of a view in native memory become a compact copy in the heap: as runs of bytes that are copied one by
 * one. Dims keep their order in memory, so that a view of whole dense memory is one run with the strides it had, and
 * repeated elements (stride 0) are copied once.
 */
import { Layout } from "../../../core/layout.ts";

/** Below this, gaps between the elements of a run cost less than more runs. */
const SHORT_RUN_BYTES = 512;
const MOST_GAPS = 8;

interface Loop {
  readonly size: number;
  /** From one run to the next, in elements: in the view's memory and in the copy. */
  readonly from: number;
  readonly to: number;
}

export interface Packing {
  /** The copy's elements, gaps within runs included. */
  readonly elements: number;
  /** The view of the copy that is the view it was made of. */
  readonly layout: Layout;
  /** Where the first run begins in the view's storage, in elements. */
  readonly start: number;
  /** In elements. */
  readonly run: number;
  readonly loops: readonly Loop[];
  /** Whether runs hold elements that are none of the view's. */
  readonly hasGaps: boolean;
}

export function packing(layout: Layout, elementBytes: number): Packing {
  const { shape, strides, offset } = layout;
  if (shape.includes(0)) {
    return { elements: 0, layout: Layout.contiguous(shape), start: 0, run: 0, loops: [], hasGaps: false };
  }
  const dims = shape
    .map((size, dim) => ({ dim, size, step: Math.abs(strides[dim]!) }))
    .filter(({ size, step }) => size > 1 && step > 0)
    .sort((a, b) => a.step - b.step);
  const packed = strides.slice();
  let start = offset;
  let first = 0;
  let run = 1;
  let payload = 1;
  let stride = 0;
  const loops: Loop[] = [];
  for (const { dim, size, step } of dims) {
    const isNegative = strides[dim]! < 0;
    if (isNegative) start += (size - 1) * strides[dim]!;
    const span = (size - 1) * step + run;
    if (loops.length === 0 && isWorthIt(span, run, payload * size, elementBytes)) {
      run = span;
      payload *= size;
      if (isNegative) first += (size - 1) * step;
      continue;
    }
    stride = loops.length === 0 ? run : stride * loops.at(-1)!.size;
    loops.push({ size, from: step, to: stride });
    packed[dim] = isNegative ? -stride : stride;
    if (isNegative) first += (size - 1) * stride;
  }
  const elements = loops.reduce((product, { size }) => product * size, run);
  return { elements, layout: new Layout(shape, packed, first), start, run, loops, hasGaps: run > payload };
}

/** Whether a run of `span` elements, `payload` of which are asked for, is better than several of `run`. */
function isWorthIt(span: number, run: number, payload: number, elementBytes: number): boolean {
  return span <= payload || (run * elementBytes < SHORT_RUN_BYTES && span <= MOST_GAPS * payload);
}

/** Calls `copy` with the places of every run, in elements: in the view's storage and in the copy. */
export function eachRun({ start, loops }: Packing, copy: (from: number, to: number) => void): void {
  const walk = (depth: number, from: number, to: number): void => {
    const loop = loops[depth];
    if (!loop) copy(from, to);
    else for (let i = 0; i < loop.size; i++) walk(depth - 1, from + i * loop.from, to + i * loop.to);
  };
  walk(loops.length - 1, start, 0);
}
