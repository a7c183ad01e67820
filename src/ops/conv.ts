/** Convolution, pooling and resampling. The 1-D forms are the 2-D ones with a height of 1. */
import type { Size2d } from "../backend/fused-ops.ts";
import { fail } from "../core/errors.ts";
import { formatShape } from "../core/layout.ts";
import type { Tensor } from "../tensor/tensor.ts";
import * as check from "./check.ts";
import { compute } from "./compute.ts";
import { group, op } from "./op.ts";

/** One number for both directions, or [height, width]. */
export type Pair = number | readonly [number, number];

export interface ConvOptions<P = number> {
  /** Default 1. */
  readonly stride?: P;
  /** Zeros on each side; default 0. */
  readonly padding?: P;
  /** Default 1. */
  readonly dilation?: P;
  /** Default 1. */
  readonly groups?: number;
}
export interface ConvTransposeOptions<P = number> extends ConvOptions<P> {
  /** Rows added at one side of the result; default 0. */
  readonly outputPadding?: P;
}

const pair = (p: Pair): [number, number] => (typeof p === "number" ? [p, p] : [p[0], p[1]]);

interface Window {
  readonly stride: [number, number];
  readonly padding: [number, number];
  readonly dilation: [number, number];
  readonly groups: number;
}

function window(name: string, o: ConvOptions<Pair>): Window {
  const [stride, padding, dilation] = [pair(o.stride ?? 1), pair(o.padding ?? 0), pair(o.dilation ?? 1)];
  for (const s of stride) check.positiveInt(name, "the stride", s);
  for (const p of padding) check.positiveInt(name, "the padding", p, 0);
  for (const d of dilation) check.positiveInt(name, "the dilation", d);
  const groups = o.groups ?? 1;
  check.positiveInt(name, "groups", groups);
  return { stride, padding, dilation, groups };
}

const both = <T>(run: (i: 0 | 1) => T): [T, T] => [run(0), run(1)];

/** Outputs along one of the two dims of an image, of `length` inputs. */
function extent(name: string, { stride, padding, dilation }: Window, i: 0 | 1, length: number, kernel: number): number {
  const reach = dilation[i] * (kernel - 1) + 1;
  const padded = length + 2 * padding[i];
  if (reach > padded) {
    fail(
      "ConvInvalidArgs",
      `${name}: a kernel of ${kernel} with dilation ${dilation[i]} reaches over ${reach}, more than the padded input's ${padded}`,
    );
  }
  return Math.floor((padded - reach) / stride[i]) + 1;
}

function conv2d(name: string, x: Tensor, w: Tensor, o: ConvOptions<Pair>): Tensor {
  check.compatible(name, x, w);
  const p = window(name, o);
  const [input, kernel] = [x.shape, w.shape];
  const [c, out, inner] = [input[1]!, kernel[0]!, kernel[1]!];
  if (c !== inner * p.groups || out % p.groups !== 0) {
    fail(
      "ConvInvalidArgs",
      `${name}: input ${formatShape(x.shape)} has ${c} channels, the kernel ${formatShape(w.shape)} wants ${inner} × ${p.groups} groups, and its ${out} outputs must divide into the groups`,
    );
  }
  const height = extent(name, p, 0, input[2]!, kernel[2]!);
  const width = extent(name, p, 1, input[3]!, kernel[3]!);
  return compute(x.backend, "conv2d", [input[0]!, out, height, width], x, w, { ...p, size: [height, width] });
}

