/** Latent attention over a cache: queries put together and keys appended by one kernel, attended to by another. */
import { type DType, sizeOf } from "../../../core/dtype.ts";
import type { View } from "../../backend.ts";
import { PAGE_SIZE, type PagedLatentAttention, type PagedLatentParams } from "../../paged-attention.ts";
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

class GpuLatent {
  readonly gpu: Gpu;

  constructor(gpu: Gpu) {
    this.gpu = gpu;
  }

  supports(dtype: DType, rank: number, rope: number): boolean {
    const fits = rank >= 8 && rank <= LATENT_RANK && rank + rope <= LATENT_DIM && rank % 8 === 0 && rope % 8 === 0;
    return fits && supportsAttention(dtype, 8);
  }
}

export class GpuLatentAttention extends GpuLatent implements LatentAttention {
  attend(q: View, qRope: View, latent: View, kRope: View, p: LatentAttentionParams): Storage {
    const [batch, , capacity] = p.cache.layout.shape as [number, number, number, number];
    const t = q.layout.shape[0]! / batch;
    const tk = p.lengths ? capacity : p.past + t;
    const mask = p.mask && {
      storage: p.mask.storage,
      layout: p.mask.layout.broadcastTo([batch, q.layout.shape[1]!, t, tk]),
    };
    const [lengths, padding] = [p.lengths ? at(p.lengths) : 0, p.padding ? at(p.padding) : 0];
    const places = { lengths, padding, tables: 0, width: 0, past: p.past, batch, t };
    return attendLatents(this.gpu, q, qRope, latent, kRope, { ...p, ...places, tk, mask });
  }
}

/** The same, in pages. */
export class GpuPagedLatentAttention extends GpuLatent implements PagedLatentAttention {
  attend(q: View, qRope: View, latent: View, kRope: View, p: PagedLatentParams): Storage {
    const [batch, width] = p.tables.layout.shape as [number, number];
    const t = q.layout.shape[0]! / batch;
    const padding = p.starts ? at(p.starts) : 0;
    const places = { lengths: at(p.lengths), tables: at(p.tables), padding, width, past: 0, batch, t };
    return attendLatents(this.gpu, q, qRope, latent, kRope, { ...p, ...places, tk: width * PAGE_SIZE, mask: null });
  }
}

interface Places extends Pick<LatentAttentionParams, "cache" | "cos" | "sin" | "interleaved" | "scale" | "mask"> {
  /** Addresses, or 0. */
  readonly lengths: number;
  readonly padding: number;
  readonly tables: number;
  /** Pages of a table. */
  readonly width: number;
  readonly past: number;
  readonly batch: number;
  readonly t: number;
  /** Keys at most. */
  readonly tk: number;
}

/** With t rows for each of `batch` sequences; `mask` is (batch, heads, t, tk). */
function attendLatents(gpu: Gpu, q: View, qRope: View, latent: View, kRope: View, p: Places): Storage {
  const { dtype } = q.storage;
  const { lengths, padding, tables, width, past, batch, t, tk } = p;
  const [rows, heads, rank] = q.layout.shape as [number, number, number];
  const d = p.cache.layout.shape[3]!;
  const plan = planLatent(gpu.matrixUnit(dtype), dtype);
  const mask = p.mask?.layout.strides ?? [0, 0, 0, 0];
  const blocks = decodeBlocks(batch, heads, 1, t);
  const splits = gpu.isInvariant ? 1 : planLatentSplits(plan.crowd * gpu.multiprocessors, blocks, tk);
  // A block reads sixteen rows, whether they are there or not.
  const turnedBytes = (rows * heads + 15) * plan.pitch * sizeOf(dtype);
  return gpu.filled(dtype, rows * heads * rank, (out) =>
    gpu.temporary(turnedBytes, (turned) =>
      gpu.temporary(4 * scratchFloats(rows * heads, splits, rank), (scratch) => {
        gpu.launch(`latent_append${p.interleaved ? "_i" : ""}_${dtype}`, {
          ...{ q: at(q), q_rope: at(qRope), latent: at(latent), k_rope: at(kRope), cos: at(p.cos), sin: at(p.sin) },
          ...{ lengths, padding, tables, out: turned, cache: at(p.cache) },
          ...{ batch, t, heads, rank, rope: d - rank, pitch: plan.pitch, past },
          ...{ q_row: q.layout.strides[0]!, q_head: q.layout.strides[1]! },
          ...{ rope_row: qRope.layout.strides[0]!, rope_head: qRope.layout.strides[1]! },
          ...{ latent_row: latent.layout.strides[0]!, k_rope_row: kRope.layout.strides[0]! },
          ...{ cache_b: p.cache.layout.strides[0]!, width },
        });
        gpu.launch(`attention_latent_${dtype}`, {
          ...{ q: turned, k: at(p.cache), mask: p.mask ? at(p.mask) : 0, lengths, tables, out, scratch },
          ...{ counters: gpu.counters, batch, heads, tq: t, tk, d, dv: rank, k_b: p.cache.layout.strides[0]!, k_t: d },
          ...{ mask_b: mask[0]!, mask_h: mask[1]!, mask_i: mask[2]!, mask_j: mask[3]!, scale: p.scale, splits },
          ...{ threads: plan.threads, shared_bytes: plan.shared },
        });
      }),
    ),
  );
}
