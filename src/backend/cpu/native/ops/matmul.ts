/** Products of floats by machine code: how they are cut, and which of B's panels are packed by whom. */

import { sizeOf } from "../../../../core/dtype.ts";
import { collapse, Layout, numel } from "../../../../core/layout.ts";
import type { View } from "../../../backend.ts";
import { ffi } from "../../../ffi.ts";
import { Storage } from "../../../storage.ts";
import type { CpuBackend } from "../../backend.ts";
import { recording } from "../../recording.ts";
import { addressFor, addressInside } from "../bounds.ts";
import { kernels } from "../catalogue.ts";
import { LEAST_LAGGING } from "../kernels/lagging.ts";
import { LINE_BLOCK, lineArguments } from "../kernels/lines.ts";
import { PAIR } from "../kernels/pairs.ts";
import { NOTE_BYTES, type ProductType } from "../kernels/panels.ts";
import { MOST_COLUMNS, MOST_ROWS, MOST_WIDENED, productArguments, widenedRow } from "../kernels/product.ts";
import { copiedRow, KC, tileShape } from "../kernels/tile.ts";
import { turnedArguments, turnedHeight, turnedRows } from "../kernels/turned.ts";
import { WIDENED_STEPS } from "../kernels/widening-tile.ts";
import { guarded } from "../memory.ts";
import type { Native } from "../native.ts";
import { hole, type Job, type JobList, SCRATCH_BYTES, type Word } from "../pool.ts";
import { type FloatType, isFloatType } from "../simd.ts";
import { packedWeights, packing } from "./packed-weights.ts";

/** An m × k or k × n matrix, or a batch of them: strides in bytes. */
interface Matrix {
  readonly address: number;
  readonly row: number;
  readonly col: number;
  /** Bytes along the outer and the inner dim of the batch. */
  readonly outer: number;
  readonly inner: number;
}

interface Product {
  readonly type: FloatType;
  readonly m: number;
  readonly n: number;
  readonly k: number;
  readonly batch: number;
  /** Size of the batch's inner dim. */
  readonly inner: number;
  readonly a: Matrix;
  readonly b: Matrix;
  readonly out: number;
}

/** Up to so many rows each block packs B's columns for itself: packing for all would cost more than it saves. */
const FEW_ROWS = 48;
/** Multiplications of one matrix of a batch from which on its B is packed for all threads. */
const LARGE = 2 ** 24;
/** Bytes of B packed at a time: a few times less than usual last-level caches. */
const STAGE = 16 * 2 ** 20;
/** Bytes of an f32 B that stay in the second cache, and are read where they are: packing would cost more than it saves. */
const READ_BYTES = 2 ** 20;
/** Multiplications that are worth a chunk. */
const CHUNK = 2 ** 18;
/** Blocks for each thread where they are cheap. */
const MANY_BLOCKS = 8;
/** What of its part a thread takes at once where columns come from memory. */
const HEAD = 2 / 3;
/** Columns of one row's product that are worth a block. */
const LEAST_BLOCK = 512;

/** No batch. */
const single = { shape: [], strides: [[], []] } as const;

/** A product but for the addresses, and its jobs: finding them out takes as long as a small product. */
interface Plan {
  readonly native: Native;
  readonly threads: number;
  readonly type: FloatType;
  readonly a: Layout;
  readonly b: Layout;
  /** With holes for the addresses; undefined where there is nothing to multiply, or machine code has no such product. */
  readonly product: Product | undefined;
  /** Which operand may be weights that have a copy in panels. */
  readonly weights: "a" | "b" | null;
  /** Made when the form comes again; null where jobs need memory. */
  list: JobList | null | undefined;
  /** The same with panels that lie ready: their address stands in the place of the weights'. */
  packed: JobList | undefined;
}
/** The latest ones. */
const plans: Plan[] = [];
const MOST_PLANS = 16;
/** What stands for the addresses. */
const holes = { a: hole(0), b: hole(1), out: hole(2) } as const;

const isSame = ([x, y]: readonly number[], other: readonly number[]): boolean => x === other[0] && y === other[1];

