/** x · wᵀ with quantized weights by machine code: which kernels run, over what, and in what order. */
import { type DType, sizeOf } from "../../../../core/dtype.ts";
import { Layout } from "../../../../core/layout.ts";
import { type QuantType, quantTypes } from "../../../../core/quant-types.ts";
import type { Backend, View } from "../../../backend.ts";
import { Storage } from "../../../storage.ts";
import { addressFor, addressInside } from "../bounds.ts";
import { guarded } from "../memory.ts";
import type { Native } from "../native.ts";
import type { Job } from "../pool.ts";
import { emitRounding, roundWords } from "./quant-activations.ts";
import { blockCodes, hasNativeCode, type NativeQuantType } from "./quant-blocks.ts";
import { BLOCK, mostRows, record } from "./quant-code.ts";
import { emitProduct, productWords } from "./quant-product.ts";

export interface QuantProduct {
  readonly type: NativeQuantType;
  readonly dtype: DType;
  readonly m: number;
  readonly n: number;
  readonly k: number;
  /** Addresses: of x (m × k) and out (m × n), both contiguous, and of w (n × k). */
  readonly x: number;
  readonly w: number;
  readonly out: number;
}

/** Weights times rows of x that are worth a chunk, and blocks of activations. */
const CHUNK = 2 ** 18;
const ROUND_CHUNK = 2 ** 9;
/** Room for packed activations: longer inputs go in parts. */
const PACKED_BYTES = 16 * 2 ** 20;

const rowBytes = (k: number): number => (k / BLOCK) * record.bytes;
const words = <Name extends string>(names: readonly Name[], values: Readonly<Record<Name, number>>): number[] =>
  names.map((name) => values[name]);

let packed: number | undefined;

/** The jobs of a product whose packed activations fit at `packedAt`. */
export function quantJobs(native: Native, p: QuantProduct, packedAt: number): readonly [Job, Job] {
  const { type, dtype, m, n, k } = p;
  const { isa } = native;
  const { offset, halves } = blockCodes[type];
  const { size, bytes } = quantTypes[type];
  const most = mostRows(isa);
  const tiles = Math.floor(m / most);
  const rest = m % most;
  const blocks = k / BLOCK;
  const round = {
    kernel: native.kernel(`round ${dtype} ${halves}`, (a) => emitRounding(a, isa, dtype, halves)),
    args: words(roundWords, { x: p.x, blocks, rows: m, most, out: packedAt, offset: -offset }),
    total: Math.ceil(m / most),
    grain: Math.max(1, Math.floor(ROUND_CHUNK / (most * blocks))),
  };
  const full = tiles > 0 ? most : 0;
  const name = `quantized ${isa.vnni ? "vnni " : ""}${type} ${dtype} ${full} ${rest}`;
  const product = {
    kernel: native.kernel(name, (a) => emitProduct(a, isa, type, dtype, full, rest)),
    args: words(productWords, {
      w: p.w,
      line: (k / size) * bytes,
      x: packedAt,
      blocks: k / size,
      tiles,
      out: p.out,
      outLine: n * sizeOf(dtype),
    }),
    total: n,
    grain: isa.lanes * Math.max(1, Math.floor(CHUNK / (k * Math.max(1, m / 2)) / isa.lanes)),
  };
  return [round, product];
}

/** Runs a product in parts of as many rows as there is room for. */
export function quantProduct(native: Native, threads: number, p: QuantProduct): void {
  packed ??= guarded(PACKED_BYTES).address;
  const most = mostRows(native.isa);
  const rows = Math.floor(PACKED_BYTES / rowBytes(p.k) / most) * most;
  const element = sizeOf(p.dtype);
  for (let i = 0; i < p.m; i += rows) {
    const m = Math.min(rows, p.m - i);
    const part = { ...p, m, x: p.x + i * p.k * element, out: p.out + i * p.n * element };
    native.run(threads, ...quantJobs(native, part, packed));
  }
}

/** Null where there is no such code: for other types, and for fewer rows of w than a vector has lanes. */
export function nativeQmatmul(
  backend: Backend,
  native: Native,
  threads: number,
  type: QuantType,
  x: View,
  blocks: View,
): Storage | null {
  if (!hasNativeCode(type)) return null;
  const n = blocks.layout.shape[0]!;
  const k = x.layout.shape.at(-1)!;
  const { dtype } = x.storage;
  if (n < native.isa.lanes || k === 0 || !blocks.layout.isContiguous()) return null;
  if (mostRows(native.isa) * rowBytes(k) > PACKED_BYTES) return null;
  const m = x.layout.numel / k;
  if (!x.layout.isContiguous()) {
    const own = Storage.alloc(backend, dtype, m * k);
    try {
      const copy = { storage: own, layout: Layout.contiguous([m, k]) };
      backend.copy(x, { storage: own, layout: Layout.contiguous(x.layout.shape) });
      return nativeQmatmul(backend, native, threads, type, copy, blocks);
    } finally {
      own.discard();
    }
  }
  const out = Storage.alloc(backend, dtype, m * n);
  if (m === 0) return out;
  quantProduct(native, threads, {
    type,
    dtype,
    m,
    n,
    k,
    x: addressInside(x),
    w: addressInside(blocks),
    out: addressFor(out, m * n),
  });
  return out;
}
