// Arithmetic on two halves at once, f16 in a word.
#ifndef WICK_GPU_HALVES_H
#define WICK_GPU_HALVES_H
#include "gpu/words.h"

namespace gpu {
#if GPU_NVIDIA
GPU_FN u32 add_halves(u32 a, u32 b) {
  u32 y;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}
GPU_FN u32 multiply_halves(u32 a, u32 b) {
  u32 y;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}
GPU_FN u32 fma_halves(u32 a, u32 b, u32 c) {
  u32 y;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
  return y;
}
// The lower half of x, or the upper one, twice.
template <bool UPPER> GPU_FN u32 half_twice(u32 x) {
  u32 y;
  if (UPPER) asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {high, high}; }" : "=r"(y) : "r"(x));
  else asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {low, low}; }" : "=r"(y) : "r"(x));
  return y;
}
#else
GPU_FN u32 fma_halves(u32 a, u32 b, u32 c) {
  f32 y[2];
  UNROLL for (int i = 0; i < 2; i++) y[i] = f16_to_f32((u16)(a >> 16 * i)) * f16_to_f32((u16)(b >> 16 * i)) + f16_to_f32((u16)(c >> 16 * i));
  return f32_to_f16(y[0]) | (u32)f32_to_f16(y[1]) << 16;
}
GPU_FN u32 add_halves(u32 a, u32 b) { return fma_halves(a, 0x3c003c00u, b); }
GPU_FN u32 multiply_halves(u32 a, u32 b) { return fma_halves(a, b, 0x80008000u); }
template <bool UPPER> GPU_FN u32 half_twice(u32 x) { return UPPER ? x >> 16 | (x & 0xffff0000u) : (x & 0xffffu) | x << 16; }
#endif
}  // namespace gpu

#endif  // WICK_GPU_HALVES_H
