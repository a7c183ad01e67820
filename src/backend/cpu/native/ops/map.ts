/** Elementwise ops by machine code, where their operands are many, without gaps or in rows without. */

import { sizeOf } from "../../../../core/dtype.ts";
import { collapse } from "../../../../core/layout.ts";
import type { BinaryOp, UnaryOp, View } from "../../../backend.ts";
import { Storage } from "../../../storage.ts";
import type { CpuBackend } from "../../backend.ts";
import { addressFor, addressInside } from "../bounds.ts";
import { kernels } from "../catalogue.ts";
import { isNativeBinary, type MapOp, mapRowArguments } from "../kernels/map.ts";
import { formulas } from "../kernels/math.ts";
import { floatBits } from "../pool.ts";
import { isFloatType } from "../simd.ts";

/** Fewer elements take no longer in WebAssembly, and a program that has no more emits nothing. */
export const MANY = 16384;
/** Elements of a chunk: a multiple of every vector and cache line. */
const GRAIN = 16384;
/** Results of so many bytes would push everything else out of the caches. */
export const STREAMED_BYTES = 8 * 2 ** 20;

export const unary = (backend: CpuBackend, op: UnaryOp, x: View): Storage | undefined =>
  op in formulas ? map(backend, op as keyof typeof formulas, x, null, 0, 0) : undefined;

export const binary = (backend: CpuBackend, op: BinaryOp, x: View, y: View): Storage | undefined =>
  isNativeBinary(op) ? map(backend, op, x, y, 0, 0) : undefined;

export const affine = (backend: CpuBackend, x: View, mul: number, add: number): Storage | undefined =>
  map(backend, "affine", x, null, mul, add);

/** Rows that are apart, of so many elements, pay. */
const LEAST_COLS = 64;

/** Elements in rows: of operands without gaps one row; undefined where there are more dims, or gaps in rows. */
function rowsOf(views: readonly View[]): { cols: number; strides: readonly number[] } | undefined {
  if (views.every(({ layout }) => layout.isContiguous())) return { cols: views[0]!.layout.numel, strides: [] };
  const { shape, strides } = collapse(views.map(({ layout }) => layout));
  const isApart = shape.length === 2 && shape[1]! >= LEAST_COLS && strides.every(([, col]) => col === 1);
  return isApart ? { cols: shape[1]!, strides: strides.map(([row]) => row!) } : undefined;
}

function map(backend: CpuBackend, op: MapOp, x: View, y: View | null, mul: number, add: number): Storage | undefined {
  const { dtype } = x.storage;
  const n = x.layout.numel;
  if (n < MANY || !isFloatType(dtype)) return undefined;
  const found = rowsOf(y ? [x, y] : [x]);
  const { native } = backend;
  if (!native || !found) return undefined;
  const hasGaps = found.cols < n;
  const [xRow = 0, yRow = 0] = found.strides.map((stride) => stride * sizeOf(dtype));
  const storage = Storage.alloc(backend, dtype, n);
  const out = addressFor(storage, n);
  native.run(backend.engine.threads, {
    kernel: native.kernel(kernels.map(op, dtype, hasGaps)),
    args: mapRowArguments.words({
      x: addressInside(x),
      y: y ? addressInside(y) : 0,
      out,
      mul: floatBits(mul),
      add: floatBits(add),
      isStreamed: Number(n * sizeOf(dtype) >= STREAMED_BYTES && out % 64 === 0),
      cols: found.cols,
      xRow,
      yRow,
    }),
    total: hasGaps ? n / found.cols : n,
    grain: hasGaps ? Math.max(1, Math.floor(GRAIN / found.cols)) : GRAIN,
  });
  return storage;
}
