/** Convolution, pooling and resampling. The 1-D forms are the 2-D ones with a height of 1. */
import { fail } from "../core/errors.ts";
import { formatShape } from "../core/layout.ts";
import * as check from "./check.ts";
import { result, type Tensor } from "./tensor.ts";

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

function window(op: string, o: ConvOptions<Pair>) {
  const [stride, padding, dilation] = [pair(o.stride ?? 1), pair(o.padding ?? 0), pair(o.dilation ?? 1)];
  for (const s of stride) check.positiveInt(op, "the stride", s);
  for (const p of padding) check.positiveInt(op, "the padding", p, 0);
  for (const d of dilation) check.positiveInt(op, "the dilation", d);
  const groups = o.groups ?? 1;
  check.positiveInt(op, "groups", groups);
  return { stride, padding, dilation, groups };
}

function conv2d(op: string, x: Tensor, w: Tensor, o: ConvOptions<Pair>): Tensor {
  check.compatible(op, x, w);
  const p = window(op, o);
  const [b, c, h, width] = x.shape as [number, number, number, number];
  const [out, inner, kh, kw] = w.shape as [number, number, number, number];
  if (c !== inner * p.groups || out % p.groups !== 0) {
    fail(
      "ConvInvalidArgs",
      `${op}: input ${formatShape(x.shape)} has ${c} channels, the kernel ${formatShape(w.shape)} wants ${inner} × ${p.groups} groups, and its ${out} outputs must divide into the groups`,
    );
  }
  const size = ([h, width] as const).map((n, i) => {
    const reach = p.dilation[i]! * ([kh, kw][i]! - 1) + 1;
    if (reach > n + 2 * p.padding[i]!) {
      fail(
        "ConvInvalidArgs",
        `${op}: a kernel of ${[kh, kw][i]} with dilation ${p.dilation[i]} reaches over ${reach}, more than the padded input's ${n + 2 * p.padding[i]!}`,
      );
    }
    return Math.floor((n + 2 * p.padding[i]! - reach) / p.stride[i]!) + 1;
  });
  return result(x.backend.conv2d(x, w, p), [b, out, size[0]!, size[1]!]);
}

