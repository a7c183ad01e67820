/** Quantized weights: dequantizing, row lookup, products of many rows (linear.ts has those of few). */
import type { DType } from "../../../core/dtype.ts";
import { blocks, type Family, perThread, quantFloats, quants } from "./family.ts";

/** Weights that a warp dequantizes at a time, and warps of a block. */
const QUANT_CHUNK = 1024;
const QUANT_WARPS = 8;

/** How kernels that take the dtype of their output as a number know it. */
export const quantOutput: Readonly<Partial<Record<DType, number>>> = { f32: 0, f16: 1, bf16: 2 };

export const quantized: readonly Family[] = [
  {
    file: "quant-blocks",
    pattern: "dequantize_block_{Q}_{T}",
    over: { Q: quants, T: quantFloats },
    args: "numel w* out*",
    launch: (s) => blocks(s.numel!, QUANT_CHUNK * QUANT_WARPS),
  },
  {
    file: "quant-blocks",
    pattern: "get_rows_{Q}_{T}",
    over: { Q: quants, T: quantFloats },
    args: "count rows k w* ids* out* id_bytes:u32 error*",
    launch: (s) => blocks(s.count! * Math.ceil(s.k! / QUANT_CHUNK), QUANT_WARPS),
  },
  {
    file: "quant-quantize",
    pattern: "quantize_q8_{T}",
    over: { T: quantFloats },
    args: "numel src* xq* xs*",
    launch: (s) => perThread(s.numel!, 8),
  },
  {
    file: "quant-quantize",
    pattern: "quantize_{blocks}",
    over: { blocks: ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"], T: ["f32"] },
    args: "numel src* dst*",
    launch: (s) => perThread(s.numel!, 32),
  },
  {
    file: "quant-matmul",
    pattern: "mul_mat_{Q}_q8",
    over: { Q: quants },
    args: "batch n k w* xq* xs* y* dtype:u32",
    launch: (s) => blocks(Math.ceil(s.n! / 128) * Math.ceil(s.batch! / 64)),
  },
];
