/** Quantized weights: dequantizing, row lookup, products of many rows (linear.ts has those of few). */
import type { DType } from "../../../core/dtype.ts";
import { blocks, family, perThread, quantFloats, quants } from "./family.ts";

/** Weights that a warp dequantizes at a time, and warps of a block. */
const QUANT_CHUNK = 1024;
const QUANT_WARPS = 8;

/** How kernels that take the dtype of their output as a number know it. */
export const quantOutput: Readonly<Partial<Record<DType, number>>> = { f32: 0, f16: 1, bf16: 2 };

/** The types that there are kernels to quantize to. */
const quantizers = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"] as const;
export const isQuantizer = (name: string): name is (typeof quantizers)[number] =>
  quantizers.some((quantizer) => quantizer === name);

export const quantized = [
  family({
    file: "quant-blocks",
    pattern: "dequantize_block_{Q}_{T}",
    over: { Q: quants, T: quantFloats },
    args: "w* out* numel",
    launch: (s) => blocks(s.numel, QUANT_CHUNK * QUANT_WARPS),
  }),
  family({
    file: "quant-blocks",
    pattern: "get_rows_{Q}_{T}",
    over: { Q: quants, T: quantFloats },
    args: "w* ids* out* count rows k id_bytes:u32 error*",
    launch: (s) => blocks(s.count * Math.ceil(s.k / QUANT_CHUNK), QUANT_WARPS),
  }),
  family({
    file: "quant-quantize",
    pattern: "quantize_q8_{T}",
    over: { T: quantFloats },
    args: "x* xq* xs* numel",
    launch: (s) => perThread(s.numel, 8),
  }),
  family({
    file: "quant-quantize",
    pattern: "quantize_{blocks}",
    over: { blocks: quantizers, T: ["f32"] },
    args: "x* out* numel",
    launch: (s) => perThread(s.numel, 32),
  }),
  family({
    file: "quant-matmul",
    pattern: "mul_mat_{Q}_q8",
    over: { Q: quants },
    args: "xq* xs* w* out* batch n k dtype:u32",
    launch: (s) => blocks(Math.ceil(s.n / 128) * Math.ceil(s.batch / 64)),
  }),
] as const;
