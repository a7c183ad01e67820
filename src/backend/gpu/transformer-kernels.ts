/** The kernels that transformers run, so that they are compiled while the weights are read, or ahead of time. */
import type { DType } from "../../core/dtype.ts";
import type { TransformerNeeds } from "../transformers.ts";
import {
  hasWarpgroups,
  headDimFor,
  isBatchDim,
  type MatrixUnit,
  type StepDim,
  stepDims,
  supportsHeadDim,
} from "./attention-plan.ts";
import { type KernelName, kernels } from "./catalogue.ts";
import { quantName } from "./families/family.ts";
import { fineFor, wholeQuants } from "./families/linear.ts";
import { evenKinds, evenQuants } from "./families/quant-even.ts";
import { flowQuants } from "./families/quant-flow.ts";
import { isTiled } from "./families/quant-tiles.ts";
import { takesWide } from "./families/quant-wide.ts";
import { planWholeRows } from "./families/rows.ts";

/** Only those that there are, each once: a head size or dtype without a fused kernel has none of its name. */
const existing = (names: readonly KernelName[]): KernelName[] =>
  [...new Set(names)].filter((name) => kernels.has(name));

/** What turns stored weights into what is computed with. */
export function loadingKernels({ dtype, storedTypes, normsAreShifted }: TransformerNeeds): KernelName[] {
  const casts = (from: readonly DType[], to: DType): KernelName[] =>
    from.filter((stored) => stored !== to).map((stored) => `cast_${stored}_${to}` as const);
  return existing([
    ...casts(storedTypes, dtype),
    ...(normsAreShifted ? [...casts(storedTypes, "f32"), "affine_f32" as const, ...casts(["f32"], dtype)] : []),
  ]);
}

/** The products of prompts with weights, whose lines lie along k, where no vendor's library does them. */
export const productKernels = ({ dtype }: TransformerNeeds, unit: MatrixUnit, arch: string): KernelName[] =>
  existing(
    unit === "fma"
      ? [
          ...([`gemm_${dtype}`, `gemm_small_${dtype}`] as const),
          ...(dtype === "f32" ? (["sum_cols_f32"] as const) : []),
          ...(dtype === "f32" && hasWarpgroups(arch) ? (["gemm_pair_f32", "gemm_split_f32"] as const) : []),
        ]
      : (hasWarpgroups(arch)
          ? (["_wide", "_square", "_half", "_pair", "_split"] as const)
          : (["", "_small"] as const)
        ).map((size) => `product${size}_kk_${dtype}` as const),
  );

/** The same with quantized weights, and of batches. */
export function quantProductKernels({ dtype, quantTypes }: TransformerNeeds, arch: string): KernelName[] {
  const weights = quantTypes.map(quantName);
  if (weights.length === 0) return [];
  if (takesWide(dtype, arch))
    return existing([
      ...(["_32", "_64"] as const).flatMap((size) => weights.map((type) => `quant_wide${size}_${type}` as const)),
      ...weights.map((type) => (isTiled(type) ? (`quant_tiles_${type}` as const) : (`quant_wide_${type}` as const))),
      ...weights.map((type) => `quant_batch_${type}` as const),
      ...evenQuants
        .filter((type) => weights.includes(type))
        .flatMap((type) => evenKinds(dtype).map((kind) => `quant_even_${kind}_16_${type}` as const)),
      ...(["128", "256", "pair"] as const).flatMap((form) =>
        (["32", "64"] as const).flatMap((size) =>
          flowQuants
            .filter((type) => weights.includes(type))
            .map((type) => `quant_flow_${form}_${size}_${type}` as const),
        ),
      ),
      `quant_order_${dtype}`,
      ...(evenQuants.some((type) => weights.includes(type)) ? [`even_order_${dtype}` as const] : []),
    ]);
  return existing([
    ...(["", "_some", "_few"] as const).flatMap((size) =>
      weights.map((type) => `quant_product${size}_${type}_${dtype}` as const),
    ),
    `split_${dtype}`,
  ]);
}

