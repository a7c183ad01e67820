/** Steps of decoding whose positions are in device memory, so that they can be recorded and replayed. */

import { F8_ROW_TAIL } from "../../../core/cache-rows.ts";
import { type DType, sizeOf } from "../../../core/dtype.ts";
import { chosen } from "../../../core/environment.ts";
import { Layout } from "../../../core/layout.ts";
import type { View } from "../../backend.ts";
import {
  PAGE_SIZE,
  type PagedAttention,
  type PagedAttentionParams,
  type PagedPlanner,
  type PlannedHeads,
} from "../../paged-attention.ts";
import type { Storage } from "../../storage.ts";
import type { CachedAttention, CachedAttentionParams, Graph, HeadNorms, Recorder } from "../../transformers.ts";
import {
  planStep,
  STEP_HEADS,
  type StepDim,
  type StepPlan,
  scratchFloats,
  sharedBudget,
  stepDims,
} from "../attention-plan.ts";
import { copyLayout } from "../copy.ts";
import { at, type Gpu } from "../gpu.ts";
import {
  decode,
  decodes,
  type Heads,
  type Problem,
  partsPlanner,
  prefill,
  prefillPages,
  supportsAttention,
} from "./attention.ts";
import { filledInOrder } from "./x-order.ts";

export class GpuRecorder implements Recorder {
  readonly #gpu: Gpu;

  constructor(gpu: Gpu) {
    this.#gpu = gpu;
  }

  get problem(): string | null {
    return chosen("WICK_GRAPHS") ? "turned off by WICK_GRAPHS=none" : this.#gpu.context.recordingProblem;
  }

  capture(run: () => void, hasRun = false): Graph {
    return this.#gpu.capture(run, hasRun);
  }
}

export class GpuCachedAttention implements CachedAttention {
  readonly takesNorms = true;
  readonly byRows = true;
  readonly #gpu: Gpu;

  constructor(gpu: Gpu) {
    this.#gpu = gpu;
  }

  supports(dtype: DType, headDim: number, stored: DType): boolean {
    return supportsStored(dtype, headDim, stored);
  }

  attend(q: View, k: View, v: View, p: CachedAttentionParams): Storage {
    const gpu = this.#gpu;
    const { dtype } = q.storage;
    const [rows, width] = q.layout.shape as [number, number];
    const [batch, kvHeads, capacity] = p.k.layout.shape as [number, number, number, number];
    const d = headDimOf(p);
    const [t, heads] = [rows / batch, width / d];
    const lengths = p.lengths ? at(p.lengths) : 0;
    const tk = p.lengths ? capacity : p.past + t;
    const mask = p.mask && { storage: p.mask.storage, layout: p.mask.layout.broadcastTo([batch, heads, t, tk]) };
    const values = appendValues(q, k, v, p);
    values.lengths = lengths;
    values.padding = p.padding ? at(p.padding) : 0;
    const plan = t === 1 ? stepPlan(gpu, dtype, p, values, capacity) : null;
    if (plan) return stepAtOnce(gpu, dtype, p, values, plan);
    values.past = p.past;
    values.batch = batch;
    values.t = t;
    return gpu.filled(dtype, rows * width, (out) =>
      turned(gpu, dtype, p, values, (queries) => {
        const problem = problemOf(p, dtype, heads, kvHeads, d);
        problem.q = { at: queries, strides: [t * width, d, width] };
        problem.mask = mask;
        problem.lengths = lengths;
        problem.batch = batch;
        problem.tq = t;
        problem.tk = tk;
        if (decodes(gpu, t)) {
          byRows(gpu, problem, out);
          return;
        }
        problem.outStrides = [t * width, d, width];
        if (!problem.inBytes) prefill(gpu, problem, out);
        else rowsBack(gpu, problem, batch * kvHeads, tk, 0, (plain) => prefill(gpu, plain, out));
      }),
    );
  }
}

/** Of heads whose results a wave can bring into order. */
const ORDERED_DIM = 128;
const isVector = (bytes: number): boolean => bytes % 16 === 0;

