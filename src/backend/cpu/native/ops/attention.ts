/** Attention by machine code, over keys and values of any strides or in pages. */
import { sizeOf } from "../../../../core/dtype.ts";
import type { View } from "../../../backend.ts";
import type { SdpaParams } from "../../../fused-ops.ts";
import { PAGE_SIZE, type PagedAttentionParams } from "../../../paged-attention.ts";
import { Storage } from "../../../storage.ts";
import type { CpuBackend } from "../../backend.ts";
import { addressFor, addressInside } from "../bounds.ts";
import {
  type AttentionKind,
  attentionArguments,
  BLOCK_ROWS,
  ENTRY_BYTES,
  emitAttention,
  entryWords,
  MOST_KEY_DIM,
  MOST_VALUE_DIM,
  SCORE_BYTES,
} from "../kernels/attention.ts";
import { emitTiles, tileShape } from "../kernels/tile.ts";
import type { Native } from "../native.ts";
import { floatBits, type Word } from "../pool.ts";
import { isFloatType } from "../simd.ts";

/** Scores of a block that stay in the second cache. */
const CACHED_BYTES = 2 ** 19;
/** Multiplications that are worth a chunk. */
const CHUNK = 2 ** 18;
/** Further than any key is away. */
const FAR = 2 ** 40;

/** What rows of one batch entry, or of one sequence, have in common. */
interface Sequence {
  readonly q: number;
  readonly k: number;
  readonly v: number;
  readonly mask: number;
  readonly out: number;
  readonly tq: number;
  readonly tk: number;
  readonly table: number;
}

type Words = Parameters<typeof attentionArguments.words>[0];
type Shared = Omit<
  Words,
  "tiles" | "entries" | "scoreRow" | "resultRow" | "scale" | "cap" | "inverseCap" | "ahead" | "behind"
>;

/** Bytes of a row of scores; undefined where the thread's memory has no room for it. */
function scoreRowOf(native: Native, tk: number): number | undefined {
  const { columns, lineBytes } = tileShape(native.isa);
  const bytes = (Math.ceil(tk / columns) + 1) * lineBytes;
  return bytes <= SCORE_BYTES ? bytes : undefined;
}

function attend(
  backend: CpuBackend,
  native: Native,
  kind: AttentionKind,
  sequences: readonly Sequence[],
  p: Omit<SdpaParams, "sinks">,
  shared: Shared,
): void {
  const { engine } = backend;
  const { columns, lineBytes } = tileShape(native.isa);
  const [heads, group, d, dv] = [shared.heads, shared.group, shared.d, shared.dv] as number[] as [
    number,
    number,
    number,
    number,
  ];
  const longest = Math.max(...sequences.map(({ tk }) => tk));
  const scoreRow = scoreRowOf(native, longest)!;
  const cached = Math.max(8, Math.min(BLOCK_ROWS, Math.floor(CACHED_BYTES / scoreRow)));
  const most = Math.min(cached, Math.floor(SCORE_BYTES / scoreRow));
  const entries: Word[] = [];
  let multiplications = 0;
  for (const sequence of sequences) {
    const rows = group * sequence.tq;
    // Blocks of equal size, in rows of the tile.
    const blocks = Math.ceil(rows / most);
    const height = Math.min(most, Math.ceil(rows / blocks / 8) * 8);
    for (let first = 0; first < rows; first += height) {
      entries.push(...entryWords.words({ ...sequence, first, height: Math.min(height, rows - first) }));
    }
    multiplications += rows * sequence.tk * (d + dv);
  }
  const count = (8 * entries.length) / ENTRY_BYTES;
  const at = engine.alloc(8 * entries.length);
  try {
    const words = new Uint32Array(engine.memory.buffer, at, 2 * entries.length);
    for (let i = 0; i < entries.length; i++) {
      const word = entries[i] as number;
      words[2 * i] = word;
      words[2 * i + 1] = Math.floor(word / 2 ** 32);
    }
    native.run(engine.threads, {
      kernel: native.kernel(`attention ${Object.values(kind).join(" ")}`, emitAttention(kind)),
      args: attentionArguments.words({
        ...shared,
        tiles: native.kernel("tiles", emitTiles),
        entries: engine.base + at,
        scoreRow,
        resultRow: Math.ceil(dv / columns) * lineBytes,
        ahead: p.causal ? 1 : p.window ? p.window + 1 : FAR,
        behind: p.window ? p.window - Number(p.causal) : FAR,
        scale: floatBits(p.scale),
        cap: floatBits(p.softcap),
        inverseCap: floatBits(1 / p.softcap),
      }),
      total: count * heads,
      grain: Math.max(1, Math.floor(CHUNK / (multiplications / count))),
    });
  } finally {
    engine.release(at);
  }
}

