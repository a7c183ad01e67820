// out[i] = f(lhs[i], rhs[i]); comparisons give u8. Launch: a 16-byte vector of each operand per thread
// (single elements where the operation is long). Traffic: two reads, one write. info = dims ‖ lhs strides ‖ rhs strides, so operands broadcast freely.
#include "elementwise.h"
namespace gpu {

// x / 0 = 0 and MIN / −1 = MIN for integers: neither may trap, and every device must agree.
template <class T, bool Float = IsFloat<T>::value> struct Divide;
template <class T> struct Divide<T, true> {
  GPU_FN T apply(T a, T b) { return a / b; }
};
template <class T> struct Divide<T, false> {
  GPU_FN T apply(T a, T b) {
    if (b == 0) return 0;
    if (b == (T)-1 && (T)-1 < (T)1) return sub((T)0, a);
    return (T)(a / b);
  }
};

// Integers: by squaring, wrapping. A negative exponent gives 1/aⁿ rounded toward zero: nonzero only for a = ±1.
template <class T, bool Float = IsFloat<T>::value> struct Power;
template <class T> struct Power<T, true> {
  GPU_FN T apply(T a, T b) { return m_pow(a, b); }
};
template <class T> struct Power<T, false> {
  GPU_FN T apply(T a, T b) {
    if ((T)-1 < (T)1 && (i64)b < 0) {
      if (a == (T)1) return 1;
      if (a == (T)-1) return b & 1 ? a : (T)1;
      return 0;
    }
    T result = 1;
    u64 n = (u64)b;
    NO_UNROLL while (n) {
      if (n & 1) result = mul(result, a);
      a = mul(a, a);
      n >>= 1;
    }
    return result;
  }
};

#define BINARY_OP(Name, expression) \
  template <class T> struct Name { \
    typedef compute_t<T> C; \
    GPU_METHOD T operator()(T lhs, T rhs) const { \
      const C a = widen(lhs), b = widen(rhs); \
      return narrow<T>(expression); \
    } \
  };
BINARY_OP(Add, add(a, b))
BINARY_OP(Sub, sub(a, b))
BINARY_OP(Mul, mul(a, b))
BINARY_OP(Div, Divide<C>::apply(a, b))
BINARY_OP(Maximum, maximum(a, b))
BINARY_OP(Minimum, minimum(a, b))
BINARY_OP(Pow, Power<C>::apply(a, b))

#define COMPARE_OP(Name, operation) \
  template <class T> struct Name { \
    GPU_METHOD u8 operator()(T a, T b) const { return widen(a) operation widen(b) ? 1 : 0; } \
  };
COMPARE_OP(Eq, ==)
COMPARE_OP(Ne, !=)
COMPARE_OP(Lt, <)
COMPARE_OP(Le, <=)
COMPARE_OP(Gt, >)
COMPARE_OP(Ge, >=)

#define BINARY(name, T, Out, Vectors, Op) \
  KERNEL_BOUNDS(GPU_BLOCK, name##_##T, const T* lhs, const T* rhs, Out* out, size_t numel, size_t num_dims, const size_t* info) { \
    map2<Vectors>(numel, num_dims, info, lhs, rhs, out, Op<T>{}); \
  }
#define BINARY_ALL(T) \
  BINARY(add, T, T, true, Add) BINARY(sub, T, T, true, Sub) BINARY(mul, T, T, true, Mul) BINARY(div, T, T, (IsFloat<T>::value), Div) \
  BINARY(maximum, T, T, true, Maximum) BINARY(minimum, T, T, true, Minimum) BINARY(pow, T, T, false, Pow) \
  BINARY(eq, T, u8, true, Eq) BINARY(ne, T, u8, true, Ne) BINARY(lt, T, u8, true, Lt) BINARY(le, T, u8, true, Le) \
  BINARY(gt, T, u8, true, Gt) BINARY(ge, T, u8, true, Ge)
GPU_NUMBERS(BINARY_ALL)

}  // namespace gpu