function convTranspose2d(op: string, x: Tensor, w: Tensor, o: ConvTransposeOptions<Pair>): Tensor {
  check.compatible(op, x, w);
  const p = { ...window(op, o), outputPadding: pair(o.outputPadding ?? 0) };
  const [b, c, h, width] = x.shape as [number, number, number, number];
  const [inner, out, kh, kw] = w.shape as [number, number, number, number];
  if (c !== inner || c % p.groups !== 0) {
    fail(
      "ConvInvalidArgs",
      `${op}: input ${formatShape(x.shape)} has ${c} channels, the kernel ${formatShape(w.shape)} wants ${inner}, divisible by ${p.groups} groups`,
    );
  }
  const size = ([h, width] as const).map((n, i) => {
    const extra = p.outputPadding[i]!;
    check.positiveInt(op, "the output padding", extra, 0);
    if (extra >= Math.max(p.stride[i]!, p.dilation[i]!)) {
      fail(
        "ConvInvalidArgs",
        `${op}: the output padding ${extra} must be smaller than the stride ${p.stride[i]} or the dilation ${p.dilation[i]}`,
      );
    }
    const length = (n - 1) * p.stride[i]! - 2 * p.padding[i]! + p.dilation[i]! * ([kh, kw][i]! - 1) + extra + 1;
    if (length < 0) fail("ConvInvalidArgs", `${op}: padding ${p.padding[i]} leaves no output for an input of ${n}`);
    return length;
  });
  return result(x.backend.convTranspose2d(x, w, p), [b, out * p.groups, size[0]!, size[1]!]);
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

function checkRanks(op: string, x: Tensor, w: Tensor, rank: number): void {
  check.hasRank(op, x, rank);
  check.hasRank(op, w, rank, "the kernel");
  if (w.shape.slice(2).includes(0)) fail("ConvInvalidArgs", `${op}: the kernel ${formatShape(w.shape)} has no extent`);
}

function pool(kind: "avg" | "max", x: Tensor, kernel: Pair, stride: Pair): Tensor {
  const op = `${kind}Pool2d`;
  check.hasRank(op, x, 4);
  const [k, s] = [pair(kernel), pair(stride)];
  for (const n of [...k, ...s]) check.positiveInt(op, "kernel and stride", n);
  const [b, c, ...size] = x.shape as [number, number, number, number];
  if (size.some((n, i) => n < k[i]!)) {
    fail("ConvInvalidArgs", `${op}: the kernel ${formatShape(k)} is larger than the input ${formatShape(x.shape)}`);
  }
  const out = size.map((n, i) => Math.floor((n - k[i]!) / s[i]!) + 1);
  return result(x.backend.pool2d(kind, x, k, s), [b, c, ...out]);
}

function checkUpsample(op: string, x: Tensor, height: number, width: number): void {
  check.hasRank(op, x, 4);
  check.positiveInt(op, "the height", height);
  check.positiveInt(op, "the width", width);
  if (x.shape[2] === 0 || x.shape[3] === 0)
    fail("EmptyTensor", `${op}: the input ${formatShape(x.shape)} has no pixels`);
}

export type ConvMethods = typeof convolution;

export const convolution = {
  /** x (b, c, l) with kernel (o, c / groups, k). */
  conv1d(this: Tensor, kernel: Tensor, options: ConvOptions = {}): Tensor {
    checkRanks("conv1d", this, kernel, 3);
    return flat(this, kernel, (x, w) => conv2d("conv1d", x, w, row(options)));
  },

  /** x (b, c, h, w) with kernel (o, c / groups, kh, kw). */
  conv2d(this: Tensor, kernel: Tensor, options: ConvOptions<Pair> = {}): Tensor {
    checkRanks("conv2d", this, kernel, 4);
    return conv2d("conv2d", this, kernel, options);
  },

  /** x (b, c, l) with kernel (c, o / groups, k). */
  convTranspose1d(this: Tensor, kernel: Tensor, options: ConvTransposeOptions = {}): Tensor {
    checkRanks("convTranspose1d", this, kernel, 3);
    const o = { ...row(options), outputPadding: [0, options.outputPadding ?? 0] as const };
    return flat(this, kernel, (x, w) => convTranspose2d("convTranspose1d", x, w, o));
  },

  /** x (b, c, h, w) with kernel (c, o / groups, kh, kw). */
  convTranspose2d(this: Tensor, kernel: Tensor, options: ConvTransposeOptions<Pair> = {}): Tensor {
    checkRanks("convTranspose2d", this, kernel, 4);
    return convTranspose2d("convTranspose2d", this, kernel, options);
  },

  /** The mean of each window; the stride is the kernel size unless given. */
  avgPool2d(this: Tensor, kernel: Pair, stride: Pair = kernel): Tensor {
    return pool("avg", this, kernel, stride);
  },

  maxPool2d(this: Tensor, kernel: Pair, stride: Pair = kernel): Tensor {
    return pool("max", this, kernel, stride);
  },

  /** x (b, c, l) → (b, c, size), each element from the nearest one. */
  upsampleNearest1d(this: Tensor, size: number): Tensor {
    check.hasRank("upsampleNearest1d", this, 3);
    using raised = this.unsqueeze(2);
    using y = raised.upsampleNearest2d(1, size);
    return y.squeezeDims([2]);
  },

  upsampleNearest2d(this: Tensor, height: number, width: number): Tensor {
    checkUpsample("upsampleNearest2d", this, height, width);
    return result(this.backend.upsampleNearest2d(this, [height, width]), [
      this.shape[0]!,
      this.shape[1]!,
      height,
      width,
    ]);
  },

  upsampleBilinear2d(this: Tensor, height: number, width: number, alignCorners = false): Tensor {
    checkUpsample("upsampleBilinear2d", this, height, width);
    check.floating("upsampleBilinear2d", this);
    const y = this.backend.upsampleBilinear2d(this, [height, width], alignCorners, null);
    return result(y, [this.shape[0]!, this.shape[1]!, height, width]);
  },

  /** Bilinear by a factor: the size is floor(n · factor), and the factor itself sets the step through the source. */
  upsampleBilinear2dWithScale(this: Tensor, scaleHeight: number, scaleWidth: number, alignCorners = false): Tensor {
    check.floating("upsampleBilinear2dWithScale", this);
    const [h, w] = [Math.floor(this.shape[2]! * scaleHeight), Math.floor(this.shape[3]! * scaleWidth)];
    checkUpsample("upsampleBilinear2dWithScale", this, h, w);
    const y = this.backend.upsampleBilinear2d(this, [h, w], alignCorners, [1 / scaleHeight, 1 / scaleWidth]);
    return result(y, [this.shape[0]!, this.shape[1]!, h, w]);
  },

  /** Candle's names for nearest upsampling. */
  interpolate1d(this: Tensor, size: number): Tensor {
    return this.upsampleNearest1d(size);
  },

  interpolate2d(this: Tensor, height: number, width: number): Tensor {
    return this.upsampleNearest2d(height, width);
  },
};
