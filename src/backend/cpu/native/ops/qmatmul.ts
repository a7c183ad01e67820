/** x · wᵀ with quantized weights by machine code: which kernels run, over what, and in what order. */

import { type DType, sizeOf } from "../../../../core/dtype.ts";
import { Layout } from "../../../../core/layout.ts";
import { type QuantType, quantTypes } from "../../../../core/quant-types.ts";
import type { Backend, View } from "../../../backend.ts";
import { Storage } from "../../../storage.ts";
import { addressFor, addressInside } from "../bounds.ts";
import { kernels } from "../catalogue.ts";
import type { Isa } from "../isa.ts";
import { roundArguments } from "../kernels/quant-activations.ts";
import { blockCodes, hasNativeCode, type NativeQuantType, STRIP } from "../kernels/quant-blocks.ts";
import { BLOCK, mostRows, type Planes, record } from "../kernels/quant-code.ts";
import { productArguments } from "../kernels/quant-product.ts";
import { MATRIX_ROWS, tileForm } from "../kernels/quant-tiles.ts";
import { guarded } from "../memory.ts";
import type { Native } from "../native.ts";
import type { Job } from "../pool.ts";
import { type FloatType, floatTypes, isFloatType } from "../simd.ts";

export interface QuantProduct {
  readonly type: NativeQuantType;
  readonly dtype: FloatType;
  readonly m: number;
  readonly n: number;
  readonly k: number;
  /** Addresses: of x (m × k) and out (m × n), both contiguous, and of w (n × k). */
  readonly x: number;
  readonly w: number;
  readonly out: number;
  /** The address of w where it lies turned, too. */
  readonly turned?: number | undefined;
  /** What is added: a row for each row of the product, or one for all of them where `line` is 0 bytes. */
  readonly addend?: { readonly at: number; readonly line: number } | undefined;
}

/** What comes before and behind a product in the same call, of as many of its rows as are computed at once. */
export interface AroundProduct {
  /** Where rows come from in place of x, and what writes them there. */
  readonly before: ((first: number, rows: number) => { readonly x: number; readonly job: Job }) | null;
  /** Where products go in place of out, and what takes them from there. */
  readonly behind: ((first: number, rows: number) => { readonly out: number; readonly job: Job }) | null;
}

/** On what it runs: activations are rounded to 8 bits with one plane, where the processor gains by it. */
export interface QuantRunner {
  readonly native: Native;
  readonly threads: number;
  readonly planes: Planes;
}

/** Weights times rows of x that are worth a chunk, and blocks of activations. */
const CHUNK = 2 ** 16;
/** Chunks for each thread that leave none of them idle for long; a product's bits do not depend on how it is cut. */
const CHUNKS = { ofTiles: 24, ofFew: 12 } as const;
/** Of each thread's part of few rows' product, which is soon done: so much it takes at once, and the rest in small chunks. */
const HEAD = 0.65;
const ROUND_CHUNK = 2 ** 9;
/** Layers of this width are worth the queue: smaller ones are done sooner than another thread has taken them. */
export const QUEUED_WIDTH = 512;
/** Room for packed activations: longer inputs go in parts. */
const PACKED_BYTES = 16 * 2 ** 20;
let packed: number | undefined;

const rowBytes = (k: number): number => (k / BLOCK) * record.bytes;

/** How a product goes: the kernels, by what they depend on, and the rows of x whose records lie beside each other. */
interface Plan {
  readonly round: number;
  readonly product: number;
  readonly most: number;
  /** Columns that belong together. */
  readonly columns: number;
  /** Turned weights are read. */
  readonly isTurned: boolean;
  readonly isTiled: boolean;
}
const plans = new WeakMap<Native, Map<number, Plan>>();
const typeNumbers = new Map(Object.keys(blockCodes).map((type, i) => [type, i]));

/** Kernels are looked for by a number: by their names, it would take as long as a small product. */
function planOf({ native, planes: asked }: QuantRunner, p: QuantProduct, m: number): Plan {
  const { type, dtype, k, addend, turned } = p;
  const { isa } = native;
  const tile = tileForm(isa);
  const isTiled = m > mostRows(isa);
  const planes = isa.vnni ? asked : 2;
  const { halves } = blockCodes[type];
  const matrix = isa.amx && planes === 2 && !halves && m >= MATRIX_ROWS;
  const most = matrix ? MATRIX_ROWS : isTiled ? tile.rows : m;
  const rows = isTiled ? m % most : m;
  const known = plans.get(native) ?? new Map<number, Plan>();
  plans.set(native, known);
  let key = typeNumbers.get(type)!;
  const adds = addend !== undefined;
  const strips = k % (STRIP * BLOCK) === 0;
  const isTurned = !isTiled && turned !== undefined;
  const flags = Number(isTiled) + 2 * Number(adds) + 4 * Number(strips) + 8 * Number(isTurned) + 16 * Number(matrix);
  key = (((key * 4 + floatTypes.indexOf(dtype)) * 4 + asked) * 32 + flags) * 16 + rows;
  let plan = known.get(key);
  if (plan) return plan;
  const words = !isa.vnni || (isTiled && planes === 2 && !matrix);
  plan = {
    round: native.kernel(kernels.rounding({ dtype, halves, planes, words })),
    product: native.kernel(
      isTiled
        ? kernels.quantTiles({ type, dtype, planes, rest: matrix ? 0 : rows, adds, matrix })
        : kernels.quantProduct({ type, dtype, planes, rows, adds, strips: strips && !isTurned, isTurned }),
    ),
    most,
    columns: isTiled ? tile.vectors * isa.lanes : isa.lanes,
    isTurned,
    isTiled,
  };
  known.set(key, plan);
  return plan;
}

