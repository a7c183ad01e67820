/** Fused attention: a prefill kernel over blocks of queries, or a decode over parts of the keys for few queries. */
import { type DType, sizeOf } from "../../../core/dtype.ts";
import type { Layout } from "../../../core/layout.ts";
import type { View } from "../../backend.ts";
import type { SdpaParams } from "../../fused-ops.ts";
import { PAGE_SIZE, type PlannedHeads } from "../../paged-attention.ts";
import type { Storage } from "../../storage.ts";
import {
  decodeBlocks,
  hasWarpgroups,
  headDimFor,
  isBatchDim,
  planDecode,
  planPrefill,
  planSplit,
  planSplitBlocks,
  planSplits,
  planWarpgroups,
  scratchFloats,
  sharedBudget,
  supportsHeadDim,
} from "../attention-plan.ts";
import { at, type Gpu } from "../gpu.ts";
import { MOST_PARTS, PartsPlanner } from "../paged-plan.ts";

/** Up to so many queries share a pass over the keys that is cut into parts. */
const DECODE_QUERIES = 8;

/** An operand (b, h, t, d) whose last dim is contiguous: its address and the strides of the other dims. */
export interface Heads {
  readonly at: number;
  readonly strides: readonly number[];
}

export interface Problem extends SdpaParams {
  readonly dtype: DType;
  readonly q: Heads;
  readonly k: Heads;
  readonly v: Heads;
  readonly mask: View | null;
  /** The address of each sequence's number of keys, or 0: all `tk`. */
  readonly lengths: number;
  /** Keys and values are rows in 8 bits, whose strides count bytes. */
  readonly inBytes?: boolean;
  /** The address of each sequence's table of pages, which k and v are then; 0: they are as q is. */
  readonly tables: number;
  readonly batch: number;
  readonly heads: number;
  readonly kvHeads: number;
  readonly tq: number;
  readonly tk: number;
  readonly d: number;
  /** Of the values: at most d. */
  readonly dv: number;
  /** The address of a plan of parts, and the entries that it has room for. */
  readonly plan?: { readonly at: number; readonly entries: number } | null;
  /** Where the result's (b, h, t) lie apart, unless it is contiguous. */
  readonly outStrides?: readonly [number, number, number] | undefined;
  /** The address of where each of `batch` sequences begins, one behind the other in tq rows; 0: side by side. */
  readonly offsets: number;
}

export const supportsAttention = (dtype: DType, d: number, dv = d): boolean =>
  (dtype === "f32" || dtype === "f16" || dtype === "bf16") && supportsHeadDim(d) && supportsHeadDim(dv) && dv <= d;

/** Null for dtypes and head sizes without a kernel. */
export function sdpa(gpu: Gpu, q: View, k: View, v: View, mask: View | null, p: SdpaParams): Storage | null {
  const { dtype } = q.storage;
  const [batch, heads, tq, d] = q.layout.shape as [number, number, number, number];
  const [, kvHeads, tk] = k.layout.shape as [number, number, number, number];
  const dv = v.layout.shape[3]!;
  if (!supportsAttention(dtype, d, dv)) return null;
  return gpu.filled(dtype, batch * heads * tq * dv, (out) =>
    rowsContiguous(gpu, q, (queries) =>
      rowsContiguous(gpu, k, (keys) =>
        rowsContiguous(gpu, v, (values) => {
          const { scale, causal, softcap, window, sinks } = p;
          const operands = { q: queries, k: keys, v: values, mask, sinks, lengths: 0, tables: 0, offsets: 0 };
          attend(
            gpu,
            { scale, causal, softcap, window, batch, heads, kvHeads, tq, tk, d, dv, dtype, ...operands },
            out,
          );
        }),
      ),
    ),
  );
}

/** The same of sequences one behind the other: q (rows, hq, d), k (rows, hk, d), v (rows, hk, dv) → (rows, hq, dv). */
export function sdpaVarlen(gpu: Gpu, q: View, k: View, v: View, offsets: View, p: SdpaParams): Storage | null {
  const { dtype } = q.storage;
  const [rows, heads, d] = q.layout.shape as [number, number, number];
  const [, kvHeads, dv] = v.layout.shape as [number, number, number];
  if (!supportsAttention(dtype, d, dv)) return null;
  // As (1, h, t, d).
  const side = ({ storage, layout }: View): View => ({ storage, layout: layout.transpose(0, 1).unsqueeze(0) });
  return gpu.filled(dtype, rows * heads * dv, (out) =>
    rowsContiguous(gpu, side(q), (queries) =>
      rowsContiguous(gpu, side(k), (keys) =>
        rowsContiguous(gpu, side(v), (values) => {
          const sizes = { batch: offsets.layout.numel - 1, heads, kvHeads, tq: rows, tk: rows, d, dv, dtype };
          const operands = { q: queries, k: keys, v: values, mask: null, lengths: 0, tables: 0, offsets: at(offsets) };
          prefill(gpu, { ...p, ...sizes, ...operands, outStrides: [0, dv, heads * dv] }, out);
        }),
      ),
    ),
  );
}

