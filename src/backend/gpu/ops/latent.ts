/** Latent attention over a cache: queries put together and keys appended by one kernel, attended to by another. */
import { type DType, sizeOf } from "../../../core/dtype.ts";
import type { View } from "../../backend.ts";
import type { Storage } from "../../storage.ts";
import type { LatentAttention, LatentAttentionParams } from "../../transformers.ts";
import {
  decodeBlocks,
  LATENT_DIM,
  LATENT_RANK,
  planLatent,
  planLatentSplits,
  scratchFloats,
} from "../attention-plan.ts";
import { at, type Gpu } from "../gpu.ts";
import { supportsAttention } from "./attention.ts";

export class GpuLatentAttention implements LatentAttention {
  readonly #gpu: Gpu;

  constructor(gpu: Gpu) {
    this.#gpu = gpu;
  }

  supports(dtype: DType, rank: number, rope: number): boolean {
    const fits = rank >= 8 && rank <= LATENT_RANK && rank + rope <= LATENT_DIM && rank % 8 === 0 && rope % 8 === 0;
    return fits && supportsAttention(dtype, 8);
  }

  attend(q: View, qRope: View, latent: View, kRope: View, p: LatentAttentionParams): Storage {
    const gpu = this.#gpu;
    const { dtype } = q.storage;
    const [rows, heads, rank] = q.layout.shape as [number, number, number];
    const [batch, , capacity, d] = p.cache.layout.shape as [number, number, number, number];
    const t = rows / batch;
    const plan = planLatent(gpu.matrixUnit(dtype), dtype);
    const lengths = p.lengths ? at(p.lengths) : 0;
    const tk = p.lengths ? capacity : p.past + t;
    const mask = p.mask?.layout.broadcastTo([batch, heads, t, tk]).strides ?? [0, 0, 0, 0];
    const splits = planLatentSplits(plan.crowd * gpu.multiprocessors, decodeBlocks(batch, heads, 1, t), tk);
    // A block reads sixteen rows, whether they are there or not.
    const turnedBytes = (rows * heads + 15) * plan.pitch * sizeOf(dtype);
    return gpu.filled(dtype, rows * heads * rank, (out) =>
      gpu.temporary(turnedBytes, (turned) =>
        gpu.temporary(4 * scratchFloats(rows * heads, splits, rank), (scratch) => {
          gpu.launch(`latent_append${p.interleaved ? "_i" : ""}_${dtype}`, {
            ...{ q: at(q), q_rope: at(qRope), latent: at(latent), k_rope: at(kRope), cos: at(p.cos), sin: at(p.sin) },
            ...{ lengths, padding: p.padding ? at(p.padding) : 0, out: turned, cache: at(p.cache) },
            ...{ batch, t, heads, rank, rope: d - rank, pitch: plan.pitch, past: p.past },
            ...{ q_row: q.layout.strides[0]!, q_head: q.layout.strides[1]! },
            ...{ rope_row: qRope.layout.strides[0]!, rope_head: qRope.layout.strides[1]! },
            ...{ latent_row: latent.layout.strides[0]!, k_rope_row: kRope.layout.strides[0]! },
            cache_b: p.cache.layout.strides[0]!,
          });
          gpu.launch(`attention_latent_${dtype}`, {
            ...{
              q: turned,
              k: at(p.cache),
              mask: p.mask ? at(p.mask) : 0,
              lengths,
              out,
              scratch,
              counters: gpu.counters,
            },
            ...{ batch, heads, tq: t, tk, d, dv: rank, k_b: p.cache.layout.strides[0]!, k_t: d },
            ...{ mask_b: mask[0]!, mask_h: mask[1]!, mask_i: mask[2]!, mask_j: mask[3]!, scale: p.scale, splits },
            ...{ threads: plan.threads, shared_bytes: plan.shared },
          });
        }),
      ),
    );
  }
}
