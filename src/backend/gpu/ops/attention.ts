/** Fused attention: a prefill kernel over blocks of queries, or a decode over parts of the keys for few queries. */
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

/** Null for dtypes and head sizes without a kernel. */
export function sdpa(gpu: Gpu, q: View, k: View, v: View, mask: View | null, p: SdpaParams): Storage | null {
  const { dtype } = q.storage;
  const [b, hq, tq, d] = q.layout.shape as [number, number, number, number];
  const [, hk, tk] = k.layout.shape as [number, number, number, number];
  const fused =
    (dtype === "f32" || dtype === "f16" || dtype === "bf16") && supportsHeadDim(d) && v.layout.shape[3] === d;
  if (!fused) return null;
  return gpu.fill(dtype, b * hq * tq * d, (out) =>
    rowsContiguous(gpu, q, (qAt, qs) =>
      rowsContiguous(gpu, k, (kAt, ks) =>
        rowsContiguous(gpu, v, (vAt, vs) => {
          const [mb, mh, mi, mj] = mask ? mask.layout.strides : [0, 0, 0, 0];
          const values = {
            ...{ q: qAt, k: kAt, v: vAt, mask: mask ? at(mask) : 0, out, lengths: 0 },
            ...{ batch: b, heads: hq, kv_heads: hk, tq, tk, d },
            ...{ q_b: qs[0]!, q_h: qs[1]!, q_t: qs[2]!, k_b: ks[0]!, k_h: ks[1]!, k_t: ks[2]! },
            ...{ v_b: vs[0]!, v_h: vs[1]!, v_t: vs[2]!, mask_b: mb!, mask_h: mh!, mask_i: mi!, mask_j: mj! },
            ...{ scale: p.scale, softcap: p.softcap, causal: Number(p.causal), window: p.window },
          };
          const variant = mask || p.softcap > 0 || p.scale <= 0 ? "_masked" : "";
          const name = `${variant}_${headDimFor(d)}_${dtype}`;
          if (tq <= DECODE_QUERIES) decode(gpu, name, dtype, values);
          else prefill(gpu, name, dtype, values);
        }),
      ),
    ),
  );
}

type Half = "f32" | "f16" | "bf16";
interface Values extends Readonly<Record<string, number>> {
  readonly out: number;
  readonly batch: number;
  readonly heads: number;
  readonly kv_heads: number;
  readonly tq: number;
  readonly tk: number;
  readonly d: number;
}

function prefill(gpu: Gpu, name: string, dtype: Half, values: Values): void {
  const { arch } = gpu.context.properties;
  const { rows, shared } = planPrefill(matrixUnit(arch, dtype), dtype, headDimFor(values.d), sharedBudget(arch));
  gpu.launch(`attention${name}`, { ...values, rows, shared_bytes: shared });
}

function decode(gpu: Gpu, name: string, dtype: Half, values: Values): void {
  const { arch } = gpu.context.properties;
  const { batch, heads, kv_heads, tq, tk, d, out } = values;
  const { threads, shared } = planDecode(matrixUnit(arch, dtype), dtype, headDimFor(d), sharedBudget(arch));
  const splits = planSplits(gpu.multiprocessors, decodeBlocks(batch, heads, kv_heads, tq), tk);
  const rows = batch * heads * tq;
  const run = (scratch: number) =>
    gpu.launch(`attention_decode${name}`, { ...values, scratch, splits, threads, shared_bytes: shared });
  if (splits === 1) {
    run(0);
    return;
  }
  gpu.temporary(4 * scratchFloats(rows, splits, d), (scratch) => {
    run(scratch);
    gpu.launch(`attention_merge_${dtype}`, { scratch, out, rows, splits, d });
  });
}

/** The kernels walk b, h and t by any strides; only the last dim must be contiguous. */
function rowsContiguous<T>(gpu: Gpu, x: View, run: (address: number, strides: readonly number[]) => T): T {
  const { shape, strides }: Layout = x.layout;
  if (strides[3] === 1 || shape[3] === 1) return run(at(x), strides);
  return gpu.packed(x, (address) =>
    run(address, [shape[1]! * shape[2]! * shape[3]!, shape[2]! * shape[3]!, shape[3]!]),
  );
}
