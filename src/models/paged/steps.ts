/** Steps over a paged cache: sequence by sequence out of gathered pages on any device, or by a device's own kernels. */
import type { Backend } from "../../backend/backend.ts";
import { call } from "../../backend/call.ts";
import type { Device } from "../../backend/device.ts";
import { PAGE_SIZE } from "../../backend/paged-attention.ts";
import type { DType } from "../../core/dtype.ts";
import type { KvPair } from "../../nn/kv-cache.ts";
import { Tensor } from "../../ops/index.ts";
import { result } from "../../tensor/tensor.ts";
import { fromRows, toRows } from "../byte-cache.ts";
import type { ModelConfig, RopeConfig } from "../config.ts";
import { attendLatents, expansionPays, type LatentHeads, type LatentRows } from "../latent-attention.ts";
import type { Rotation, Table } from "../rotary.ts";
import { type AttentionParams, ComposedStep, normedHeads, type Step } from "../steps.ts";
import { lengthOf, type PagedBatch, type PagedSequence, totalOf } from "./batch.ts";

type Latents = { readonly latents: Tensor };

/** What turns the heads of a sequence at its new positions; call it inside a scope. */
export type RotationsOf = (sequence: PagedSequence) => ReadonlyMap<RopeConfig, Rotation>;

/** Whether a device attends over pages by itself. */
export const deviceAttendsPages = (
  { headDim, latent, rope }: ModelConfig,
  { backend }: Device,
  dtype: DType,
  stored: DType,
): boolean =>
  (latent
    ? backend.pagedLatentAttention?.supports(dtype, latent.rank, rope.dims)
    : backend.pagedAttention?.supports(dtype, headDim, stored)) ?? false;

/** Writes rows x (heads, t, width) to the sequence's pages, behind its past, and gives all that it has: (1, heads, total, width). */
function appended(pool: Tensor, x: Tensor, sequence: PagedSequence): Tensor {
  const { past, pages } = sequence;
  const [, heads, , width] = pool.shape as [number, number, number, number];
  const total = totalOf(sequence);
  for (let at = past; at < total; ) {
    const slot = at % PAGE_SIZE;
    const count = Math.min(PAGE_SIZE - slot, total - at);
    const page = pool.narrow(0, pages[Math.floor(at / PAGE_SIZE)]!, 1);
    page.sliceSet(x.narrow(1, at - past, count).unsqueeze(0), 2, slot);
    at += count;
  }
  const held = Math.ceil(total / PAGE_SIZE);
  const own = Tensor.from(Uint32Array.from(pages.slice(0, held)), { device: pool.device });
  const gathered = pool
    .indexSelect(own, 0)
    .transpose(0, 1)
    .reshape([1, heads, held * PAGE_SIZE, width]);
  return gathered.narrow(2, 0, total);
}

/** The same of heads x (1, heads, t, headDim), in pages of their dtype or of rows in 8 bits. */
function appendedHeads(pool: Tensor, x: Tensor, sequence: PagedSequence): Tensor {
  if (pool.dtype === x.dtype) return appended(pool, x.squeeze(0), sequence);
  return fromRows(appended(pool, toRows(x).squeeze(0), sequence), x.shape[3]!, x.dtype);
}

/** Op by op, on any device. */
export class ComposedPagedStep implements Step {
  readonly batch: number;
  readonly length = 1;
  readonly #batch: PagedBatch;
  readonly #rotations: readonly ReadonlyMap<RopeConfig, Rotation>[];

  /** Call it inside a scope. */
  constructor(batch: PagedBatch, rotationsOf: RotationsOf) {
    this.batch = batch.rows;
    this.#batch = batch;
    this.#rotations = batch.sequences.map(rotationsOf);
  }

  attend(q: Tensor, k: Tensor, v: Tensor, layer: KvPair, params: AttentionParams): Tensor {
    return this.#each((sequence, rotations, own) => {
      const step = new ComposedStep(1, lengthOf(sequence), rotations, () => null);
      const cache = {
        append: (k: Tensor, v: Tensor): KvPair => ({
          k: appendedHeads(layer.k, k, sequence),
          v: appendedHeads(layer.v, v, sequence),
        }),
      };
      return step.attend(own(q), own(k), own(v), cache, params).squeeze(0).transpose(0, 1);
    });
  }

  attendLatent({ q, latent, key }: LatentRows, layer: Latents, heads: LatentHeads): Tensor {
    // Never expanded: how many rows a prompt's part has must not tell in what they give.
    return this.#each((sequence, rotations, own) =>
      attendComposed({ q: own(q), latent: own(latent), key: own(key) }, sequence, rotations, layer, heads, false),
    );
  }

  #each(
    run: (sequence: PagedSequence, rotations: ReadonlyMap<RopeConfig, Rotation>, own: (x: Tensor) => Tensor) => Tensor,
  ): Tensor {
    const { sequences, offsets } = this.#batch;
    const parts = sequences.map((sequence, i) =>
      run(sequence, this.#rotations[i]!, (x) => x.narrow(0, offsets[i]!, lengthOf(sequence))),
    );
    return parts.length === 1 ? parts[0]! : Tensor.cat(parts, 0);
  }
}

