/** Scalar conversions of the small floats. All round to nearest even; arrays are converted by the kernels. */
const word = new Uint32Array(1);
const float = new Float32Array(word.buffer);

const bitsOf = (x: number): number => {
  float[0] = x;
  return word[0]!;
};

export function f32ToF16(x: number): number {
  const bits = bitsOf(x);
  const sign = (bits >>> 16) & 0x8000;
  const magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00;
  if (magnitude >= 0x477ff000) return sign | 0x7c00; // 65520 and above round to infinity
  if (magnitude < 0x38800000) {
    // Subnormal in f16: adding 0.5 puts the rounded result into the low mantissa bits.
    float[0] = Math.fround(Math.abs(Math.fround(x)) + 0.5);
    return sign | (word[0]! - 0x3f000000);
  }
  return sign | ((magnitude - 0x38000000 + 0xfff + ((magnitude >>> 13) & 1)) >>> 13);
}

export function f16ToF32(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >>> 10) & 31;
  const mantissa = bits & 1023;
  if (exponent === 31) return mantissa ? Number.NaN : sign * Number.POSITIVE_INFINITY;
  return sign * (exponent ? (1024 + mantissa) * 2 ** (exponent - 25) : mantissa * 2 ** -24);
}

export function f32ToBf16(x: number): number {
  const bits = bitsOf(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return (bits >>> 16) | 0x40;
  return (bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16;
}

/** e4m3fn: no infinities, NaN is 0x7f, the largest value is 448; larger values become NaN as in PyTorch. */
export function f32ToF8e4m3(x: number): number {
  const bits = bitsOf(x);
  const sign = (bits >>> 24) & 0x80;
  const magnitude = Math.abs(Math.fround(x));
  if (!(magnitude < 464)) return sign | (magnitude === 464 ? 0x7e : 0x7f);
  if (magnitude < 2 ** -6) {
    float[0] = Math.fround(magnitude + 2 ** 14); // the low bits of 2^14 count units of 2^-9
    return sign | (word[0]! - 0x46800000);
  }
  const m = bits & 0x7fffffff;
  return sign | ((m - 0x3c000000 + 0x7ffff + ((m >>> 20) & 1)) >>> 20);
}

export function f8e4m3ToF32(bits: number): number {
  const sign = bits & 0x80 ? -1 : 1;
  const exponent = (bits >>> 3) & 15;
  const mantissa = bits & 7;
  if (exponent === 15 && mantissa === 7) return Number.NaN;
  return sign * (exponent ? (8 + mantissa) * 2 ** (exponent - 10) : mantissa * 2 ** -9);
}
