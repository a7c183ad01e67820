/** Quantized weights: dequantizing, row lookup, products. */
import type { DType } from "../../../core/dtype.ts";
import type { QuantType } from "../../../core/quant-types.ts";
import { blocks, type Family, perThread, quantFloats, quants } from "./family.ts";

/** Weights that a block dequantizes at a time. */
const QUANT_CHUNK = 8192;

/** Rows of quantized weights and threads per block, by the activation rows that a kernel is made for. */
const matVecBlock: Readonly<Record<string, [rows: number, threads: number]>> = {
  "1": [4, 128],
  "2": [8, 256],
  "4": [8, 128],
  "8": [16, 256],
};

/** The kernel that multiplies 1 … 8 activation rows with quantized weights. */
export const matVecName = (type: QuantType, batch: number): string =>
  `mul_mat_vec_${type.toLowerCase()}_q8_b${2 ** Math.ceil(Math.log2(batch))}`;

/** How kernels that take the dtype of their output as a number know it. */
export const quantOutput: Readonly<Partial<Record<DType, number>>> = { f32: 0, f16: 1, bf16: 2 };

export const quantized: readonly Family[] = [
  {
    file: "quant-blocks",
    pattern: "dequantize_block_{Q}_{T}",
    over: { Q: quants, T: quantFloats },
    args: "numel w* out*",
    launch: (s) => blocks(s.numel!, QUANT_CHUNK),
  },
  {
    file: "quant-blocks",
    pattern: "get_rows_{Q}_{T}",
    over: { Q: quants, T: quantFloats },
    args: "count rows k w* ids* out* id_bytes:u32 error*",
    launch: (s) => blocks(s.count! * Math.ceil(s.k! / QUANT_CHUNK)),
  },
  {
    file: "quant-quantize",
    pattern: "quantize_q8_{T}",
    over: { T: quantFloats },
    args: "numel src* xq* xs*",
    launch: (s) => perThread(s.numel!, 4),
  },
  {
    file: "quant-quantize",
    pattern: "quantize_{blocks}",
    over: { blocks: ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"], T: ["f32"] },
    args: "numel src* dst*",
    launch: (s) => perThread(s.numel!, 32),
  },
  {
    file: "quant-matvec",
    pattern: "mul_mat_vec_{Q}_q8_b{columns}",
    over: { Q: quants, columns: ["1", "2", "4", "8"] },
    args: "n k w* xq* xs* y* batch:u32 dtype:u32",
    launch: (s, b) => blocks(s.n!, ...matVecBlock[b.columns!]!),
  },
  {
    file: "quant-matmul",
    pattern: "mul_mat_{Q}_q8",
    over: { Q: quants },
    args: "batch n k w* xq* xs* y* dtype:u32",
    launch: (s) => blocks(Math.ceil(s.n! / 128) * Math.ceil(s.batch! / 64)),
  },
];
