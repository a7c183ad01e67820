/** Fused attention: prefill and decode. */
import { ATTENTION_BLOCK, decodeBlocks, headDims } from "../attention-plan.ts";
import { blocks, type Family } from "./family.ts";

const problem =
  "q* k* v* mask* out* lengths* batch heads kv_heads tq tk d q_b q_h q_t k_b k_h k_t v_b v_h v_t mask_b mask_h mask_i mask_j scale:f64 softcap:f64 causal:u32 window";

export const attention: readonly Family[] = [
  {
    file: "attention",
    pattern: "attention{mask}_{D}_{T}",
    over: { mask: ["", "_masked"], D: headDims.map(String), T: ["bf16", "f16", "f32"] },
    apart: ["mask", "D"],
    args: `${problem} rows:u32 shared_bytes:u32`,
    launch: (s) => ({
      ...blocks(s.batch! * s.heads! * Math.ceil(s.tq! / s.rows!), 1, ATTENTION_BLOCK),
      shared: s.shared_bytes!,
    }),
  },
  {
    file: "attention_decode",
    pattern: "attention_decode{mask}_{D}_{T}",
    over: { mask: ["", "_masked"], D: headDims.map(String), T: ["bf16", "f16", "f32"] },
    apart: ["mask", "D"],
    args: `${problem} scratch* counters* splits:u32 threads:u32 shared_bytes:u32`,
    launch: (s) => ({
      ...blocks(decodeBlocks(s.batch!, s.heads!, s.kv_heads!, s.tq!) * s.splits!, 1, s.threads!),
      shared: s.shared_bytes!,
    }),
  },
];
