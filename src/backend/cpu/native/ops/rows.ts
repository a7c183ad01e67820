/** Softmax, norms and sums of rows by machine code, where the rows have no gaps and are long. */

import { numel } from "../../../../core/layout.ts";
import type { View } from "../../../backend.ts";
import { Storage } from "../../../storage.ts";
import type { CpuBackend } from "../../backend.ts";
import { addressFor, addressInside } from "../bounds.ts";
import { type Kernel, kernels } from "../catalogue.ts";
import { type NormKind, rowArguments, sumArguments } from "../kernels/rows.ts";
import type { Native } from "../native.ts";
import { SCRATCH_BYTES } from "../pool.ts";
import { type FloatType, isFloatType } from "../simd.ts";
import { STREAMED_BYTES } from "./map.ts";

/** Elements of a chunk of rows. */
const CHUNK = 16384;
/** Chunks for each thread where there are many rows. */
const CHUNKS = 32;
/** Elements that are summed in one piece. */
const BLOCK = 65536;
/**
 * Shorter rows are WebAssembly's, whose sums have another order. How many rows there are must not matter: a row has the same
 * bits alone and in any company.
 */
const SHORTEST_ROW = 512;

interface Rows {
  readonly native: Native;
  readonly type: FloatType;
  readonly rows: number;
  readonly cols: number;
}

/** The view as rows of its last `dims` dims, where machine code takes them. */
function rowsOf(backend: CpuBackend, x: View, dims: number): Rows | undefined {
  const { dtype } = x.storage;
  const { layout } = x;
  if (!isFloatType(dtype) || layout.numel === 0 || !layout.isContiguous()) return undefined;
  const cols = numel(layout.shape.slice(layout.rank - dims));
  const { native } = backend;
  if (!native || cols < SHORTEST_ROW) return undefined;
  return { native, type: dtype, rows: layout.numel / cols, cols };
}

export function softmax(backend: CpuBackend, x: View): Storage | undefined {
  const found = rowsOf(backend, x, 1);
  if (!found || found.cols * 4 > SCRATCH_BYTES) return undefined;
  return normalized(backend, found, x, null, null, 0, kernels.softmax(found.type));
}

export function norm(
  backend: CpuBackend,
  x: View,
  weight: View | null,
  bias: View | null,
  eps: number,
  isCentred: boolean,
): Storage | undefined {
  const found = rowsOf(backend, x, 1);
  if (!found || [weight, bias].some((view) => view?.layout.isContiguous() === false)) return undefined;
  const kind: NormKind = { isCentred, hasWeight: weight !== null, hasBias: bias !== null };
  return normalized(backend, found, x, weight, bias, eps, kernels.norm(found.type, kind));
}

function normalized(
  backend: CpuBackend,
  { native, type, rows, cols }: Rows,
  x: View,
  weight: View | null,
  bias: View | null,
  eps: number,
  kernel: Kernel,
): Storage {
  const storage = Storage.alloc(backend, type, rows * cols);
  const out = addressFor(storage, rows * cols);
  const { threads } = backend.engine;
  native.run(threads, {
    kernel: native.kernel(kernel),
    args: rowArguments.words({
      x: addressInside(x),
      out,
      cols,
      weight: weight ? addressInside(weight) : 0,
      bias: bias ? addressInside(bias) : 0,
      eps: { double: eps },
      isStreamed: Number(rows * cols * 4 >= STREAMED_BYTES && out % 64 === 0 && cols % native.isa.lanes === 0),
    }),
    total: rows,
    // The next row is fetched within a chunk.
    grain: Math.max(1, Math.floor(CHUNK / cols), Math.floor(rows / (CHUNKS * threads))),
  });
  return storage;
}

export function sum(backend: CpuBackend, x: View, dims: number): Storage | undefined {
  const found = rowsOf(backend, x, dims);
  if (!found) return undefined;
  const { native, type, rows, cols } = found;
  const { engine } = backend;
  const blocks = Math.ceil(cols / BLOCK);
  const storage = Storage.alloc(backend, type, rows);
  const partial = engine.alloc(rows * blocks * 8);
  try {
    const args = sumArguments.words({
      x: addressInside(x),
      partial: engine.base + partial,
      out: addressFor(storage, rows),
      cols,
      blocks,
      blockSize: BLOCK,
    });
    native.run(
      engine.threads,
      {
        kernel: native.kernel(kernels.sumBlocks(type)),
        args,
        total: rows * blocks,
        grain: Math.max(1, Math.floor(BLOCK / cols)),
      },
      { kernel: native.kernel(kernels.sumRows(type)), args, total: rows, grain: BLOCK },
    );
  } finally {
    engine.release(partial);
  }
  return storage;
}
