/** Fused attention: prefill and decode. */

import { PAGE_SIZE } from "../../paged-attention.ts";
import {
  type BatchDim,
  batchDefines,
  batchDims,
  cappedDefines,
  clusterDefines,
  decodeBlocks,
  decodeDefines,
  type HeadDim,
  headDims,
  latentDefines,
  prefillBlocks,
  prefillDefines,
  type StepDim,
  splitDefines,
  stepDefines,
  stepDims,
} from "../attention-plan.ts";
import { planDefines } from "../paged-plan.ts";
import { blocks, family, perThread, quantFloats } from "./family.ts";
import { xOrders } from "./quant-wide.ts";

const operands = "q* k* v* mask* sinks* lengths* tables* out*";
const sizes =
  "batch heads kv_heads tq tk d dv q_b q_h q_t k_b k_h k_t v_b v_h v_t mask_b mask_h mask_i mask_j window scale:f64 softcap:f64 causal:u32";
const over = { mask: ["", "_masked"], D: headDims.map((d): `${HeadDim}` => `${d}`), T: quantFloats } as const;

const prefill = {
  args: `${operands} offsets* ${sizes} out_b out_h out_t`,
  plan: "threads rows shared_bytes",
  defines: prefillDefines,
} as const;

const prefillLaunch = (
  s: Record<"batch" | "heads" | "tq" | "rows" | "offsets" | "threads" | "shared_bytes", number>,
) => ({
  ...blocks(prefillBlocks(s.batch, s.heads, s.tq, s.rows, s.offsets !== 0), 1, s.threads),
  shared: s.shared_bytes,
});

const step = {
  args: "q* k* v* cos* sin* q_norm* k_norm* sinks* lengths* padding* out* ordered* k_cache* v_cache* scratch* counters* batch heads kv_heads capacity q_row k_row v_row cache_b cache_h window eps:f64 scale:f64 interleaved:u32 splits:u32 order:u32",
  plan: "threads blocks shared_bytes",
} as const;
const stepOver = { D: stepDims.map((d): `${StepDim}` => `${d}`), T: ["bf16", "f16"] } as const;
const stepLaunch = (s: Record<"blocks" | "threads" | "shared_bytes", number>) => ({
  ...blocks(s.blocks, 1, s.threads),
  shared: s.shared_bytes,
});

export const attention = [
  family({
    ...prefill,
    file: "attention",
    pattern: "attention{mask}_{D}_{T}",
    over,
    apart: ["mask", "D"],
    launch: prefillLaunch,
  }),
  family({
    ...prefill,
    file: "attention_capped",
    defines: cappedDefines,
    pattern: "attention_capped_{D}_{T}",
    over: { D: ["64", "96", "128", "256"], T: ["bf16", "f16"] },
    apart: ["D"],
    launch: prefillLaunch,
  }),
  family({
    ...prefill,
    file: "attention_batch",
    defines: batchDefines,
    pattern: "attention_batch_{D}_{T}",
    over: { D: batchDims.map((d): `${BatchDim}` => `${d}`), T: ["bf16", "f16"] },
    apart: ["D"],
    launch: prefillLaunch,
  }),
  family({
    file: "attention_decode",
    pattern: "attention_decode{mask}_{D}_{T}",
    over: { ...over, mask: [...over.mask, "_f8"] },
    apart: ["mask", "D"],
    args: `${operands} scratch* counters* plan* ${sizes} splits:u32`,
    plan: "threads shared_bytes entries",
    defines: (arch) => ({ ...decodeDefines(arch), ...planDefines }),
    launch: (s) => ({
      ...blocks(decodeBlocks(s.plan ? 1 : s.batch, s.heads, s.kv_heads, s.tq) * s.entries, 1, s.threads),
      shared: s.shared_bytes,
    }),
  }),
  family({
    ...step,
    file: "attention_step",
    pattern: "attention_{step}_{D}_{T}",
    over: { step: ["step", "steps"], ...stepOver },
    apart: ["step", "D"],
    defines: (arch) => ({ ...stepDefines(arch), ...xOrders }),
    launch: stepLaunch,
  }),
  family({
    ...step,
    file: "attention_cluster",
    pattern: "attention_cluster_{D}_{T}",
    over: stepOver,
    apart: ["D"],
    defines: { ...clusterDefines, ...xOrders },
    launch: stepLaunch,
  }),
  family({
    file: "attention_split",
    pattern: "attention_split{mask}_{D}_{T}",
    over,
    apart: ["mask", "D"],
    args: `${operands} offsets* scratch* ${sizes} out_b out_h out_t splits:u32`,
    plan: "threads blocks shared_bytes",
    defines: splitDefines,
    launch: (s) => ({ ...blocks(s.blocks, 1, s.threads), shared: s.shared_bytes }),
  }),
  family({
    file: "attention_split",
    pattern: "attention_join_{T}",
    over: { T: quantFloats },
    args: `${operands} offsets* scratch* ${sizes} out_b out_h out_t splits:u32 rows:u32`,
    plan: "threads",
    defines: splitDefines,
    launch: (s) => blocks(s.tq * Math.ceil((s.heads * s.dv) / 4 / s.threads), 1, s.threads),
  }),
  family({
    file: "attention_latent",
    pattern: "attention_latent_{T}",
    over: { T: quantFloats },
    args: "q* k* mask* lengths* tables* out* scratch* counters* batch heads tq tk d dv k_b k_t mask_b mask_h mask_i mask_j scale:f64 splits:u32",
    plan: "threads shared_bytes",
    defines: latentDefines,
    launch: (s) => ({
      ...blocks(decodeBlocks(s.batch, s.heads, 1, s.tq) * s.splits, 1, s.threads),
      shared: s.shared_bytes,
    }),
  }),
  family({
    file: "latent_append",
    pattern: "latent_append{i}_{T}",
    over: { i: ["", "_i"], T: quantFloats },
    args: "q* q_rope* latent* k_rope* cos* sin* lengths* padding* tables* out* cache* batch t heads rank rope pitch past q_row q_head rope_row rope_head latent_row k_rope_row cache_b width",
    defines: { PAGE_SIZE },
    launch: (s) => perThread(s.batch * s.t * (s.heads + 1) * s.pitch),
  }),
] as const;
