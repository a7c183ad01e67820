/** Elementwise ops by machine code, where their operands have no gaps and are many. */
import { sizeOf } from "../../../../core/dtype.ts";
import type { BinaryOp, UnaryOp, View } from "../../../backend.ts";
import { Storage } from "../../../storage.ts";
import type { CpuBackend } from "../../backend.ts";
import { addressFor, addressInside } from "../bounds.ts";
import { emitMap, isNativeBinary, type MapOp, mapArguments } from "../kernels/map.ts";
import { formulas } from "../kernels/math.ts";
import { floatBits } from "../pool.ts";
import { isFloatType } from "../simd.ts";

/** Fewer elements take no longer in WebAssembly, and a program that has no more emits nothing. */
export const MANY = 16384;
/** Elements of a chunk: a multiple of every vector and cache line. */
const GRAIN = 16384;
/** Results of so many bytes would push everything else out of the caches. */
const STREAMED_BYTES = 8 * 2 ** 20;

export const unary = (backend: CpuBackend, op: UnaryOp, x: View): Storage | undefined =>
  op in formulas ? map(backend, op as keyof typeof formulas, x, null, 0, 0) : undefined;

export const binary = (backend: CpuBackend, op: BinaryOp, x: View, y: View): Storage | undefined =>
  isNativeBinary(op) ? map(backend, op, x, y, 0, 0) : undefined;

export const affine = (backend: CpuBackend, x: View, mul: number, add: number): Storage | undefined =>
  map(backend, "affine", x, null, mul, add);

function map(backend: CpuBackend, op: MapOp, x: View, y: View | null, mul: number, add: number): Storage | undefined {
  const { dtype } = x.storage;
  const n = x.layout.numel;
  if (n < MANY || !isFloatType(dtype) || !x.layout.isContiguous() || y?.layout.isContiguous() === false)
    return undefined;
  const { native } = backend;
  if (!native) return undefined;
  const storage = Storage.alloc(backend, dtype, n);
  const out = addressFor(storage, n);
  native.run(backend.engine.threads, {
    kernel: native.kernel(`${op} ${dtype}`, emitMap(op, dtype)),
    args: mapArguments.words({
      x: addressInside(x),
      y: y ? addressInside(y) : 0,
      out,
      mul: floatBits(mul),
      add: floatBits(add),
      isStreamed: Number(n * sizeOf(dtype) >= STREAMED_BYTES && out % 64 === 0),
    }),
    total: n,
    grain: GRAIN,
  });
  return storage;
}
