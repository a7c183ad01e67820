/**
 * Attention over a cache of pages, where every sequence has a table that says which page holds which of its positions: so
 * sequences grow one by one, and those that begin alike share what they have in common. A capability of its own: a device
 * without it gathers the pages of each sequence, and attends to what it got.
 */
import type { DType } from "../core/dtype.ts";
import type { View } from "./backend.ts";
import type { SdpaParams } from "./fused-ops.ts";
import type { Storage } from "./storage.ts";
import type { HeadNorms } from "./transformers.ts";

/** Positions of a page. Kernels have whole tiles of keys in one, or whole pages in a tile. */
export const PAGE_SIZE = 64;

/** Where the sequences of a step lie, and how they are turned. Tables and counts are i64 and contiguous. */
export interface PagedPlaces {
  /** (sequences, pages of the longest): where each sequence's positions lie; what is behind its last one is not followed. */
  readonly tables: View;
  /** (sequences): positions there are with the new ones. A sequence that has none writes nothing, and sees nothing. */
  readonly lengths: View;
  /** (positions, rotary/2) for every position there may be. */
  readonly cos: View;
  readonly sin: View;
  /** Pairs are neighbours (2i, 2i + 1) and not (i, i + rotary/2). */
  readonly interleaved: boolean;
  /** i64 (sequences): the row of cos and sin that a sequence's position 0 has. Null: all begin with the first. */
  readonly starts: View | null;
}

export interface PlannedHeads {
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  /** What keys and values are stored as, where that is not what is computed in. */
  readonly stored?: DType | undefined;
}

/** Says how sequences of known lengths share a device, where that is known before the work runs. */
export interface PagedPlanner {
  /** How many numbers a plan for so many sequences has room for. */
  words(rows: number): number;
  /** For sequences with one row each, whose positions are so many: numbers below 2³¹, no more than `words` says. */
  plan(lengths: readonly number[]): readonly number[];
}

export interface PagedAttentionParams extends Omit<SdpaParams, "causal">, PagedPlaces {
  /** (sequences + 1): where the rows of each begin, and where the last one's end. */
  readonly offsets: View;
  /** So many sequences, the first, have one row each; those behind them one or more. */
  readonly singles: number;
  /** i64 (words), where a planner has said how sequences with one row share the device. */
  readonly plan?: View | null | undefined;
  /** (pages, kv heads, PAGE_SIZE, d), contiguous; of f8e4m3 they are rows in 8 bits (core/cache-rows.ts). */
  readonly k: View;
  readonly v: View;
  /** For a device that `takesNorms`. */
  readonly norms?: HeadNorms | null;
}

export interface PagedAttention {
  /** Whether it normalises heads itself. */
  readonly takesNorms?: boolean;
  /** Whether there are kernels for heads of this size, over pages of `stored`. */
  supports(dtype: DType, headDim: number, stored: DType): boolean;
  /**
   * Sequences one behind the other: the rows of q (rows, heads · d) and k, v (rows, kv heads · d), whose last dim is
   * contiguous, are turned by their positions, k and v enter the pages, and each query sees its sequence's keys up to its
   * own. The result is (rows, heads, d).
   */
  attend(q: View, k: View, v: View, p: PagedAttentionParams): Storage;
  /** What plans steps of at most so many sequences with one row each, where that is of use. */
  planner?(dtype: DType, shape: PlannedHeads, rows: number): PagedPlanner | null;
}

/** Copies pages of several pools at once; it must not outlive them. */
export interface PageCopier extends Disposable {
  /** Page `to` of each pool holds what its page `from` does. */
  copy(from: number, to: number): void;
}

export interface PagedLatentParams extends PagedPlaces {
  /** (pages, 1, PAGE_SIZE, rank + rope), contiguous: a latent, and behind it the key's turned part. */
  readonly cache: View;
  readonly scale: number;
}

/** The same of latents, as `LatentAttention` has it. Every sequence has as many rows as the others. */
export interface PagedLatentAttention {
  /** Whether there are kernels for latents of `rank` and turned parts of `rope` elements. */
  supports(dtype: DType, rank: number, rope: number): boolean;
  /**
   * With t rows for each sequence: q (sequences · t, heads, rank), qRope (…, heads, rope), latent (…, rank), kRope (…, rope) →
   * (sequences, heads, t, rank).
   */
  attend(q: View, qRope: View, latent: View, kRope: View, p: PagedLatentParams): Storage;
}
