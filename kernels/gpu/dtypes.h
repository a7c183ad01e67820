// The dtypes of the catalogue under the catalogue's names, so that one macro argument is both type and suffix; conversions
// between them, and lists of them.
#ifndef WICK_GPU_DTYPES_H
#define WICK_GPU_DTYPES_H
#include "gpu/compiler.h"

namespace gpu {
typedef decltype(sizeof 0) size_t;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef float f32;
typedef double f64;
struct f16 { u16 bits; };
struct bf16 { u16 bits; };
struct f8e4m3 { u8 bits; };

// ---------------------------------------------------------------------------------------------------------------------
// Floats as bits, and halves as floats
// ---------------------------------------------------------------------------------------------------------------------
#if GPU_AMD
GPU_FN unsigned f32_bits(float x) { return __builtin_bit_cast(unsigned, x); }
GPU_FN float f32_from_bits(unsigned x) { return __builtin_bit_cast(float, x); }
GPU_FN unsigned long long f64_bits(double x) { return __builtin_bit_cast(unsigned long long, x); }
GPU_FN double f64_from_bits(unsigned long long x) { return __builtin_bit_cast(double, x); }
GPU_FN float f16_to_f32(unsigned short x) { return (float)__builtin_bit_cast(_Float16, x); }
// LLVM 19 and its neighbours make one instruction of a product and its conversion, a·b + 0, which turns −0 into +0; so the
// product is hidden from the conversion.
GPU_FN unsigned short f32_to_f16(float x) {
  asm("" : "+v"(x));
  return __builtin_bit_cast(unsigned short, (_Float16)x);
}
#elif GPU_NVIDIA
GPU_FN unsigned f32_bits(float x) { return __float_as_uint(x); }
GPU_FN float f32_from_bits(unsigned x) { return __uint_as_float(x); }
GPU_FN unsigned long long f64_bits(double x) { return (unsigned long long)__double_as_longlong(x); }
GPU_FN double f64_from_bits(unsigned long long x) { return __longlong_as_double((long long)x); }
// nvrtc has no cuda_fp16.h; the instructions themselves are everywhere.
GPU_FN float f16_to_f32(unsigned short x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}
GPU_FN unsigned short f32_to_f16(float x) {
  unsigned short y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}
#else
template <class To, class From> static inline To host_bits(From x) {
  static_assert(sizeof(To) == sizeof(From), "");
  To y;
  __builtin_memcpy(&y, &x, sizeof y);
  return y;
}
GPU_FN unsigned f32_bits(float x) { return host_bits<unsigned>(x); }
GPU_FN float f32_from_bits(unsigned x) { return host_bits<float>(x); }
GPU_FN unsigned long long f64_bits(double x) { return host_bits<unsigned long long>(x); }
GPU_FN double f64_from_bits(unsigned long long x) { return host_bits<double>(x); }
// Multiplying by 2^112 moves the exponent and normalises subnormals.
GPU_FN float f16_to_f32(unsigned short h) {
  const unsigned magnitude = (h & 0x7fffu) << 13;
  unsigned bits = f32_bits(f32_from_bits(magnitude) * f32_from_bits(0x77800000u));
  if (magnitude >= 0x0f800000u) bits |= 0x7f800000u;
  return f32_from_bits(bits | (h & 0x8000u) << 16);
}
GPU_FN unsigned short f32_to_f16(float x) {
  const unsigned sign = (f32_bits(x) >> 16) & 0x8000u, m = f32_bits(x) & 0x7fffffffu;
  if (m > 0x7f800000u) return (unsigned short)(sign | 0x7e00u);
  if (m >= 0x477ff000u) return (unsigned short)(sign | 0x7c00u);
  if (m < 0x38800000u) return (unsigned short)(sign | (f32_bits(f32_from_bits(m) + 0.5f) - 0x3f000000u));
  return (unsigned short)(sign | ((m - 0x38000000u + 0xfffu + ((m >> 13) & 1u)) >> 13));
}
#endif

GPU_FN f32 bf16_to_f32(u16 x) { return f32_from_bits((u32)x << 16); }
#if GPU_NVIDIA && __CUDA_ARCH__ >= 800
GPU_FN u16 f32_to_bf16(f32 x) {
  u16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}
#else
GPU_FN u16 f32_to_bf16(f32 x) {
  const u32 b = f32_bits(x);
  return (u16)(x != x ? (b >> 16) | 0x40u : (b + 0x7fffu + ((b >> 16) & 1u)) >> 16);
}
#endif
// e4m3fn: no infinities, beyond 464 there is only NaN, subnormals count units of 2^-9.
GPU_FN f32 f8e4m3_to_f32(u8 x) {
  const u32 m = x & 0x7fu, sign = (x & 0x80u) << 24;
  if (m == 0x7fu) return f32_from_bits(sign | 0x7fc00000u);
  return f32_from_bits(sign | f32_bits(f32_from_bits(m << 20) * f32_from_bits(0x7b800000u)));
}
GPU_FN u8 f32_to_f8e4m3(f32 x) {
  const u32 b = f32_bits(x), m = b & 0x7fffffffu, sign = (b >> 24) & 0x80u;
  if (m > 0x43e80000u) return (u8)(sign | 0x7fu);
  if (m < 0x3c800000u) return (u8)(sign | (f32_bits(f32_from_bits(m) + 16384.0f) - 0x46800000u));
  return (u8)(sign | ((m - 0x3c000000u + 0x7ffffu + ((m >> 20) & 1u)) >> 20));
}

// Compute<T>::type is what arithmetic on T happens in: f32 for the small floats, T itself otherwise.
template <class T> struct Compute { typedef T type; };
template <> struct Compute<f16> { typedef f32 type; };
template <> struct Compute<bf16> { typedef f32 type; };
template <> struct Compute<f8e4m3> { typedef f32 type; };
template <class T> using compute_t = typename Compute<T>::type;

template <class T> struct IsFloat { static constexpr bool value = false; };
template <> struct IsFloat<f32> { static constexpr bool value = true; };
template <> struct IsFloat<f64> { static constexpr bool value = true; };
template <> struct IsFloat<f16> { static constexpr bool value = true; };
template <> struct IsFloat<bf16> { static constexpr bool value = true; };
template <> struct IsFloat<f8e4m3> { static constexpr bool value = true; };

// The unsigned integer of a type's size: kernels that only move elements are written over it.
template <int Bytes> struct BitsOfSize;
template <> struct BitsOfSize<1> { typedef u8 type; };
template <> struct BitsOfSize<2> { typedef u16 type; };
template <> struct BitsOfSize<4> { typedef u32 type; };
template <> struct BitsOfSize<8> { typedef u64 type; };
template <class T> using bits_t = typename BitsOfSize<sizeof(T)>::type;

template <class T> GPU_FN T widen(T x) { return x; }
GPU_FN f32 widen(f16 x) { return f16_to_f32(x.bits); }
GPU_FN f32 widen(bf16 x) { return bf16_to_f32(x.bits); }
GPU_FN f32 widen(f8e4m3 x) { return f8e4m3_to_f32(x.bits); }

// Narrow<T>::from rounds a compute value to T (nearest even).
template <class T> struct Narrow { GPU_FN T from(T x) { return x; } };
template <> struct Narrow<f16> { GPU_FN f16 from(f32 x) { return f16{f32_to_f16(x)}; } };
template <> struct Narrow<bf16> { GPU_FN bf16 from(f32 x) { return bf16{f32_to_bf16(x)}; } };
template <> struct Narrow<f8e4m3> { GPU_FN f8e4m3 from(f32 x) { return f8e4m3{f32_to_f8e4m3(x)}; } };
template <class T> GPU_FN T narrow(compute_t<T> x) { return Narrow<T>::from(x); }

template <class T> struct Limits;
#define GPU_LIMITS(T, least, greatest) \
  template <> struct Limits<T> { \
    GPU_FN T lowest() { return least; } \
    GPU_FN T highest() { return greatest; } \
  };
GPU_LIMITS(u8, 0, 255)
GPU_LIMITS(u32, 0, 0xffffffffu)
GPU_LIMITS(i16, -32768, 32767)
GPU_LIMITS(i32, (-0x7fffffff - 1), 0x7fffffff)
GPU_LIMITS(i64, (-0x7fffffffffffffffll - 1), 0x7fffffffffffffffll)
GPU_LIMITS(f32, f32_from_bits(0xff800000u), f32_from_bits(0x7f800000u))
GPU_LIMITS(f64, f64_from_bits(0xfff0000000000000ull), f64_from_bits(0x7ff0000000000000ull))
#undef GPU_LIMITS

// Lists of dtypes: GPU_FLOATS(M) is M(bf16) M(f16) M(f32) M(f64), and so on. A program that needs kernels of one dtype only
// defines GPU_ONLY and GPU_ONLY_<dtype>, which drops the others and most of the compile time. Kernels without a dtype belong to GPU_ONLY_bytes.
#if !defined(GPU_ONLY) || defined(GPU_ONLY_u8)
#define GPU_u8(M) M(u8)
#else
#define GPU_u8(M)
#endif
#if !defined(GPU_ONLY) || defined(GPU_ONLY_u32)
#define GPU_u32(M) M(u32)
#else
#define GPU_u32(M)
#endif
#if !defined(GPU_ONLY) || defined(GPU_ONLY_i16)
#define GPU_i16(M) M(i16)
#else
#define GPU_i16(M)
#endif
#if !defined(GPU_ONLY) || defined(GPU_ONLY_i32)
#define GPU_i32(M) M(i32)
#else
#define GPU_i32(M)
#endif
#if !defined(GPU_ONLY) || defined(GPU_ONLY_i64)
#define GPU_i64(M) M(i64)
#else
#define GPU_i64(M)
#endif
#if !defined(GPU_ONLY) || defined(GPU_ONLY_bf16)
#define GPU_bf16(M) M(bf16)
#else
#define GPU_bf16(M)
#endif
#if !defined(GPU_ONLY) || defined(GPU_ONLY_f16)
#define GPU_f16(M) M(f16)
#else
#define GPU_f16(M)
#endif
#if !defined(GPU_ONLY) || defined(GPU_ONLY_f32)
#define GPU_f32(M) M(f32)
#else
#define GPU_f32(M)
#endif
#if !defined(GPU_ONLY) || defined(GPU_ONLY_f64)
#define GPU_f64(M) M(f64)
#else
#define GPU_f64(M)
#endif
#if !defined(GPU_ONLY) || defined(GPU_ONLY_f8e4m3)
#define GPU_f8e4m3(M) M(f8e4m3)
#else
#define GPU_f8e4m3(M)
#endif
#define GPU_FLOATS(M) GPU_bf16(M) GPU_f16(M) GPU_f32(M) GPU_f64(M)
#define GPU_INTS(M) GPU_u8(M) GPU_u32(M) GPU_i16(M) GPU_i32(M) GPU_i64(M)
#define GPU_NUMBERS(M) GPU_FLOATS(M) GPU_INTS(M)
#define GPU_DTYPES(M) GPU_NUMBERS(M) GPU_f8e4m3(M)
}  // namespace gpu

#endif  // WICK_GPU_DTYPES_H