/** One sequence's rows over latents, op by op. */
const attendComposed = (
  rows: LatentRows,
  sequence: PagedSequence,
  rotations: ReadonlyMap<RopeConfig, Rotation>,
  { latents }: Latents,
  heads: LatentHeads,
  expand: boolean,
): Tensor => {
  const cache = { append: (added: Tensor): Tensor => appended(latents, added.squeeze(0), sequence) };
  const step = { batch: 1, length: lengthOf(sequence) };
  return attendLatents(rows, step, cache, rotations.get(heads.rope)!, () => null, heads, expand);
};

/** What a device's kernels are told of the sequences: as `PagedPlaces` has it. */
export interface DevicePlaces {
  readonly tables: Tensor;
  readonly lengths: Tensor;
  readonly offsets: Tensor;
  readonly singles: number;
  readonly plan?: Tensor | null;
}

export type PagedTable = Table & { readonly interleaved: boolean; readonly starts: Tensor | null };

/** One sequence's rows behind those that have one each, where latents may be expanded for it. */
interface Chunk {
  readonly sequence: PagedSequence;
  readonly rotations: () => ReadonlyMap<RopeConfig, Rotation>;
}

/** By a device's own kernels. */
export class DevicePagedStep implements Step {
  readonly length = 1;

  constructor(
    readonly backend: Backend,
    /** Rows. */
    readonly batch: number,
    readonly places: DevicePlaces,
    readonly tables: ReadonlyMap<RopeConfig, PagedTable>,
    readonly chunks: readonly Chunk[],
    /** Whether a long part of a prompt may expand latents. */
    readonly mayExpand: boolean,
  ) {}

  attend(rawQ: Tensor, rawK: Tensor, v: Tensor, layer: KvPair, params: AttentionParams): Tensor {
    const { headDim, scale, softcap, window, rope, sinks } = params;
    const attention = this.backend.pagedAttention!;
    const [q, k] = attention.takesNorms ? [rawQ, rawK] : normedHeads(rawQ, rawK, params);
    const norms = attention.takesNorms ? params.norms : null;
    const own = { ...this.tables.get(rope)!, ...layer, ...this.places, norms, scale, softcap, window, sinks };
    const y = call(attention, "attend", q, k, v, own);
    return result(y, [this.batch, q.shape[1]! / headDim, 1, headDim]);
  }

  attendLatent(rows: LatentRows, layer: Latents, heads: LatentHeads): Tensor {
    const { singles } = this.places;
    const parts = singles > 0 ? [this.#latents(rows, layer, heads, 0, singles, 0, singles)] : [];
    let at = singles;
    for (const [i, { sequence, rotations }] of this.chunks.entries()) {
      const length = lengthOf(sequence);
      const own = (x: Tensor): Tensor => x.narrow(0, at, length);
      parts.push(
        this.mayExpand && expansionPays(length, heads)
          ? attendComposed(each(rows, own), sequence, rotations(), layer, heads, true)
          : this.#latents(rows, layer, heads, singles + i, 1, at, length),
      );
      at += length;
    }
    return parts.length === 1 ? parts[0]! : Tensor.cat(parts, 0);
  }

  /** The rows from `at` on of `count` sequences with equally many. */
  #latents(
    all: LatentRows,
    { latents }: Latents,
    own: LatentHeads,
    first: number,
    count: number,
    at: number,
    rows: number,
  ): Tensor {
    const { heads, rank, keyDim, valueDim, keys, values, rope, scale } = own;
    const { q, latent, key } = each(all, (x) => x.narrow(0, at, rows));
    const { tables, lengths } = this.places;
    const turn = this.tables.get(rope)!;
    const params = {
      ...turn,
      tables: tables.narrow(0, first, count),
      lengths: lengths.narrow(0, first, count),
      starts: turn.starts?.narrow(0, first, count) ?? null,
      cache: latents,
      scale,
    };
    const parts = q.reshape([rows, heads, keyDim + rope.dims]);
    const latentQ = keys.each(parts.narrow(2, 0, keyDim)).contiguous();
    const turned = parts.narrow(2, keyDim, rope.dims);
    const y = call(this.backend.pagedLatentAttention!, "attend", latentQ, turned, latent, key, params);
    const summed = result(y, [count, heads, rows / count, rank])
      .transpose(1, 2)
      .reshape([rows, heads, rank]);
    return values.each(summed).reshape([rows, heads * valueDim]);
  }
}

const each = ({ q, latent, key }: LatentRows, own: (x: Tensor) => Tensor): LatentRows => ({
  q: own(q),
  latent: own(latent),
  key: own(key),
});