/** Whether so few queries go through the keys that are cut into parts. */
export const decodes = (gpu: Gpu, tq: number): boolean => tq <= DECODE_QUERIES && !gpu.isInvariant;

/** Writes (b, heads, tq, d) to `out`. */
export function attend(gpu: Gpu, p: Problem, out: number): void {
  if (decodes(gpu, p.tq)) decode(gpu, p, out);
  else prefill(gpu, p, out);
}

const variantOf = (p: Problem) => (p.mask || p.softcap > 0 || p.scale <= 0 ? "_masked" : "");

/** The greatest softcap that a kernel of its own takes, by warpgroups. */
const MOST_CAP = 64;
const isCapped = ({ mask, softcap }: Problem): boolean => !mask && softcap > 0 && softcap <= MOST_CAP;

/** Whether 16 bytes of each row, whose elements have `size` of them, can be copied at once. */
export const isInPieces = ({ at, strides }: Heads, size: number): boolean =>
  at % 16 === 0 && [0, 1, 2].every((dim) => (strides[dim]! * size) % 16 === 0);
const areInPieces = ({ q, k, v, dtype }: Problem): boolean => [q, k, v].every((x) => isInPieces(x, sizeOf(dtype)));

/** Whether kernels/attention_batch.hip takes it, unless scores are shaped. */
const isPlainBatch = (p: Problem): boolean => !p.offsets && !p.tables && !p.sinks && areInPieces(p);

/** What both kernels take, and what their plans fill in. In one piece: spreading so many fields costs more than the launch. */
function launchValues(p: Problem, out: number) {
  const { q, k, v, mask } = p;
  const strides = mask ? mask.layout.strides : [0, 0, 0, 0];
  return {
    q: q.at,
    k: k.at,
    v: v.at,
    mask: mask ? at(mask) : 0,
    sinks: p.sinks ? at(p.sinks) : 0,
    lengths: p.lengths,
    tables: p.tables,
    offsets: p.offsets,
    out,
    batch: p.batch,
    heads: p.heads,
    kv_heads: p.kvHeads,
    tq: p.tq,
    tk: p.tk,
    d: p.d,
    dv: p.dv,
    q_b: q.strides[0]!,
    q_h: q.strides[1]!,
    q_t: q.strides[2]!,
    k_b: k.strides[0]!,
    k_h: k.strides[1]!,
    k_t: k.strides[2]!,
    v_b: v.strides[0]!,
    v_h: v.strides[1]!,
    v_t: v.strides[2]!,
    out_b: p.outStrides?.[0] ?? p.heads * p.tq * p.dv,
    out_h: p.outStrides?.[1] ?? p.tq * p.dv,
    out_t: p.outStrides?.[2] ?? p.dv,
    mask_b: strides[0]!,
    mask_h: strides[1]!,
    mask_i: strides[2]!,
    mask_j: strides[3]!,
    scale: p.scale,
    softcap: p.softcap,
    causal: Number(p.causal),
    window: p.window,
    rows: 0,
    blocks: 0,
    splits: 1,
    threads: 0,
    shared_bytes: 0,
    scratch: 0,
    counters: 0,
    plan: p.plan?.at ?? 0,
    entries: 0,
  };
}

export function prefill(gpu: Gpu, p: Problem, out: number): void {
  const { dtype, d } = p;
  const { arch } = gpu.context.properties;
  const variant = variantOf(p);
  const values = launchValues(p, out);
  const dim = headDimFor(d);
  const grouped = dim !== 32 && hasWarpgroups(arch) && (dtype === "bf16" || dtype === "f16");
  const capped = grouped && isCapped(p);
  const batch = grouped && variant === "" && isBatchDim(dim) && isPlainBatch(p) ? dim : null;
  const plan = grouped
    ? planWarpgroups(dim, variant !== "" && !capped)
    : planPrefill(gpu.matrixUnit(dtype), dtype, dim, sharedBudget(arch));
  values.threads = plan.threads;
  values.rows = plan.rows;
  values.shared_bytes = plan.shared;
  if (capped) gpu.launch(`attention_capped_${dim}_${dtype}`, values);
  else if (batch) gpu.launch(`attention_batch_${batch}_${dtype}`, values);
  else gpu.launch(`attention${variant}_${dim}_${dtype}`, values);
}