/** What mixtures of experts run for one text, and for prompts. */
function expertKernels({ dtype, quantTypes, hasPlainWeights }: TransformerNeeds): KernelName[] {
  const weights = quantTypes.map(quantName);
  return [
    ...weights.flatMap(
      (type) => [`expert_linear${fineFor(dtype)}_${type}`, `expert_sum${fineFor(dtype)}_${type}`] as const,
    ),
    ...wholeQuants
      .filter((type) => weights.includes(type))
      .flatMap((type) => [`routed_open_${type}`, `routed_down_${type}`] as const),
    ...(["_few", "_some"] as const).flatMap((size) =>
      weights.map((type) => `expert_quant${size}_${type}_${dtype}` as const),
    ),
    ...(hasPlainWeights
      ? ([`expert_linear_${dtype}`, `expert_sum_${dtype}`, `expert_dense_small_${dtype}`] as const)
      : []),
    ...([`linear_thin_${dtype}`, `topk_${dtype}`, "topk_f32", "expert_order", `mix_${dtype}`] as const),
  ];
}

const gated = { silu: "swiglu", gelu: "geglu", clampedSwiglu: "clamped_swiglu" } as const;
const plain = { silu: "silu", gelu: "gelu", geluErf: "gelu_erf", relu: "relu" } as const;

/** The kernels of activations, with a gate and without. */
const activationKernels = ({ dtype, activation, mlpsAreGated }: TransformerNeeds): KernelName[] => {
  if (activation === "clampedSwiglu" || (mlpsAreGated && (activation === "silu" || activation === "gelu")))
    return [`${gated[activation]}_${dtype}`];
  return [`${plain[activation]}_${dtype}`, ...(mlpsAreGated ? [`mul_${dtype}` as const] : [])];
};

/** What encodes texts and pools their states. */
function encoderKernels(needs: TransformerNeeds): KernelName[] {
  const { dtype, quantTypes, headDim, hiddenSize } = needs;
  const heads = supportsHeadDim(headDim) ? [headDimFor(headDim)] : [];
  return existing([
    ...heads.map((d) => `attention_${d}_${dtype}` as const),
    ...quantTypes.map((type) => `get_rows_${quantName(type)}_${dtype}` as const),
    `layernorm_${dtype}`,
    `layernorm${planWholeRows(hiddenSize, dtype).suffix}_${dtype}`,
    `epilogue_${dtype}`,
    `add_${dtype}`,
    ...activationKernels(needs),
    ...(needs.positionsAreLearned ? [] : ([`rope_${dtype}`, `copy_strided_${dtype === "f32" ? 4 : 2}`] as const)),
    `index_select_u32_${dtype}`,
    ...(dtype === "f32" ? [] : ([`cast_${dtype}_f32`, "index_select_u32_f32"] as const)),
    ...([
      "fill_u32",
      "fill_f32",
      "sum_cols_f32",
      "sum_f32",
      "mul_f32",
      "sqr_f32",
      "sqrt_f32",
      "maximum_f32",
      "div_f32",
    ] as const),
  ]);
}

