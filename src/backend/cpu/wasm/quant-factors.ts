/**
 * What the dots of a row of weights are multiplied with, group by group: the weights' scales times those of the
 * activations. They are taken from a stretch of the row ahead of its dots, four at a time; on the way the row comes into
 * the cache in the order in which it lies in memory.
 */
import { blockBytes, MXFP4 } from "./abi";
import { madd } from "./math";
import { floats4, groupMinima, groupScales, minimum, scale, scales4, superScales } from "./quant-blocks";
import { constant, HALF_BITS, HALF_EXPONENT, HALF_SCALE, INFINITIES } from "./quant-constants";
import { groupSize, hasMin, is, isSuper } from "./quant-types";

/**
 * Writes the factors of n weights from `w` on to `to`, for activations whose scales and sums are at `own` and `sums`;
 * returns what the weights' minima add to the dot, spread over the lanes.
 */
// @inline
export function rowFactors<T>(w: usize, n: usize, own: usize, sums: usize, to: usize): v128 {
  return isSuper<T>() ? superFactors<T>(w, n, own, sums, to) : blockFactors<T>(w, n, own, sums, to);
}

function blockFactors<T>(w: usize, n: usize, own: usize, sums: usize, to: usize): v128 {
  const first = w;
  let total = f32x4.splat(0);
  let at: usize = 0;
  const end = (n >> 5) << 2;
  const bits = constant(HALF_BITS);
  const factor = constant(HALF_SCALE);
  let largest = total; // the square
  for (; at + 32 <= end; at += 32) {
    const a = scales4<T>(w, 0, bits, factor);
    const b = scales4<T>(w + 4 * blockBytes<T>(), 0, bits, factor);
    if (!is<T, MXFP4>()) largest = f32x4.pmax(largest, f32x4.pmax(f32x4.mul(a, a), f32x4.mul(b, b)));
    v128.store(to + at, f32x4.mul(a, v128.load(own + at)));
    v128.store(to + at, f32x4.mul(b, v128.load(own + at, 16)), 16);
    if (hasMin<T>()) {
      const c = scales4<T>(w, 2, bits, factor);
      const d = scales4<T>(w + 4 * blockBytes<T>(), 2, bits, factor);
      largest = f32x4.pmax(largest, f32x4.pmax(f32x4.mul(c, c), f32x4.mul(d, d)));
      total = madd(c, v128.load(sums + at), madd(d, v128.load(sums + at, 16), total));
    }
    w += 8 * blockBytes<T>();
  }
  if (v128.any_true(f32x4.ge(largest, f32x4.splat(4294967296)))) {
    // Infinities and NaN are rare: all over again, one by one.
    total = f32x4.splat(0);
    w = first;
    at = 0;
  }
  for (; at < end; at += 4) {
    store<f32>(to + at, f32x4.extract_lane(scale<T>(w), 0) * load<f32>(own + at));
    if (hasMin<T>()) total = madd(minimum<T>(w), v128.load_zero<f32>(sums + at), total);
    w += blockBytes<T>();
  }
  return total;
}

function superFactors<T>(w: usize, n: usize, own: usize, sums: usize, to: usize): v128 {
  const bytes = <usize>1024 / groupSize<T>();
  const bits = constant(HALF_BITS);
  const factor = constant(HALF_SCALE);
  const exponent = constant(HALF_EXPONENT);
  const infinities = constant(INFINITIES);
  let total = f32x4.splat(0);
  for (const end = to + (n >> 8) * bytes; to < end; to += bytes) {
    total = superFactor<T>(w, own, sums, to, bits, factor, exponent, infinities, total);
    w += blockBytes<T>();
    own += bytes;
    sums += bytes;
  }
  return total;
}

/** One super-block, whose minima are added to `total`. */
// @inline
export function superFactor<T>(
  w: usize,
  own: usize,
  sums: usize,
  to: usize,
  bits: v128,
  factor: v128,
  exponent: v128,
  infinities: v128,
  total: v128,
): v128 {
  const both = superScales<T>(w, bits, factor, exponent, infinities);
  const d = hasMin<T>() ? v128.shuffle<u64>(both, both, 0, 0) : both;
  const scales = groupScales<T>(w);
  four(d, scales, 0, own, to);
  four(d, scales, 1, own, to);
  if (groupSize<T>() === 16) {
    four(d, scales, 2, own, to);
    four(d, scales, 3, own, to);
  }
  if (!hasMin<T>()) return total;
  const minima = groupMinima<T>(w, scales);
  const m = f32x4.neg(v128.shuffle<u64>(both, both, 1, 1));
  total = madd(f32x4.mul(m, floats4(minima, 0)), v128.load(sums), total);
  total = madd(f32x4.mul(m, floats4(minima, 1)), v128.load(sums, 16), total);
  if (groupSize<T>() === 32) return total;
  total = madd(f32x4.mul(m, floats4(minima, 2)), v128.load(sums, 32), total);
  return madd(f32x4.mul(m, floats4(minima, 3)), v128.load(sums, 48), total);
}

/** Groups 4·part … + 3. */
// @inline
function four(d: v128, scales: v128, part: i32, own: usize, to: usize): void {
  const at = (<usize>part) << 4;
  v128.store(to + at, f32x4.mul(f32x4.mul(d, floats4(scales, part)), v128.load(own + at)));
}