/** How one position of each sequence goes from its projections to what its heads see in one launch; null where it does not. */
function stepPlan(
  gpu: Gpu,
  dtype: DType,
  p: CachedAttentionParams,
  v: ReturnType<typeof appendValues>,
  capacity: number,
): StepPlan | null {
  const { strides } = p.k.layout;
  const d = stepDims.find((dim) => dim === v.d);
  const isPlain = p.lengths && !p.mask && p.softcap === 0 && p.scale > 0 && p.k.storage.dtype === dtype;
  const fits =
    isPlain &&
    decodes(gpu, 1) &&
    gpu.matrixUnit(dtype) === "mma" &&
    v.rotary === v.d &&
    v.heads <= STEP_HEADS * v.kv_heads &&
    strides[2] === v.d &&
    [v.q_norm, v.k_norm].every((at) => at % 8 === 0) &&
    [v.k_cache, v.v_cache, 2 * v.cache_b, 2 * v.cache_h].every(isVector) &&
    [v.q, v.k, v.v, v.cos, v.sin, 2 * v.q_row, 2 * v.k_row, 2 * v.v_row].every(isVector);
  if (!fits || !d) return null;
  const { arch } = gpu.context.properties;
  const plan = planStep(d, gpu.multiprocessors, v.batch, v.kv_heads, capacity, arch);
  return plan.shared <= sharedBudget(arch) ? plan : null;
}

function stepAtOnce(
  gpu: Gpu,
  dtype: DType,
  p: CachedAttentionParams,
  appended: ReturnType<typeof appendValues>,
  { kernel, capacity, splits, threads, blocks, shared }: StepPlan,
): Storage {
  const { batch, heads, d } = appended;
  const values = Object.assign(appended, {
    ...{ capacity, splits, window: p.window, scale: p.scale, interleaved: Number(p.interleaved) },
    ...{ sinks: p.sinks ? at(p.sinks) : 0, scratch: 0, counters: gpu.counters },
    ...{ threads, blocks, shared_bytes: shared, ordered: 0, order: 0 },
  });
  // What is read before its turn.
  for (const view of [p.cos, p.sin, p.norms?.q, p.norms?.k, p.padding]) if (view) gpu.fenceWeights(view.storage);
  // Of few rows in bf16 a kernel between is faster than blocks of the product that lift all of it.
  const mayBring = kernel === "steps" || (kernel === "step" && splits === 1 && dtype === "f16");
  const brings = mayBring && d === ORDERED_DIM && !p.next?.norm;
  const next = brings ? p.next : null;
  return filledInOrder(gpu, dtype, { rows: batch, k: heads * d }, next, (out, to) =>
    gpu.temporary(4 * scratchFloats(batch * heads, splits, d), (scratch) => {
      values.out = out;
      values.ordered = to.ordered;
      values.order = to.order;
      values.scratch = scratch;
      const form = `${d as StepDim}_${dtype as "bf16" | "f16"}` as const;
      if (kernel === "cluster") gpu.launch(`attention_cluster_${form}`, values);
      else gpu.launch(`attention_${kernel}_${form}`, values);
    }),
  );
}

/** As `decode`, but to (b, tq, heads, d). */
function byRows(gpu: Gpu, p: Problem, out: number): void {
  const { dtype, batch, heads, tq, dv } = p;
  if (tq === 1) {
    decode(gpu, p, out);
    return;
  }
  const byHeads = Layout.contiguous([batch, heads, tq, dv]).transpose(1, 2);
  gpu.temporary(byHeads.numel * sizeOf(dtype), (from) => {
    decode(gpu, p, from);
    copyLayout(gpu, dtype, from, byHeads, out, Layout.contiguous(byHeads.shape));
  });
}

type Appended = Pick<CachedAttentionParams, "k" | "v" | "cos" | "sin" | "interleaved"> & {
  readonly norms?: HeadNorms | null;
};
type Attended = Pick<CachedAttentionParams, "k" | "v" | "scale" | "softcap" | "window" | "sinks">;
type Writable<T> = { -readonly [Key in keyof T]: T[Key] };

