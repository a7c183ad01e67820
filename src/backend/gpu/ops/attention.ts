/** Fused attention: a prefill kernel over blocks of queries, or a decode over parts of the keys for few queries. */
import type { DType } from "../../../core/dtype.ts";
import type { Layout } from "../../../core/layout.ts";
import type { SdpaParams, View } from "../../backend.ts";
import type { Storage } from "../../storage.ts";
import {
  decodeBlocks,
  headDimFor,
  matrixUnit,
  planDecode,
  planPrefill,
  planSplits,
  scratchFloats,
  sharedBudget,
  supportsHeadDim,
} from "../attention-plan.ts";
import { at, type Gpu } from "../gpu.ts";

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
  readonly batch: number;
  readonly heads: number;
  readonly kvHeads: number;
  readonly tq: number;
  readonly tk: number;
  readonly d: number;
}

export const supportsAttention = (dtype: DType, d: number): boolean =>
  (dtype === "f32" || dtype === "f16" || dtype === "bf16") && supportsHeadDim(d);

/** Null for dtypes and head sizes without a kernel. */
export function sdpa(gpu: Gpu, q: View, k: View, v: View, mask: View | null, p: SdpaParams): Storage | null {
  const { dtype } = q.storage;
  const [batch, heads, tq, d] = q.layout.shape as [number, number, number, number];
  const [, kvHeads, tk] = k.layout.shape as [number, number, number, number];
  if (!supportsAttention(dtype, d) || v.layout.shape[3] !== d) return null;
  return gpu.fill(dtype, batch * heads * tq * d, (out) =>
    rowsContiguous(gpu, q, (queries) =>
      rowsContiguous(gpu, k, (keys) =>
        rowsContiguous(gpu, v, (values) => {
          const sizes = { batch, heads, kvHeads, tq, tk, d };
          attend(gpu, { ...p, ...sizes, dtype, q: queries, k: keys, v: values, mask, lengths: 0 }, out);
        }),
      ),
    ),
  );
}

/** Writes (b, heads, tq, d) to `out`. */
export function attend(gpu: Gpu, p: Problem, out: number): void {
  const { q, k, v, mask, dtype, d } = p;
  const [mb, mh, mi, mj] = mask ? mask.layout.strides : [0, 0, 0, 0];
  const values = {
    ...{ q: q.at, k: k.at, v: v.at, mask: mask ? at(mask) : 0, out, lengths: p.lengths },
    ...{ batch: p.batch, heads: p.heads, kv_heads: p.kvHeads, tq: p.tq, tk: p.tk, d },
    ...{ q_b: q.strides[0]!, q_h: q.strides[1]!, q_t: q.strides[2]! },
    ...{ k_b: k.strides[0]!, k_h: k.strides[1]!, k_t: k.strides[2]! },
    ...{ v_b: v.strides[0]!, v_h: v.strides[1]!, v_t: v.strides[2]! },
    ...{ mask_b: mb!, mask_h: mh!, mask_i: mi!, mask_j: mj! },
    ...{ scale: p.scale, softcap: p.softcap, causal: Number(p.causal), window: p.window },
  };
  const variant = mask || p.softcap > 0 || p.scale <= 0 ? "_masked" : "";
  const name = `${variant}_${headDimFor(d)}_${dtype}`;
  if (p.tq <= DECODE_QUERIES) decode(gpu, name, dtype, values);
  else prefill(gpu, name, dtype, values);
}

interface Values extends Readonly<Record<string, number>> {
  readonly out: number;
  readonly batch: number;
  readonly heads: number;
  readonly kv_heads: number;
  readonly tq: number;
  readonly tk: number;
  readonly d: number;
}

function prefill(gpu: Gpu, name: string, dtype: DType, values: Values): void {
  const { arch } = gpu.context.properties;
  const { rows, shared } = planPrefill(matrixUnit(arch, dtype), dtype, headDimFor(values.d), sharedBudget(arch));
  gpu.launch(`attention${name}`, { ...values, rows, shared_bytes: shared });
}

function decode(gpu: Gpu, name: string, dtype: DType, values: Values): void {
  const { arch } = gpu.context.properties;
  const { batch, heads, kv_heads, tq, tk, d } = values;
  const plan = planDecode(matrixUnit(arch, dtype), dtype, headDimFor(d), sharedBudget(arch));
  const splits = planSplits(plan.crowd * gpu.multiprocessors, decodeBlocks(batch, heads, kv_heads, tq), tk);
  const sizes = { splits, threads: plan.threads, shared_bytes: plan.shared };
  const run = (scratch: number, counters: number) =>
    gpu.launch(`attention_decode${name}`, { ...values, ...sizes, scratch, counters });
  if (splits === 1) run(0, 0);
  else gpu.temporary(4 * scratchFloats(batch * heads * tq, splits, d), (scratch) => run(scratch, gpu.counters));
}

/** The kernels walk b, h and t by any strides; only the last dim must be contiguous. */
function rowsContiguous<T>(gpu: Gpu, x: View, run: (heads: Heads) => T): T {
  const { shape, strides }: Layout = x.layout;
  if (strides[3] === 1 || shape[3] === 1) return run({ at: at(x), strides });
  return gpu.packed(x, (address) =>
    run({ at: address, strides: [shape[1]! * shape[2]! * shape[3]!, shape[2]! * shape[3]!, shape[3]!] }),
  );
}
