/** How the new positions of a step meet those before: turned by rotary embeddings, appended to a cache, attended to. */

import type { Backend } from "../backend/backend.ts";
import { call } from "../backend/call.ts";
import type { HeadNorms } from "../backend/transformers.ts";
import { Layout } from "../core/layout.ts";
import type { QuantType } from "../core/quant-types.ts";
import { type KvCache, type LatentCache, rmsNorm, sdpa } from "../nn/index.ts";
import type { Tensor } from "../ops/index.ts";
import { result } from "../tensor/tensor.ts";
import type { RopeConfig } from "./config.ts";
import { attendLatents, expansionPays, type LatentHeads, type LatentRows } from "./latent-attention.ts";
import type { PagedLayer } from "./paged/cache.ts";
import type { Rotation, Table } from "./rotary.ts";

export interface AttentionParams {
  readonly headDim: number;
  readonly scale: number;
  readonly softcap: number;
  /** 0 is none. */
  readonly window: number;
  /** The layer's own. */
  readonly rope: RopeConfig;
  /** (heads), or none. */
  readonly sinks: Tensor | null;
  /** Of each head of the queries and keys, before they are turned. */
  readonly norms: HeadNorms<Tensor> | null;
  /** The type of the weights that the result is multiplied with, where it is known. */
  readonly next?: QuantType | null | undefined;
}

/** Queries and keys (rows, heads · headDim) with their heads normalised, where that is part of the attention. */
export function normedHeads(q: Tensor, k: Tensor, { headDim, norms }: AttentionParams): [q: Tensor, k: Tensor] {
  if (!norms) return [q, k];
  const normed = (x: Tensor, weight: Tensor): Tensor =>
    rmsNorm(x.reshape([x.shape[0]!, -1, headDim]), weight, norms.eps).reshape(x.shape);
  return [normed(q, norms.q), normed(k, norms.k)];
}

/** What a layer has of the positions before; which it is follows from the step. */
export type LayerCache = Appends | AppendsLatents | PagedLayer;

/** What takes the new keys and values of a step, or latents, and gives all there are. */
export type Appends = Pick<KvCache, "append">;
export type AppendsLatents = Pick<LatentCache, "append">;

/** What a forward pass tells every layer. */
export interface Step {
  readonly batch: number;
  /** New positions per sequence. */
  readonly length: number;
  /** q (batch · length, heads · headDim), k and v (batch · length, kv heads · headDim) → (batch, heads, length, headDim). */
  attend(q: Tensor, k: Tensor, v: Tensor, cache: LayerCache | undefined, p: AttentionParams): Tensor;
  /** (batch · length, heads · valueDim). */
  attendLatent(rows: LatentRows, cache: LayerCache | undefined, heads: LatentHeads): Tensor;
}

/** Op by op, on any device, with a cache or without. */
export class ComposedStep implements Step {
  constructor(
    readonly batch: number,
    readonly length: number,
    /** What turns x (b, h, t, headDim). */
    readonly rotations: ReadonlyMap<RopeConfig, Rotation>,
    /** The mask for the last `keys` positions, if one is needed. */
    readonly mask: (keys: number) => Tensor | null,
    /** Whether many rows may expand latents. */
    readonly mayExpand = true,
  ) {}

  attend(rawQ: Tensor, rawK: Tensor, v: Tensor, cache: Appends | undefined, params: AttentionParams): Tensor {
    const { headDim, scale, softcap, window, rope, sinks } = params;
    const { batch, length } = this;
    const [q, k] = normedHeads(rawQ, rawK, params);
    const rotate = this.rotations.get(rope)!;
    const split = (rows: Tensor): Tensor =>
      length === 1 ? rows.reshape([batch, -1, 1, headDim]) : rows.reshape([batch, length, -1, headDim]).transpose(1, 2);
    const [heads, kvHeads] = [q.shape[1]! / headDim, k.shape[1]! / headDim];
    const both = sideBySide(q, k);
    const turned = both && rotate(split(both));
    const queries = turned ? turned.narrow(1, 0, heads) : rotate(split(q));
    const own = { k: turned ? turned.narrow(1, heads, kvHeads) : rotate(split(k)), v: split(v) };
    const all = cache ? cache.append(own.k, own.v) : own;
    const mask = this.mask(all.k.shape[2]!);
    return sdpa(queries, all.k, all.v, {
      scale,
      softcap,
      causal: true,
      window,
      ...(sinks && { sinks }),
      ...(mask && { mask }),
    });
  }