/** What rope_append takes, but for where rows stand. In one piece: spreading so many fields costs more than the launch. */
function appendValues(q: View, k: View, v: View, p: Appended) {
  const { shape, strides } = p.k.layout;
  const d = headDimOf(p);
  return {
    q: at(q),
    k: at(k),
    v: at(v),
    cos: at(p.cos),
    sin: at(p.sin),
    out: 0,
    k_cache: at(p.k),
    v_cache: at(p.v),
    heads: q.layout.shape[1]! / d,
    kv_heads: shape[1]!,
    d,
    rotary: 2 * p.cos.layout.shape[1]!,
    q_row: q.layout.strides[0]!,
    k_row: k.layout.strides[0]!,
    v_row: v.layout.strides[0]!,
    cache_b: strides[0]!,
    cache_h: strides[1]!,
    q_norm: p.norms ? at(p.norms.q) : 0,
    k_norm: p.norms ? at(p.norms.k) : 0,
    eps: p.norms?.eps ?? 0,
    lengths: 0,
    padding: 0,
    past: 0,
    batch: q.layout.shape[0]!,
    t: 1,
    tables: 0,
    offsets: 0,
    sequences: 0,
    singles: 0,
    width: 0,
  };
}

/** Turns queries and keys; keys and values enter the cache. `run` is given the address of the queries, as many as there were. */
function turned(
  gpu: Gpu,
  dtype: DType,
  p: Appended,
  values: ReturnType<typeof appendValues>,
  run: (queries: number) => void,
): void {
  gpu.temporary(values.batch * values.t * values.heads * values.d * sizeOf(dtype), (out) => {
    values.out = out;
    gpu.launch(`rope_append${isInBytes(p) ? "_f8" : ""}${p.interleaved ? "_i" : ""}_${dtype}`, values);
    run(out);
  });
}

/** Whether a cache holds rows in 8 bits. */
const isInBytes = ({ k }: Pick<CachedAttentionParams, "k">): boolean => k.storage.dtype === "f8e4m3";
const headDimOf = (p: Pick<CachedAttentionParams, "k">): number =>
  p.k.layout.shape[3]! - (isInBytes(p) ? F8_ROW_TAIL : 0);

const supportsStored = (dtype: DType, headDim: number, stored: DType): boolean =>
  supportsAttention(dtype, headDim) && (stored === dtype || stored === "f8e4m3");

/**
 * Keys and values in 8 bits as what is computed in, for prompts: `run` attends over these. They take as much memory as one
 * layer would that stores them so. `count` rows of each of `groups` heads, or of each head of `pages` pages by tables.
 */
function rowsBack(
  gpu: Gpu,
  p: Problem,
  groups: number,
  count: number,
  pages: number,
  run: (plain: Problem) => void,
): void {
  const { dtype, d, kvHeads } = p;
  const values = {
    lengths: p.lengths,
    tables: pages && p.tables,
    groups,
    count,
    d,
    sequences: p.batch,
    width: p.tk / PAGE_SIZE,
    group_stride: p.k.strides[1]!,
  };
  const bytes = Math.max(pages, 1) * groups * count * d * sizeOf(dtype);
  const back = (heads: Heads, next: (plain: Heads) => void): void =>
    gpu.temporary(bytes, (out) => {
      gpu.launch(`cache_rows_${dtype}`, { ...values, rows: heads.at, out });
      next({ at: out, strides: [kvHeads * count * d, count * d, d] });
    });
  back(p.k, (k) => back(p.v, (v) => run({ ...p, k, v, inBytes: false })));
}

