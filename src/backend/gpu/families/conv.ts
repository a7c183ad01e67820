/** Convolution, pooling, upsampling. */
import { family, numbers, perThread } from "./family.ts";

const window = "numel info* h_out w_out stride_h stride_w padding_h padding_w dilation_h dilation_w";

export const conv = [
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
    over: { T: numbers },
    args: `x* out* ${window} h_k w_k`,
    launch: (s) => perThread(s.numel),
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