/** What continues one text, or encodes some; those that take longest to compile first. */
export function transformerKernels(needs: TransformerNeeds, arch = ""): KernelName[] {
  if (needs.encodes) return encoderKernels(needs);
  const { dtype, quantTypes, headDim, hiddenSize } = needs;
  const masked = needs.scoresAreShaped ? "_masked" : "";
  const [decoding, stored] = needs.cachesBytes ? (["_f8", "_f8"] as const) : ([masked, ""] as const);
  const heads = supportsHeadDim(headDim) ? [headDimFor(headDim)] : [];
  const size = dtype === "f32" ? 4 : 2;
  const wide = planWholeRows(hiddenSize, dtype).suffix;
  const weights = quantTypes.map(quantName);
  const norm = needs.norm === "rms" ? "rmsnorm" : "layernorm";
  const turn = needs.interleaved ? "_i" : "";
  return existing([
    ...(needs.attendsToLatents ? ([`attention_latent_${dtype}`, `latent_append${turn}_${dtype}`] as const) : []),
    ...heads.flatMap((d) => [`attention_decode${decoding}_${d}_${dtype}`, `attention${masked}_${d}_${dtype}`] as const),
    ...heads
      .filter(isBatchDim)
      .flatMap((d) =>
        hasWarpgroups(arch) && dtype !== "f32" && !needs.scoresAreShaped
          ? [`attention_batch_${d}_${dtype}` as const]
          : [],
      ),
    ...(stepDims.some((d) => d === headDim) && !needs.cachesBytes && !needs.scoresAreShaped && dtype !== "f32"
      ? (hasWarpgroups(arch) ? (["cluster", "step"] as const) : (["step"] as const)).map(
          (step) => `attention_${step}_${headDim as StepDim}_${dtype as "bf16" | "f16"}` as const,
        )
      : []),
    ...weights.map((type) => `linear${fineFor(dtype)}_${type}_b1` as const),
    ...wholeQuants
      .filter((type) => weights.includes(type))
      .flatMap((type) => [`linear_once_${type}`, `linear_once_norm_${type}`] as const),
    ...(needs.hasPlainWeights
      ? ([`linear_${dtype}_b1`, `linear_norm_${dtype}_b1`, `linear_thin_${dtype}`] as const)
      : []),
    ...(needs.hasExperts ? expertKernels(needs) : []),
    ...weights.map((type) => `get_rows_${type}_${dtype}` as const),
    ...([
      "sample_best",
      "sample_weigh",
      "sample_draw",
      "advance_i64",
      "copy_page_i64",
      "fill_u32",
      "fill_i64",
    ] as const),
    `rope_append${stored}${turn}_${dtype}`,
    `${norm}_${dtype}`,
    `${norm}${wide}_${dtype}`,
    `add_${dtype}`,
    `epilogue_${dtype}`,
    `copy_strided_${size}`,
    `copy2d_${dtype}`,
    ...activationKernels(needs),
    ...(needs.positionsAreLearned
      ? (["sub_i64", "minimum_i64", `index_select_i64_${dtype}`, `index_select_u32_${dtype}`] as const)
      : []),
    ...(needs.hasPlainWeights ? ([`index_select_u32_${dtype}`] as const) : []),
    ...(dtype === "f32" ? [] : ([`cast_f32_${dtype}`, `cast_${dtype}_f32`] as const)),
    ...(needs.embeddingsAreScaled ? ([`affine_${dtype}`] as const) : []),
    ...(needs.logitsAreCapped ? (["affine_f32", "tanh_f32"] as const) : []),
  ]);
}

/** What batches and short prompts need besides; it is compiled when it is used. */
export function batchKernels({ dtype, quantTypes, headDim, scoresAreShaped }: TransformerNeeds): KernelName[] {
  const heads = supportsHeadDim(headDim) ? [headDimFor(headDim)] : [];
  const masked = scoresAreShaped ? "_masked" : "";
  const types = [
    `_${dtype}`,
    `_norm_${dtype}`,
    ...quantTypes.map((type) => `${fineFor(dtype)}_${quantName(type)}` as const),
  ] as const;
  return existing([
    ...heads.flatMap((d) => [`attention_decode_masked_${d}_${dtype}`, `attention_masked_${d}_${dtype}`] as const),
    ...heads.flatMap((d) => [`attention_split${masked}_${d}_${dtype}`, `attention_join_${dtype}`] as const),
    ...types.flatMap((type) => ([2, 4, 8] as const).map((rows) => `linear${type}_b${rows}` as const)),
    `fill_${dtype}`,
  ]);
}
