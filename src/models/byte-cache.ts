/** Caches that keep keys and values in 8 bits (core/cache-rows.ts), on any device that can make and read such rows. */
import { call } from "../backend/call.ts";
import type { Device } from "../backend/device.ts";
import { f8RowBytes } from "../core/cache-rows.ts";
import type { DType } from "../core/dtype.ts";
import { fail } from "../core/errors.ts";
import type { Shape } from "../core/layout.ts";
import { KvCache, type KvPair, RotatingKvCache } from "../nn/index.ts";
import type { Tensor } from "../ops/index.ts";
import { result } from "../tensor/tensor.ts";
import type { ModelConfig } from "./config.ts";

/** What a model may keep keys and values as in place of what it computes in. */
export const cacheTypes = ["f8e4m3"] as const;
export type CacheType = (typeof cacheTypes)[number];

/** Elements of `stored` that a row of headDim elements takes. */
export const rowWidth = (headDim: number, stored: DType): number =>
  stored === "f8e4m3" ? f8RowBytes(headDim) : headDim;

/** (…, d) as rows. */
export function toRows(x: Tensor): Tensor {
  const d = x.shape.at(-1)!;
  const rows = call(x.device.backend.cacheRows!, "encode", x.contiguous());
  return result(rows, x.shape.with(-1, f8RowBytes(d)));
}

/** Rows as (…, d), whose last two dims are contiguous. */
export function fromRows(rows: Tensor, d: number, dtype: DType): Tensor {
  return result(call(rows.device.backend.cacheRows!, "decode", rows, d, dtype), rows.shape.with(-1, d));
}

const appendedRows = (append: (k: Tensor, v: Tensor) => KvPair, k: Tensor, v: Tensor): KvPair => {
  const rows = append(toRows(k), toRows(v));
  return {
    k: fromRows(rows.k, k.shape.at(-1)!, k.dtype),
    v: fromRows(rows.v, v.shape.at(-1)!, v.dtype),
  };
};

export class ByteKvCache extends KvCache {
  /** The result is made of what is kept: the newest, too, have been rounded. */
  override append(k: Tensor, v: Tensor): KvPair {
    return appendedRows((k, v) => super.append(k, v), k, v);
  }

  override reserve(positions: number, shape: Shape, { device }: Pick<Tensor, "dtype" | "device">): KvPair {
    return super.reserve(positions, shape.with(-1, f8RowBytes(shape.at(-1)!)), { dtype: "f8e4m3", device });
  }
}

export class RotatingByteKvCache extends RotatingKvCache {
  override append(k: Tensor, v: Tensor): KvPair {
    return appendedRows((k, v) => super.append(k, v), k, v);
  }
}

/** Checks what a user asks for; a model's own dtype where that is nothing. */
export function cacheDType(
  asked: CacheType | undefined,
  { latent, encoder, headDim }: ModelConfig,
  devices: readonly Device[],
  dtype: DType,
): DType {
  if (asked === undefined) return dtype;
  if (!cacheTypes.includes(asked)) {
    return fail("InvalidArgument", `loadModel: caches are kept as ${cacheTypes.join(", ")}, not ${String(asked)}`);
  }
  if (encoder)
    return fail("InvalidArgument", "loadModel: kvCache is for models that generate; an encoder has no cache");
  if (latent) {
    return fail(
      "UnsupportedOp",
      "loadModel: this model's cache holds latents, which are small already and are not kept in 8 bits; leave kvCache away",
    );
  }
  const lacking = devices.find(({ backend: { cachedAttention, pagedAttention, cacheRows } }) => {
    const attends = cachedAttention?.supports(dtype, headDim, asked) && pagedAttention?.supports(dtype, headDim, asked);
    return !attends && !cacheRows;
  });
  if (!lacking) return asked;
  return fail(
    "UnsupportedOp",
    `loadModel: ${lacking.name} has no kernels for heads of ${headDim} over a cache of ${asked}; leave kvCache away`,
  );
}
