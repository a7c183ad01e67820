/**
 * Convolutions as matrix products: weights (o × c·kh·kw) times patches (c·kh·kw × outH·outW) for each batch element and
 * group. Patches are packed straight from x into the product's panels, so no im2col buffer exists. The transposed
 * convolution differs only in which input a tap of an output reads. Integers and few output channels per group
 * (depthwise) take direct loops, see conv-direct.ts.
 */
import { Conv, shiftOf } from "./abi";
import { widen } from "./block";
import { convDirect } from "./conv-direct";
import {
  isInteger,
  isSmall,
  ownPanels,
  PACKER,
  product,
  productGrain,
  productTmp,
  stageFirst,
  stagePanels,
} from "./gemm";
import { arg, setArg } from "./memory";
import { rawPanel } from "./pack";
import { parallel, scratch } from "./pool";
import { columnsOf, multiply, ROW } from "./tile";
import { Address, Bytes, DTypeCode, OutAddress, Params, TmpAddress } from "./types";
import { origin, source, word } from "./window";

// Arguments of the packers, and of the kernel for whole small products.
const DTYPE = PACKER;
const P = PACKER + 1;
const X = PACKER + 2; // of this batch element and group, or of all
const TRANSPOSED = PACKER + 3;
const W = PACKER + 4;
const W_ROW = PACKER + 5;
const OUT = PACKER + 6;

/** Output channels per group below which panels do not pay. */
const FEW: i32 = 2;

/** Terms of one output: input channels of a group times taps. */
function depth(p: usize): usize {
  return (
    <usize>(word(p, Conv.CHANNELS) / word(p, Conv.GROUPS)) *
    <usize>word(p, Conv.KERNEL_H) *
    <usize>word(p, Conv.KERNEL_W)
  );
}

function isDirect(dtype: i32, p: usize): bool {
  return isInteger(dtype) || word(p, Conv.OUTPUTS) / word(p, Conv.GROUPS) <= FEW;
}

/** Whether the weights of an output channel lie in a row, as the product wants them. */
function hasRows(p: usize): bool {
  const kw = word(p, Conv.KERNEL_W);
  const taps = kw * word(p, Conv.KERNEL_H);
  const s1 = word(p, Conv.W_STRIDES + 1);
  const s2 = word(p, Conv.W_STRIDES + 2);
  return (
    (kw === 1 || word(p, Conv.W_STRIDES + 3) === 1) &&
    (word(p, Conv.KERNEL_H) === 1 || s2 === kw) &&
    (word(p, Conv.CHANNELS) === word(p, Conv.GROUPS) || s1 === taps)
  );
}

/** Bytes for weights in rows, rounded so that what follows is aligned. */
function weightBytes(dtype: i32, p: usize): usize {
  return (((<usize>word(p, Conv.OUTPUTS) * depth(p)) << shiftOf(dtype)) + 15) & ~15;
}

export function conv2dTmp(dtype: DTypeCode, p: Params): Bytes {
  return isDirect(dtype, p)
    ? 0
    : (hasRows(p) ? 0 : weightBytes(dtype, p)) +
        productTmp(dtype, <usize>word(p, Conv.OUTPUT_H) * <usize>word(p, Conv.OUTPUT_W), depth(p));
}

export function convTranspose2dTmp(dtype: DTypeCode, p: Params): Bytes {
  return isDirect(dtype, p)
    ? 0
    : weightBytes(dtype, p) +
        productTmp(dtype, <usize>word(p, Conv.OUTPUT_H) * <usize>word(p, Conv.OUTPUT_W), depth(p));
}

/** x (b, c, h, w), w (o, c/groups, kh, kw) → out (b, o, outH, outW), contiguous. */
export function conv2d(dtype: DTypeCode, p: Params, x: Address, w: Address, out: OutAddress, tmp: TmpAddress): void {
  if (isDirect(dtype, p)) return convDirect(dtype, p, x, w, out, false);
  if (hasRows(p)) return convolve(dtype, p, x, w, word(p, Conv.W_STRIDES), out, tmp, false);
  copyWeights(dtype, p, w, word(p, Conv.W_STRIDES), word(p, Conv.W_STRIDES + 1), 0, tmp);
  convolve(dtype, p, x, tmp, <i32>depth(p), out, tmp + weightBytes(dtype, p), false);
}

/** x (b, c, h, w), w (c, o/groups, kh, kw) → out (b, o, outH, outW), contiguous: each output sums the inputs that reach it. */
export function convTranspose2d(
  dtype: DTypeCode,
  p: Params,
  x: Address,
  w: Address,
  out: OutAddress,
  tmp: TmpAddress,
): void {
  if (isDirect(dtype, p)) return convDirect(dtype, p, x, w, out, true);
  copyWeights(
    dtype,
    p,
    w,
    word(p, Conv.W_STRIDES + 1),
    word(p, Conv.W_STRIDES),
    word(p, Conv.CHANNELS) / word(p, Conv.GROUPS),
    tmp,
  );
  convolve(dtype, p, x, tmp, <i32>depth(p), out, tmp + weightBytes(dtype, p), true);
}

