/** The kernels that transformers run, so that they are compiled while the weights are read, or ahead of time. */
import type { DType } from "../../core/dtype.ts";
import type { TransformerNeeds } from "../transformers.ts";
import { headDimFor, supportsHeadDim } from "./attention-plan.ts";
import { kernels } from "./catalogue.ts";
import { planWholeRows } from "./families/rows.ts";

/** Only those that there are, each once: a head size or dtype without a fused kernel has none of its name. */
const existing = (names: readonly string[]): string[] => [...new Set(names)].filter((name) => kernels.has(name));

/** What turns stored weights into what is computed with. */
export function loadingKernels({ dtype, storedTypes, normsAreShifted }: TransformerNeeds): string[] {
  const casts = (from: readonly DType[], to: DType): string[] =>
    from.filter((stored) => stored !== to).map((stored) => `cast_${stored}_${to}`);
  return existing([
    ...casts(storedTypes, dtype),
    ...(normsAreShifted ? [...casts(storedTypes, "f32"), "affine_f32", ...casts(["f32"], dtype)] : []),
  ]);
}

/** The products of prompts, where no vendor's library does them. */
export const productKernels = ({ dtype }: TransformerNeeds): string[] =>
  existing([`gemm_${dtype}`, `gemm_small_${dtype}`]);

/** What continues one text, those that take longest to compile first. */
export function transformerKernels(needs: TransformerNeeds): string[] {
  const { dtype, quantTypes, headDim, hiddenSize } = needs;
  const head = supportsHeadDim(headDim) ? headDimFor(headDim) : 0;
  const masked = needs.scoresAreShaped ? "_masked" : "";
  const size = dtype === "f32" ? 4 : 2;
  const wide = planWholeRows(hiddenSize, dtype).suffix;
  const weights = quantTypes.map((type) => type.toLowerCase());
  return existing([
    `attention_decode${masked}_${head}_${dtype}`,
    `attention${masked}_${head}_${dtype}`,
    ...weights.map((type) => `linear_${type}_b1`),
    ...(needs.hasPlainWeights ? [`linear_${dtype}_b1`, `linear_norm_${dtype}_b1`] : []),
    ...weights.flatMap((type) => [`dequantize_block_${type}_${dtype}`, `get_rows_${type}_${dtype}`]),
    ...["sample_best", "sample_weigh", "sample_draw", "advance_i64", "const_set_u32", "const_set_i64"],
    `rope_append${needs.interleaved ? "_i" : ""}_${dtype}`,
    ...[`rmsnorm_${dtype}`, `rmsnorm${wide}_${dtype}`, `badd_${dtype}`, `copy_strided_${size}`, `copy2d_${dtype}`],
    `${needs.activation === "silu" ? "swiglu" : "geglu"}_${dtype}`,
    ...(needs.hasPlainWeights ? [`is_u32_${dtype}`] : []),
    ...(dtype === "f32" ? [] : [`cast_f32_${dtype}`, `cast_${dtype}_f32`]),
    ...(needs.embeddingsAreScaled ? [`affine_${dtype}`] : []),
    ...(needs.logitsAreCapped ? ["affine_f32", "utanh_f32"] : []),
  ]);
}

/** What batches and short prompts need besides; it is compiled when it is used. */
export function batchKernels({ dtype, quantTypes, headDim }: TransformerNeeds): string[] {
  const head = supportsHeadDim(headDim) ? headDimFor(headDim) : 0;
  const types = [dtype, `norm_${dtype}`, ...quantTypes.map((type) => type.toLowerCase())];
  return existing([
    `attention_decode_masked_${head}_${dtype}`,
    `attention_masked_${head}_${dtype}`,
    ...types.flatMap((type) => [2, 4, 8].map((rows) => `linear_${type}_b${rows}`)),
    `const_set_${dtype}`,
  ]);
}
