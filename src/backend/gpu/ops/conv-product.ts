/** Convolutions of halves as products on the matrix unit (kernels/conv-feed.h), ordinary and transposed. */
import { sizeOf } from "../../../core/dtype.ts";
import type { View } from "../../backend.ts";
import type { ConvParams } from "../../fused-ops.ts";
import { planProduct } from "../families/product.ts";
import { at, type Gpu } from "../gpu.ts";

/** Halves in 16 bytes: channels are read so many at a time. */
const PIECE = 8;
/** Kernels count pieces in 32 bits. */
const MAX_PIECES = 2 ** 31;

interface Steps {
  readonly image: number;
  readonly group: number;
  readonly channel: number;
  readonly row: number;
  readonly column: number;
}

/** An operand in the order in which the kernels read it: what is where is said in kernels/conv-product.hip. */
interface Gather {
  readonly x: number;
  readonly steps: Steps;
  readonly images: number;
  readonly groups: number;
  readonly channels: number;
  readonly height: number;
  readonly width: number;
  readonly rows: number;
  readonly columns: number;
  /** Taps of a row that are folded into a column's channels; 1: none. */
  readonly taps: number;
  readonly top: number;
  readonly left: number;
  readonly spread: readonly [number, number];
  readonly step: number;
  readonly dilation: number;
}

const piecesOf = (g: Gather): number => Math.ceil((g.taps * g.channels) / PIECE);
const allPiecesOf = (g: Gather): number => g.images * g.groups * g.rows * g.columns * piecesOf(g);

function gatherInto(gpu: Gpu, dtype: "bf16" | "f16", g: Gather, out: number): void {
  const { x, steps: s, images, groups } = g;
  const numbers = [groups, g.channels, g.height, g.width, g.rows, g.columns, piecesOf(g), g.taps, g.top, g.left];
  const info = gpu.words(numbers, [...g.spread, g.step, g.dilation], [s.image, s.group, s.channel, s.row, s.column]);
  const pixels = g.height * g.width;
  const whole = [pixels, s.image, s.group, s.channel].every((n) => n % PIECE === 0) && x % 16 === 0;
  const isPlane = s.column === 1 && (s.row === g.width || g.height === 1);
  const fits = g.rows === g.height + 2 * g.top && g.columns === g.width + 2 * g.left;
  if (whole && isPlane && fits && g.taps === 1 && g.spread.every((n) => n === 1)) {
    const tiles = Math.ceil(piecesOf(g) / 4) * Math.ceil(pixels / 64);
    gpu.launch(`conv_turn_${dtype}`, { x, out, planes: images * groups, info, tiles });
  } else {
    gpu.launch(`conv_gather_${dtype}`, { x, out, numel: allPiecesOf(g), info });
  }
}

/** A convolution over pixels' channels. A transposed one is the ordinary one over pixels `stride` apart, by the turned kernel. */
interface Plan {
  readonly x: Gather;
  readonly w: Gather;
  /** Whether x can be read where it is. */
  readonly inPlace: boolean;
  readonly outs: number;
  /** Of the result. */
  readonly stride: readonly [number, number];
}

