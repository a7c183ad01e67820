// Words that hold several small numbers, by the instruction for it where there is one.
#ifndef WICK_GPU_WORDS_H
#define WICK_GPU_WORDS_H
#include "gpu/dtypes.h"

namespace gpu {
// a·b + c over four signed bytes: one instruction where the device has it.
#if (defined(__GFX11__) || defined(__GFX12__)) && GPU_HAS(__builtin_amdgcn_sudot4)
GPU_FN i32 dot4(u32 a, u32 b, i32 c) { return __builtin_amdgcn_sudot4(true, (i32)a, true, (i32)b, c, false); }
#elif (defined(__GFX9__) || defined(__GFX10__)) && GPU_HAS(__builtin_amdgcn_sdot4)
GPU_FN i32 dot4(u32 a, u32 b, i32 c) { return __builtin_amdgcn_sdot4((i32)a, (i32)b, c, false); }
#elif GPU_NVIDIA
GPU_FN i32 dot4(u32 a, u32 b, i32 c) { return __dp4a((i32)a, (i32)b, c); }
#else
GPU_FN i32 dot4(u32 a, u32 b, i32 c) {
  UNROLL for (int j = 0; j < 32; j += 8) c += (i32)(signed char)(a >> j) * (i32)(signed char)(b >> j);
  return c;
}
#endif

// The low word of high ‖ low shifted right, by shift modulo 32.
GPU_FN u32 funnel_shift(u32 low, u32 high, u32 shift) {
#if GPU_NVIDIA
  return __funnelshift_r(low, high, shift);
#elif GPU_AMD
  return __builtin_amdgcn_alignbit(high, low, shift);
#else
  return (u32)(((u64)high << 32 | low) >> (shift & 31u));
#endif
}

// x & mask ^ turned. NVIDIA's compiler makes two instructions of it where both are constants.
GPU_FN u32 and_xor(u32 x, u32 mask, u32 turned) {
#if GPU_NVIDIA
  u32 y;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(y) : "r"(x), "r"(mask), "r"(turned));
  return y;
#else
  return (x & mask) ^ turned;
#endif
}

// Byte B, the lowest first, of four words.
template <int B> GPU_FN u32 pack_bytes(u32 a, u32 b, u32 c, u32 d) {
#if GPU_NVIDIA
  return __byte_perm(__byte_perm(a, b, 0x0040 + 0x0011 * B), __byte_perm(c, d, 0x0040 + 0x0011 * B), 0x5410);
#elif GPU_AMD
  return __builtin_amdgcn_perm(__builtin_amdgcn_perm(d, c, 0x0c0c0400u + 0x0101u * B), __builtin_amdgcn_perm(b, a, 0x0c0c0400u + 0x0101u * B), 0x05040100u);
#else
  return (a >> 8 * B & 0xffu) | (b >> 8 * B & 0xffu) << 8 | (c >> 8 * B & 0xffu) << 16 | (d >> 8 * B & 0xffu) << 24;
#endif
}

// The bytes that the nibbles of x stand for among sixteen, four to a word: those of the low nibbles, and of the high ones.
GPU_FN void bytes_by_nibble(u32 x, const u32 (&codes)[4], u32& low, u32& high) {
#if GPU_NVIDIA
  // A selector is four nibbles, of which three bits count: neighbouring nibbles are looked up in both halves, and the fourth bit chooses.
  const u32 place = x & 0x77777777u, half = (x >> 1 & 0x44444444u) | 0x32103210u;
  const u32 first = __byte_perm(__byte_perm(codes[0], codes[1], place), __byte_perm(codes[2], codes[3], place), half);
  const u32 second = __byte_perm(__byte_perm(codes[0], codes[1], place >> 16), __byte_perm(codes[2], codes[3], place >> 16), half >> 16);
  low = __byte_perm(first, second, 0x6420);
  high = __byte_perm(first, second, 0x7531);
#else
  const auto find = [&](u32 nibbles) {
#if GPU_AMD
    const u32 place = nibbles & 0x07070707u, half = (nibbles >> 1 & 0x04040404u) | 0x03020100u;
    return __builtin_amdgcn_perm(__builtin_amdgcn_perm(codes[3], codes[2], place), __builtin_amdgcn_perm(codes[1], codes[0], place), half);
#else
    u32 y = 0;
    UNROLL for (int j = 0; j < 32; j += 8) y |= (codes[nibbles >> j >> 2 & 3u] >> 8 * (nibbles >> j & 3u) & 0xffu) << j;
    return y;
#endif
  };
  low = find(x);
  high = find(x >> 4);
#endif
}

