// Arithmetic on two halves of a word at once, in f16 where nothing else is said.
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
// The larger of both lower halves as integers, and of both upper ones. sm_90 has it in one instruction.
#if __CUDA_ARCH__ >= 900
GPU_FN u32 larger_of_pairs(u32 a, u32 b) {
  u32 y;
  asm("max.u16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}
#endif
// Bytes 0 and 1 of x in 16 bits each, and bytes 2 and 3, below a byte that all have.
GPU_FN void spread_bytes(u32 x, u32 above, u32& low, u32& high) {
  low = __byte_perm(x, above, 0x4140);
  high = __byte_perm(x, above, 0x4342);
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
GPU_FN u32 larger_of_pairs(u32 a, u32 b) {
  const u32 low = (a & 0xffffu) > (b & 0xffffu) ? a & 0xffffu : b & 0xffffu;
  return low | (a >> 16 > b >> 16 ? a >> 16 : b >> 16) << 16;
}
GPU_FN void spread_bytes(u32 x, u32 above, u32& low, u32& high) {
  const u32 top = (above & 0xffu) * 0x01000100u;
  low = (x & 0xffu) | (x << 8 & 0xff0000u) | top;
  high = (x >> 16 & 0xffu) | (x >> 8 & 0xff0000u) | top;
}
#endif

// scale · (q − CENTRE) / 16 + shift of four bytes below 128, in halves: two words of them. scale and shift are there twice in theirs.
// A byte below 0x64 is 1024 more than it, which leaves sixteenths exact. What is near the middle needs little of a shift, so that
// rounding that to a half costs nothing that counts; a minimum as it is would be eight (sixteen) scales away.
template <u32 CENTRE> GPU_FN void centred_halves(u32 q, u32 scale, u32 shift, u32& low, u32& high) {
  u32 two[2];
  spread_bytes(q, 0x64646464u, two[0], two[1]);
  low = fma_halves(fma_halves(two[0], 0x2c002c00u, 0xd400d400u + CENTRE * 0x00010001u), scale, shift);
  high = fma_halves(fma_halves(two[1], 0x2c002c00u, 0xd400d400u + CENTRE * 0x00010001u), scale, shift);
}
}  // namespace gpu

#endif  // WICK_GPU_HALVES_H