/**
 * Weights as rows (o, c/groups·kh·kw). `perGroup`: how many input channels lie between groups, 0 where the output
 * channel alone says the place.
 */
function copyWeights(dtype: i32, p: usize, w: usize, so: i32, sc: i32, perGroup: i32, to: usize): void {
  const shift = shiftOf(dtype);
  if (shift === 2) copyWeightsAs<u32>(p, w, so, sc, perGroup, to);
  else if (shift === 1) copyWeightsAs<u16>(p, w, so, sc, perGroup, to);
  else if (shift === 3) copyWeightsAs<u64>(p, w, so, sc, perGroup, to);
  else copyWeightsAs<u8>(p, w, so, sc, perGroup, to);
}

function copyWeightsAs<T>(p: usize, w: usize, so: i32, sc: i32, perGroup: i32, to: usize): void {
  const channels = word(p, Conv.CHANNELS) / word(p, Conv.GROUPS);
  const outs = word(p, Conv.OUTPUTS) / word(p, Conv.GROUPS);
  for (let o = 0; o < word(p, Conv.OUTPUTS); o++) {
    const group = o / outs;
    const at: isize = perGroup === 0 ? <isize>o * so : <isize>(o - group * outs) * so + <isize>(group * perGroup) * sc;
    for (let c = 0; c < channels; c++) {
      for (let i = 0; i < word(p, Conv.KERNEL_H); i++) {
        for (let j = 0; j < word(p, Conv.KERNEL_W); j++, to += sizeof<T>()) {
          const from =
            at + <isize>c * sc + <isize>i * word(p, Conv.W_STRIDES + 2) + <isize>j * word(p, Conv.W_STRIDES + 3);
          store<T>(to, load<T>(w + from * sizeof<T>()));
        }
      }
    }
  }
}

function convolve(dtype: i32, p: usize, x: usize, w: usize, wRow: i32, out: usize, tmp: usize, transposed: bool): void {
  const shift = shiftOf(dtype);
  const groups = word(p, Conv.GROUPS);
  const m = <usize>(word(p, Conv.OUTPUTS) / groups);
  const n = <usize>word(p, Conv.OUTPUT_H) * <usize>word(p, Conv.OUTPUT_W);
  const k = depth(p);
  const items = <usize>word(p, Conv.BATCH) * <usize>groups;
  if (items === 0 || m === 0 || n === 0) return;
  if (k === 0) return memory.fill(out, 0, (items * m * n) << shift);
  setArg<i32>(DTYPE, dtype);
  setArg<usize>(P, p);
  setArg<i32>(TRANSPOSED, <i32>transposed);
  setArg<usize>(X, x);
  if (isSmall(dtype, n, k) && (items >= 8 || <f64>m * <f64>n * <f64>k < 262144)) {
    setArg<usize>(W, w);
    setArg<i32>(W_ROW, wRow);
    setArg<usize>(OUT, out);
    return parallel(wholeChunk, items, productGrain(m, n, k));
  }
  for (let i: usize = 0; i < items; i++) {
    setArg<usize>(X, x + inputOffset(dtype, p, i));
    const rows = w + ((<isize>((i % groups) * m) * <isize>wRow) << shift);
    product(dtype, m, n, k, rows, wRow, 1, patchChunk, out + ((i * m * n) << shift), tmp);
  }
}

/** Bytes from x to the channels of item (batch element, group). */
function inputOffset(dtype: i32, p: usize, item: usize): isize {
  const groups = <usize>word(p, Conv.GROUPS);
  const channels = word(p, Conv.CHANNELS) / <i32>groups;
  const group = <isize>(item % groups);
  return (
    (<isize>(item / groups) * word(p, Conv.X_STRIDES) + group * channels * word(p, Conv.X_STRIDES + 1)) <<
    shiftOf(dtype)
  );
}

