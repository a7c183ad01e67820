/** Convolution, pooling, upsampling. */
import { BLOCK, blocks, family, floats, numbers, perThread } from "./family.ts";
import { productDefines } from "./product.ts";

const window = "numel info* h_out w_out stride_h stride_w padding_h padding_w dilation_h dilation_w";

/** Outputs one below the other that a thread of a depthwise convolution makes, with stride 1. */
const DEPTHWISE_ROWS = 8;
const depthwiseTaps = ["3", "5", "7"] as const;
const depthwiseStrides = ["1", "2"] as const;

/** The depthwise kernel for so many taps and such a stride, both ways. */
export function planDepthwise(
  taps: readonly [number, number],
  stride: readonly [number, number],
  rows: number,
): {
  readonly taps: (typeof depthwiseTaps)[number];
  readonly stride: (typeof depthwiseStrides)[number];
  readonly blocks: number;
} | null {
  const k = depthwiseTaps.find((n) => taps.every((t) => t === Number(n)));
  const s = depthwiseStrides.find((n) => stride.every((t) => t === Number(n)));
  return k && s ? { taps: k, stride: s, blocks: Math.ceil(rows / (DEPTHWISE_ROWS / Number(s))) } : null;
}

export const conv = [
  family({
    file: "conv",
    pattern: "conv_depthwise{k}_{s}_{T}",
    over: { k: depthwiseTaps, s: depthwiseStrides, T: ["bf16", "f16", "f32"] },
    apart: ["k", "s"],
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
    over: { kind: ["product", "spread"], size: ["", "_small", "_wide"], T: ["bf16", "f16"] },
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
    plan: "tiles",
    launch: (s) => blocks(s.planes * s.tiles, BLOCK / 32),
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
