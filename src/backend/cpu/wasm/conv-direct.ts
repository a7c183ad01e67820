/** Convolutions without panels: each output row is the sum of weighted input rows. */
import { Conv, F32, shiftOf } from "./abi";
import { CF32, CF64, CI64, classOf, narrow, native, SCRATCH_FREE, widen } from "./block";
import { element } from "./element";
import { arg, setArg } from "./memory";
import { parallel, SCRATCH_BYTES, scratch } from "./pool";
import { fma } from "./tile";
import { origin, source, word } from "./window";

const DTYPE = 0;
const P = 1;
const X = 2;
const W = 3;
const OUT = 4;
const TRANSPOSED = 5;

/** Multiplications that are worth a chunk. */
const CHUNK: f64 = 32768;

export function convDirect(dtype: i32, p: usize, x: usize, w: usize, out: usize, transposed: bool): void {
  setArg<i32>(DTYPE, dtype);
  setArg<usize>(P, p);
  setArg<usize>(X, x);
  setArg<usize>(W, w);
  setArg<usize>(OUT, out);
  setArg<i32>(TRANSPOSED, <i32>transposed);
  if (word(p, Conv.OUTPUT_W) === 0) return;
  const work =
    <f64>word(p, Conv.OUTPUT_W) *
    <f64>(word(p, Conv.CHANNELS) / word(p, Conv.GROUPS)) *
    <f64>word(p, Conv.KERNEL_H) *
    <f64>word(p, Conv.KERNEL_W);
  parallel(
    rowChunk,
    <usize>word(p, Conv.BATCH) * <usize>word(p, Conv.OUTPUTS) * <usize>word(p, Conv.OUTPUT_H),
    <usize>max(1.0, CHUNK / (work + 16.0)),
  );
}

function rowChunk(lo: usize, hi: usize): void {
  const dtype = arg<i32>(DTYPE);
  const kind = classOf(dtype);
  if (kind === CF32) rows<f32>(dtype, lo, hi);
  else if (kind === CF64) rows<f64>(dtype, lo, hi);
  else if (kind === CI64) rows<i64>(dtype, lo, hi);
  else rows<i32>(dtype, lo, hi);
}

/** Output rows (batch element, channel, oy), in pieces whose sums and inputs fit the scratch memory. */
function rows<T>(dtype: i32, lo: usize, hi: usize): void {
  const shift = shiftOf(dtype);
  const p = arg<usize>(P);
  const transposed = arg<i32>(TRANSPOSED) !== 0;
  const groups = word(p, Conv.GROUPS);
  const channels = word(p, Conv.CHANNELS) / groups;
  const outs = word(p, Conv.OUTPUTS) / groups;
  const outH = word(p, Conv.OUTPUT_H);
  const outW = word(p, Conv.OUTPUT_W);
  const sums = scratch + SCRATCH_FREE;
  const piece = <i32>((SCRATCH_BYTES - SCRATCH_FREE) / 2 / sizeof<T>());
  const inputs = sums + <usize>piece * sizeof<T>();
  // Small floats with contiguous rows are widened a row at a time, others element by element.
  const wide = !native(dtype) && isFloat<T>() && word(p, Conv.X_STRIDES + 3) === 1 && word(p, Conv.INPUT_W) <= piece;
  for (let row = lo; row < hi; row++) {
    const oy = <i32>(row % outH);
    const o = <i32>((row / outH) % word(p, Conv.OUTPUTS));
    const batch = <isize>(row / outH / word(p, Conv.OUTPUTS));
    const group = o / outs;
    for (let ox = 0; ox < outW; ox += piece) {
      const count = min(piece, outW - ox);
      memory.fill(sums, 0, <usize>count * sizeof<T>());
      for (let c = 0; c < channels; c++) {
        const from = batch * word(p, Conv.X_STRIDES) + <isize>(group * channels + c) * word(p, Conv.X_STRIDES + 1);
        const weight: isize = transposed
          ? <isize>(group * channels + c) * word(p, Conv.W_STRIDES) +
            <isize>(o - group * outs) * word(p, Conv.W_STRIDES + 1)
          : <isize>o * word(p, Conv.W_STRIDES) + <isize>c * word(p, Conv.W_STRIDES + 1);
        for (let i = 0; i < word(p, Conv.KERNEL_H); i++) {
          const y = source(p, 0, origin(p, 0, oy, transposed), i, transposed);
          if (y < 0) continue;
          let line = arg<usize>(X) + ((from + <isize>y * word(p, Conv.X_STRIDES + 2)) << shift);
          if (wide) {
            widen(dtype, line, inputs, word(p, Conv.INPUT_W));
            line = inputs;
          }
          for (let j = 0; j < word(p, Conv.KERNEL_W); j++) {
            const at = weight + <isize>i * word(p, Conv.W_STRIDES + 2) + <isize>j * word(p, Conv.W_STRIDES + 3);
            addTap<T>(
              wide ? F32 : dtype,
              p,
              line,
              j,
              element<T>(dtype, arg<usize>(W) + (at << shift)),
              ox,
              count,
              sums,
              transposed,
            );
          }
        }
      }
      const to = arg<usize>(OUT) + ((row * outW + ox) << shift);
      if (native(dtype)) memory.copy(to, sums, <usize>count * sizeof<T>());
      else narrow(dtype, sums, to, count);
    }
  }
}

/** sums[ox] += weight · the input that tap j of output ox reads. */
function addTap<T>(
  dtype: i32,
  p: usize,
  line: usize,
  j: i32,
  weight: T,
  first: i32,
  count: i32,
  sums: usize,
  transposed: bool,
): void {
  const step = (<isize>word(p, Conv.X_STRIDES + 3)) << shiftOf(dtype);
  if (transposed) {
    for (let i = 0; i < count; i++) {
      const z = source(p, 1, origin(p, 1, first + i, true), j, true);
      if (z < 0) continue;
      const at = sums + <usize>i * sizeof<T>();
      store<T>(at, load<T>(at) + weight * element<T>(dtype, line + <isize>z * step));
    }
    return;
  }
  // Outputs lo … hi−1 read inside the row: 0 ≤ ox·stride + shiftBy < w.
  const stride = word(p, Conv.STRIDE_W);
  const shiftBy = j * word(p, Conv.DILATION_W) - word(p, Conv.PADDING_W);
  const lo = max(first, shiftBy >= 0 ? 0 : (stride - 1 - shiftBy) / stride);
  const room = word(p, Conv.INPUT_W) - 1 - shiftBy;
  const hi = min(first + count, room < 0 ? 0 : room / stride + 1);
  if (lo >= hi) return;
  let from = line + <isize>(lo * stride + shiftBy) * step;
  let to = sums + <usize>(lo - first) * sizeof<T>();
  const end = sums + <usize>(hi - first) * sizeof<T>();
  const next = step * stride;
  if (!native(dtype)) {
    for (; to < end; to += sizeof<T>(), from += next) store<T>(to, load<T>(to) + weight * element<T>(dtype, from));
    return;
  }
  if (isFloat<T>() && next === sizeof<T>()) {
    const factor = v128.splat<T>(weight);
    for (; to + 16 <= end; to += 16, from += 16) v128.store(to, fma<T>(factor, v128.load(from), v128.load(to)));
  }
  for (; to < end; to += sizeof<T>(), from += next) store<T>(to, load<T>(to) + weight * load<T>(from));
}
