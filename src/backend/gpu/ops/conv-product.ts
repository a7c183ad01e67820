/** Convolutions of halves as products on the matrix unit (kernels/conv-feed.h), ordinary and transposed. */
import { sizeOf } from "../../../core/dtype.ts";
import type { View } from "../../backend.ts";
import type { ConvParams, Size2d } from "../../fused-ops.ts";
import type { MatrixUnit } from "../attention-plan.ts";
import { planProduct } from "../families/product.ts";
import { at, type Gpu } from "../gpu.ts";
import { type Reach, reachesOf } from "./conv-reach.ts";

/** Halves in 16 bytes: channels are read so many at a time. */
const PIECE = 8;
/** Kernels count pieces and pixels in 32 bits. */
const MAX_COUNT = 2 ** 31;
/** Products that one transposed convolution is made of, at most. */
const MAX_PRODUCTS = 64;

type Half = "bf16" | "f16";
type Four = readonly [number, number, number, number];

/** An operand in the order in which the kernels read it: what is where is said in kernels/conv-product.hip. */
interface Gather {
  readonly x: number;
  readonly steps: Readonly<Record<"image" | "group" | "channel" | "row" | "column", number>>;
  readonly images: number;
  readonly groups: number;
  readonly channels: number;
  /** Of x, and of the result. */
  readonly from: Size2d;
  readonly to: Size2d;
  /** Zeros before the first row, and before the first column. */
  readonly before: Size2d;
  /** Taps of a row that are folded into a column's channels, and how they lie. */
  readonly fold: { readonly taps: number; readonly step: number; readonly dilation: number };
}
const unfolded = { taps: 1, step: 1, dilation: 1 };

const piecesOf = ({ fold, channels }: Gather): number => Math.ceil((fold.taps * channels) / PIECE);
const allPiecesOf = (g: Gather): number => g.images * g.groups * g.to[0] * g.to[1] * piecesOf(g);

function gather(gpu: Gpu, dtype: Half, g: Gather, out: number): void {
  const { x, steps, groups, channels, from, to, before, fold } = g;
  const { image, group, channel, row, column } = steps;
  const sizes = [groups, channels, ...from, ...to, piecesOf(g), fold.taps, ...before, fold.step, fold.dilation];
  const info = gpu.words(sizes, [image, group, channel, row, column]);
  const pixels = from[0] * from[1];
  const inPieces = [pixels, image, group, channel].every((n) => n % PIECE === 0) && x % 16 === 0;
  const isPlane = column === 1 && (row === from[1] || from[0] === 1);
  if (inPieces && isPlane && fold.taps === 1) {
    const tiles = Math.ceil(piecesOf(g) / 4) * Math.ceil(pixels / 64);
    gpu.launch(`conv_turn_${dtype}`, { x, out, planes: g.images * groups, info, tiles });
  } else {
    const numel = g.images * groups * Math.ceil((to[0] * to[1]) / 16) * Math.ceil(piecesOf(g) / 2) * 32;
    gpu.launch(`conv_gather_${dtype}`, { x, out, numel, info });
  }
}

/** x with as many zeros around it as any output reaches. Channels that do not fill a piece are folded, where there is one way to. */
function imageOf(x: View, groups: number, reaches: readonly [readonly Reach[], readonly Reach[]]): Gather {
  const [images, c, height, width] = x.layout.shape as Four;
  const [image, channel, row, column] = x.layout.strides as Four;
  const channels = c / groups;
  const only = reaches[1].length === 1 && reaches[1][0]!.taps > 1 && channels < PIECE ? reaches[1][0]! : null;
  const before = reaches.map((axis) => Math.max(0, ...axis.map((r) => -r.first))) as [number, number];
  const end = (i: 0 | 1) => Math.max([height, width][i]!, ...reaches[i].map((r) => r.end)) + before[i];
  return {
    x: at(x),
    steps: { image, group: channel * channels, channel, row, column },
    ...{ images, groups, channels, from: [height, width], before },
    to: [end(0), only ? only.count : end(1)],
    fold: only ? { taps: only.taps, step: only.stride, dilation: only.dilation } : unfolded,
  };
}

/** The kernel's taps under some of the outputs. */
function weightsOf(
  w: View,
  groups: number,
  transposed: boolean,
  [down, across]: readonly [Reach, Reach],
  folded: boolean,
): Gather {
  const [first, second] = w.layout.shape as Four;
  const [s0, s1, row, column] = w.layout.strides as Four;
  const channels = transposed ? first / groups : second;
  const outs = transposed ? second : first / groups;
  const [group, out, channel] = transposed ? [s0 * channels, s1, s0] : [s0 * outs, s0, s1];
  return {
    x: at(w) + (down.firstTap * row + across.firstTap * column) * sizeOf(w.storage.dtype),
    steps: { image: group, group: out, channel, row: row * down.tapStep, column: column * across.tapStep },
    ...{ images: groups, groups: outs, channels, from: [down.taps, across.taps], before: [0, 0] },
    to: [down.taps, folded ? 1 : across.taps],
    fold: folded ? { ...unfolded, taps: across.taps } : unfolded,
  };
}