  attendLatent(rows: LatentRows, cache: AppendsLatents | undefined, heads: LatentHeads): Tensor {
    const expand = this.mayExpand && expansionPays(this.length, heads);
    return attendLatents(rows, this, cache, this.rotations.get(heads.rope)!, this.mask, heads, expand);
  }
}

/** Queries and keys as one tensor, so that one rotation serves both, where they lie so in memory. */
function sideBySide(q: Tensor, k: Tensor): Tensor | null {
  const [a, b] = [q.layout, k.layout];
  const [rows, width] = a.shape as [number, number];
  const adjacent =
    q.storage === k.storage && b.offset === a.offset + width && b.strides[0] === a.strides[0] && a.strides[1] === 1;
  return adjacent ? q.view(new Layout([rows, width + b.shape[1]!], a.strides, a.offset)) : null;
}

/** By a device's own kernels over caches that hold everything. */
export class CachedStep implements Step {
  constructor(
    readonly backend: Backend,
    readonly batch: number,
    readonly length: number,
    readonly tables: ReadonlyMap<RopeConfig, Table & { readonly interleaved: boolean }>,
    readonly padding: Tensor | null,
    /** The mask for this many positions, if one is needed. */
    readonly mask: (keys: number) => Tensor | null,
    /** Where the positions come from device memory: how many there are with this step's, i64 (batch). */
    readonly lengths: Tensor | null,
  ) {}

  attend(rawQ: Tensor, rawK: Tensor, v: Tensor, cache: KvCache, own: AttentionParams): Tensor {
    const { headDim, scale, softcap, window, rope, sinks, next } = own;
    const { batch, length, padding, lengths } = this;
    const attention = this.backend.cachedAttention!;
    const [q, k] = attention.takesNorms ? [rawQ, rawK] : normedHeads(rawQ, rawK, own);
    const norms = attention.takesNorms ? own.norms : null;
    const past = cache.length;
    const shape = [batch, k.shape[1]! / headDim, length, headDim];
    // What is in device memory has been given its room before.
    const buffers = cache.reserve(lengths ? 0 : length, shape, q);
    const mask = this.mask(lengths ? buffers.k.shape[2]! : past + length);
    const positions = { past, lengths, padding, mask };
    const params = { ...this.tables.get(rope)!, ...buffers, ...positions, norms, scale, softcap, window, sinks, next };
    const heads = q.shape[1]! / headDim;
    const byRows = attention.byRows === true && length > 1;
    const sizes = byRows ? [batch, length, heads, headDim] : [batch, heads, length, headDim];
    const y = result(call(attention, "attend", q, k, v, params), sizes);
    if (!lengths) cache.advance(length);
    return byRows ? y.transpose(1, 2) : y;
  }
  attendLatent({ q, latent, key }: LatentRows, cache: LatentCache, own: LatentHeads): Tensor {
    const { batch, length, padding, lengths } = this;
    const { heads, rank, keyDim, valueDim, keys, values, rope, scale } = own;
    const rows = batch * length;
    const past = cache.length;
    const buffer = cache.reserve(lengths ? 0 : length, [batch, 1, length, rank + rope.dims], q);
    const mask = this.mask(lengths ? buffer.shape[2]! : past + length);
    const parts = q.reshape([rows, heads, keyDim + rope.dims]);
    const latentQ = keys.each(parts.narrow(2, 0, keyDim)).contiguous();
    const params = { ...this.tables.get(rope)!, cache: buffer, past, lengths, padding, mask, scale };
    const turned = parts.narrow(2, keyDim, rope.dims);
    const attention = this.backend.latentAttention!;
    const y = result(call(attention, "attend", latentQ, turned, latent, key, params), [batch, heads, length, rank]);
    if (!lengths) cache.advance(length);
    return values.each(y.transpose(1, 2).reshape([rows, heads, rank])).reshape([rows, heads * valueDim]);
  }
}
