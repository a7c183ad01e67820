// Arithmetic with the rules that hold on every device.
#ifndef WICK_GPU_ARITHMETIC_H
#define WICK_GPU_ARITHMETIC_H
#include "gpu/dtypes.h"

namespace gpu {
// C++ leaves these conversions undefined; here they saturate and NaN becomes 0.
template <class I, class F> GPU_FN I float_to_int(F x) {
  // The bounds are powers of two or small, hence exact in F; highest + 1 is the first value that does not fit.
  const F low = (F)Limits<I>::lowest(), past = (F)(Limits<I>::highest() / 2 + 1) * (F)2;
  if (x != x) return (I)0;
  if (x <= low) return Limits<I>::lowest();
  if (x >= past) return Limits<I>::highest();
  return (I)x;
}
template <class D, bool FromFloat, bool ToFloat> struct Convert;
template <class D> struct Convert<D, true, true> {
  template <class S> GPU_FN D from(S x) { return narrow<D>((compute_t<D>)x); }
};
template <class D> struct Convert<D, false, true> {
  template <class S> GPU_FN D from(S x) { return narrow<D>((compute_t<D>)x); }
};
template <class D> struct Convert<D, true, false> {
  template <class S> GPU_FN D from(S x) { return float_to_int<D>(x); }
};
template <class D> struct Convert<D, false, false> {
  template <class S> GPU_FN D from(S x) { return (D)x; }
};
// Any dtype to any other: floats round to nearest even, float → integer saturates, integer → integer wraps.
template <class D, class S> GPU_FN D convert(S x) {
  return Convert<D, IsFloat<S>::value, IsFloat<D>::value>::from(widen(x));
}

// NaN wins in both; comparisons alone would drop it on one side.
template <class T> GPU_FN T maximum(T a, T b) { return a > b || a != a ? a : b; }
template <class T> GPU_FN T minimum(T a, T b) { return a < b || a != a ? a : b; }
#if GPU_NVIDIA && __CUDA_ARCH__ >= 800
GPU_FN f32 maximum(f32 a, f32 b) {
  f32 y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
GPU_FN f32 minimum(f32 a, f32 b) {
  f32 y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
#endif

// Two sums, to which x times two numbers is added: one instruction on gfx90a and its successors, which LLVM makes of vectors alone.
template <class T> struct Pair {
  T x, y;
  GPU_METHOD T operator[](int i) const { return i ? y : x; }
};
template <class T> GPU_FN void add_product(Pair<T>& sums, T x, const Pair<T>& y) { sums.x += x * y.x, sums.y += x * y.y; }
#if defined(__gfx90a__) || defined(__gfx940__) || defined(__gfx941__) || defined(__gfx942__) || defined(__gfx950__)
typedef f32 f32x2 __attribute__((ext_vector_type(2)));
template <> struct Pair<f32> {
  f32x2 v;
  GPU_METHOD Pair() {}
  GPU_METHOD Pair(f32 x, f32 y) : v{x, y} {}
  GPU_METHOD f32 operator[](int i) const { return v[i]; }
};
GPU_FN void add_product(Pair<f32>& sums, f32 x, const Pair<f32>& y) { sums.v += x * y.v; }
#endif

// Integer arithmetic wraps; signed overflow is undefined in C++, so it happens in the unsigned type.
template <class T> struct Wrap { typedef T type; };
template <> struct Wrap<i32> { typedef u32 type; };
template <> struct Wrap<i64> { typedef u64 type; };
template <class T> GPU_FN T add(T a, T b) { return (T)((typename Wrap<T>::type)a + (typename Wrap<T>::type)b); }
template <class T> GPU_FN T sub(T a, T b) { return (T)((typename Wrap<T>::type)a - (typename Wrap<T>::type)b); }
template <class T> GPU_FN T mul(T a, T b) { return (T)((typename Wrap<T>::type)a * (typename Wrap<T>::type)b); }
}  // namespace gpu

#endif  // WICK_GPU_ARITHMETIC_H
