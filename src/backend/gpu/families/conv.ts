/** Convolution, pooling, upsampling. */
import { hasWarpgroups } from "../attention-plan.ts";
import { BLOCK, blocks, family, floats, numbers, perThread } from "./family.ts";
import {
  type BlockRates,
  type ProductPlan,
  planBlocks,
  productDefines,
  type ResultSizes,
  type Target,
} from "./product.ts";

const window = "numel info* h_out w_out stride_h stride_w padding_h padding_w dilation_h dilation_w";

/** Outputs one below the other that a thread of a depthwise convolution makes, with stride 1. */
const DEPTHWISE_ROWS = 8;
const depthwiseTaps = ["3", "5", "7"] as const;
const depthwiseForms = ["1", "2", "same"] as const;

/** Of a depthwise convolution. */
interface Depthwise {
  readonly taps: readonly [number, number];
  readonly stride: readonly [number, number];
  readonly padding: readonly [number, number];
  /** Of the result. */
  readonly size: readonly [number, number];
  /** Elements per vector of 16 bytes, where all rows of the image begin at such and are as long as the result's; else 0. */
  readonly vector: number;
}

/** The kernel for it, by its taps and its form, and its threads per channel; null where there is none. */
export function planDepthwise({ taps, stride, padding, size, vector }: Depthwise): {
  readonly taps: (typeof depthwiseTaps)[number];
  readonly form: (typeof depthwiseForms)[number];
  readonly threads: number;
} | null {
  const k = depthwiseTaps.find((n) => taps.every((t) => t === Number(n)));
  const s = stride[0];
  if (!k || stride[1] !== s || s > 2) return null;
  if (s === 1 && vector > 0 && 2 * padding[1] + 1 === taps[1]) {
    return { taps: k, form: "same", threads: Math.ceil(size[0] / (DEPTHWISE_ROWS / 2)) * (size[1] / vector) };
  }
  return { taps: k, form: s === 1 ? "1" : "2", threads: Math.ceil(size[0] / (DEPTHWISE_ROWS / s)) * size[1] };
}

/** How fast blocks of convolutions are: small ones reach six tenths of the others' rate. */
const convRates: BlockRates<"" | "_small"> = { "": [1, 1], _small: [2, 0.6] };

/** As planBlocks, but large blocks are made by warpgroups where there are such. */
export function planConvolution(sizes: ResultSizes, target: Target): ProductPlan<keyof typeof convRates> {
  const { size, launch } = planBlocks(sizes, target, convRates);
  if (size === "_small") return { size, launch };
  return { size: "", launch: hasWarpgroups(target.arch) ? { ...launch, threads: 2 * launch.tile_rows } : launch };
}

/** Threads of 32 that bring neighbouring pixels into the order of matrix products; the others have other channels. */
const TURN_ACROSS = 4;
/** Elements of a kernel that a block brings into order at once. */
const TURN_ELEMENTS = 8192;
/** Whole pieces of channels that such a block takes, of so many taps each; 0 where they are too many. */
export const turnedChannels = (taps: number): number => Math.floor(TURN_ELEMENTS / taps / 8) * 8;

export const conv = [
  family({
    file: "conv",
    pattern: "conv_depthwise{k}_{form}_{T}",
    over: { k: depthwiseTaps, form: depthwiseForms, T: ["bf16", "f16", "f32"] },
    apart: ["k", "form"],
    args: `x* w* out* ${window} groups`,
    defines: { DEPTHWISE_ROWS },
    launch: (s) => perThread(s.numel),
  }),
  family({
    file: "conv",
    pattern: "conv2d_{T}",
    over: { T: numbers },
    args: `x* w* out* ${window} groups`,
    launch: (s) => perThread(s.numel),
  }),
  family({
    file: "conv",
    pattern: "conv_transpose2d_{T}",
    over: { T: numbers },
    args: `x* w* out* ${window} groups`,
    launch: (s) => perThread(s.numel),
  }),
  family({
    file: "conv",
    pattern: "im2col_{T}",
    over: { T: floats },
    args: `x* out* ${window} h_k w_k`,
    launch: (s) => perThread(s.numel),
  }),
  family({
    file: "conv-product",
    pattern: "conv_{kind}{size}_{T}",
    over: { kind: ["product", "spread"], size: ["", "_small"], T: ["bf16", "f16"] },
    apart: ["kind", "size"],
    args: "x* w* out* groups m n depth info*",
    plan: "tile_rows tile_cols threads shared_bytes",
    defines: productDefines,
    launch: (s) => ({
      ...blocks(s.groups * Math.ceil(s.m / s.tile_rows) * Math.ceil(s.n / s.tile_cols), 1, s.threads),
      shared: s.shared_bytes,
    }),
  }),
  family({
    file: "conv-product",
    pattern: "conv_gather_{T}",
    over: { T: ["bf16", "f16"] },
    args: "x* out* numel info*",
    launch: (s) => perThread(s.numel),
  }),
  family({
    file: "conv-product",
    pattern: "conv_turn_{T}",
    over: { T: ["bf16", "f16"] },
    args: "x* out* planes info*",
    plan: "pixels pieces",
    defines: { TURN_ACROSS },
    launch: (s) => {
      const tiles = Math.ceil(s.pixels / (8 * TURN_ACROSS)) * Math.ceil(s.pieces / (32 / TURN_ACROSS));
      return blocks(s.planes * tiles, BLOCK / 32);
    },
  }),
  family({
    file: "conv-product",
    pattern: "conv_turn_taps_{T}",
    over: { T: ["bf16", "f16"] },
    args: "x* out* planes info*",
    plan: "taps channels",
    defines: { TURN_ELEMENTS },
    launch: (s) => blocks(s.planes * Math.ceil(s.channels / turnedChannels(s.taps))),
  }),
  family({
    file: "pool",
    pattern: "{kind}_pool2d_{T}",
    over: { kind: ["avg", "max"], T: numbers },
    args: "x* out* numel info* h_k w_k stride_h stride_w",
    launch: (s) => perThread(s.numel),
  }),
  family({
    file: "pool",
    pattern: "upsample_nearest2d_{T}",
    over: { T: numbers },
    args: "x* out* numel info* h_out w_out scale_h:f64 scale_w:f64",
    launch: (s) => perThread(s.numel),
  }),
  family({
    file: "pool",
    pattern: "upsample_bilinear2d_{T}",
    over: { T: numbers },
    args: "x* out* numel info* h_out w_out scale_h:f64 scale_w:f64 align_corners:u8",
    launch: (s) => perThread(s.numel),
  }),
] as const;
