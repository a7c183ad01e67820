/**
 * Convolution, pooling and upsampling. Large convolutions become matrix products: of halves on a matrix unit over the image as it
 * is, of others over unrolled windows.
 */
import { isFloat, sizeOf } from "../../../core/dtype.ts";
import { Layout, numel } from "../../../core/layout.ts";
import type { View } from "../../backend.ts";
import type { ConvParams, PoolParams, Size2d as Size } from "../../fused-ops.ts";
import type { Storage } from "../../storage.ts";
import { planDepthwise } from "../families/conv.ts";
import { at, type Gpu } from "../gpu.ts";
import { convolveByProduct } from "./conv-product.ts";
import { multiply } from "./matmul.ts";

/** Multiply-adds from which unrolling the windows pays. */
const UNROLL_FROM = 2 ** 22;
/** Outputs of a group from which a matrix unit pays. */
const FEWEST_OUTPUTS = 4;
/** The unrolled windows of as many images as fit into this are multiplied at once. */
const UNROLL_BYTES = 2 ** 28;

const dims = (gpu: Gpu, ...views: View[]): number =>
  gpu.words(...views.flatMap((v) => [v.layout.shape, v.layout.strides]));
const window = (p: ConvParams, [h, w]: Size) => ({
  h_out: h,
  w_out: w,
  stride_h: p.stride[0],
  stride_w: p.stride[1],
  padding_h: p.padding[0],
  padding_w: p.padding[1],
  dilation_h: p.dilation[0],
  dilation_w: p.dilation[1],
});

export function conv2d(gpu: Gpu, x: View, w: View, p: ConvParams): Storage {
  const [h, width] = p.size;
  const { dtype } = x.storage;
  const [b, c] = x.layout.shape as [number, number, number, number];
  const [o, inner, kh, kw] = w.layout.shape as [number, number, number, number];
  const n = b * o * h * width;
  return gpu.filled(dtype, n, (out) => {
    const taps = inner * kh * kw;
    const isLarge = isFloat(dtype) && taps > 0 && n * taps >= UNROLL_FROM;
    if (isLarge && isPointwise(gpu, x, w, p)) return pointwise(gpu, x, w, out);
    if (isLarge && suitsUnit(o / p.groups) && convolveByProduct(gpu, x, w, p, out, { transposed: false })) return;
    if (isLarge && p.groups === 1) {
      return gpu.packed(w, (weights) => unrolled(gpu, x, weights, out, { b, c, o, h, width, kh, kw, taps, p }));
    }
    const values = {
      ...{ x: at(x), w: at(w), out },
      info: dims(gpu, x, w),
      ...window(p, [h, width]),
      groups: p.groups,
    };
    const plan = depthwisePlan(x, w, p);
    if (plan && (dtype === "bf16" || dtype === "f16" || dtype === "f32")) {
      const numel = b * o * plan.threads;
      gpu.launch(`conv_depthwise${plan.taps}_${plan.form}_${dtype}`, { ...values, numel });
    } else {
      gpu.launch(`conv2d_${dtype}`, { ...values, numel: n });
    }
  });
}

function depthwisePlan(x: View, w: View, { stride, padding, dilation, size }: ConvParams) {
  const [, inner, ...taps] = w.layout.shape as [number, number, number, number];
  const [, , , width] = x.layout.shape as [number, number, number, number];
  const [sb, sc, sh, sw] = x.layout.strides as [number, number, number, number];
  if (inner !== 1 || sw !== 1 || dilation.some((d) => d !== 1)) return null;
  const elements = 16 / sizeOf(x.storage.dtype);
  const inVectors = [sb, sc, sh, width].every((n) => n % elements === 0) && at(x) % 16 === 0;
  return planDepthwise({ taps, stride, padding, size, vector: inVectors ? elements : 0 });
}

/** Whether a matrix unit is kept busy: by groups of few outputs it is not. */
const suitsUnit = (outs: number): boolean => outs >= FEWEST_OUTPUTS;

/** One tap over every pixel: the product of the kernel and each image, where the images' pixels can be taken as one row. */
function isPointwise(gpu: Gpu, x: View, w: View, p: ConvParams): boolean {
  const [, c, height, width] = x.layout.shape as [number, number, number, number];
  const [sb, sc, sh, sw] = x.layout.strides as [number, number, number, number];
  const oneTap = w.layout.shape[2] === 1 && w.layout.shape[3] === 1 && p.groups === 1;
  const everyPixel = p.stride.every((n) => n === 1) && p.padding.every((n) => n === 0);
  if (!oneTap || !everyPixel || (height > 1 && sh !== width * sw)) return false;
  // The matrix unit reads whole pieces; what has none is better brought into order first.
  const inPieces = [height * width, c, sb, sc].every((n) => n % 8 === 0) && at(x) % 16 === 0;
  return gpu.matrixUnit(x.storage.dtype) === "fma" || (sw === 1 && inPieces);
}