/** Attention over a cache, of queries that are still to be said. */
function problemOf(p: Attended, dtype: DType, heads: number, kvHeads: number, d: number): Writable<Problem> {
  return {
    dtype,
    q: { at: 0, strides: [] },
    k: { at: at(p.k), strides: p.k.layout.strides },
    v: { at: at(p.v), strides: p.v.layout.strides },
    mask: null,
    lengths: 0,
    tables: 0,
    offsets: 0,
    batch: 1,
    heads,
    kvHeads,
    tq: 1,
    tk: 0,
    d,
    dv: d,
    scale: p.scale,
    softcap: p.softcap,
    window: p.window,
    sinks: p.sinks,
    causal: true,
    plan: null,
    outStrides: undefined,
    inBytes: isInBytes(p),
  };
}

/**
 * Single rows by the kernel of prompts: to it the heads that share keys are the rows of one head, which all see all keys.
 * Without a window, which counts from a row's place, and sinks, of which each head has its own.
 */
function prefillGroups(gpu: Gpu, p: Problem, out: number): void {
  const { d, heads, kvHeads } = p;
  const tq = heads / kvHeads;
  const strides = [heads * d, tq * d, d] as const;
  prefill(gpu, { ...p, causal: false, heads: kvHeads, tq, q: { at: p.q.at, strides }, outStrides: strides }, out);
}

/** Sequences with one row by one pass over parts of their keys, all others as prompts, one launch each. */
export class GpuPagedAttention implements PagedAttention {
  readonly takesNorms = true;
  readonly #gpu: Gpu;

  constructor(gpu: Gpu) {
    this.#gpu = gpu;
  }

  supports(dtype: DType, headDim: number, stored: DType): boolean {
    return supportsStored(dtype, headDim, stored);
  }

  planner(dtype: DType, heads: PlannedHeads, rows: number): PagedPlanner | null {
    return partsPlanner(this.#gpu, dtype, heads, rows);
  }

  attend(q: View, k: View, v: View, p: PagedAttentionParams): Storage {
    const gpu = this.#gpu;
    const { dtype } = q.storage;
    const [rows, width] = q.layout.shape as [number, number];
    const [poolPages, kvHeads] = p.k.layout.shape as [number, number, number, number];
    const d = headDimOf(p);
    const [sequences, pages] = p.tables.layout.shape as [number, number];
    // Where rows must not depend on how a prompt was cut, a single one is a short prompt.
    const areGrouped = gpu.isInvariant && p.window === 0 && !p.sinks;
    const singles = gpu.isInvariant && !areGrouped ? 0 : p.singles;
    const values = appendValues(q, k, v, p);
    values.lengths = at(p.lengths);
    values.tables = at(p.tables);
    values.offsets = at(p.offsets);
    values.padding = p.starts ? at(p.starts) : 0;
    values.sequences = sequences;
    values.singles = p.singles;
    values.width = pages;
    return gpu.filled(dtype, rows * width, (out) =>
      turned(gpu, dtype, p, values, (queries) => {
        const problem = problemOf(p, dtype, width / d, kvHeads, d);
        // To the kernel of prompts all keys are as what is computed in.
        const asPrompts = (run: (p: Problem) => void): void =>
          problem.inBytes ? rowsBack(gpu, problem, kvHeads, PAGE_SIZE, poolPages, run) : run(problem);
        problem.lengths = values.lengths;
        problem.tables = values.tables;
        problem.tk = pages * PAGE_SIZE;
        if (singles > 0) {
          problem.q = { at: queries, strides: [width, d, width] };
          problem.batch = singles;
          if (areGrouped) asPrompts((plain) => prefillGroups(gpu, plain, out));
          else {
            problem.plan = p.plan ? { at: at(p.plan), entries: p.plan.layout.numel - 1 } : null;
            decode(gpu, problem, out);
          }
        }
        if (singles === sequences) return;
        const before = singles * width * sizeOf(dtype);
        problem.q = { at: queries + before, strides: [0, d, width] };
        problem.outStrides = [0, d, width];
        problem.batch = sequences - singles;
        problem.tq = rows - singles;
        problem.lengths += 8 * singles;
        problem.tables += 8 * pages * singles;
        problem.offsets = values.offsets + 8 * singles;
        asPrompts((plain) => prefillPages(gpu, plain, out + before));
      }),
    );
  }
}