function planFor(native: Native, threads: number, type: FloatType, a: Layout, b: Layout): Plan {
  const known = plans.find(
    (plan) =>
      isSame(plan.a.shape, a.shape) &&
      isSame(plan.b.shape, b.shape) &&
      isSame(plan.a.strides, a.strides) &&
      isSame(plan.b.strides, b.strides) &&
      plan.type === type &&
      plan.threads === threads &&
      plan.native === native,
  );
  if (known) {
    if (known.list === undefined) known.list = listOf(known);
    return known;
  }
  const plan = newPlan(native, threads, type, a, b);
  plans.unshift(plan);
  if (plans.length > MOST_PLANS) plans.pop();
  return plan;
}

function newPlan(native: Native, threads: number, type: FloatType, a: Layout, b: Layout): Plan {
  const product = productOf(type, a, b);
  const weights = product && mayBePacked(native, product) ? (product.b.address === holes.a ? "a" : "b") : null;
  return { native, threads, type, a, b, product, weights, list: undefined, packed: undefined };
}

function listOf({ native, threads, product }: Plan): JobList | null {
  const jobs = product && jobsOf(native, product, threads);
  return jobs ? native.list(threads, jobs) : null;
}

export function matmul(backend: CpuBackend, native: Native, a: View, b: View): Storage | undefined {
  const { dtype } = a.storage;
  if (!isFloatType(dtype)) return undefined;
  const { threads } = backend.engine;
  const isKept = a.layout.rank === 2 && recording() === null;
  const plan = (isKept ? planFor : newPlan)(native, threads, dtype, a.layout, b.layout);
  const { product, weights } = plan;
  if (!product) return undefined;
  const at = { a: addressInside(a), b: addressInside(b) };
  const packed = weights && panelsOf(native, threads, product, weights === "a" ? a : b);
  if (weights && packed) {
    at[weights] = packed;
    if (isKept) plan.packed ??= native.list(threads, [fromPanels(native, product, threads)]);
  }
  const n = product.batch * product.m * product.n;
  const storage = Storage.alloc(backend, dtype, n);
  const out = addressFor(storage, n);
  const list = packed ? plan.packed : plan.list;
  if (list) {
    list.fill(at.a, at.b, out);
    native.replay(threads, list);
    return storage;
  }
  const placed = (x: Matrix): Matrix => ({ ...x, address: x.address === holes.a ? at.a : at.b });
  const p = { ...product, a: placed(product.a), b: placed(product.b), out };
  if (packed) native.run(threads, fromPanels(native, p, threads));
  else multiply(backend, native, p);
  return storage;
}

/** Whether B's columns lie one behind the other, as weights do, and copies in panels are no larger than they are. */
function mayBePacked(native: Native, p: Product): boolean {
  const type = productType(native, p);
  const es = sizeOf(p.type);
  return p.batch === 1 && (type === "f32" || type === "pairs") && p.b.row === es && p.b.col === p.k * es && p.k > 1;
}

/** The address of the panels of B that lie ready. */
const panelsOf = (native: Native, threads: number, p: Product, w: View): number | undefined =>
  packedWeights(native, threads, w, {
    type: productType(native, p),
    n: p.n,
    k: p.k,
    panelBytes: panelBytesOf(native, productType(native, p), p.k),
  });

/** With holes for the addresses; undefined where there is nothing to multiply, or batches lie over too many dims. */
function productOf(type: FloatType, a: Layout, b: Layout): Product | undefined {
  const lead = a.rank - 2;
  const [m, k] = a.shape.slice(lead) as [number, number];
  const n = b.shape[lead + 1]!;
  const dims = a.shape.slice(0, lead);
  const count = numel(dims);
  if (m === 0 || n === 0 || k === 0 || count === 0) return undefined;
  const { shape, strides } =
    lead === 0 ? single : collapse([a, b].map((layout) => new Layout(dims, layout.strides.slice(0, lead))));
  if (shape.length > 2) return undefined;
  const es = sizeOf(type);
  const matrix = (layout: Layout, address: number, i: number): Matrix => {
    const [row, col] = layout.strides.slice(lead).map((stride) => stride * es) as [number, number];
    const [inner = 0, outer = 0] = strides[i]!.toReversed().map((stride) => stride * es);
    return { address, row, col, outer, inner };
  };
  const [batch, inner] = [count, shape.at(-1) ?? 1];
  return simplest({
    type,
    m,
    n,
    k,
    batch,
    inner,
    a: matrix(a, holes.a, 0),
    b: matrix(b, holes.b, 1),
    out: holes.out,
  });
}