function convTranspose2d(name: string, x: Tensor, w: Tensor, o: ConvTransposeOptions<Pair>): Tensor {
  check.compatible(name, x, w);
  const p = window(name, o);
  const outputPadding = pair(o.outputPadding ?? 0);
  const [b, c, ...input] = x.shape as [number, number, number, number];
  const [inner, out, ...kernel] = w.shape as [number, number, number, number];
  if (c !== inner || c % p.groups !== 0) {
    fail(
      "ConvInvalidArgs",
      `${name}: input ${formatShape(x.shape)} has ${c} channels, the kernel ${formatShape(w.shape)} wants ${inner}, divisible by ${p.groups} groups`,
    );
  }
  const size = both((i) => {
    const extra = outputPadding[i];
    check.positiveInt(name, "the output padding", extra, 0);
    if (extra >= Math.max(p.stride[i], p.dilation[i])) {
      fail(
        "ConvInvalidArgs",
        `${name}: the output padding ${extra} must be smaller than the stride ${p.stride[i]} or the dilation ${p.dilation[i]}`,
      );
    }
    const reach = p.dilation[i] * (kernel[i] - 1) + 1;
    const length = (input[i] - 1) * p.stride[i] - 2 * p.padding[i] + reach + extra;
    if (length < 0) {
      fail("ConvInvalidArgs", `${name}: padding ${p.padding[i]} leaves no output for an input of ${input[i]}`);
    }
    return length;
  });
  return compute(x.backend, "convTranspose2d", [b, out * p.groups, ...size], x, w, { ...p, size });
}

/** Runs a 2-D operation on 1-D operands by giving them a height of 1. */
function flat(x: Tensor, w: Tensor, run: (x: Tensor, w: Tensor) => Tensor): Tensor {
  using x2 = x.unsqueeze(2);
  using w2 = w.unsqueeze(2);
  using y = run(x2, w2);
  return y.squeezeDims([2]);
}

const row = (o: ConvOptions): ConvOptions<Pair> => ({
  stride: [1, o.stride ?? 1],
  padding: [0, o.padding ?? 0],
  dilation: [1, o.dilation ?? 1],
  groups: o.groups ?? 1,
});

function checkRanks(name: string, x: Tensor, w: Tensor, rank: number): void {
  check.hasRank(name, x, rank);
  check.tensor(name, w, "the kernel");
  check.hasRank(name, w, rank, "the kernel");
  if (w.shape.slice(2).includes(0))
    fail("ConvInvalidArgs", `${name}: the kernel ${formatShape(w.shape)} has no extent`);
}

const pool = (kind: "avg" | "max") =>
  op("x kernel stride?", (x: Tensor, kernel: Pair, stride: Pair = kernel): Tensor => {
    const name = `${kind}Pool2d`;
    check.hasRank(name, x, 4);
    const [k, s] = [pair(kernel), pair(stride)];
    for (const n of [...k, ...s]) check.positiveInt(name, "kernel and stride", n);
    const [b, c, ...input] = x.shape as [number, number, number, number];
    if (input.some((n, i) => n < k[i]!)) {
      fail("ConvInvalidArgs", `${name}: the kernel ${formatShape(k)} is larger than the input ${formatShape(x.shape)}`);
    }
    const size = both((i) => Math.floor((input[i] - k[i]) / s[i]) + 1);
    return compute(x.backend, "pool2d", [b, c, ...size], kind, x, { kernel: k, stride: s, size });
  });

function checkUpsample(name: string, x: Tensor, [height, width]: Size2d): void {
  check.hasRank(name, x, 4);
  check.positiveInt(name, "the height", height);
  check.positiveInt(name, "the width", width);
  if (x.shape[2] === 0 || x.shape[3] === 0)
    fail("EmptyTensor", `${name}: the input ${formatShape(x.shape)} has no pixels`);
}

function nearest(name: string, x: Tensor, size: Size2d): Tensor {
  checkUpsample(name, x, size);
  return compute(x.backend, "upsampleNearest2d", [x.shape[0]!, x.shape[1]!, ...size], x, size);
}

function nearestRow(name: string, x: Tensor, size: number): Tensor {
  check.hasRank(name, x, 3);
  using raised = x.unsqueeze(2);
  using y = nearest(name, raised, [1, size]);
  return y.squeezeDims([2]);
}

