/**
 * Floats to blocks. Blocks of 32 follow GGUF's reference bit by bit: the scale is that of the largest magnitude or of
 * the range. The best super-blocks are searched for in quant-search.ts.
 */
import { Q4_0, Q4_1, Q5_0, Q5_1, Q8_1, Q8_K } from "./abi";
import { fetch, SCRATCH_FREE } from "./block";
import { arg, setArg } from "./memory";
import { parallel, scratch } from "./pool";
import { asHalf, inverseOf, peakOf, storeHalf } from "./quant-scale";
import { encodeSuper } from "./quant-search";
import { bytesOf } from "./quant-types";
import { Address, BlockBytes, BlockSize, Count, DTypeCode, Layouts, OutAddress, QuantTypeId } from "./types";

/** Floats per item. */
const STEP: usize = 256;
const GRAIN: usize = 16;

const enum Arg {
  TYPE,
  SIZE, // weights per block
  BYTES, // per block
  DTYPE,
  N,
  INFO,
  X,
  OUT,
}

/** n floats, whole blocks, of f32, f16 or bf16. */
export function quantize(
  type: QuantTypeId,
  size: BlockSize,
  bytes: BlockBytes,
  dtype: DTypeCode,
  n: Count,
  info: Layouts,
  x: Address,
  out: OutAddress,
): void {
  if (n === 0) return;
  setArg<i32>(Arg.TYPE, type);
  setArg<usize>(Arg.SIZE, size);
  setArg<usize>(Arg.BYTES, bytes);
  setArg<i32>(Arg.DTYPE, dtype);
  setArg<usize>(Arg.N, n);
  setArg<usize>(Arg.INFO, info);
  setArg<usize>(Arg.X, x);
  setArg<usize>(Arg.OUT, out);
  parallel(quantizeChunk, (n - 1) / STEP + 1, GRAIN);
}

function quantizeChunk(lo: usize, hi: usize): void {
  const type = arg<i32>(Arg.TYPE);
  const size = arg<usize>(Arg.SIZE);
  const bytes = arg<usize>(Arg.BYTES);
  for (let i = lo; i < hi; i++) {
    const first = i * STEP;
    const n = min(STEP, arg<usize>(Arg.N) - first);
    let x = fetch(arg<i32>(Arg.DTYPE), arg<usize>(Arg.X), arg<usize>(Arg.INFO), 0, first, n);
    let to = arg<usize>(Arg.OUT) + bytesOf(size, bytes, first);
    if (type === Q8_K.ID) encodeQ8K(x, to);
    else if (size === STEP) encodeSuper(type, x, to);
    else for (const end = x + (n << 2); x < end; x += 128, to += bytes) encodeBlock(type, x, to);
  }
}

function encodeBlock(type: i32, x: usize, to: usize): void {
  if (type === Q4_0.ID) encodeSigned(8, x, to, 0);
  else if (type === Q5_0.ID) encodeSigned(16, x, to, 4);
  else if (type === Q4_1.ID) encodeRange(15, x, to, 0);
  else if (type === Q5_1.ID) encodeRange(31, x, to, 4);
  else encodeBytes(type === Q8_1.ID, x, to);
}

/** (q − levels) · d, where the peak is −levels · d. `high` bytes hold fifth bits. */
function encodeSigned(levels: f64, x: usize, to: usize, high: usize): void {
  const quants = scratch + SCRATCH_FREE;
  const d = asHalf(peakOf(x, 32) / -(<f32>levels));
  const inverse = <f64>inverseOf(d);
  storeHalf(to, d);
  for (let i: usize = 0; i < 32; i++) {
    // In f64 there is one rounding, as with fused multiply-add: the reference depends on it.
    const q = <i32>(<f64>load<f32>(x + (i << 2)) * inverse + (levels + 0.5));
    store<u8>(quants + i, <u8>max(0, min(2 * <i32>levels - 1, q)));
  }
  storeNibbles(quants, to + 2, high);
}

/** q · d + the minimum. */
function encodeRange(levels: f32, x: usize, to: usize, high: usize): void {
  const quants = scratch + SCRATCH_FREE;
  let least = load<f32>(x);
  let most = least;
  for (let i: usize = 4; i < 128; i += 4) {
    const v = load<f32>(x + i);
    if (v < least) least = v;
    if (v > most) most = v;
  }
  const d = asHalf((most - least) / levels);
  const inverse = inverseOf(d);
  storeHalf(to, d);
  storeHalf(to + 2, least);
  for (let i: usize = 0; i < 32; i++) {
    const q = <i32>((load<f32>(x + (i << 2)) - least) * inverse + 0.5);
    store<u8>(quants + i, <u8>max(0, min(<i32>levels, q)));
  }
  storeNibbles(quants, to + 4, high);
}

/** Fifth bits, if there is room for them, then two quants per byte: i and i + 16. */
function storeNibbles(quants: usize, to: usize, high: usize): void {
  let fifth: u32 = 0;
  for (let i: usize = 0; i < 32; i++) fifth |= (<u32>(load<u8>(quants + i) >> 4)) << (<u32>i);
  if (high) store<u32>(to, fifth);
  for (let i: usize = 0; i < 16; i++)
    store<u8>(to + high + i, (load<u8>(quants + i) & 15) | (load<u8>(quants + i + 16) << 4));
}

/** q · d with |q| ≤ 127; Q8_1 also holds d · Σ q. */
function encodeBytes(withSum: bool, x: usize, to: usize): void {
  const d = asHalf(abs(peakOf(x, 32)) / 127);
  const inverse = inverseOf(d);
  storeHalf(to, d);
  const quants = to + (withSum ? 4 : 2);
  let sum: i32 = 0;
  for (let i: usize = 0; i < 32; i++) {
    const v = load<f32>(x + (i << 2)) * inverse;
    const whole = floor(abs(v));
    const q = <i32>min<f32>(127, abs(v) - whole >= 0.5 ? whole + 1 : whole); // half away from zero
    store<i8>(quants + i, <i8>(v < 0 ? -q : q));
    sum += v < 0 ? -q : q;
  }
  if (withSum) storeHalf(to + 2, <f32>sum * d);
}

/** q · d with d in f32, and the sums of sixteen quants each. */
function encodeQ8K(x: usize, to: usize): void {
  const inverse = <f32>-127 * inverseOf(peakOf(x, 256));
  store<f32>(to, inverseOf(inverse));
  for (let group: usize = 0; group < 16; group++) {
    let sum: i32 = 0;
    for (let i = group << 4; i < (group + 1) << 4; i++) {
      const q = max(-127, min(127, <i32>nearest(load<f32>(x + (i << 2)) * inverse)));
      store<i8>(to + 4 + i, <i8>q);
      sum += q;
    }
    store<i16>(to + 260 + (group << 1), <i16>sum);
  }
}
