// Four f8e4m3 of a word as halves, times a power of two: by conversions where NVIDIA has them, else by bits and multiplications.
#ifndef WICK_GPU_F8_H
#define WICK_GPU_F8_H
#include "gpu/dtypes.h"

namespace gpu {
// What multiplies elements of a row, made once for it. scale: from 2⁻¹²⁶ to 2⁶⁰, or NaN.
template <class T> struct F8Factor {
  f32 scale;
  GPU_METHOD explicit F8Factor(f32 by) : scale(by * f32_from_bits(187u << 23)) {}
  // An f8's bits in an f32's place are 2⁻¹²⁰ of it, and half of that is in the scale already.
  GPU_METHOD f32 element(u32 word, int i) const {
    const u32 x = word >> 8 * i;
    return f32_from_bits((x & 0x80u) << 24 | (x & 0x7fu) << 20) * f32_from_bits(187u << 23) * scale;
  }
  // Halves i and i + 1 as one word.
  GPU_METHOD u32 pair(u32 word, int i) const {
    return (u32)narrow<T>(element(word, i)).bits | (u32)narrow<T>(element(word, i + 1)).bits << 16;
  }
};
#if GPU_NVIDIA && __CUDA_ARCH__ >= 900
template <> struct F8Factor<f16> {
  u32 scale;
  GPU_METHOD explicit F8Factor(f32 by) : scale((u32)f32_to_f16(by) * 0x10001u) {}
  GPU_METHOD u32 pair(u32 word, int i) const {
    u32 x;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(x) : "h"((u16)(word >> 8 * i)));
    asm("mul.rn.f16x2 %0, %0, %1;" : "+r"(x) : "r"(scale));
    return x;
  }
};
template <> struct F8Factor<bf16> {
  u32 scale;
  GPU_METHOD explicit F8Factor(f32 by) : scale((u32)f32_to_bf16(by * f32_from_bits(187u << 23)) * 0x10001u) {}
  GPU_METHOD u32 pair(u32 word, int i) const {
    const u32 x = __byte_perm(word, 0, i ? 0x3424 : 0x1404);
    u32 y = (x & 0x80008000u) | (x >> 4 & 0x07f007f0u);
    asm("mul.rn.bf16x2 %0, %0, %1;" : "+r"(y) : "r"(0x5d805d80u));
    asm("mul.rn.bf16x2 %0, %0, %1;" : "+r"(y) : "r"(scale));
    return y;
  }
};
#endif
}  // namespace gpu

#endif  // WICK_GPU_F8_H