/** Of `m` rows, the first of which is row `first`, from `x` to `out`. */
function quantJobs(
  runner: QuantRunner,
  p: QuantProduct,
  packedAt: number,
  first: number,
  m: number,
  x: number,
  out: number,
): [Job, Job] {
  const { type, dtype, n, k } = p;
  const { size, bytes } = quantTypes[type];
  const blocks = k / BLOCK;
  const { round, product, most, columns, isTurned, isTiled } = planOf(runner, p, m);
  const least = Math.max(
    CHUNK / (k * Math.max(1, m / 2)),
    n / ((isTiled ? CHUNKS.ofTiles : CHUNKS.ofFew) * runner.threads),
  );
  return [
    {
      kernel: round,
      args: roundArguments.words({ x, blocks, rows: m, most, out: packedAt, offset: -blockCodes[type].offset }),
      total: Math.ceil(m / most),
      grain: Math.max(1, Math.floor(ROUND_CHUNK / (most * blocks))),
    },
    {
      kernel: product,
      args: productArguments.words({
        w: isTurned ? p.turned! : p.w,
        line: (k / size) * bytes,
        x: packedAt,
        blocks: k / size,
        tiles: Math.floor(m / most),
        rest: m % most,
        out,
        outLine: n * sizeOf(dtype),
        addend: p.addend ? p.addend.at + first * p.addend.line : 0,
        addendLine: p.addend?.line ?? 0,
      }),
      total: n,
      grain: columns * Math.max(1, Math.floor(least / columns)),
      head: isTiled ? 0 : columns * Math.floor((HEAD * n) / (runner.threads * columns)),
    },
  ];
}

/** How many rows there is room for at once: whole tiles, and more than those that are no tiles. */
export function rowsAtOnce(isa: Isa, k: number): number {
  const { rows } = tileForm(isa);
  const fitting = Math.floor(PACKED_BYTES / rowBytes(k) / rows) * rows;
  return fitting > mostRows(isa) ? fitting : 0;
}

/** Runs a product in parts of as many rows as there is room for. */
export function quantProduct(runner: QuantRunner, p: QuantProduct, around?: AroundProduct): void {
  packed ??= guarded(PACKED_BYTES).address;
  const rows = rowsAtOnce(runner.native.isa, p.k);
  const element = sizeOf(p.dtype);
  for (let i = 0; i < p.m; i += rows) {
    const m = Math.min(rows, p.m - i);
    const before = around?.before?.(i, m);
    const behind = around?.behind?.(i, m);
    const x = before ? before.x : p.x + i * p.k * element;
    const out = behind ? behind.out : p.out + i * p.n * element;
    const jobs: Job[] = quantJobs(runner, p, packed, i, m, x, out);
    if (before) jobs.unshift(before.job);
    if (behind) jobs.push(behind.job);
    if (around && Math.min(p.n, p.k) >= QUEUED_WIDTH) runner.native.give(runner.threads, ...jobs);
    else runner.native.run(runner.threads, ...jobs);
  }
}

/** Whether there is code for products of such rows: not for other types, nor for fewer rows of w than a vector has lanes. */
export function hasProduct(isa: Isa, type: QuantType, dtype: DType, k: number, blocks: View): type is NativeQuantType {
  const n = blocks.layout.shape[0]!;
  return (
    hasNativeCode(type) &&
    isFloatType(dtype) &&
    n >= isa.lanes &&
    k > 0 &&
    blocks.layout.isContiguous() &&
    rowsAtOnce(isa, k) > 0
  );
}

/** Nothing where there is no such code. */
export function qmatmul(
  backend: Backend,
  runner: QuantRunner,
  type: QuantType,
  x: View,
  blocks: View,
): Storage | undefined {
  const { dtype } = x.storage;
  const n = blocks.layout.shape[0]!;
  const k = x.layout.shape.at(-1)!;
  if (!isFloatType(dtype) || !hasProduct(runner.native.isa, type, dtype, k, blocks)) return undefined;
  const m = x.layout.numel / k;
  if (!x.layout.isContiguous()) {
    const storage = Storage.alloc(backend, dtype, m * k);
    try {
      const copy = { storage, layout: Layout.contiguous(x.layout.shape) };
      backend.copy(x, copy);
      return qmatmul(backend, runner, type, copy, blocks);
    } finally {
      storage.discard();
    }
  }
  const out = Storage.alloc(backend, dtype, m * n);
  if (m === 0) return out;
  const [xAt, w, outAt] = [addressInside(x), addressInside(blocks), addressFor(out, m * n)];
  quantProduct(runner, { type, dtype, m, n, k, x: xAt, w, out: outAt });
  return out;
}
