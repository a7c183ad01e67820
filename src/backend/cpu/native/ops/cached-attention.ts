/** Attention over a cache in one call: rows are turned, enter the cache, and attend to what is there. */

import { type DType, sizeOf } from "../../../../core/dtype.ts";
import { fail } from "../../../../core/errors.ts";
import { formatShape, Layout } from "../../../../core/layout.ts";
import type { View } from "../../../backend.ts";
import { Storage } from "../../../storage.ts";
import type { CachedAttention, CachedAttentionParams, HeadForms } from "../../../transformers.ts";
import type { CpuBackend } from "../../backend.ts";
import { addressFor, addressInside } from "../bounds.ts";
import { kernels } from "../catalogue.ts";
import { rotaryArguments, WHOLE_LINE } from "../kernels/rotary.ts";
import type { Native } from "../native.ts";
import type { Job } from "../pool.ts";
import { type FloatType, isFloatType } from "../simd.ts";
import { attentionJob, canAttend } from "./attention.ts";
import { refuseCopies } from "./copies.ts";
import { QUEUED_WIDTH } from "./qmatmul.ts";

/** Elements of queries that are worth a chunk of rows. */
const CHUNK = 8192;

/** Positions that a step of `t` may reach: those there are with it, or all there is room for where memory counts them. */
const endOf = ({ k, past, lengths }: CachedAttentionParams, t: number): number =>
  lengths ? k.layout.shape[2]! : past + t;

export class NativeCachedAttention implements CachedAttention {
  /** What reads the result wants it so, and a copy would wait for all that is in the queue. */
  readonly byRows = true;
  readonly #backend: CpuBackend;

  constructor(backend: CpuBackend) {
    this.#backend = backend;
  }

  /** Windows let go of what is before them: caches that keep everything are not theirs. */
  supports(dtype: DType, headDim: number, stored: DType, forms?: HeadForms): boolean {
    if (!forms || forms.windowed || stored !== dtype || !isFloatType(dtype)) return false;
    const isWhole = headDim % WHOLE_LINE === 0 && forms.rotary.every((dims) => dims % (2 * WHOLE_LINE) === 0);
    return isWhole && this.#backend.native !== null;
  }

  attend(q: View, k: View, v: View, p: CachedAttentionParams): Storage {
    const backend = this.#backend;
    const native = backend.native!;
    const dtype = q.storage.dtype as FloatType;
    const [batch, kvHeads, , d] = p.k.layout.shape as [number, number, number, number];
    const [rows, width] = q.layout.shape as [number, number];
    const [heads, t] = [width / d, rows / batch];
    const end = endOf(p, t);
    for (const { storage } of [p.k, p.v]) refuseCopies(storage.block);
    const turned = Storage.alloc(backend, dtype, rows * width);
    const out = Storage.alloc(backend, dtype, rows * width);
    try {
      const turn = this.#turn(native, dtype, q, k, v, p, addressFor(turned, rows * width));
      const queries = {
        storage: turned,
        layout: new Layout([batch, heads, t, d], [t * width, d, width, 1], 0),
      };
      const [keys, values] = [p.k, p.v].map(({ storage, layout }) => ({
        storage,
        layout: new Layout([batch, kvHeads, end, d], layout.strides, layout.offset),
      })) as [View, View];
      const params = {
        scale: p.scale,
        softcap: p.softcap,
        window: p.window,
        sinks: p.sinks,
        causal: true,
        byRows: true,
      };
      const shape = [batch, heads, t, end];
      const mask = p.mask && { storage: p.mask.storage, layout: p.mask.layout.broadcastTo(shape) };
      if (!canAttend(backend, queries, keys, values, mask)) {
        if (p.lengths) fail("ValueOutOfRange", `cpu: no attention over ${end} positions that are counted in memory`);
        native.run(backend.engine.threads, turn);
        const composed = backend.sdpa(queries, keys, values, mask, params);
        const layout = Layout.contiguous([batch, heads, t, d]).transpose(1, 2);
        backend.copy({ storage: composed, layout }, { storage: out, layout: Layout.contiguous(layout.shape) });
        composed.discard();
        return out;
      }
      const run = width >= QUEUED_WIDTH ? "give" : "run";
      native[run](
        backend.engine.threads,
        turn,
        attentionJob(backend, queries, keys, values, mask, params, out, p.lengths),
      );
      return out;
    } finally {
      turned.discard();
    }
  }

  #turn(native: Native, dtype: FloatType, q: View, k: View, v: View, p: CachedAttentionParams, out: number): Job {
    const es = sizeOf(dtype);
    const [rows, width] = q.layout.shape as [number, number];
    const [batch, kvHeads, , d] = p.k.layout.shape as [number, number, number, number];
    const bytes = (view: View, dim: number): number => view.layout.strides[dim]! * es;
    const end = endOf(p, rows / batch);
    for (const [view, positions] of [
      [p.k, p.k.layout.shape[2]!],
      [p.v, p.v.layout.shape[2]!],
      [p.cos, p.cos.layout.shape[0]!],
      [p.sin, p.sin.layout.shape[0]!],
    ] as const) {
      if (end > positions || view.layout.strides.at(-1) !== 1) {
        fail("ValueOutOfRange", `cpu: ${end} positions do not fit into ${formatShape(view.layout.shape)}`);
      }
    }
    return {
      kernel: native.kernel(kernels.rotary(dtype, p.interleaved)),
      args: rotaryArguments.words({
        q: addressInside(q),
        qRow: bytes(q, 0),
        k: addressInside(k),
        kRow: bytes(k, 0),
        v: addressInside(v),
        vRow: bytes(v, 0),
        out,
        kCache: addressInside(p.k),
        kBatch: bytes(p.k, 0),
        kHead: bytes(p.k, 1),
        kPosition: bytes(p.k, 2),
        vCache: addressInside(p.v),
        vBatch: bytes(p.v, 0),
        vHead: bytes(p.v, 1),
        vPosition: bytes(p.v, 2),
        cos: addressInside(p.cos),
        sin: addressInside(p.sin),
        heads: width / d,
        kvHeads,
        d,
        half: p.cos.layout.shape.at(-1)!,
        t: rows / batch,
        past: p.past,
        lengths: p.lengths ? addressInside(p.lengths) : 0,
        room: end,
        padding: p.padding ? addressInside(p.padding) : 0,
      }),
      total: rows,
      grain: Math.max(1, Math.floor(CHUNK / width)),
    };
  }
}
