/** Quantized weights: dequantizing, row lookup, products of many rows (linear.ts has those of few). */
import type { DType } from "../../../core/dtype.ts";
import { BLOCK, blocks, type Defines, family, perThread, quantFloats, quants } from "./family.ts";

/** Weights that a warp dequantizes at a time. */
const QUANT_CHUNK = 1024;
const WARPS = BLOCK / 32;
/** Rows of weights and of activations whose products a block makes. */
const MATMUL_ROWS = 128;
const MATMUL_COLUMNS = 64;

/** Gates by number; 0 is none. */
export const gluNumbers = { silu: 1, gelu: 2 } as const;

/** How kernels that take a dtype as a number know it. */
const numbers = { f32: 0, f16: 1, bf16: 2 } as const;
export const quantOutput: Readonly<Partial<Record<DType, number>>> = numbers;
/** As kernels/stream.h has them. */
export const streamDefines: Defines = {
  DTYPE_f32: numbers.f32,
  DTYPE_f16: numbers.f16,
  DTYPE_bf16: numbers.bf16,
  GLU_silu: gluNumbers.silu,
  GLU_gelu: gluNumbers.gelu,
};

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
    defines: { ...streamDefines, QUANT_CHUNK },
    launch: (s) => blocks(s.numel, QUANT_CHUNK * WARPS),
  }),
  family({
    file: "quant-blocks",
    pattern: "get_rows_{Q}_{T}",
    over: { Q: quants, T: quantFloats },
    args: "w* ids* out* count rows k id_bytes:u32 error*",
    launch: (s) => blocks(s.count * Math.ceil(s.k / QUANT_CHUNK), WARPS),
  }),
  family({
    file: "quant-quantize",
    pattern: "quantize_q8_{T}",
    over: { T: quantFloats },
    args: "x* xq* xs* numel",
    defines: streamDefines,
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
    defines: { ...streamDefines, MATMUL_ROWS, MATMUL_COLUMNS },
    launch: (s) => blocks(Math.ceil(s.n / MATMUL_ROWS) * Math.ceil(s.batch / MATMUL_COLUMNS)),
  }),
] as const;
