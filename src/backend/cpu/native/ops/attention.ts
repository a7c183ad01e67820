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
import { floatBits } from "../pool.ts";
import { isFloatType } from "../simd.ts";

/** Scores of a block that stay in the second cache. */
const CACHED_BYTES = 2 ** 19;
/** Multiplications that are worth a chunk. */
const CHUNK = 2 ** 18;

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
  if (!isFloatType(dtype) || mask || p.sinks || p.softcap || (p.window && !p.causal)) return undefined;
  if (b * hq * tq * dv === 0 || tk === 0 || d === 0 || d > MOST_KEY_DIM || dv > MOST_VALUE_DIM) return undefined;
  const { native } = backend;
  if (!native) return undefined;
  const { columns, lineBytes } = tileShape(native.isa);
  const scoreRow = (Math.ceil(tk / columns) + 1) * lineBytes;
  if (scoreRow > SCORE_BYTES) return undefined;

  const [group, es] = [hq / hk, sizeOf(dtype)];
  const rows = group * tq;
  const fitting = Math.max(8, Math.min(BLOCK_ROWS, Math.floor(CACHED_BYTES / scoreRow)));
  const blockRows = Math.min(rows, fitting, Math.floor(SCORE_BYTES / scoreRow));
  const blocks = Math.ceil(rows / blockRows);
  const n = b * hq * tq * dv;
  const storage = Storage.alloc(backend, dtype, n);
  const strides = (view: View) => view.layout.strides.map((stride) => stride * es) as [number, number, number, number];
  const [qBatch, qHead, qRow, qCol] = strides(q);
  const [kBatch, kHead, kRow, kCol] = strides(k);
  const [vBatch, vHead, vRow, vCol] = strides(v);
  native.run(backend.engine.threads, {
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
    grain: Math.max(1, Math.floor(CHUNK / (blockRows * tk * (d + dv)))),
  });
  return storage;
}
