/** Attention by machine code, where no mask, sink or cap is asked for. */
import { sizeOf } from "../../../../core/dtype.ts";
import type { View } from "../../../backend.ts";
import type { SdpaParams } from "../../../fused-ops.ts";
import { Storage } from "../../../storage.ts";
import type { CpuBackend } from "../../backend.ts";
import { addressFor, addressInside } from "../bounds.ts";
import {
  attentionArguments,
  BLOCK_ROWS,
  emitAttention,
  MOST_KEY_DIM,
  MOST_VALUE_DIM,
  SCORE_BYTES,
} from "../kernels/attention.ts";
import { emitTiles, tileShape } from "../kernels/tile.ts";
import type { Native } from "../native.ts";
import { floatBits, type Job } from "../pool.ts";
import { type FloatType, isFloatType } from "../simd.ts";

/** Scores of a block that stay in the second cache. */
const CACHED_BYTES = 2 ** 19;
/** Multiplications that are worth a chunk. */
const CHUNK = 2 ** 18;
/** Keys and values of fewer rows than these take as long to read as those of so many to multiply. */
const LEAST_ROWS = 16;

/** What one op asks is decided without its number of query rows: a row must be the same in any company. */
export function canAttend(backend: CpuBackend, q: View, k: View, v: View, mask: View | null, p: SdpaParams): boolean {
  const { dtype } = q.storage;
  const [b, hq, tq, d] = q.layout.shape as [number, number, number, number];
  const tk = k.layout.shape[2]!;
  const dv = v.layout.shape[3]!;
  if (!isFloatType(dtype) || mask || p.sinks || p.softcap || (p.window && !p.causal)) return false;
  if (b * hq * tq * dv === 0 || tk === 0 || d === 0 || d > MOST_KEY_DIM || dv > MOST_VALUE_DIM) return false;
  return backend.native !== null && scoreRowOf(backend.native, tk) <= SCORE_BYTES;
}

function scoreRowOf({ isa }: Native, tk: number): number {
  const { columns, lineBytes } = tileShape(isa);
  return (Math.ceil(tk / columns) + 1) * lineBytes;
}

export function sdpa(
  backend: CpuBackend,
  q: View,
  k: View,
  v: View,
  mask: View | null,
  p: SdpaParams,
): Storage | undefined {
  if (!canAttend(backend, q, k, v, mask, p)) return undefined;
  const [b, hq, tq] = q.layout.shape as [number, number, number, number];
  const storage = Storage.alloc(backend, q.storage.dtype, b * hq * tq * v.layout.shape[3]!);
  backend.native!.run(backend.engine.threads, attentionJob(backend.native!, q, k, v, p, storage));
  return storage;
}

/** Of operands that `canAttend` takes. */
export function attentionJob(native: Native, q: View, k: View, v: View, p: SdpaParams, storage: Storage): Job {
  const dtype = q.storage.dtype as FloatType;
  const [b, hq, tq, d] = q.layout.shape as [number, number, number, number];
  const [, hk, tk] = k.layout.shape as [number, number, number];
  const dv = v.layout.shape[3]!;
  const { columns, lineBytes } = tileShape(native.isa);
  const scoreRow = scoreRowOf(native, tk);

  const [group, es] = [hq / hk, sizeOf(dtype)];
  const rows = group * tq;
  const fitting = Math.max(8, Math.min(BLOCK_ROWS, Math.floor(CACHED_BYTES / scoreRow)));
  const blockRows = Math.min(rows, fitting, Math.floor(SCORE_BYTES / scoreRow));
  const blocks = Math.ceil(rows / blockRows);
  const n = b * hq * tq * dv;
  const strides = (view: View) => view.layout.strides.map((stride) => stride * es) as [number, number, number, number];
  const [qBatch, qHead, qRow, qCol] = strides(q);
  const [kBatch, kHead, kRow, kCol] = strides(k);
  const [vBatch, vHead, vRow, vCol] = strides(v);
  return {
    kernel: native.kernel(`attention ${dtype}`, emitAttention(dtype)),
    args: attentionArguments.words({
      tiles: native.kernel("tiles", emitTiles),
      q: addressInside(q),
      k: addressInside(k),
      v: addressInside(v),
      out: addressFor(storage, n),
      ...{ qBatch, qHead, qRow, qCol, kBatch, kHead, kRow, kCol, vBatch, vHead, vRow, vCol },
      heads: hk,
      group,
      tq,
      tk,
      d,
      dv,
      rows,
      blockRows,
      blocks,
      scoreRow,
      resultRow: Math.ceil(dv / columns) * lineBytes,
      isCausal: Number(p.causal),
      window: p.window,
      scale: floatBits(p.scale),
    }),
    total: b * hk * blocks,
    grain: Math.max(1, Math.floor(CHUNK / (Math.max(blockRows, LEAST_ROWS) * tk * (d + dv)))),
  };
}
