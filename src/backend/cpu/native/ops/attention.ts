/** Attention by machine code, over keys and values of any strides or in pages. */

import { sizeOf } from "../../../../core/dtype.ts";
import type { View } from "../../../backend.ts";
import type { SdpaParams } from "../../../fused-ops.ts";
import { PAGE_SIZE, type PagedAttentionParams } from "../../../paged-attention.ts";
import { Storage } from "../../../storage.ts";
import type { CpuBackend } from "../../backend.ts";
import type { Engine } from "../../engine.ts";
import { recording } from "../../recording.ts";
import { addressFor, addressInside } from "../bounds.ts";
import { kernels } from "../catalogue.ts";
import {
  type AttentionKind,
  attentionArguments,
  BLOCK_ROWS,
  ENTRY_BYTES,
  MOST_KEY_DIM,
  MOST_VALUE_DIM,
  SCORE_BYTES,
} from "../kernels/attention.ts";
import { tileShape } from "../kernels/tile.ts";
import type { Native } from "../native.ts";
import { floatBits, type Job, QUEUED_BYTES } from "../pool.ts";
import { type FloatType, isFloatType } from "../simd.ts";

/** Scores of a block that stay in the second cache. */
const CACHED_BYTES = 2 ** 19;
/** Multiplications that are worth a chunk. */
const CHUNK = 2 ** 18;
/** Keys and values of fewer rows than these take as long to read as those of so many to multiply. */
const LEAST_ROWS = 16;
/** Of arguments that are recorded: they are not written over. */
const RECORDED_BYTES = 2 ** 13;
/** Further than any key is away. */
const FAR = 2 ** 40;

/** What rows of one entry of a batch, or of one sequence, have in common: addresses, rows of queries, and keys. */
interface Sequence {
  readonly q: number;
  readonly k: number;
  readonly v: number;
  readonly mask: number;
  readonly out: number;
  readonly tq: number;
  readonly tk: number;
  readonly table: number;
  /** The address of an i64 that counts the keys, at most `tk`; 0 where it is `tk`. */
  readonly length: number;
}

type Computed = "tiles" | "entries" | "scoreRow" | "resultRow" | "scale" | "cap" | "inverseCap" | "ahead" | "behind";
type Shared = Readonly<Record<Exclude<keyof Parameters<typeof attentionArguments.words>[0], Computed>, number>>;

/** Bytes of a row of scores. */
function scoreRowOf({ isa }: Native, tk: number): number {
  const { columns, lineBytes } = tileShape(isa);
  return (Math.ceil(tk / columns) + 1) * lineBytes;
}

/** Where the entries of the job at hand are: one op runs at a time. */
const entryMemory = new WeakMap<Engine, { at: number; bytes: number }>();

function writeEntries(engine: Engine, words: readonly number[]): number {
  const bytes = 8 * words.length;
  let memory = entryMemory.get(engine);
  if (!memory || memory.bytes < bytes) {
    if (memory) engine.release(memory.at);
    const size = Math.max(4096, 2 * bytes);
    memory = { at: engine.alloc(size), bytes: size };
    entryMemory.set(engine, memory);
  }
  const out = new Uint32Array(engine.memory.buffer, memory.at, 2 * words.length);
  for (let i = 0; i < words.length; i++) {
    out[2 * i] = words[i]!; // modulo 2^32
    out[2 * i + 1] = Math.floor(words[i]! / 2 ** 32);
  }
  return engine.base + memory.at;
}