// scale · q + min of four signed bytes. NVIDIA's conversions are slow: there bytes become parts of significands, of 32768 + 128 + q, from
// which that is taken first; or, where they are SMALL (below 128), of 128 + q, and what is too much goes with the minimum: exactly where
// the scale is a half's, else to 2^-17 of it.
template <bool SMALL> GPU_FN void scaled_bytes(u32 q, f32 scale, f32 min, f32 (&x)[4]) {
#if GPU_NVIDIA
  const u32 bytes = SMALL ? q : q ^ 0x80808080u;
  const f32 shift = __fmaf_rn(scale, SMALL ? -128.0f : 0.0f, min);
  UNROLL for (int j = 0; j < 4; j++) {
    const f32 whole = f32_from_bits(__byte_perm(bytes, SMALL ? 0x43000000u : 0x47000000u, SMALL ? 0x7044u | (u32)j << 8 : 0x7404u | (u32)j << 4));
    x[j] = __fmaf_rn(SMALL ? whole : whole - 32896.0f, scale, shift);
  }
#else
  UNROLL for (int j = 0; j < 4; j++) x[j] = (f32)(signed char)(q >> 8 * j) * scale + min;
#endif
}

// scale · q / 16 + min of four signed bytes, in halves: two words of them. scale and min are there twice in theirs. NVIDIA's: a byte
// below 0x64 is 1024 more than it, which leaves sixteenths exact.
template <bool MIN> GPU_FN void scaled_halves(u32 q, u32 scale, u32 min, u32& low, u32& high) {
#if GPU_NVIDIA
  const u32 bytes = q ^ 0x80808080u, two[2] = {__byte_perm(bytes, 0x64646464u, 0x4140), __byte_perm(bytes, 0x64646464u, 0x4342)};
  u32 y[2];
  UNROLL for (int i = 0; i < 2; i++) {
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y[i]) : "r"(two[i]), "r"(0x2c002c00u), "r"(0xd480d480u));
    if (MIN) asm("fma.rn.f16x2 %0, %0, %1, %2;" : "+r"(y[i]) : "r"(scale), "r"(min));
    else asm("mul.rn.f16x2 %0, %0, %1;" : "+r"(y[i]) : "r"(scale));
  }
  low = y[0];
  high = y[1];
#else
  f32 x[4];
  UNROLL for (int j = 0; j < 4; j++) x[j] = (f32)(signed char)(q >> 8 * j) / 16 * f16_to_f32((u16)scale) + (MIN ? f16_to_f32((u16)min) : 0.0f);
  low = f32_to_f16(x[0]) | (u32)f32_to_f16(x[1]) << 16;
  high = f32_to_f16(x[2]) | (u32)f32_to_f16(x[3]) << 16;
#endif
}

// Byte i of x as the second lowest of a word whose others are those of `around`, which has zeros below its highest.
GPU_FN u32 byte_in_second(u32 x, u32 around, u32 i) {
#if GPU_NVIDIA
  return __byte_perm(x, around, 0x7404u | i << 4);
#else
  return around | (x >> 8 * i & 0xffu) << 8;
#endif
}

// Two halves as a word. Those of AMD are rounded without a look at NaN: the sum beside them carries that. Values are at most 1.
#if GPU_NVIDIA && __CUDA_ARCH__ >= 800
GPU_FN u32 pack2(bf16, f32 low, f32 high) {
  u32 y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}
GPU_FN u32 pack2(f16, f32 low, f32 high) {
  u32 y;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}
#else
#if GPU_AMD
GPU_FN u32 pack2(bf16, f32 low, f32 high) {
  const u32 a = f32_bits(low), b = f32_bits(high);
  return (a + 0x7fffu + ((a >> 16) & 1u)) >> 16 | ((b + 0x7fffu + ((b >> 16) & 1u)) & 0xffff0000u);
}
#else
GPU_FN u32 pack2(bf16, f32 low, f32 high) { return f32_to_bf16(low) | (u32)f32_to_bf16(high) << 16; }
#endif
GPU_FN u32 pack2(f16, f32 low, f32 high) { return f32_to_f16(low) | (u32)f32_to_f16(high) << 16; }
#endif

// A value that the optimizer takes for another from here on, so that it does not keep what it has made of it.
#if GPU_NVIDIA
GPU_FN void forget(u32& x) { asm volatile("" : "+r"(x)); }
#elif GPU_AMD
GPU_FN void forget(u32& x) { asm volatile("" : "+v"(x)); }
#else
GPU_FN void forget(u32&) {}
#endif
}  // namespace gpu

#endif  // WICK_GPU_WORDS_H
