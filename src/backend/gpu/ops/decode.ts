/** Steps of decoding whose positions are in device memory, so that they can be recorded and replayed. */

import { type DType, sizeOf } from "../../../core/dtype.ts";
import { chosen } from "../../../core/environment.ts";
import type { View } from "../../backend.ts";
import type { Storage } from "../../storage.ts";
import type { CachedAttention, CachedAttentionParams, Graph, Recorder } from "../../transformers.ts";
import { at, type Gpu } from "../gpu.ts";
import { attend, supportsAttention } from "./attention.ts";

export class GpuRecorder implements Recorder {
  readonly #gpu: Gpu;

  constructor(gpu: Gpu) {
    this.#gpu = gpu;
  }

  get problem(): string | null {
    return chosen("WICK_GRAPHS") ? "turned off by WICK_GRAPHS=none" : this.#gpu.context.recordingProblem;
  }

  capture(run: () => void): Graph {
    return this.#gpu.capture(run);
  }
}

export class GpuCachedAttention implements CachedAttention {
  readonly #gpu: Gpu;

  constructor(gpu: Gpu) {
    this.#gpu = gpu;
  }

  supports(dtype: DType, headDim: number): boolean {
    return supportsAttention(dtype, headDim);
  }

  attend(q: View, k: View, v: View, p: CachedAttentionParams): Storage {
    return cachedAttention(this.#gpu, q, k, v, p);
  }
}

function cachedAttention(gpu: Gpu, q: View, k: View, v: View, p: CachedAttentionParams): Storage {
  const { dtype } = q.storage;
  const [rows, width] = q.layout.shape as [number, number];
  const [batch, kvHeads, capacity, d] = p.k.layout.shape as [number, number, number, number];
  const [t, heads] = [rows / batch, width / d];
  const [cacheB, cacheH] = p.k.layout.strides;
  const lengths = p.lengths ? at(p.lengths) : 0;
  const tk = p.lengths ? capacity : p.past + t;
  const mask = p.mask && { storage: p.mask.storage, layout: p.mask.layout.broadcastTo([batch, heads, t, tk]) };
  return gpu.filled(dtype, rows * width, (out) =>
    gpu.temporary(rows * width * sizeOf(dtype), (turned) => {
      gpu.launch(`rope_append${p.interleaved ? "_i" : ""}_${dtype}`, {
        ...{ q: at(q), k: at(k), v: at(v), cos: at(p.cos), sin: at(p.sin), out: turned },
        ...{ k_cache: at(p.k), v_cache: at(p.v), lengths, padding: p.padding ? at(p.padding) : 0 },
        ...{ batch, t, heads, kv_heads: kvHeads, d, rotary: 2 * p.cos.layout.shape[1]!, past: p.past },
        ...{ q_row: q.layout.strides[0]!, k_row: k.layout.strides[0]!, v_row: v.layout.strides[0]! },
        ...{ cache_b: cacheB!, cache_h: cacheH! },
      });
      attend(
        gpu,
        {
          ...{ dtype, batch, heads, kvHeads, tq: t, tk, d, dv: d, mask, lengths, offsets: 0, causal: true },
          ...{ scale: p.scale, softcap: p.softcap, window: p.window, sinks: p.sinks },
          q: { at: turned, strides: [t * width, d, width] },
          k: { at: at(p.k), strides: p.k.layout.strides },
          v: { at: at(p.v), strides: p.v.layout.strides },
        },
        out,
      );
    }),
  );
}