function wholeChunk(lo: usize, hi: usize): void {
  const dtype = arg<i32>(DTYPE);
  const shift = shiftOf(dtype);
  const p = arg<usize>(P);
  const groups = <usize>word(p, Conv.GROUPS);
  const m = <usize>word(p, Conv.OUTPUTS) / groups;
  const n = <usize>word(p, Conv.OUTPUT_H) * <usize>word(p, Conv.OUTPUT_W);
  const k = depth(p);
  const wRow = <isize>arg<i32>(W_ROW);
  for (let i = lo; i < hi; i++) {
    const x = arg<usize>(X) + inputOffset(dtype, p, i);
    const panels = (n - 1) / columnsOf(dtype) + 1;
    for (let panel: usize = 0; panel < panels; panel++)
      packPatches(dtype, p, x, panel * columnsOf(dtype), ownPanels() + panel * k * ROW);
    const rows = arg<usize>(W) + ((<isize>((i % groups) * m) * wRow) << shift);
    multiply(dtype, m, n, k, rows, wRow, 1, ownPanels(), arg<usize>(OUT) + ((i * m * n) << shift), n);
  }
}

function patchChunk(lo: usize, hi: usize): void {
  const dtype = arg<i32>(DTYPE);
  const p = arg<usize>(P);
  const k = depth(p);
  for (let panel = lo; panel < hi; panel++) {
    packPatches(dtype, p, arg<usize>(X), stageFirst() + panel * columnsOf(dtype), stagePanels() + panel * k * ROW);
  }
}

/** The panel of patches whose first output position is `first`. */
function packPatches(dtype: i32, p: usize, x: usize, first: usize, dst: usize): void {
  const n = columnsOf(dtype) * depth(p);
  const shift = shiftOf(dtype);
  const raw = rawPanel(dtype, dst, n);
  if (shift === 2) packPatchesAs<u32>(dtype, p, x, first, raw);
  else if (shift === 1) packPatchesAs<u16>(dtype, p, x, first, raw);
  else if (shift === 3) packPatchesAs<u64>(dtype, p, x, first, raw);
  else packPatchesAs<u8>(dtype, p, x, first, raw);
  if (raw !== dst) widen(dtype, raw, dst, n);
}

/** In place of an element offset: in the padding, or between the inputs of a transposed convolution. */
const NOWHERE: i32 = i32.MIN_VALUE;

/** Tap by tap: the places of the panel's positions are found once for all channels. */
function packPatchesAs<T>(dtype: i32, p: usize, x: usize, first: usize, dst: usize): void {
  const nr = columnsOf(dtype);
  const bytes = nr * sizeof<T>();
  const channels = word(p, Conv.CHANNELS) / word(p, Conv.GROUPS);
  const kh = word(p, Conv.KERNEL_H);
  const kw = word(p, Conv.KERNEL_W);
  const outW = <usize>word(p, Conv.OUTPUT_W);
  const valid = min(nr, <usize>word(p, Conv.OUTPUT_H) * outW - first);
  const transposed = arg<i32>(TRANSPOSED) !== 0;
  const step = <isize>word(p, Conv.X_STRIDES + 1) * sizeof<T>();
  const row = <usize>(kh * kw) * bytes;
  const places = scratch;
  const origins = scratch + (nr << 2); // of each position: y and x of tap (0, 0)
  for (let r: usize = 0; r < valid; r++) {
    store<i32>(origins + (r << 3), origin(p, 0, <i32>((first + r) / outW), transposed));
    store<i32>(origins + (r << 3), origin(p, 1, <i32>((first + r) % outW), transposed), 4);
  }
  for (let i = 0; i < kh; i++) {
    for (let j = 0; j < kw; j++, dst += bytes) {
      let inRow = valid === nr;
      for (let r: usize = 0; r < valid; r++) {
        const y = source(p, 0, load<i32>(origins + (r << 3)), i, transposed);
        const z = source(p, 1, load<i32>(origins + (r << 3), 4), j, transposed);
        const place = y < 0 || z < 0 ? NOWHERE : y * word(p, Conv.X_STRIDES + 2) + z * word(p, Conv.X_STRIDES + 3);
        store<i32>(places + (r << 2), place);
        if (place === NOWHERE || place !== load<i32>(places) + <i32>r) inRow = false;
      }
      let from = x;
      let to = dst;
      if (inRow) {
        from += <isize>load<i32>(places) * sizeof<T>();
        for (let c = 0; c < channels; c++, from += step, to += row) copyElements(from, to, bytes);
        continue;
      }
      for (let c = 0; c < channels; c++, from += step, to += row) {
        for (let r: usize = 0; r < nr; r++) {
          const place = r < valid ? load<i32>(places + (r << 2)) : NOWHERE;
          store<T>(to + r * sizeof<T>(), place === NOWHERE ? 0 : load<T>(from + <isize>place * sizeof<T>()));
        }
      }
    }
  }
}

// @inline
function copyElements(from: usize, to: usize, bytes: usize): void {
  const end = to + bytes;
  for (; to + 16 <= end; to += 16, from += 16) v128.store(to, v128.load(from));
  for (; to + 4 <= end; to += 4, from += 4) store<u32>(to, load<u32>(from));
  for (; to < end; to++, from++) store<u8>(to, load<u8>(from));
}
