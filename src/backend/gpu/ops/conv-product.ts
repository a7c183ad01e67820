/** Convolutions of halves as products on the matrix unit (kernels/conv-feed.h), ordinary and transposed. */
import { sizeOf } from "../../../core/dtype.ts";
import type { View } from "../../backend.ts";
import type { ConvParams, Size2d } from "../../fused-ops.ts";
import type { MatrixUnit } from "../attention-plan.ts";
import { planConvolution } from "../families/conv.ts";
import { at, type Gpu } from "../gpu.ts";
import { type Reach, reachesOf } from "./conv-reach.ts";

/** Halves in 16 bytes: channels are read so many at a time. */
const PIECE = 8;
/** Kernels count pieces and pixels in 32 bits. */
const MAX_COUNT = 2 ** 31;
/** Rows that the smallest block makes. */
const SMALLEST_ROWS = 64;
/** Products that one transposed convolution is made of, at most. */
const MAX_PRODUCTS = 64;

type Half = "bf16" | "f16";
type Four = readonly [number, number, number, number];

/** An operand in the order in which the kernels read it: what is where is said in kernels/conv-product.hip. */
interface Gather {
  readonly x: number;
  /** From one to the next; 0 where there is only one row or column. */
  readonly steps: Readonly<Record<"image" | "group" | "channel" | "row" | "column", number>>;
  readonly images: number;
  readonly groups: number;
  readonly channels: number;
  /** Of how many groups the kernels are multiplied together, with zeros for the others' channels; and each one's kernels. */
  readonly together: { readonly count: number; readonly outs: number; readonly step: number };
  /** Of x, and of the result. */
  readonly from: Size2d;
  readonly to: Size2d;
  /** Zeros before the first row, and before the first column. */
  readonly before: Size2d;
  /** Taps of a row that are folded into a column's channels, and how they lie. */
  readonly fold: { readonly taps: number; readonly step: number; readonly dilation: number };
}
const alone = { count: 1, outs: 1, step: 0 };
const unfolded = { taps: 1, step: 1, dilation: 1 };

const piecesOf = ({ fold, channels, together }: Gather): number =>
  Math.ceil((fold.taps * channels * together.count) / PIECE);
const allPiecesOf = (g: Gather): number => g.images * g.groups * g.to[0] * g.to[1] * piecesOf(g);

function gather(gpu: Gpu, dtype: Half, g: Gather, out: number): void {
  const { x, steps, groups, channels, together, from, to, before, fold } = g;
  const { image, group, channel, row, column } = steps;
  const info = gpu.words(
    [groups, channels, channels * together.count, together.outs],
    [...from, ...to, piecesOf(g), fold.taps, ...before, fold.step, fold.dilation],
    [image, together.step, group, channel, row, column],
  );
  const pixels = from[0] * from[1];
  const planes = g.images * groups;
  const inRows = (column === 1 || from[1] === 1) && (row === from[1] || from[0] === 1);
  const isPlane = inRows && fold.taps === 1 && together.count === 1;
  // A kernel's taps are so few that its channels are the longer runs.
  if (isPlane && channel === pixels && pixels < PIECE * 2 && from.every((n, i) => n === to[i])) {
    gpu.launch(`conv_turn_taps_${dtype}`, { x, out, planes, info, taps: pixels, channels });
  } else if (isPlane) {
    gpu.launch(`conv_turn_${dtype}`, { x, out, planes, info, pixels, pieces: piecesOf(g) });
  } else {
    const numel = planes * Math.ceil((to[0] * to[1]) / 16) * Math.ceil(piecesOf(g) / 2) * 32;
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
    steps: { image, group: channel * channels, channel, row: height > 1 ? row : 0, column: width > 1 ? column : 0 },
    ...{ images, groups, channels, together: alone, from: [height, width], before },
    to: [end(0), only ? only.count : end(1)],
    fold: only ? { taps: only.taps, step: only.stride, dilation: only.dilation } : unfolded,
  };
}

/** The kernel's taps under some of the outputs, `count` groups' together. */
function weightsOf(w: View, { p, transposed, count, image }: Common, [down, across]: readonly [Reach, Reach]): Gather {
  const [first, second] = w.layout.shape as Four;
  const [s0, s1, row, column] = w.layout.strides as Four;
  const channels = transposed ? first / p.groups : second;
  const outs = transposed ? second : first / p.groups;
  const [step, group, channel] = transposed ? [s0 * channels, s1, s0] : [s0 * outs, s0, s1];
  const folded = image.fold.taps > 1;
  return {
    x: at(w) + (down.firstTap * row + across.firstTap * column) * sizeOf(w.storage.dtype),
    steps: {
      image: step * count,
      ...{ group, channel },
      row: down.taps > 1 ? row * down.tapStep : 0,
      column: across.taps > 1 ? column * across.tapStep : 0,
    },
    ...{ images: p.groups / count, groups: outs * count, channels, together: { count, outs, step } },
    ...{ from: [down.taps, across.taps], before: [0, 0] },
    to: [down.taps, folded ? 1 : across.taps],
    fold: folded ? { ...unfolded, taps: across.taps } : unfolded,
  };
}