/** Whether pixels' channels can be read where they are. */
function isInOrder({ x, steps, channels, from, to, fold }: Gather): boolean {
  const { image, channel, row, column } = steps;
  return (
    (channel === 1 || channels === 1) &&
    fold.taps === 1 &&
    from.every((n, i) => n === to[i]) &&
    [image, row, column, channels].every((n) => n % PIECE === 0) &&
    x % 16 === 0
  );
}

type Steps = Readonly<Record<"image" | "group" | "row" | "column", number>>;

/** From one image, group, row and column of the copy that gather() makes to the next. */
function stepsOf(g: Gather): Steps {
  const column = piecesOf(g) * PIECE;
  const row = g.to[1] * column;
  const group = g.to[0] * row;
  return { image: g.groups * group, group, row, column };
}

/** What the products that a convolution is made of have in common. */
interface Common {
  readonly unit: Exclude<MatrixUnit, "fma">;
  readonly x: number;
  readonly steps: Steps;
  readonly image: Gather;
  readonly w: View;
  readonly p: ConvParams;
  readonly transposed: boolean;
  readonly out: number;
}

function multiply(gpu: Gpu, dtype: Half, common: Common, down: Reach, across: Reach): void {
  const { steps, image, p, unit } = common;
  const folded = image.fold.taps > 1;
  const weights = weightsOf(common.w, p.groups, common.transposed, [down, across], folded);
  const [m, pixels, pieces] = [weights.groups, down.count * across.count, piecesOf(image)];
  const n = image.images * pixels;
  const depth = weights.to[0] * weights.to[1] * pieces * PIECE;
  const { arch } = gpu.context.properties;
  const { multiprocessors } = gpu;
  const { size, launch } = planProduct({ batch: p.groups, m, n }, { unit, arch, multiprocessors });
  const places = [pixels, across.count, weights.to[1], pieces];
  const made = [p.size[0] * p.size[1], down.apart * p.size[1], across.apart];
  const read = [
    ...[steps.image, steps.group, steps.row * down.stride, steps.column * (folded ? 1 : across.stride)],
    ...[steps.row * down.dilation, steps.column * across.dilation],
  ];
  const info = gpu.words(
    places,
    made,
    read.map((step) => step / PIECE),
  );
  const row = down.first + image.before[0];
  const column = folded ? 0 : across.first + image.before[1];
  const kind = down.apart === 1 && across.apart === 1 ? "product" : "spread";
  gpu.temporary(allPiecesOf(weights) * PIECE * 2, (kernel) => {
    gather(gpu, dtype, weights, kernel);
    gpu.launch(`conv_${kind}${size}_${dtype}`, {
      x: common.x + (row * steps.row + column * steps.column) * 2,
      w: kernel,
      out: common.out + (down.place * p.size[1] + across.place) * 2,
      ...{ groups: p.groups, m, n, depth, info },
      ...launch,
    });
  });
}

/** Writes the convolution to `out`; false where there is no matrix unit, or more of something than its kernels can count. */
export function convolveByProduct(
  gpu: Gpu,
  x: View,
  w: View,
  p: ConvParams,
  out: number,
  { transposed }: { readonly transposed: boolean },
): boolean {
  const dtype = x.storage.dtype as Half;
  const unit = gpu.matrixUnit(dtype);
  if (unit === "fma") return false;
  const [kh, kw] = w.layout.shape.slice(2) as [number, number];
  const reaches = [reachesOf(kh, p, 0, transposed), reachesOf(kw, p, 1, transposed)] as const;
  const image = imageOf(x, p.groups, reaches);
  const inOrder = isInOrder(image);
  const pieces = inOrder ? (image.images * image.steps.image) / PIECE : allPiecesOf(image);
  const pixels = p.size[0] * p.size[1];
  const counts = [pieces, image.images * pixels, piecesOf(image) ** 2 * kh * kw];
  if (counts.some((n) => n >= MAX_COUNT) || reaches[0].length * reaches[1].length > MAX_PRODUCTS) return false;

  // Outputs that no tap reaches are zeros.
  if (reaches.some((axis, i) => axis.reduce((sum, r) => sum + r.count, 0) < p.size[i]!)) {
    const outs = transposed ? w.layout.shape[1]! * p.groups : w.layout.shape[0]!;
    gpu.context.memset(BigInt(out), 0, image.images * outs * pixels * 2);
  }
  const multiplyAll = (from: number, steps: Steps): void => {
    const common = { unit, x: from, steps, image, w, p, transposed, out };
    for (const down of reaches[0]) for (const across of reaches[1]) multiply(gpu, dtype, common, down, across);
  };
  if (inOrder) {
    multiplyAll(image.x, image.steps);
  } else {
    gpu.temporary(allPiecesOf(image) * PIECE * 2, (copy) => {
      gather(gpu, dtype, image, copy);
      multiplyAll(copy, stepsOf(image));
    });
  }
  return true;
}
