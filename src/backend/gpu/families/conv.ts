/** Convolution, pooling, upsampling. */
import { type Family, numbers, perThread } from "./family.ts";

export const conv: readonly Family[] = [
  {
    file: "conv",
    pattern: "conv1d_{T}",
    over: { T: numbers },
    args: "numel l_out stride padding dilation info* src* kernel* dst* groups",
    launch: (s) => perThread(s.numel!),
  },
  {
    file: "conv",
    pattern: "conv2d_{T}",
    over: { T: numbers },
    args: "numel w_out h_out stride padding dilation info* src* kernel* dst* stride_h padding_h dilation_h groups",
    launch: (s) => perThread(s.numel!),
  },
  {
    file: "conv",
    pattern: "im2col1d_{T}",
    over: { T: numbers },
    args: "dst_numel l_out l_k stride padding dilation info* src* dst*",
    launch: (s) => perThread(s.dst_numel!),
  },
  {
    file: "conv",
    pattern: "im2col_{T}",
    over: { T: numbers },
    args: "dst_numel h_out w_out h_k w_k stride padding dilation info* src* dst* stride_h padding_h dilation_h",
    launch: (s) => perThread(s.dst_numel!),
  },
  {
    file: "conv",
    pattern: "col2im1d_{T}",
    over: { T: numbers },
    args: "dst_el l_out l_in c_out k_size stride src* dst* padding dilation",
    launch: (s) => perThread(s.dst_el!),
  },
  {
    file: "conv",
    pattern: "conv_transpose1d_{T}",
    over: { T: numbers },
    args: "numel l_out stride padding out_padding dilation info* src* kernel* dst* groups",
    launch: (s) => perThread(s.numel!),
  },
  {
    file: "conv",
    pattern: "conv_transpose2d_{T}",
    over: { T: numbers },
    args: "numel w_out h_out stride padding out_padding dilation info* src* kernel* dst* stride_h padding_h dilation_h groups",
    launch: (s) => perThread(s.numel!),
  },
  {
    file: "pool",
    pattern: "{kind}_pool2d_{T}",
    over: { kind: ["avg", "max"], T: numbers },
    args: "numel w_k h_k w_stride h_stride info* src* dst*",
    launch: (s) => perThread(s.numel!),
  },
  {
    file: "pool",
    pattern: "upsample_nearest2d_{T}",
    over: { T: numbers },
    args: "w_out h_out w_scale:f64 h_scale:f64 info* src* dst* numel",
    launch: (s) => perThread(s.numel!),
  },
  {
    file: "pool",
    pattern: "upsample_bilinear2d_{T}",
    over: { T: numbers },
    args: "w_out h_out align_corners:u8 has_scale_h:u8 scale_h:f64 has_scale_w:u8 scale_w:f64 info* src* dst* numel",
    launch: (s) => perThread(s.numel!),
  },
];