function bilinear(name: string, x: Tensor, size: Size2d, alignCorners: boolean, scale: Size2d | null): Tensor {
  check.floating(name, x);
  checkUpsample(name, x, size);
  const shape = [x.shape[0]!, x.shape[1]!, ...size];
  return compute(x.backend, "upsampleBilinear2d", shape, x, size, alignCorners, scale);
}

export const convolution = group("conv", {
  /** x (b, c, l) with kernel (o, c / groups, k). */
  conv1d: op("x w options?", (x: Tensor, kernel: Tensor, options: ConvOptions = {}): Tensor => {
    checkRanks("conv1d", x, kernel, 3);
    return flat(x, kernel, (x2, w2) => conv2d("conv1d", x2, w2, row(options)));
  }),

  /** x (b, c, h, w) with kernel (o, c / groups, kh, kw). */
  conv2d: op("x w options?", (x: Tensor, kernel: Tensor, options: ConvOptions<Pair> = {}): Tensor => {
    checkRanks("conv2d", x, kernel, 4);
    return conv2d("conv2d", x, kernel, options);
  }),

  /** x (b, c, l) with kernel (c, o / groups, k). */
  convTranspose1d: op("x w options?", (x: Tensor, kernel: Tensor, options: ConvTransposeOptions = {}): Tensor => {
    checkRanks("convTranspose1d", x, kernel, 3);
    const o = { ...row(options), outputPadding: [0, options.outputPadding ?? 0] as const };
    return flat(x, kernel, (x2, w2) => convTranspose2d("convTranspose1d", x2, w2, o));
  }),

  /** x (b, c, h, w) with kernel (c, o / groups, kh, kw). */
  convTranspose2d: op("x w options?", (x: Tensor, kernel: Tensor, options: ConvTransposeOptions<Pair> = {}): Tensor => {
    checkRanks("convTranspose2d", x, kernel, 4);
    return convTranspose2d("convTranspose2d", x, kernel, options);
  }),

  /** The mean of each window; the stride is the kernel size unless given. */
  avgPool2d: pool("avg"),
  /** The largest of each window; the stride is the kernel size unless given. */
  maxPool2d: pool("max"),

  /** x (b, c, l) → (b, c, size), each element from the nearest one. */
  upsampleNearest1d: op("x size", (x: Tensor, size: number): Tensor => nearestRow("upsampleNearest1d", x, size)),

  /** x (b, c, h, w) → (b, c, height, width), each element from the nearest one. */
  upsampleNearest2d: op(
    "x height width",
    (x: Tensor, height: number, width: number): Tensor => nearest("upsampleNearest2d", x, [height, width]),
  ),

  /** x (b, c, h, w) → (b, c, height, width), each element a mean of the four around it. */
  upsampleBilinear2d: op(
    "x height width align_corners?",
    (x: Tensor, height: number, width: number, alignCorners = false): Tensor =>
      bilinear("upsampleBilinear2d", x, [height, width], alignCorners, null),
  ),

  /** Bilinear by a factor: the size is floor(n · factor), and the factor itself sets the step through the source. */
  upsampleBilinear2dWithScale: op(
    "x scale_height scale_width align_corners?",
    (x: Tensor, scaleHeight: number, scaleWidth: number, alignCorners = false): Tensor => {
      const size = [Math.floor(x.shape[2]! * scaleHeight), Math.floor(x.shape[3]! * scaleWidth)] as const;
      return bilinear("upsampleBilinear2dWithScale", x, size, alignCorners, [1 / scaleHeight, 1 / scaleWidth]);
    },
  ),

  /** Candle's name for nearest upsampling. */
  interpolate1d: op("x size", (x: Tensor, size: number): Tensor => nearestRow("interpolate1d", x, size)),

  /** Candle's name for nearest upsampling. */
  interpolate2d: op(
    "x height width",
    (x: Tensor, height: number, width: number): Tensor => nearest("interpolate2d", x, [height, width]),
  ),
});
