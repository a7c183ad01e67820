// Activations as products with quantized weights want them: per group of 32 a signed byte each, the scale, and scale · Σ bytes.
#ifndef WICK_QUANT_ACTIVATIONS_H
#define WICK_QUANT_ACTIVATIONS_H
#include "stream.h"
namespace gpu {

typedef Vec<f32, 2> ScaleSum;
typedef Vec<u32, 2> Words2;

// Rounds a group that four neighbouring lanes hold, eight elements each. One without range has scale 0 and bytes 0; one with
// NaN or infinity has that as its scale, and what is computed with it becomes NaN.
GPU_FN Words2 round_group(const f32 (&x)[8], ScaleSum& s) {
  f32 largest = 0;
  UNROLL for (int j = 0; j < 8; j++) largest = maximum(largest, m_abs(x[j]));
  UNROLL for (u32 mask = 2; mask; mask /= 2) largest = maximum(largest, shfl_xor(largest, mask));
  const f32 scale = largest / 127.0f;
  // 127 / largest must not overflow.
  const f32 lift = largest < 7.9e-31f ? 1.2676506e30f : 1.0f;
  const f32 inverse = scale > 0 && largest < Limits<f32>::highest() ? 127.0f / (largest * lift) : 0.0f;
  Words2 q;
  i32 sum = 0;
  UNROLL for (int w = 0; w < 2; w++) {
    u32 byte[4];
    // Adding 1.5 · 2^23 rounds to nearest even and leaves the integer in the low bits.
    UNROLL for (int j = 0; j < 4; j++) byte[j] = inverse == 0 ? 0 : f32_bits(x[4 * w + j] * lift * inverse + 12582912.0f) & 0xffu;
    q.v[w] = byte[0] | byte[1] << 8 | byte[2] << 16 | byte[3] << 24;
    sum = dot4(0x01010101u, q.v[w], sum);
  }
  UNROLL for (u32 mask = 2; mask; mask /= 2) sum += shfl_xor(sum, mask);
  s = ScaleSum{{scale, scale * (f32)sum}};
  return q;
}

// Elements 8 i … 8 i + 7 of floats whose type is known by number (0 f32, 1 f16, 2 bf16), on their way.
struct Eight {
  Words4 raw[2];
  GPU_METHOD void load(const void* x, size_t i, u32 dtype) {
    const u32 bytes = dtype == 0 ? 32 : 16;
    const u8* from = (const u8*)x + i * bytes;
    if (aligned_to(x, 16)) {
      raw[0] = *(const Words4*)from;
      if (dtype == 0) raw[1] = ((const Words4*)from)[1];
    } else UNROLL for (int w = 0; w < 8; w++) {
      if (4 * w >= (int)bytes) continue;
      raw[w / 4].v[w % 4] = dtype == 0 ? ((const u32*)from)[w] : ((const u16*)from)[2 * w] | (u32)((const u16*)from)[2 * w + 1] << 16;
    }
  }
  GPU_METHOD void get(f32 (&x)[8], u32 dtype) const {
    UNROLL for (int j = 0; j < 8; j++) {
      const u32 word = raw[0].v[j / 2];
      x[j] = dtype == 0 ? f32_from_bits(raw[j / 4].v[j % 4]) : dtype == 1 ? InWord<f16>::at(word, j % 2) : InWord<bf16>::at(word, j % 2);
    }
  }
};

}  // namespace gpu
#endif