/** One tall A where all of a batch have the same B; columns as rows where there is only one. */
function simplest(p: Product): Product {
  const { a, b, m, batch, inner } = p;
  const isTall = batch > 1 && inner === batch && b.inner === 0 && a.inner === m * a.row;
  if (isTall) return simplest({ ...p, m: m * batch, batch: 1, inner: 1 });
  if (p.n > 1 || m === 1) return p;
  const turned = (x: Matrix): Matrix => ({ ...x, row: x.col, col: x.row });
  return { ...p, m: 1, n: m, a: turned(b), b: turned(a) };
}

/** The jobs of a product that needs no memory for them. */
function jobsOf(native: Native, p: Product, threads: number): Job[] | undefined {
  if (p.m === 1 && p.batch === 1 && p.b.col === sizeOf(p.type)) return [alongLines(native, p, threads)];
  if (isTurned(native, p)) return [turned(native, p, threads)];
  if (isWidenedByEach(native, p)) return widenedPanels(native, p, threads);
  const size = p.m * p.n * p.k;
  const isLarge = p.m > FEW_ROWS && !(readsB(p) && isSmall(p)) && size > (p.batch === 1 ? CHUNK : LARGE);
  return isLarge ? undefined : [ownPanels(native, p, threads)];
}

function multiply(backend: CpuBackend, native: Native, p: Product): void {
  const { threads } = backend.engine;
  const jobs = jobsOf(native, p, threads);
  if (jobs) {
    native.run(threads, ...jobs);
    return;
  }
  for (let i = 0; i < p.batch; i++) {
    const [outer, inner] = [Math.floor(i / p.inner), i % p.inner];
    const at = (x: Matrix): Matrix => ({ ...x, address: x.address + outer * x.outer + inner * x.inner });
    const out = p.out + i * p.m * p.n * sizeOf(p.type);
    packedPanels(backend, native, { ...p, a: at(p.a), b: at(p.b), out, batch: 1, inner: 1 });
  }
}

const isSmall = ({ n, k }: Product): boolean => n * k * 4 <= READ_BYTES;
/** Lines of f32 need no packing. */
const readsB = ({ type, b }: Product): boolean => type === "f32" && b.col === 4;

/** What the kernels take, which have bf16 in pairs where the processor multiplies them. */
const productType = ({ isa }: Native, { type }: Product): ProductType =>
  type === "bf16" && isa.pairs ? "pairs" : type;
/** Words of 32 bits along k: floats, or pairs. */
const wordsOf = (type: ProductType, k: number): number => (type === "pairs" ? Math.ceil(k / PAIR) : k);
const panelBytesOf = (native: Native, type: ProductType, k: number): number =>
  wordsOf(type, k) * tileShape(native.isa).lineBytes + (type === "pairs" ? NOTE_BYTES : 0);

/** A small B of 16 bits that many rows use. */
function isWidenedByEach(native: Native, p: Product): boolean {
  const { m, n, k, batch, b } = p;
  const type = productType(native, p);
  if (type === "f32" || batch > 1 || m <= FEW_ROWS || b.col !== 2) return false;
  const panels = Math.ceil(n / tileShape(native.isa).columns);
  const bytes = type === "pairs" ? panels * panelBytesOf(native, type, k) : k * widenedRow(n) + 64;
  return bytes <= MOST_WIDENED;
}

/** Whether tiles widen what they multiply: whole vectors of columns and blocks of steps, and enough of the former. */
const widensInTiles = ({ isa }: Native, { k, n, a }: Product, columns: number): boolean =>
  isa.masks &&
  k <= KC &&
  k % WIDENED_STEPS === 0 &&
  n % isa.lanes === 0 &&
  n > 4 * isa.lanes &&
  n <= columns &&
  a.col === 2;

interface Block {
  readonly rows: number;
  readonly columns: number;
  readonly packed?: number;
  readonly panelBytes?: number;
  readonly outRow?: number;
  /** Panels come from memory, and are gone through once. */
  readonly isStreamed?: boolean;
  /** Where the number of a widened B is. */
  readonly number?: number;
}