/** What one op asks is decided without its number of query rows: a row must be the same in any company. */
export function sdpa(
  backend: CpuBackend,
  q: View,
  k: View,
  v: View,
  mask: View | null,
  p: SdpaParams,
): Storage | undefined {
  const { dtype } = q.storage;
  const [b, hq, tq, d] = q.layout.shape as [number, number, number, number];
  const [, hk, tk] = k.layout.shape as [number, number, number];
  const dv = v.layout.shape[3]!;
  if (!isFloatType(dtype) || (mask && mask.layout.strides[3] !== 1 && tk > 1)) return undefined;
  if (b * hq * tq * dv === 0 || tk === 0 || d === 0 || d > MOST_KEY_DIM || dv > MOST_VALUE_DIM) return undefined;
  const { native } = backend;
  if (!native || scoreRowOf(native, tk) === undefined) return undefined;

  const [group, es] = [hq / hk, sizeOf(dtype)];
  const n = b * hq * tq * dv;
  const storage = Storage.alloc(backend, dtype, n);
  const strides = (view: View | null) =>
    (view?.layout.strides ?? [0, 0, 0, 0]).map((stride) => stride * es) as [number, number, number, number];
  const [qBatch, qHead, qRow, qCol] = strides(q);
  const [kBatch, kHead, kRow, kCol] = strides(k);
  const [vBatch, vHead, vRow, vCol] = strides(v);
  const [maskBatch, maskHead, maskRow] = strides(mask);
  const at = {
    q: addressInside(q),
    k: addressInside(k),
    v: addressInside(v),
    mask: mask ? addressInside(mask) : 0,
    out: addressFor(storage, n),
  };
  const sequences = Array.from({ length: b }, (_, i) => ({
    q: at.q + i * qBatch,
    k: at.k + i * kBatch,
    v: at.v + i * vBatch,
    mask: at.mask + i * maskBatch,
    out: at.out + i * hq * tq * dv * es,
    tq,
    tk,
    table: 0,
  }));
  const kind = {
    type: dtype,
    isPaged: false,
    hasCap: p.softcap !== 0,
    hasMask: mask !== null,
    hasSinks: p.sinks !== null,
  };
  attend(backend, native, kind, sequences, p, {
    ...{ qHead, qRow, qCol, kHead, kRow, kCol, vHead, vRow, vCol, maskHead, maskRow, heads: hk, group, d, dv },
    kPage: 0,
    vPage: 0,
    outHead: tq * dv * es,
    outRow: dv * es,
    sinks: p.sinks ? addressInside(p.sinks) : 0,
  });
  return storage;
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
  const { dtype } = p.k.storage;
  const [pages, hk, , d] = p.k.layout.shape as [number, number, number, number];
  const { native } = backend;
  if (!native || !isFloatType(dtype) || rows === 0 || d === 0 || d > MOST_KEY_DIM) return false;
  const [count, width] = p.tables.layout.shape as [number, number];
  const [tables, lengths, offsets] = [p.tables, p.lengths, p.offsets].map((view) => integersOf(backend, view)) as [
    Int32Array,
    Int32Array,
    Int32Array,
  ];
  const es = sizeOf(dtype);
  const page = hk * PAGE_SIZE * d * es;
  const [k, v, table] = [addressInside(p.k), addressInside(p.v), addressInside(p.tables)];
  const sequences: Sequence[] = [];
  for (let i = 0; i < count; i++) {
    const [first, tq, tk] = [offsets[2 * i]!, offsets[2 * i + 2]! - offsets[2 * i]!, lengths[2 * i]!];
    if (tq === 0) continue;
    if (tk <= 0 || first < 0 || tq < 0 || first + tq > rows || Math.ceil(tk / PAGE_SIZE) > width) return false;
    if (scoreRowOf(native, tk) === undefined) return false;
    for (let j = 0; j * PAGE_SIZE < tk; j++) {
      const at = tables[2 * (i * width + j)]!;
      if (at < 0 || at >= pages) return false;
    }
    const start = first * heads * d * es;
    sequences.push({ q: turned + start, k, v, mask: 0, out: out + start, tq, tk, table: table + 8 * i * width });
  }
  if (sequences.length === 0) return true;
  const kind = { type: dtype, isPaged: true, hasCap: p.softcap !== 0, hasMask: false, hasSinks: p.sinks !== null };
  attend(
    backend,
    native,
    kind,
    sequences,
    { ...p, causal: true },
    {
      ...{ qHead: d * es, qRow: heads * d * es, qCol: es },
      ...{ kHead: PAGE_SIZE * d * es, kRow: d * es, kCol: es, kPage: page },
      ...{ vHead: PAGE_SIZE * d * es, vRow: d * es, vCol: es, vPage: page },
      ...{ outHead: d * es, outRow: heads * d * es, maskHead: 0, maskRow: 0 },
      ...{ heads: hk, group: heads / hk, d, dv: d },
      sinks: p.sinks ? addressInside(p.sinks) : 0,
    },
  );
  return true;
}

/** i64 that are small, as pairs of 32 bits. */
const integersOf = ({ engine }: CpuBackend, view: View): Int32Array =>
  new Int32Array(engine.memory.buffer, addressInside(view) - engine.base, 2 * view.layout.numel);