export function decode(gpu: Gpu, p: Problem, out: number): void {
  const { arch } = gpu.context.properties;
  const { dtype, batch, heads, kvHeads, tq, tk, d, dv } = p;
  const variant = p.inBytes ? "_f8" : variantOf(p);
  const values = launchValues(p, out);
  const plan = planDecode(gpu.matrixUnit(dtype), dtype, headDimFor(d), sharedBudget(arch), p.inBytes);
  values.threads = plan.threads;
  values.shared_bytes = plan.shared;
  values.splits = p.plan
    ? MOST_PARTS
    : planSplits(plan.crowd * gpu.multiprocessors, decodeBlocks(batch, heads, kvHeads, tq), tk);
  values.entries = p.plan ? p.plan.entries : values.splits;
  const run = (): void => gpu.launch(`attention_decode${variant}_${headDimFor(d)}_${dtype}`, values);
  if (values.splits === 1) run();
  else {
    values.counters = gpu.counters;
    gpu.temporary(4 * scratchFloats(batch * heads * tq, values.splits, dv), (scratch) => {
      values.scratch = scratch;
      run();
    });
  }
}

/** Up to so many queries of prompts share their keys out, where there may be so many pages. */
const SPLIT_QUERIES = 128;
const SPLIT_FROM_PAGES = 8;

/** Of larger heads, and of f32 on one generation, some releases of AMD's compiler spill up to hundreds of registers. */
const splitsWell = (arch: string, dim: number, dtype: DType): boolean =>
  !arch.startsWith("gfx") || (dim <= 64 && !(dtype === "f32" && arch.startsWith("gfx950")));

/**
 * Rows of sequences one behind the other whose keys lie in pages: where they are few, blocks for each head and `rows` of them
 * would leave most of a device idle while they go through long texts, so each has a part of the keys.
 */
export function prefillPages(gpu: Gpu, p: Problem, out: number): void {
  const { dtype, heads, kvHeads, tq, tk, d } = p;
  const dim = headDimFor(d);
  const variant = variantOf(p);
  const { arch } = gpu.context.properties;
  const budget = sharedBudget(arch);
  const plan = planSplit(gpu.matrixUnit(dtype), dtype, dim, variant !== "", budget);
  const few = tq <= SPLIT_QUERIES && tk >= SPLIT_FROM_PAGES * PAGE_SIZE && heads / kvHeads <= plan.rows;
  if (!few || !areInPieces(p) || gpu.isInvariant || !splitsWell(arch, dim, dtype)) {
    prefill(gpu, p, out);
    return;
  }
  const values = launchValues(p, out);
  values.threads = plan.threads;
  values.rows = plan.rows;
  values.shared_bytes = plan.shared;
  const { blocks, splits } = planSplitBlocks(gpu.multiprocessors, kvHeads, tk / PAGE_SIZE);
  values.blocks = blocks;
  values.splits = splits;
  gpu.temporary(4 * scratchFloats(heads * tq, values.splits, p.dv), (scratch) => {
    values.scratch = scratch;
    gpu.launch(`attention_split${variant}_${dim}_${dtype}`, values);
    gpu.launch(`attention_join_${dtype}`, values);
  });
}

/** What plans steps of decoding over pages, of at most `rows` sequences. */
export function partsPlanner(gpu: Gpu, dtype: DType, { heads, kvHeads, headDim, stored }: PlannedHeads, rows: number) {
  const { crowd } = planDecode(
    gpu.matrixUnit(dtype),
    dtype,
    headDimFor(headDim),
    sharedBudget(gpu.context.properties.arch),
    stored === "f8e4m3",
  );
  return PartsPlanner.for(crowd * gpu.multiprocessors, decodeBlocks(1, heads, kvHeads, 1), rows);
}

/** The kernels walk b, h and t by any strides; only the last dim must be contiguous. */
function rowsContiguous<T>(gpu: Gpu, x: View, run: (heads: Heads) => T): T {
  const { shape, strides }: Layout = x.layout;
  if (strides[3] === 1 || shape[3] === 1) return run({ at: at(x), strides });
  return gpu.packed(x, (address) =>
    run({ at: address, strides: [shape[1]! * shape[2]! * shape[3]!, shape[2]! * shape[3]!, shape[3]!] }),
  );
}