/** The words that both kernels take. */
function words(native: Native, p: Product, block: Block): Word[] {
  const es = sizeOf(p.type);
  const type = productType(native, p);
  const result = native.isa.masks && wordsOf(type, p.k) <= KC ? p.type : "f32";
  const { rows, columns, packed = 0, panelBytes = 0, outRow = p.n * es, isStreamed = false, number = 0 } = block;
  return productArguments.words({
    tiles: native.kernel(kernels.tiles(type === "pairs" ? "pairs" : "floats", result, isStreamed)),
    smallTiles: type === "pairs" ? native.kernel(kernels.tiles("small pairs", result)) : 0,
    a: p.a.address,
    aRow: p.a.row,
    aCol: p.a.col,
    b: p.b.address,
    bRow: p.b.row,
    bCol: p.b.col,
    out: p.out,
    outRow,
    m: p.m,
    n: p.n,
    k: p.k,
    rows,
    columns,
    down: Math.ceil(p.m / rows),
    across: Math.ceil(p.n / columns),
    packed,
    panelBytes,
    widening:
      number > 0 && type !== "pairs" && widensInTiles(native, p, columns) ? native.kernel(kernels.widening(p.type)) : 0,
    rounds: Number(result !== "f32"),
    readsA: Number(p.type === "f32" && p.a.col === 4),
    readsB: Number(readsB(p)),
    aCopied: copiedRow(wordsOf(type, p.k)),
    bWidened: widenedRow(p.n),
    number,
    inner: p.inner,
    aOuter: p.a.outer,
    aInner: p.a.inner,
    bOuter: p.b.outer,
    bInner: p.b.inner,
    outMatrix: p.m * p.n * es,
  });
}

/** One row, and lines of B as they are: blocks as wide as may be, but as many for each thread. */
function alongLines(native: Native, { type, a, b, out, n, k }: Product, threads: number): Job {
  const blocks = Math.ceil(Math.ceil(n / LINE_BLOCK) / threads) * threads;
  const block = Math.max(LEAST_BLOCK, Math.ceil(n / blocks / native.isa.lanes) * native.isa.lanes);
  return {
    kernel: native.kernel(kernels.lines(type)),
    args: lineArguments.words({ a: a.address, aCol: a.col, b: b.address, bRow: b.row, out, n, k, block }),
    total: Math.ceil(n / block),
    grain: Math.max(1, Math.floor(CHUNK / (block * k))),
  };
}

/** Few rows, and columns of B along k. */
const isTurned = ({ isa }: Native, { type, m, n, k, batch, b }: Product): boolean =>
  batch === 1 &&
  m <= turnedRows(isa) &&
  n >= isa.lanes &&
  b.row === sizeOf(type) &&
  turnedHeight(m) * k * 4 <= SCRATCH_BYTES;

function turned(native: Native, { type, a, b, out, m, n, k }: Product, threads: number): Job {
  const { isa } = native;
  const height = turnedHeight(m);
  const es = sizeOf(type);
  const isInOrder = isa.inOrder && b.col === k * es;
  const isLagging = isInOrder && isa.masks && type === "f32" && height === 1 && k >= LEAST_LAGGING;
  const items = Math.ceil(n / isa.lanes);
  // What comes next is fetched within a chunk: few large ones, and where there is much to read first most of a thread's part.
  const least = Math.max(1, Math.floor(CHUNK / (isa.lanes * k)));
  const head = isLagging && items >= 16 * threads * least ? Math.floor((HEAD * items) / threads) : 0;
  const chunks = threads === 1 ? 1 : (head > 0 ? 4 : 8) * threads;
  return {
    kernel: native.kernel(isLagging ? kernels.lagging : kernels.turned(type, height)),
    args: turnedArguments.words({
      a: a.address,
      aRow: a.row,
      aCol: a.col,
      b: b.address,
      bCol: b.col,
      out,
      outRow: n * es,
      m,
      n,
      k,
      fetched: isInOrder ? isa.lanes * isa.bytes : 0,
    }),
    total: items,
    grain: Math.max(least, Math.ceil((items - threads * head) / chunks)),
    head,
  };
}

/** Panels of B lie ready where B is said to be. */
function fromPanels(native: Native, p: Product, threads: number): Job {
  const type = productType(native, p);
  const { columns: panel } = tileShape(native.isa);
  const { rows, columns } = blockOf(native, p, Math.ceil(p.n / panel), panel, threads, MANY_BLOCKS);
  const panels = { packed: p.b.address, panelBytes: panelBytesOf(native, type, p.k), isStreamed: p.m <= MOST_ROWS };
  return {
    kernel: native.kernel(kernels.product(type, "packed before")),
    args: words(native, p, { rows, columns, ...panels }),
    total: Math.ceil(p.m / rows) * Math.ceil(p.n / columns),
    grain: Math.max(1, Math.floor(CHUNK / (rows * columns * p.k))),
  };
}