function pointwise(gpu: Gpu, x: View, w: View, out: number): void {
  const [b, c, height, width] = x.layout.shape as [number, number, number, number];
  const [sb, sc, , sw] = x.layout.strides as [number, number, number, number];
  const sizes = { dtype: x.storage.dtype, m: w.layout.shape[0]!, n: height * width, k: c };
  gpu.packed(w, (weights) => {
    const kernel = { at: weights, row: c, col: 1, batch: new Layout([b], [0]) };
    const images = { at: at(x), row: sc, col: sw, batch: new Layout([b], [sb]) };
    multiply(gpu, { ...sizes, a: kernel, b: images }, out);
  });
}

interface Unrolled {
  readonly b: number;
  readonly c: number;
  readonly o: number;
  readonly h: number;
  readonly width: number;
  readonly kh: number;
  readonly kw: number;
  readonly taps: number;
  readonly p: ConvParams;
}

/** out (b, o, h·w) = weights (o, taps) × windows (b, h·w, taps)ᵀ, some images at a time. */
function unrolled(gpu: Gpu, x: View, weights: number, out: number, s: Unrolled): void {
  const { dtype } = x.storage;
  const bytes = sizeOf(dtype);
  const positions = s.h * s.width;
  const images = Math.max(1, Math.min(s.b, Math.floor(UNROLL_BYTES / (positions * s.taps * bytes))));
  gpu.temporary(images * positions * s.taps * bytes, (windows) => {
    for (let first = 0; first < s.b; first += images) {
      const count = Math.min(images, s.b - first);
      const part = { storage: x.storage, layout: x.layout.narrow(0, first, count) };
      gpu.launch(`im2col_${dtype}`, {
        x: at(part),
        out: windows,
        numel: count * positions * s.taps,
        info: dims(gpu, part),
        ...window(s.p, [s.h, s.width]),
        h_k: s.kh,
        w_k: s.kw,
      });
      multiply(
        gpu,
        {
          dtype,
          m: s.o,
          n: positions,
          k: s.taps,
          a: { at: weights, row: s.taps, col: 1, batch: new Layout([count], [0]) },
          b: { at: windows, row: 1, col: s.taps, batch: new Layout([count], [positions * s.taps]) },
        },
        out + first * s.o * positions * bytes,
      );
    }
  });
}

export function convTranspose2d(gpu: Gpu, x: View, w: View, p: ConvParams): Storage {
  const [h, width] = p.size;
  const { dtype } = x.storage;
  const n = x.layout.shape[0]! * w.layout.shape[1]! * p.groups * h * width;
  const [inner, outs, kh, kw] = w.layout.shape as [number, number, number, number];
  const taps = (inner / p.groups) * kh * kw;
  const isLarge = isFloat(dtype) && taps > 0 && n * taps >= UNROLL_FROM;
  return gpu.filled(dtype, n, (out) => {
    if (isLarge && suitsUnit(outs) && convolveByProduct(gpu, x, w, p, out, { transposed: true })) return;
    const operands = { x: at(x), w: at(w), out };
    gpu.launch(`conv_transpose2d_${dtype}`, {
      ...operands,
      numel: n,
      info: dims(gpu, x, w),
      ...window(p, [h, width]),
      groups: p.groups,
    });
  });
}

export function pool2d(gpu: Gpu, kind: "avg" | "max", x: View, { kernel, stride, size }: PoolParams): Storage {
  const { dtype } = x.storage;
  const [b, c] = x.layout.shape as [number, number, number, number];
  const n = b * c * numel(size);
  const sizes = { numel: n, h_k: kernel[0], w_k: kernel[1], stride_h: stride[0], stride_w: stride[1] };
  return gpu.filled(dtype, n, (out) =>
    gpu.launch(`${kind}_pool2d_${dtype}`, { x: at(x), out, info: dims(gpu, x), ...sizes }),
  );
}

export function upsampleNearest2d(gpu: Gpu, x: View, [h, w]: Size): Storage {
  const [b, c, height, width] = x.layout.shape as [number, number, number, number];
  const n = b * c * h * w;
  const sizes = { numel: n, h_out: h, w_out: w, scale_h: height / h, scale_w: width / w };
  return gpu.filled(x.storage.dtype, n, (out) =>
    gpu.launch(`upsample_nearest2d_${x.storage.dtype}`, { x: at(x), out, info: dims(gpu, x), ...sizes }),
  );
}

/** `steps` are source steps per output; the kernel takes the users' factors, their inverses. */
export function upsampleBilinear2d(
  gpu: Gpu,
  x: View,
  [h, w]: Size,
  alignCorners: boolean,
  steps: Size | null,
): Storage {
  const n = x.layout.shape[0]! * x.layout.shape[1]! * h * w;
  return gpu.filled(x.storage.dtype, n, (out) =>
    gpu.launch(`upsample_bilinear2d_${x.storage.dtype}`, {
      x: at(x),
      out,
      numel: n,
      info: dims(gpu, x),
      h_out: h,
      w_out: w,
      scale_h: steps ? 1 / steps[0] : 0,
      scale_w: steps ? 1 / steps[1] : 0,
      align_corners: Number(alignCorners),
    }),
  );
}