/** As many groups as a block's rows have room for: those of small ones would be empty. */
function groupsTogether(groups: number, outs: number): number {
  let count = Math.max(1, Math.min(groups, Math.floor(SMALLEST_ROWS / outs)));
  while (groups % count !== 0) count--;
  return count;
}

const steps = ["image", "group", "row", "column"] as const;
type Steps = Readonly<Record<(typeof steps)[number], number>>;

/** From one image, group, row and column of the copy that gather() makes to the next. */
function stepsOf(g: Gather): Steps {
  const column = piecesOf(g) * PIECE;
  const row = g.to[1] * column;
  const group = g.to[0] * row;
  return { image: g.groups * group, group, row, column };
}

/** Runs `run` with the address of the operand in order: its own, or that of a temporary copy. */
function inOrder(gpu: Gpu, dtype: Half, g: Gather, isSo: boolean, run: (at: number) => void): void {
  if (isSo) {
    run(g.x);
  } else {
    gpu.temporary(allPiecesOf(g) * PIECE * 2, (copy) => {
      gather(gpu, dtype, g, copy);
      run(copy);
    });
  }
}

/** Whether channels can be read where they are. */
function isInOrder(g: Gather): boolean {
  const { image, group, channel, row, column } = g.steps;
  if (g.together.count > 1) return false;
  const inPieces = [image, group, row, column, g.channels].every((n) => n % PIECE === 0) && g.x % 16 === 0;
  return inPieces && channel === 1 && g.fold.taps === 1 && g.from.every((n, i) => n === g.to[i]);
}

/** Whether the copy would be the same. */
function isCopy(g: Gather): boolean {
  const made = stepsOf(g);
  const sizes = { image: g.images, group: g.groups, row: g.from[0], column: g.from[1] };
  return isInOrder(g) && steps.every((name) => sizes[name] === 1 || made[name] === g.steps[name]);
}

/** What the products that a convolution is made of have in common. */
interface Common {
  readonly unit: Exclude<MatrixUnit, "fma">;
  /** Groups that are multiplied together. */
  readonly count: number;
  readonly x: number;
  readonly steps: Steps;
  readonly image: Gather;
  readonly w: View;
  readonly p: ConvParams;
  readonly transposed: boolean;
  readonly out: number;
}

function multiply(gpu: Gpu, dtype: Half, common: Common, down: Reach, across: Reach): void {
  const { steps: s, image, p, unit } = common;
  const folded = image.fold.taps > 1;
  const weights = weightsOf(common.w, common, [down, across]);
  const [m, pixels, pieces] = [weights.groups, down.count * across.count, piecesOf(image)];
  const n = image.images * pixels;
  const depth = weights.to[0] * weights.to[1] * pieces * PIECE;
  const { arch } = gpu.context.properties;
  const { multiprocessors } = gpu;
  const { size, launch } = planConvolution({ batch: image.groups, m, n }, { unit, arch, multiprocessors });
  const places = [pixels, across.count, weights.to[1], pieces];
  const made = [p.size[0] * p.size[1], down.apart * p.size[1], across.apart];
  const read = [
    ...[s.image, s.group, s.row * down.stride, s.column * (folded ? 1 : across.stride)],
    ...[s.row * down.dilation, s.column * across.dilation],
  ];
  const info = gpu.words(
    places,
    made,
    read.map((step) => step / PIECE),
  );
  const row = down.first + image.before[0];
  const column = folded ? 0 : across.first + image.before[1];
  const kind = down.apart === 1 && across.apart === 1 ? "product" : "spread";
  inOrder(gpu, dtype, weights, isCopy(weights), (kernel) =>
    gpu.launch(`conv_${kind}${size}_${dtype}`, {
      x: common.x + (row * s.row + column * s.column) * 2,
      w: kernel,
      out: common.out + (down.place * p.size[1] + across.place) * 2,
      ...{ groups: image.groups, m, n, depth, info },
      ...launch,
    }),
  );
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
  const outs = transposed ? w.layout.shape[1]! * p.groups : w.layout.shape[0]!;
  const count = groupsTogether(p.groups, outs / p.groups);
  const image = imageOf(x, p.groups / count, reaches);
  const isThere = isInOrder(image);
  const pieces = isThere ? (image.images * image.steps.image) / PIECE : allPiecesOf(image);
  const pixels = p.size[0] * p.size[1];
  const counts = [pieces, image.images * pixels, piecesOf(image) ** 2 * kh * kw];
  if (counts.some((n) => n >= MAX_COUNT) || reaches[0].length * reaches[1].length > MAX_PRODUCTS) return false;

  // Outputs that no tap reaches are zeros.
  if (reaches.some((axis, i) => axis.reduce((sum, r) => sum + r.count, 0) < p.size[i]!)) {
    gpu.context.memset(BigInt(out), 0, image.images * outs * pixels * 2);
  }
  inOrder(gpu, dtype, image, isThere, (from) => {
    const common = {
      unit,
      count,
      x: from,
      steps: isThere ? image.steps : stepsOf(image),
      image,
      w,
      p,
      transposed,
      out,
    };
    for (const down of reaches[0]) for (const across of reaches[1]) multiply(gpu, dtype, common, down, across);
  });
  return true;
}