function jobOf(
  engine: Engine,
  native: Native,
  kind: AttentionKind,
  sequences: readonly Sequence[],
  p: Omit<SdpaParams, "sinks">,
  shared: Shared,
): Job {
  const { columns, lineBytes } = tileShape(native.isa);
  const { heads, group, d, dv } = shared;
  const longest = sequences.reduce((most, { tk }) => Math.max(most, tk), 0);
  const scoreRow = scoreRowOf(native, longest);
  const cached = Math.max(8, Math.min(BLOCK_ROWS, Math.floor(CACHED_BYTES / scoreRow)));
  const most = Math.min(cached, Math.floor(SCORE_BYTES / scoreRow));
  const words: number[] = [];
  let multiplications = 0;
  for (const { q, k, v, mask, out, tq, tk, table, length } of sequences) {
    const rows = group * tq;
    // Blocks of equal size, in rows of the tile.
    const blocks = Math.ceil(rows / most);
    const height = Math.min(most, Math.ceil(rows / blocks / 8) * 8);
    for (let first = 0; first < rows; first += height) {
      words.push(q, k, v, mask, out, tq, tk, table, first, Math.min(height, rows - first), length);
    }
    multiplications += Math.max(rows, LEAST_ROWS) * tk * (d + dv);
  }
  const count = (8 * words.length) / ENTRY_BYTES;
  // Few entries go along with the arguments: others are in memory that the next op writes over.
  const isShort = 8 * (attentionArguments.count + words.length) <= (recording() ? RECORDED_BYTES : QUEUED_BYTES);
  const args = attentionArguments.wordsOf(
    {
      tiles: native.kernel(kernels.tiles()),
      entries: isShort ? { own: attentionArguments.count } : writeEntries(engine, words),
      scoreRow,
      resultRow: Math.ceil(dv / columns) * lineBytes,
      ahead: p.causal ? 1 : p.window ? p.window + 1 : FAR,
      behind: p.window ? p.window - Number(p.causal) : FAR,
      scale: floatBits(p.scale),
      cap: floatBits(p.softcap),
      inverseCap: floatBits(1 / p.softcap),
    },
    shared,
  );
  if (isShort) args.push(...words);
  return {
    kernel: native.kernel(kernels.attention(kind)),
    args,
    total: count * heads,
    grain: Math.max(1, Math.floor(CHUNK / (multiplications / count))),
  };
}

/** What one op asks is decided without its number of query rows: a row must be the same in any company. */
export function canAttend(backend: CpuBackend, q: View, k: View, v: View, mask: View | null): boolean {
  const [b, hq, tq, d] = q.layout.shape as [number, number, number, number];
  const tk = k.layout.shape[2]!;
  const dv = v.layout.shape[3]!;
  if (!isFloatType(q.storage.dtype) || (mask && mask.layout.strides[3] !== 1 && tk > 1)) return false;
  if (b * hq * tq * dv === 0 || tk === 0 || d === 0 || d > MOST_KEY_DIM || dv > MOST_VALUE_DIM) return false;
  return backend.native !== null && scoreRowOf(backend.native, tk) <= SCORE_BYTES;
}

export function sdpa(
  backend: CpuBackend,
  q: View,
  k: View,
  v: View,
  mask: View | null,
  p: SdpaParams,
): Storage | undefined {
  if (!canAttend(backend, q, k, v, mask)) return undefined;
  const [b, hq, tq] = q.layout.shape as [number, number, number];
  const storage = Storage.alloc(backend, q.storage.dtype, b * hq * tq * v.layout.shape[3]!);
  backend.native!.run(backend.engine.threads, attentionJob(backend, q, k, v, mask, p, storage));
  return storage;
}

/**
 * Of operands that `canAttend` takes; the result is (b, tq, hq, dv) where `byRows` is set. `lengths`, i64 (b), counts the keys
 * of each, of which k has room for the most.
 */
