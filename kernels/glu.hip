// Gated activations: out[r, i] = act(gate[r·row_stride + i], up[r·row_stride + i]) for i < width. One tensor that holds both
// halves side by side is gate = x, up = x + width, row_stride = 2·width. Launch: one vector each.
// Traffic: gate and up once in, out once.
#include "gpu.h"
namespace gpu {

template <class T> struct Silu {
  typedef compute_t<T> C;
  GPU_FN C of(C x, C up) { return Rounded<T>::quotient(x, (C)1 + Rounded<T>::exp(-x)) * up; }
};
// The tanh form of GELU: x / (1 + e^−2u) with u = √(2/π)·(x + 0.044715·x³).
template <class T> struct Gelu {
  typedef compute_t<T> C;
  GPU_FN C of(C x, C up) {
    return Rounded<T>::quotient(x, (C)1 + Rounded<T>::exp((C)-1.59576912160573071176 * x * ((C)1 + (C)0.044715 * x * x))) * up;
  }
};
// gpt-oss's gate: both sides are kept within 7, the gate from above alone. NaN stays what it is.
template <class T> struct ClampedSwiglu {
  typedef compute_t<T> C;
  GPU_FN C of(C x, C up) {
    const C gate = x > (C)7 ? (C)7 : x, open = up > (C)7 ? (C)7 : up < (C)-7 ? (C)-7 : up;
    return Rounded<T>::quotient(gate, (C)1 + Rounded<T>::exp((C)-1.702 * gate)) * (open + (C)1);
  }
};

template <class T, int W, class Act> GPU_FN void glu(const T* gate, const T* up, T* dst, size_t rows, size_t width, size_t row_stride) {
  const size_t per_row = width / W;
  single_loop(rows * per_row, [&](size_t i) {
    const size_t row = rows == 1 ? 0 : divide(i, per_row), at = row * row_stride + (i - row * per_row) * W;
    const Vec<T, W> g = *(const Vec<T, W>*)(gate + at), u = *(const Vec<T, W>*)(up + at);
    Vec<T, W> y;
    UNROLL for (int j = 0; j < W; j++) y.v[j] = narrow<T>(Act::of(widen(g.v[j]), widen(u.v[j])));
    store_vec<T, W>(dst, i, y);
  });
}
template <class T, class Act> GPU_FN void glu_any(const T* gate, const T* up, T* dst, size_t rows, size_t width, size_t row_stride) {
  constexpr int W = 16 / sizeof(T);
  const bool aligned = aligned_to((const void*)((u64)gate | (u64)up | (u64)dst), 16);
  if (aligned && width % W == 0 && row_stride % W == 0) glu<T, W, Act>(gate, up, dst, rows, width, row_stride);
  else glu<T, 1, Act>(gate, up, dst, rows, width, row_stride);
}

#define GLU(name, T, Act) \
  KERNEL_BOUNDS(GPU_BLOCK, name##_##T, const T* gate, const T* up, T* out, size_t rows, size_t width, size_t row_stride) { \
    glu_any<T, Act<T>>(gate, up, out, rows, width, row_stride); \
  }
#define GLUS(T) GLU(swiglu, T, Silu) GLU(geglu, T, Gelu) GLU(clamped_swiglu, T, ClampedSwiglu)
GPU_FLOATS(GLUS)

}  // namespace gpu
