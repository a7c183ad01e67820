// Functions of real numbers: the accurate library of each compiler, under one name per function for f32 and f64, and the
// hardware's approximations.
#ifndef WICK_GPU_MATH_H
#define WICK_GPU_MATH_H
#include "gpu/dtypes.h"

#if GPU_AMD
#define GPU_MATH1(name, lib) \
  extern "C" GPU_DEVICE float __ocml_##lib##_f32(float); \
  extern "C" GPU_DEVICE double __ocml_##lib##_f64(double); \
  namespace gpu { \
  GPU_FN f32 name(f32 x) { return __ocml_##lib##_f32(x); } \
  GPU_FN f64 name(f64 x) { return __ocml_##lib##_f64(x); } \
  }
#define GPU_MATH2(name, lib) \
  extern "C" GPU_DEVICE float __ocml_##lib##_f32(float, float); \
  extern "C" GPU_DEVICE double __ocml_##lib##_f64(double, double); \
  namespace gpu { \
  GPU_FN f32 name(f32 x, f32 y) { return __ocml_##lib##_f32(x, y); } \
  GPU_FN f64 name(f64 x, f64 y) { return __ocml_##lib##_f64(x, y); } \
  }
#elif GPU_NVIDIA
#define GPU_MATH1(name, lib) \
  namespace gpu { \
  GPU_FN f32 name(f32 x) { return ::lib##f(x); } \
  GPU_FN f64 name(f64 x) { return ::lib(x); } \
  }
#define GPU_MATH2(name, lib) \
  namespace gpu { \
  GPU_FN f32 name(f32 x, f32 y) { return ::lib##f(x, y); } \
  GPU_FN f64 name(f64 x, f64 y) { return ::lib(x, y); } \
  }
#else
#define GPU_MATH1(name, lib) \
  namespace gpu { \
  GPU_FN f32 name(f32 x) { return __builtin_##lib##f(x); } \
  GPU_FN f64 name(f64 x) { return __builtin_##lib(x); } \
  }
#define GPU_MATH2(name, lib) \
  namespace gpu { \
  GPU_FN f32 name(f32 x, f32 y) { return __builtin_##lib##f(x, y); } \
  GPU_FN f64 name(f64 x, f64 y) { return __builtin_##lib(x, y); } \
  }
#endif
GPU_MATH1(m_exp, exp)
GPU_MATH1(m_expm1, expm1)
GPU_MATH1(m_log, log)
GPU_MATH1(m_sin, sin)
GPU_MATH1(m_cos, cos)
GPU_MATH1(m_tanh, tanh)
GPU_MATH1(m_erf, erf)
GPU_MATH1(m_erfc, erfc)
GPU_MATH1(m_sqrt, sqrt)
GPU_MATH1(m_ceil, ceil)
GPU_MATH1(m_floor, floor)
GPU_MATH1(m_round, round)
GPU_MATH1(m_abs, fabs)
GPU_MATH2(m_pow, pow)
namespace gpu {
#if GPU_NVIDIA
GPU_FN f32 m_fma(f32 a, f32 b, f32 c) { return __fmaf_rn(a, b, c); }
GPU_FN f64 m_fma(f64 a, f64 b, f64 c) { return __fma_rn(a, b, c); }
#else
GPU_FN f32 m_fma(f32 a, f32 b, f32 c) { return __builtin_fmaf(a, b, c); }
GPU_FN f64 m_fma(f64 a, f64 b, f64 c) { return __builtin_fma(a, b, c); }
#endif

// One instruction each, a few units in the last place off; subnormal results may be 0.
#if GPU_AMD
#if GPU_HAS(__builtin_amdgcn_exp2f)
GPU_FN float approx_exp2(float x) { return __builtin_amdgcn_exp2f(x); }
#else
// Until LLVM had that builtin (mid 2023) this one was the bare instruction; since then it cares for subnormals.
GPU_FN float approx_exp2(float x) { return __builtin_exp2f(x); }
#endif
GPU_FN float approx_recip(float x) { return __builtin_amdgcn_rcpf(x); }
GPU_FN float approx_rsqrt(float x) { return __builtin_amdgcn_rsqf(x); }
#elif GPU_NVIDIA
GPU_FN float approx_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
GPU_FN float approx_recip(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
GPU_FN float approx_rsqrt(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#else
GPU_FN float approx_exp2(float x) { return __builtin_exp2f(x); }
GPU_FN float approx_recip(float x) { return 1.0f / x; }
GPU_FN float approx_rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
#endif

// The greater of two numbers, of which at most one is NaN.
#if GPU_NVIDIA
GPU_FN f32 max_fast(f32 a, f32 b) { return ::fmaxf(a, b); }
#elif GPU_AMD
GPU_FN f32 max_fast(f32 a, f32 b) { return __builtin_fmaxf(a, b); }
#else
GPU_FN f32 max_fast(f32 a, f32 b) { return a > b || b != b ? a : b; }
#endif

// One operation, one rounding: for results that must be the same bits everywhere, whatever a compiler likes to fuse.
#if GPU_NVIDIA
GPU_FN f64 exact_add(f64 a, f64 b) { return __dadd_rn(a, b); }
GPU_FN f64 exact_sub(f64 a, f64 b) { return __dsub_rn(a, b); }
GPU_FN f64 exact_mul(f64 a, f64 b) { return __dmul_rn(a, b); }
GPU_FN f64 exact_div(f64 a, f64 b) { return __ddiv_rn(a, b); }
#else
GPU_FN f64 exact_add(f64 a, f64 b) { GPU_NO_FUSION return a + b; }
GPU_FN f64 exact_sub(f64 a, f64 b) { GPU_NO_FUSION return a - b; }
GPU_FN f64 exact_mul(f64 a, f64 b) { GPU_NO_FUSION return a * b; }
GPU_FN f64 exact_div(f64 a, f64 b) { GPU_NO_FUSION return a / b; }
#endif
// Functions for results of type T: what is rounded to 11 or 8 bits needs no more than the hardware's approximations, and
// with the accurate functions kernels over halves would wait for arithmetic, not for memory.
template <class T> struct Rounded {
  typedef compute_t<T> C;
  GPU_FN C exp(C x) { return m_exp(x); }
  GPU_FN C quotient(C a, C b) { return a / b; }
  GPU_FN C tanh(C x) { return m_tanh(x); }
};
struct RoundedToHalf {
  GPU_FN f32 exp(f32 x) { return approx_exp2(x * 1.44269504088896341f); }
  GPU_FN f32 quotient(f32 a, f32 b) { return a * approx_recip(b); }
  // 1 − 2/(1 + e^2x), or its Taylor series where that cancels.
  GPU_FN f32 tanh(f32 x) {
    const f32 z = x * x;
    if (z < 0.0625f) return x + x * z * (-0.333333333f + z * (0.133333333f - z * 0.0539682540f));
    return 1.0f - quotient(2.0f, 1.0f + exp(2.0f * x));
  }
};
template <> struct Rounded<f16> : RoundedToHalf {};
template <> struct Rounded<bf16> : RoundedToHalf {};
}  // namespace gpu
#undef GPU_MATH1
#undef GPU_MATH2

#endif  // WICK_GPU_MATH_H