export function attentionJob(
  { engine, native }: CpuBackend,
  q: View,
  k: View,
  v: View,
  mask: View | null,
  p: SdpaParams & { readonly byRows?: boolean },
  storage: Storage,
  lengths: View | null = null,
): Job {
  const type = q.storage.dtype as FloatType;
  const [b, hq, tq, d] = q.layout.shape as [number, number, number, number];
  const [, hk, tk] = k.layout.shape as [number, number, number];
  const dv = v.layout.shape[3]!;
  const es = sizeOf(type);
  const strides = (view: View | null) =>
    (view?.layout.strides ?? [0, 0, 0, 0]).map((stride) => stride * es) as [number, number, number, number];
  const [qBatch, qHead, qRow, qCol] = strides(q);
  const [kBatch, kHead, kRow, kCol] = strides(k);
  const [vBatch, vHead, vRow, vCol] = strides(v);
  const [maskBatch, maskHead, maskRow] = strides(mask);
  const [qAt, kAt, vAt, maskAt] = [q, k, v, mask].map((view) => (view ? addressInside(view) : 0)) as [
    number,
    number,
    number,
    number,
  ];
  const out = addressFor(storage, b * hq * tq * dv);
  const lengthsAt = lengths ? addressInside(lengths) : 0;
  const sequences = Array.from({ length: b }, (_, i) => ({
    q: qAt + i * qBatch,
    k: kAt + i * kBatch,
    v: vAt + i * vBatch,
    mask: maskAt + i * maskBatch,
    out: out + i * hq * tq * dv * es,
    tq,
    tk,
    table: 0,
    length: lengthsAt && lengthsAt + 8 * i,
  }));
  const kind = { type, isPaged: false, hasCap: p.softcap !== 0, hasMask: mask !== null, hasSinks: p.sinks !== null };
  const sinks = p.sinks ? addressInside(p.sinks) : 0;
  const group = hq / hk;
  const [outHead, outRow] = p.byRows ? [dv * es, hq * dv * es] : [tq * dv * es, dv * es];
  // biome-ignore format: one object of many fields
  const shared = {
    qHead, qRow, qCol, kHead, kRow, kCol, kPage: 0, vHead, vRow, vCol, vPage: 0,
    maskHead, maskRow, outHead, outRow, sinks, heads: hk, group, d, dv,
  };
  return jobOf(engine, native!, kind, sequences, p, shared);
}

/**
 * The rows of queries (rows, heads · d) at `turned`, over pages that have their keys and values already: the same bits as
 * those of `sdpa` over each sequence by itself. False where WebAssembly must do it.
 */
export function sdpaPages(
  backend: CpuBackend,
  turned: number,
  rows: number,
  heads: number,
  p: PagedAttentionParams,
  out: number,
): boolean {
  const { dtype: type } = p.k.storage;
  const [pages, hk, , d] = p.k.layout.shape as [number, number, number, number];
  const { native, engine } = backend;
  if (!native || !isFloatType(type) || rows === 0 || d === 0 || d > MOST_KEY_DIM) return false;
  const [count, width] = p.tables.layout.shape as [number, number];
  const [tables, lengths, offsets] = [p.tables, p.lengths, p.offsets].map((view) => integersOf(engine, view)) as [
    Int32Array,
    Int32Array,
    Int32Array,
  ];
  const es = sizeOf(type);
  const [k, v, table] = [addressInside(p.k), addressInside(p.v), addressInside(p.tables)];
  const sequences: Sequence[] = [];
  for (let i = 0; i < count; i++) {
    const [first, tq, tk] = [offsets[2 * i]!, offsets[2 * i + 2]! - offsets[2 * i]!, lengths[2 * i]!];
    if (tq === 0) continue;
    const isKnown = tk > 0 && tq > 0 && first >= 0 && first + tq <= rows && Math.ceil(tk / PAGE_SIZE) <= width;
    if (!isKnown || scoreRowOf(native, tk) > SCORE_BYTES) return false;
    for (let j = 0; j * PAGE_SIZE < tk; j++) {
      const page = tables[2 * (i * width + j)]!;
      if (page < 0 || page >= pages) return false;
    }
    const start = first * heads * d * es;
    sequences.push({
      q: turned + start,
      k,
      v,
      mask: 0,
      out: out + start,
      tq,
      tk,
      table: table + 8 * i * width,
      length: 0,
    });
  }
  if (sequences.length === 0) return true;
  const kind = { type, isPaged: true, hasCap: p.softcap !== 0, hasMask: false, hasSinks: p.sinks !== null };
  const [head, row] = [PAGE_SIZE * d * es, d * es];
  const shared = {
    ...{ qHead: row, qRow: heads * row, qCol: es, outHead: row, outRow: heads * row, maskHead: 0, maskRow: 0 },
    ...{ kHead: head, kRow: row, kCol: es, kPage: hk * head, vHead: head, vRow: row, vCol: es, vPage: hk * head },
    ...{ heads: hk, group: heads / hk, d, dv: d, sinks: p.sinks ? addressInside(p.sinks) : 0 },
  };
  native.run(engine.threads, jobOf(engine, native, kind, sequences, { ...p, causal: true }, shared));
  return true;
}

/** i64 that are small, as pairs of 32 bits. */
const integersOf = (engine: Engine, view: View): Int32Array =>
  new Int32Array(engine.memory.buffer, addressInside(view) - engine.base, 2 * view.layout.numel);
