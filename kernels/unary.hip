// out[i] = f(x[i]). Launch: UNARY_VECTORS 16-byte vectors per thread. Traffic: one read and one write of each element;
// arithmetic in f32 for halves, in T otherwise.
#include "elementwise.h"
#include "normal.h"
namespace gpu {

#define UNARY_OP(Name, expression) \
  template <class T> struct Name { \
    typedef compute_t<T> C; \
    GPU_METHOD T operator()(T raw) const { \
      const C x = widen(raw); \
      return narrow<T>((C)(expression)); \
    } \
  };

template <class T> struct Same {
  GPU_METHOD T operator()(T x) const { return x; }
};
UNARY_OP(op_neg, sub((C)0, x))
template <class T> struct NegateFloat {
  GPU_METHOD T operator()(T x) const { return narrow<T>(-widen(x)); }
};
UNARY_OP(op_recip, (C)1 / x)
UNARY_OP(op_exp, Rounded<T>::exp(x))
UNARY_OP(op_log, m_log(x))
// In f32 the libraries' would cost more than memory does, for care of large angles that this leaves to them, out of line: it
// stands in each of a thread's elements. x less the nearest multiple of π/2, in parts, is within ±π/4, where sine and cosine are
// polynomials of its square. Within 1.6 units in the last place. `quarters` more quarter turns: 1 makes it the cosine.
GPU_RARE f32 far_sine(f32 x, u32 quarters) { return quarters ? m_cos(x) : m_sin(x); }
GPU_FN f32 sine(f32 x, u32 quarters) {
  if (!(m_abs(x) < 1e5f)) return far_sine(x, quarters);
  // Adding 1.5·2²³ rounds to an integer, which is then in the lowest bits.
  const f32 moved = m_fma(x, 0.636619772f, 12582912.0f), k = moved - 12582912.0f;
  const u32 turn = f32_bits(moved) + quarters;
  const bool odd = turn & 1;
  const f32 r = m_fma(k, -5.39030253e-15f, m_fma(k, -3.13916473e-07f, m_fma(k, -1.57079601f, x))), z = r * r;
  f32 p = m_fma(odd ? 2.45475361e-05f : -0.000195875172f, z, odd ? -0.00138883013f : 0.00833274676f);
  p = m_fma(p, z, odd ? 0.0416666647f : -0.166666647f);
  const f32 y = m_fma((odd ? z : r) * z, p, odd ? m_fma(z, -0.5f, 1.0f) : r);
  return turn & 2 ? -y : y;
}
// For halves, twice as many of which pass in a time: to half turns, ±π/2, by one polynomial, within 1.2e-6 of the result for f16
// and 1.4e-4 for bf16, whose last bit is 4e-3. For |x| < 1e5, which every f16 is.
template <bool Fine> GPU_FN f32 rough_sine(f32 x, u32 quarters) {
  const f32 moved = quarters ? m_fma(x, 0.318309886f, 0.5f) + 12582912.0f : m_fma(x, 0.318309886f, 12582912.0f);
  const f32 k = quarters ? moved - 12582912.0f - 0.5f : moved - 12582912.0f;
  const f32 r = m_fma(k, 8.74227766e-08f, m_fma(k, -3.14159274f, x)), z = r * r;
  const f32 p = Fine ? m_fma(m_fma(-0.000185409139f, z, 0.00831423607f), z, -0.166658506f) : m_fma(0.00765586132f, z, -0.166128069f);
  return f32_from_bits(f32_bits(m_fma(r * z, p, r)) ^ f32_bits(moved) << 31);
}
template <class T, u32 Quarters> struct Turned {
  GPU_METHOD T operator()(T raw) const {
    const compute_t<T> x = widen(raw);
    if constexpr (sizeof(T) == 8) return Quarters ? m_cos(x) : m_sin(x);
    else return narrow<T>(sine(x, Quarters));
  }
};
template <u32 Quarters> struct Turned<f16, Quarters> {
  GPU_METHOD f16 operator()(f16 x) const { return narrow<f16>(rough_sine<true>(widen(x), Quarters)); }
};
template <u32 Quarters> struct Turned<bf16, Quarters> {
  GPU_FN bool far(bf16 x) { return !(m_abs(widen(x)) < 1e5f); }
  GPU_FN bf16 near_sine(bf16 x) { return narrow<bf16>(rough_sine<false>(widen(x), Quarters)); }
  GPU_METHOD bf16 operator()(bf16 x) const { return far(x) ? narrow<bf16>(far_sine(widen(x), Quarters)) : near_sine(x); }
};
// A branch for all of a vector's elements together: one for each would cost as much as the polynomial.
template <u32 Quarters, int W> GPU_FN void apply(const Turned<bf16, Quarters>& op, const Vec<bf16, W>& x, Vec<bf16, W>& y) {
  bool any = false;
  UNROLL for (int j = 0; j < W; j++) any = any || op.far(x.v[j]);
  UNROLL for (int j = 0; j < W; j++) y.v[j] = op.near_sine(x.v[j]);
  if (any) UNROLL for (int j = 0; j < W; j++) y.v[j] = op(x.v[j]);
}
template <class T> using op_sin = Turned<T, 0>;
template <class T> using op_cos = Turned<T, 1>;
UNARY_OP(op_tanh, Rounded<T>::tanh(x))
UNARY_OP(op_erf, m_erf(x))
UNARY_OP(op_ceil, m_ceil(x))
UNARY_OP(op_floor, m_floor(x))
// Half away from zero, as C's round.
UNARY_OP(op_round, m_round(x))
UNARY_OP(op_normcdf, x != x ? x : bell<T>(x))
UNARY_OP(op_abs, m_abs(x))
UNARY_OP(op_sqr, mul(x, x))
UNARY_OP(op_sqrt, m_sqrt(x))
// x/2·(1 + tanh u) with u = √(2/π)·(x + 0.044715 x³), written as x/(1 + e^(−2u)), which does not cancel for x < 0.
UNARY_OP(op_gelu, Rounded<T>::quotient(x, (C)1 + Rounded<T>::exp(x * ((C)-1.59576912160573071176 + (C)-0.07135481627260025 * x * x))))
UNARY_OP(op_gelu_erf, x * bell<T>(x))
UNARY_OP(op_relu, maximum(x, (C)0))
UNARY_OP(op_silu, Rounded<T>::quotient(x, (C)1 + Rounded<T>::exp(-x)))
UNARY_OP(op_sign, x != x ? x : (C)(x > (C)0) - (C)(x < (C)0))
UNARY_OP(op_sigmoid, Rounded<T>::quotient((C)1, (C)1 + Rounded<T>::exp(-x)))
// |x| of an integer wraps for the least value, as negation does.
UNARY_OP(IntAbs, x < (C)0 ? sub((C)0, x) : x)

UNARY_OP(NonZero, (C)(x != (C)0))

template <class T> struct Elu {
  compute_t<T> alpha;
  GPU_METHOD T operator()(T raw) const {
    const compute_t<T> x = widen(raw);
    return narrow<T>(x > 0 ? x : alpha * m_expm1(x));
  }
};
template <class T> struct Powf {
  compute_t<T> exponent;
  GPU_METHOD T operator()(T x) const { return narrow<T>(m_pow(widen(x), exponent)); }
};

#define UNARY(name, T, Op) \
  KERNEL_BOUNDS(GPU_BLOCK, name##_##T, const T* x, T* out, size_t numel, size_t num_dims, const size_t* info) { \
    map1<UNARY_VECTORS>(numel, num_dims, info, x, out, Op<T>{}); \
  }
#define UNARY_PARAM(name, T, Op) \
  KERNEL_BOUNDS(GPU_BLOCK, name##_##T, const T* x, T* out, size_t numel, size_t num_dims, const size_t* info, T param) { \
    map1<UNARY_VECTORS>(numel, num_dims, info, x, out, Op<T>{widen(param)}); \
  }
#define UNARY_FLOAT(T) \
  UNARY(neg, T, NegateFloat) UNARY(recip, T, op_recip) UNARY(exp, T, op_exp) \
  UNARY(log, T, op_log) UNARY(sin, T, op_sin) UNARY(cos, T, op_cos) UNARY(tanh, T, op_tanh) UNARY(erf, T, op_erf) \
  UNARY(ceil, T, op_ceil) UNARY(floor, T, op_floor) UNARY(round, T, op_round) UNARY(normcdf, T, op_normcdf) \
  UNARY(abs, T, op_abs) UNARY(sqr, T, op_sqr) UNARY(sqrt, T, op_sqrt) UNARY(gelu, T, op_gelu) \
  UNARY(gelu_erf, T, op_gelu_erf) UNARY(relu, T, op_relu) UNARY(silu, T, op_silu) UNARY(sign, T, op_sign) \
  UNARY(sigmoid, T, op_sigmoid) UNARY_PARAM(elu, T, Elu) UNARY_PARAM(powf, T, Powf)
GPU_FLOATS(UNARY_FLOAT)

#define UNARY_INT(T, Abs) UNARY(neg, T, op_neg) UNARY(abs, T, Abs) UNARY(sqr, T, op_sqr)
#define UNARY_UNSIGNED(T) UNARY_INT(T, Same) UNARY(relu, T, Same) UNARY(sign, T, NonZero)
#define UNARY_SIGNED(T) UNARY_INT(T, IntAbs) UNARY(relu, T, op_relu) UNARY(sign, T, op_sign)
GPU_u8(UNARY_UNSIGNED)
GPU_u32(UNARY_UNSIGNED)
GPU_i16(UNARY_SIGNED)
GPU_i32(UNARY_SIGNED)
GPU_i64(UNARY_SIGNED)

}  // namespace gpu
