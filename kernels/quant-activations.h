// Activations as products with quantized weights want them: per group of 32 integers of 16 bits, in two signed bytes each, the scale,
// and scale · Σ integers. Of f32, a third byte has what is left, in units of 1/256.
#ifndef WICK_QUANT_ACTIVATIONS_H
#define WICK_QUANT_ACTIVATIONS_H
#include "stream.h"
namespace gpu {

typedef Vec<f32, 2> ScaleSum;
typedef Vec<u32, 2> Words2;

// An integer of 16 bits is 256 · v[0] + v[1]; v[2] is behind the point.
template <int P> struct Planes {
  Words2 v[P];
};
// Rounds a group that four neighbouring lanes hold, eight elements each, to 16 bits, which leave an error of 2e-5 of its size: eight
// would leave 5e-3, more than halves do; to 24 with three planes. One without range has scale 0 and bytes 0; one with NaN or infinity has the scale NaN. No
// branches, so that several groups overlap.
template <int P> GPU_FN Planes<P> round_group(const f32 (&x)[8], ScaleSum& s) {
  f32 largest = 0;
  UNROLL for (int j = 0; j < 8; j++) largest = maximum(largest, m_abs(x[j]));
  UNROLL for (u32 mask = 2; mask; mask /= 2) largest = maximum(largest, shfl_xor(largest, mask));
  // The power of two that brings the largest near 1, and its inverse.
  const u32 exponent = f32_bits(largest) >> 23, near = exponent < 1 ? 1 : exponent > 253 ? 253 : exponent;
  const f32 lift = f32_from_bits((254 - near) << 23), lower = f32_from_bits(near << 23), lifted = largest * lift;
  // The largest high byte is 127; 128 less would still fit, so that the inverse need not be exact. What is not finite has no
  // difference from itself.
  const f32 scale = lifted * (1.0f / 32512.0f) * lower + (largest - largest), inverse = 32512.0f * approx_recip(lifted);
  const u32 kept = scale > 0 ? ~0u : 0u;
  Planes<P> q;
  i32 high = 0, low = 0, rest = 0;
  // Adding 1.5 · 2^23 rounds to nearest even and leaves the integer in the low bits; 128 more round the high byte and turn the
  // low one's sign.
  constexpr f32 point = 12582912.0f;
  UNROLL for (int w = 0; w < 2; w++) {
    u32 nearest[4], behind[4];
    UNROLL for (int j = 0; j < 4; j++) {
      const f32 near_one = x[4 * w + j] * lift, whole = m_fma(near_one, inverse, point + 128.0f);
      nearest[j] = f32_bits(whole);
      if (P < 3) continue;
      const f32 left = m_fma(near_one, inverse, (point + 128.0f) - whole);
      behind[j] = f32_bits(m_fma(left < 127.0f / 256.0f ? left : 127.0f / 256.0f, 256.0f, point));
    }
    q.v[0].v[w] = pack_bytes<1>(nearest[0], nearest[1], nearest[2], nearest[3]) & kept;
    q.v[1].v[w] = (pack_bytes<0>(nearest[0], nearest[1], nearest[2], nearest[3]) ^ 0x80808080u) & kept;
    high = dot4(0x01010101u, q.v[0].v[w], high);
    low = dot4(0x01010101u, q.v[1].v[w], low);
    if constexpr (P > 2) {
      q.v[2].v[w] = pack_bytes<0>(behind[0], behind[1], behind[2], behind[3]) & kept;
      rest = dot4(0x01010101u, q.v[2].v[w], rest);
    }
  }
  i32 sum = high * 256 + low;
  UNROLL for (u32 mask = 2; mask; mask /= 2) {
    sum += shfl_xor(sum, mask);
    if (P > 2) rest += shfl_xor(rest, mask);
  }
  s = ScaleSum{{scale, scale * (P > 2 ? m_fma((f32)rest, 1.0f / 256.0f, (f32)sum) : (f32)sum)}};
  return q;
}

// Elements 8 i … 8 i + 7 of floats whose type is known by number (DTYPE_f32, …), on their way.
struct Eight {
  Words4 raw[2];
  GPU_METHOD void load(const void* x, size_t i, u32 dtype) {
    const u32 bytes = dtype == DTYPE_f32 ? 32 : 16;
    const u8* from = (const u8*)x + i * bytes;
    if (aligned_to(x, 16)) {
      raw[0] = *(const Words4*)from;
      if (dtype == DTYPE_f32) raw[1] = ((const Words4*)from)[1];
    } else UNROLL for (int w = 0; w < 8; w++) {
      if (4 * w >= (int)bytes) continue;
      raw[w / 4].v[w % 4] = dtype == DTYPE_f32 ? ((const u32*)from)[w] : ((const u16*)from)[2 * w] | (u32)((const u16*)from)[2 * w + 1] << 16;
    }
  }
  GPU_METHOD void get(f32 (&x)[8], u32 dtype) const {
    UNROLL for (int j = 0; j < 8; j++) {
      const u32 word = raw[0].v[j / 2];
      x[j] = dtype == DTYPE_f32 ? f32_from_bits(raw[j / 4].v[j % 4]) : dtype == DTYPE_f16 ? InWord<f16>::at(word, j % 2) : InWord<bf16>::at(word, j % 2);
    }
  }
};

// The same of elements 4 i … 4 i + 3 and sixteen further on: what lane i of four has of a group of 32 on matrix units.
struct TwoFours {
  u32 raw[8];
  GPU_METHOD void load(const void* x, size_t i, u32 dtype) {
    if (!aligned_to(x, 16)) load_halves((const u16*)x, i, dtype == DTYPE_f32 ? 4 : 2);
    else if (dtype == DTYPE_f32) load_vectors<4>(x, i);
    else load_vectors<2>(x, i);
  }
  GPU_METHOD void get(f32 (&x)[8], u32 dtype) const {
    if (dtype == DTYPE_f32) UNROLL for (int j = 0; j < 8; j++) x[j] = f32_from_bits(raw[j]);
    else if (dtype == DTYPE_f16) UNROLL for (int j = 0; j < 8; j++) x[j] = InWord<f16>::at(raw[j / 4 * 4 + j % 4 / 2], j % 2);
    else UNROLL for (int j = 0; j < 8; j++) x[j] = InWord<bf16>::at(raw[j / 4 * 4 + j % 4 / 2], j % 2);
  }

 private:
  template <int Words> GPU_METHOD void load_vectors(const void* x, size_t i) {
    UNROLL for (int half = 0; half < 2; half++) {
      const Vec<u32, Words> v = ((const Vec<u32, Words>*)x)[i + 4 * half];
      UNROLL for (int w = 0; w < Words; w++) raw[4 * half + w] = v.v[w];
    }
  }
  GPU_METHOD void load_halves(const u16* x, size_t i, int words) {
    UNROLL for (int w = 0; w < 8; w++) {
      if (w % 4 >= words) continue;
      const u16* from = x + 2 * ((i + w / 4 * 4) * words + w % 4);
      raw[w] = from[0] | (u32)from[1] << 16;
    }
  }
};

}  // namespace gpu
#endif
