/** Fused attention: prefill and decode. */
import {
  decodeBlocks,
  decodeDefines,
  type HeadDim,
  headDims,
  prefillBlocks,
  prefillDefines,
} from "../attention-plan.ts";
import { blocks, family, quantFloats } from "./family.ts";

const operands = "q* k* v* mask* sinks* lengths* out*";
const sizes =
  "batch heads kv_heads tq tk d dv q_b q_h q_t k_b k_h k_t v_b v_h v_t mask_b mask_h mask_i mask_j window scale:f64 softcap:f64 causal:u32";
const over = { mask: ["", "_masked"], D: headDims.map((d): `${HeadDim}` => `${d}`), T: quantFloats } as const;

export const attention = [
  family({
    file: "attention",
    pattern: "attention{mask}_{D}_{T}",
    over,
    apart: ["mask", "D"],
    args: `${operands} offsets* ${sizes} out_b out_h out_t`,
    plan: "threads rows shared_bytes",
    defines: prefillDefines,
    launch: (s) => ({
      ...blocks(prefillBlocks(s.batch, s.heads, s.tq, s.rows, s.offsets !== 0), 1, s.threads),
      shared: s.shared_bytes,
    }),
  }),
  family({
    file: "attention_decode",
    pattern: "attention_decode{mask}_{D}_{T}",
    over,
    apart: ["mask", "D"],
    args: `${operands} scratch* counters* ${sizes} splits:u32`,
    plan: "threads shared_bytes",
    defines: decodeDefines,
    launch: (s) => ({
      ...blocks(decodeBlocks(s.batch, s.heads, s.kv_heads, s.tq) * s.splits, 1, s.threads),
      shared: s.shared_bytes,
    }),
  }),
] as const;
