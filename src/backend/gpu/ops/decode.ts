/** Steps of decoding whose positions are in device memory, so that they can be recorded and replayed. */

import { type DType, sizeOf } from "../../../core/dtype.ts";
import { chosen } from "../../../core/environment.ts";
import type { View } from "../../backend.ts";
import { PAGE_SIZE, type PagedAttention, type PagedAttentionParams } from "../../paged-attention.ts";
import type { Storage } from "../../storage.ts";
import type { CachedAttention, CachedAttentionParams, Graph, HeadNorms, Recorder } from "../../transformers.ts";
import type { ValuesFor } from "../catalogue.ts";
import { at, type Gpu } from "../gpu.ts";
import { attend, decode, type Problem, prefill, supportsAttention } from "./attention.ts";

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
  readonly takesNorms = true;
  readonly #gpu: Gpu;

  constructor(gpu: Gpu) {
    this.#gpu = gpu;
  }

  supports(dtype: DType, headDim: number): boolean {
    return supportsAttention(dtype, headDim);
  }

  attend(q: View, k: View, v: View, p: CachedAttentionParams): Storage {
    const gpu = this.#gpu;
    const { dtype } = q.storage;
    const [rows, width] = q.layout.shape as [number, number];
    const [batch, kvHeads, capacity, d] = p.k.layout.shape as [number, number, number, number];
    const [t, heads] = [rows / batch, width / d];
    const lengths = p.lengths ? at(p.lengths) : 0;
    const tk = p.lengths ? capacity : p.past + t;
    const mask = p.mask && { storage: p.mask.storage, layout: p.mask.layout.broadcastTo([batch, heads, t, tk]) };
    const places = { lengths, padding: p.padding ? at(p.padding) : 0, past: p.past, batch, t };
    const whole = { tables: 0, offsets: 0, sequences: 0, singles: 0, width: 0 };
    return gpu.filled(dtype, rows * width, (out) =>
      turned(gpu, q, k, v, p, { ...places, ...whole }, (queries) =>
        attend(
          gpu,
          {
            ...{
              dtype,
              batch,
              heads,
              kvHeads,
              tq: t,
              tk,
              d,
              dv: d,
              mask,
              lengths,
              tables: 0,
              offsets: 0,
              causal: true,
            },
            ...{ scale: p.scale, softcap: p.softcap, window: p.window, sinks: p.sinks },
            q: { at: queries, strides: [t * width, d, width] },
            k: { at: at(p.k), strides: p.k.layout.strides },
            v: { at: at(p.v), strides: p.v.layout.strides },
          },
          out,
        ),
      ),
    );
  }
}

/** Where rows stand in a cache, as rope_append takes it. */
type Places = Pick<
  ValuesFor<"rope_append_f32">,
  "lengths" | "padding" | "past" | "batch" | "t" | "tables" | "offsets" | "sequences" | "singles" | "width"
>;
type Rotated = Pick<CachedAttentionParams, "k" | "v" | "cos" | "sin" | "interleaved"> & {
  readonly norms?: HeadNorms | null;
};

/** Turns queries and keys; keys and values enter the cache. `run` is given the address of the queries, as many as in q. */
function turned<T>(gpu: Gpu, q: View, k: View, v: View, p: Rotated, places: Places, run: (queries: number) => T): T {
  const { dtype } = q.storage;
  const [rows, width] = q.layout.shape as [number, number];
  const [, kvHeads, , d] = p.k.layout.shape as [number, number, number, number];
  return gpu.temporary(rows * width * sizeOf(dtype), (out) => {
    gpu.launch(`rope_append${p.interleaved ? "_i" : ""}_${dtype}`, {
      ...{ q: at(q), k: at(k), v: at(v), cos: at(p.cos), sin: at(p.sin), out, k_cache: at(p.k), v_cache: at(p.v) },
      ...{ heads: width / d, kv_heads: kvHeads, d, rotary: 2 * p.cos.layout.shape[1]! },
      ...{ q_row: q.layout.strides[0]!, k_row: k.layout.strides[0]!, v_row: v.layout.strides[0]! },
      ...{ cache_b: p.k.layout.strides[0]!, cache_h: p.k.layout.strides[1]! },
      ...{ q_norm: p.norms ? at(p.norms.q) : 0, k_norm: p.norms ? at(p.norms.k) : 0, eps: p.norms?.eps ?? 0 },
      ...places,
    });
    return run(out);
  });
}

/** Sequences with one row by one pass over parts of their keys, all others as prompts, one launch each. */
export class GpuPagedAttention implements PagedAttention {
  readonly takesNorms = true;
  readonly #gpu: Gpu;

  constructor(gpu: Gpu) {
    this.#gpu = gpu;
  }

  supports(dtype: DType, headDim: number): boolean {
    return supportsAttention(dtype, headDim);
  }

  attend(q: View, k: View, v: View, p: PagedAttentionParams): Storage {
    const gpu = this.#gpu;
    const { dtype } = q.storage;
    const [rows, width] = q.layout.shape as [number, number];
    const [, kvHeads, , d] = p.k.layout.shape as [number, number, number, number];
    const [sequences, pages] = p.tables.layout.shape as [number, number];
    const { singles, scale, softcap, window, sinks } = p;
    const [lengths, tables, offsets] = [at(p.lengths), at(p.tables), at(p.offsets)];
    const padding = p.starts ? at(p.starts) : 0;
    const places = { lengths, tables, offsets, padding, past: 0, batch: rows, t: 1, sequences, singles, width: pages };
    return gpu.filled(dtype, rows * width, (out) =>
      turned(gpu, q, k, v, p, places, (queries) => {
        const row = width * sizeOf(dtype);
        /** What the sequences from `first` on have in common; their rows begin with `from`. */
        const problem = (first: number, from: number): Omit<Problem, "batch" | "tq" | "offsets"> => ({
          ...{ dtype, heads: width / d, kvHeads, tk: pages * PAGE_SIZE, d, dv: d, mask: null, causal: true },
          ...{ scale, softcap, window, sinks, lengths: lengths + 8 * first, tables: tables + 8 * pages * first },
          q: { at: queries + from * row, strides: [width, d, width] },
          k: { at: at(p.k), strides: p.k.layout.strides },
          v: { at: at(p.v), strides: p.v.layout.strides },
        });
        if (singles > 0) decode(gpu, { ...problem(0, 0), batch: singles, tq: 1, offsets: 0 }, out);
        if (singles === sequences) return;
        const prompts = problem(singles, singles);
        prefill(
          gpu,
          {
            ...prompts,
            ...{ batch: sequences - singles, tq: rows - singles, offsets: offsets + 8 * singles },
            ...{ q: { at: prompts.q.at, strides: [0, d, width] }, outStrides: [0, d, width] },
          },
          out + singles * row,
        );
      }),
    );
  }
}