/** Blocks that read B's columns where they are, or pack them for themselves. */
function ownPanels(native: Native, p: Product, threads: number): Job {
  const { columns: panel } = tileShape(native.isa);
  const { rows, columns } = blockOf(native, p, Math.ceil(p.n / panel), panel, threads);
  return {
    kernel: native.kernel(kernels.product(productType(native, p), "own")),
    args: words(native, p, { rows, columns }),
    total: p.batch * Math.ceil(p.m / rows) * Math.ceil(p.n / columns),
    grain: Math.max(1, Math.floor(CHUNK / (rows * columns * p.k))),
  };
}

/** Each thread widens B when it has not done so for this product, which has a number of its own. */
function widenedPanels(native: Native, p: Product, threads: number): Job[] {
  const { columns: panel } = tileShape(native.isa);
  const { rows, columns } = blockOf(native, p, Math.ceil(p.n / panel), panel, threads);
  const number = numberOfB();
  return [
    { kernel: native.kernel(kernels.nextNumber), args: [number], total: 1, grain: 1 },
    {
      kernel: native.kernel(kernels.product(productType(native, p), "widened")),
      args: words(native, p, { rows, columns, number, panelBytes: panelBytesOf(native, productType(native, p), p.k) }),
      total: Math.ceil(p.m / rows) * Math.ceil(p.n / columns),
      grain: 1,
    },
  ];
}

let numberAt: number | undefined;
/** Where that number is; it begins where no data is likely to be. */
function numberOfB(): number {
  if (numberAt === undefined) {
    numberAt = guarded(64).address;
    ffi().encode(BigInt(numberAt), "uint64_t", 0x5bd1e995_9ddfea08n);
  }
  return numberAt;
}

/** B's panels are packed by all threads, as many columns at a time as caches hold, then blocks of C take them. */
function packedPanels(backend: CpuBackend, native: Native, p: Product): void {
  const { engine } = backend;
  const es = sizeOf(p.type);
  const type = productType(native, p);
  const { columns: panel } = tileShape(native.isa);
  const panelBytes = panelBytesOf(native, type, p.k);
  const panels = Math.ceil(p.n / panel);
  const stage = Math.min(panels, Math.max(4, Math.floor(STAGE / panelBytes)));
  const at = engine.alloc(stage * panelBytes + 64);
  const packed = Math.ceil((engine.base + at) / 64) * 64;
  try {
    for (let first = 0; first < panels; first += stage) {
      const here = Math.min(stage, panels - first);
      const start = first * panel;
      const n = Math.min(here * panel, p.n - start);
      const b = { ...p.b, address: p.b.address + start * p.b.col };
      const part: Product = { ...p, n, b, out: p.out + start * es };
      const pack = packing(native, type, b, { n, k: p.k, packed, panelBytes });
      const { rows, columns } = blockOf(native, part, here, panel, engine.threads);
      const job: Job = {
        kernel: native.kernel(kernels.product(type, "packed before")),
        args: words(native, part, { rows, columns, packed, panelBytes, outRow: p.n * es }),
        total: Math.ceil(p.m / rows) * Math.ceil(n / columns),
        grain: 1,
      };
      native.run(engine.threads, pack, job);
    }
  } finally {
    engine.release(at);
  }
}

/**
 * Rows and columns of a block: as many as the thread's memory holds, but some blocks for each thread, of equal size. Few
 * rows stay together, as each block would pack the same columns.
 */
function blockOf(
  native: Native,
  p: Product,
  panels: number,
  panel: number,
  threads: number,
  // Small ones cost nothing where nothing is packed.
  each = (readsB(p) && isSmall(p)) || isWidenedByEach(native, p) ? MANY_BLOCKS : 4,
): { rows: number; columns: number } {
  const { m, batch } = p;
  const { rows: tile } = tileShape(native.isa);
  const least = Math.ceil((threads > 1 ? each * threads : 1) / batch);
  let wide = Math.min(panels, Math.floor(MOST_COLUMNS / panel));
  const across = () => Math.ceil(panels / wide);
  const down = Math.max(Math.ceil(m / MOST_ROWS), m > FEW_ROWS ? Math.ceil(least / across()) : 1);
  const rows = Math.min(m, Math.max(2, Math.ceil(m / down / tile)) * tile);
  while (wide > 1 && Math.ceil(m / rows) * across() < least) wide = Math.ceil(wide / 2);
  return { rows, columns: wide * panel };
}
