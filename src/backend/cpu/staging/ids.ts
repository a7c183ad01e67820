/** Slices of large tensors by ids: only those that are named leave their place. */
import { decode, encode } from "../../../core/dtype.ts";
import { fail } from "../../../core/errors.ts";
import { Layout, numel } from "../../../core/layout.ts";
import type { View } from "../../backend.ts";
import { calledOp } from "../../call.ts";
import { Storage } from "../../storage.ts";
import type { MemoryBackend } from "../memory-backend.ts";

/** The largest id of each type names nothing. */
const nothing = { u8: 2 ** 8 - 1, u32: 2 ** 32 - 1, i64: 2n ** 63n - 1n } as const;
type IdType = keyof typeof nothing;

/** In their order; null for those that name nothing. */
function idsOf(backend: MemoryBackend, ids: View): (number | null)[] {
  const dtype = ids.storage.dtype as IdType;
  const packed = Storage.alloc(backend, dtype, ids.layout.numel);
  try {
    backend.copy(ids, { storage: packed, layout: Layout.contiguous(ids.layout.shape) });
    const values = decode(backend.readSync(packed, 0, packed.byteLength), dtype) as ArrayLike<number | bigint>;
    return Array.from(values, (id) => (id === nothing[dtype] ? null : Number(id)));
  } finally {
    packed.discard();
  }
}

/** Throws where an id is out of range for dim `dim` of that size. */
export function firstBadId(backend: MemoryBackend, op: string, ids: View, size: number, dim: number): void {
  for (const [position, id] of idsOf(backend, ids).entries()) {
    if (id === null || (id >= 0 && id < size)) continue;
    fail(
      "InvalidIndex",
      `${calledOp(op)}: id ${id} at position ${position} is out of range for dim ${dim} of size ${size}`,
    );
  }
}

/** x with dim `dim` replaced by the slices that the 1-D ids name. */
export function selectRows(backend: MemoryBackend, x: View, ids: View, dim: number): Storage {
  firstBadId(backend, "indexSelect", ids, x.layout.shape[dim]!, dim);
  const named = idsOf(backend, ids);
  const shape = x.layout.shape.with(dim, named.length);
  const { dtype } = x.storage;
  const whole = Layout.contiguous(shape);
  const out = named.includes(null) ? backend.fill(dtype, numel(shape), 0) : Storage.alloc(backend, dtype, numel(shape));
  for (const [i, id] of named.entries()) {
    if (id === null) continue;
    const from = { storage: x.storage, layout: x.layout.narrow(dim, id, 1) };
    backend.copy(from, { storage: out, layout: whole.narrow(dim, i, 1) });
  }
  return out;
}

/** Calls `run` with the rows of a matrix that ids name, and with the ids that name them there. */
export function rowsOf(
  backend: MemoryBackend,
  matrix: View,
  ids: View,
  run: (rows: View, places: View) => Storage,
): Storage {
  const named = idsOf(backend, ids);
  const width = matrix.layout.shape[1]!;
  const [rows, places] = backend.inHeap(() => [
    selectRows(backend, matrix, ids, 0),
    Storage.alloc(backend, "u32", named.length),
  ]) as [Storage, Storage];
  try {
    backend.write(
      places,
      0,
      encode(
        named.map((id, i) => (id === null ? nothing.u32 : i)),
        "u32",
      ),
    );
    return run(
      { storage: rows, layout: Layout.contiguous([named.length, width]) },
      { storage: places, layout: Layout.contiguous([named.length]) },
    );
  } finally {
    rows.discard();
    places.discard();
  }
}