function planOf(x: View, w: View, p: ConvParams, transposed: boolean): Plan {
  const [images, c, height, width] = x.layout.shape as [number, number, number, number];
  const [first, second, kh, kw] = w.layout.shape as [number, number, number, number];
  const [sb, sc, sh, sw] = x.layout.strides as [number, number, number, number];
  const [w0, w1, wh, ww] = w.layout.strides as [number, number, number, number];
  const { groups, dilation } = p;
  const channels = c / groups;
  const outs = transposed ? second : first / groups;
  const stride = transposed ? ([1, 1] as const) : p.stride;
  // Channels that do not fill a piece are read together with those under the other taps of their row.
  const taps = channels < PIECE ? kw : 1;
  const around = (i: 0 | 1): number => (transposed ? dilation[i] * ([kh, kw][i]! - 1) - p.padding[i] : p.padding[i]);
  const extent = (i: 0 | 1): number =>
    transposed ? p.size[i] + dilation[i] * ([kh, kw][i]! - 1) : [height, width][i]! + 2 * p.padding[i];
  const gatherX: Gather = {
    x: at(x),
    steps: { image: sb, group: sc * channels, channel: sc, row: sh, column: sw },
    ...{ images, groups, channels, height, width },
    ...{ rows: extent(0), columns: taps > 1 ? p.size[1] : extent(1), taps, top: around(0), left: around(1) },
    spread: transposed ? p.stride : [1, 1],
    ...{ step: taps > 1 ? stride[1] : 1, dilation: dilation[1] },
  };
  const bytes = sizeOf(w.storage.dtype);
  const [group, out, channel] = transposed ? [w0 * channels, w1, w0] : [w0 * outs, w0, w1];
  const gatherW: Gather = {
    // The turned kernel begins with its last tap.
    x: at(w) + (transposed ? ((kh - 1) * wh + (kw - 1) * ww) * bytes : 0),
    steps: { image: group, group: out, channel, row: transposed ? -wh : wh, column: transposed ? -ww : ww },
    ...{ images: groups, groups: outs, channels, height: kh, width: kw },
    ...{ rows: kh, columns: taps > 1 ? 1 : kw, taps, top: 0, left: 0 },
    spread: [1, 1],
    ...{ step: 1, dilation: 1 },
  };
  const inPlace =
    !transposed &&
    taps === 1 &&
    (sc === 1 || channels === 1) &&
    p.padding.every((n) => n === 0) &&
    [sb, sh, sw, channels].every((n) => n % PIECE === 0) &&
    at(x) % 16 === 0;
  return { x: gatherX, w: gatherW, inPlace, outs, stride };
}

/** Writes the convolution to `out`; false where it is too large for the kernels to count in. */
export function convolveByProduct(
  gpu: Gpu,
  x: View,
  w: View,
  p: ConvParams,
  out: number,
  { transposed }: { readonly transposed: boolean },
): boolean {
  const dtype = x.storage.dtype as "bf16" | "f16";
  const unit = gpu.matrixUnit(dtype);
  if (unit === "fma") return false;
  const plan = planOf(x, w, p, transposed);
  const pieces = piecesOf(plan.x);
  const taps = plan.w.rows * plan.w.columns;
  const allX = plan.inPlace ? (x.layout.shape[0]! * x.layout.strides[0]!) / PIECE : allPiecesOf(plan.x);
  if (allX >= MAX_PIECES || pieces ** 2 * taps >= MAX_PIECES) return false;

  const [h, width] = p.size;
  const pixels = h * width;
  const n = plan.x.images * pixels;
  const { size, launch } = planProduct(
    { batch: p.groups, m: plan.outs, n },
    { unit, arch: gpu.context.properties.arch, multiprocessors: gpu.multiprocessors },
  );
  // Of x as it is, or of the copy; in pieces.
  const { rows, columns } = plan.x;
  const { image, group, row, column } = plan.inPlace
    ? plan.x.steps
    : {
        image: p.groups * rows * columns * pieces * PIECE,
        group: rows * columns * pieces * PIECE,
        row: columns * pieces * PIECE,
        column: pieces * PIECE,
      };
  const acrossStep = plan.x.taps > 1 ? 1 : plan.stride[1];
  const steps = [
    ...[image, group, row * plan.stride[0], column * acrossStep],
    ...[row * p.dilation[0], column * p.dilation[1]],
  ].map((step) => step / PIECE);
  const info = gpu.words([pixels, width, plan.w.columns, pieces], steps);
  const multiply = (from: number): void =>
    gpu.temporary(allPiecesOf(plan.w) * 16, (weights) => {
      gatherInto(gpu, dtype, plan.w, weights);
      const sizes = { groups: p.groups, m: plan.outs, n, depth: taps * pieces * PIECE };
      gpu.launch(`conv_product${size}_${dtype}`, { x: from, w: weights, out, info, ...sizes, ...launch });
    });
  if (plan.inPlace) {
    multiply(at(x));
  } else {
    gpu.temporary(allPiecesOf(plan.x) * 16, (copy) => {
      gatherInto(gpu, dtype, plan.x, copy);
      multiply(copy);
    });
  }
  return true;
}
