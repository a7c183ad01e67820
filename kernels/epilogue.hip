// What follows a product y (rows, cols) with a layer's weights: out = act(y + bias) + residual, in one pass, in f32 for halves
// until the store. bias (cols) and residual (rows, cols) may be null. Launch: a 16-byte vector per thread.
// Traffic: y and residual once in, out once; the bias comes from the cache.
#include "normal.h"
namespace gpu {

// By the numbers that the launcher has for them. All threads take the same branch.
template <class T> GPU_FN compute_t<T> activated(compute_t<T> x, u32 act) {
  typedef compute_t<T> C;
  switch (act) {
    case EPILOGUE_SILU: return Rounded<T>::quotient(x, (C)1 + Rounded<T>::exp(-x));
    case EPILOGUE_GELU:
      return Rounded<T>::quotient(x, (C)1 + Rounded<T>::exp(x * ((C)-1.59576912160573071176 + (C)-0.07135481627260025 * x * x)));
    case EPILOGUE_GELU_ERF: return x * bell<T>(x);
    case EPILOGUE_RELU: return maximum(x, (C)0);
    default: return x;
  }
}

template <class T, int W> GPU_FN void epilogue(const T* y, const T* bias, const T* residual, T* dst, size_t rows, size_t cols, u32 act) {
  const size_t per_row = cols / W;
  single_loop(rows * per_row, [&](size_t i) {
    const size_t column = i - divide(i, per_row) * per_row;
    const Vec<T, W> x = load_vec<T, W>(y, i);
    Vec<T, W> b, r, z;
    if (bias) b = load_vec<T, W>(bias, column);
    if (residual) r = load_vec<T, W>(residual, i);
    UNROLL for (int j = 0; j < W; j++) {
      compute_t<T> v = widen(x.v[j]);
      if (bias) v += widen(b.v[j]);
      v = activated<T>(v, act);
      if (residual) v += widen(r.v[j]);
      z.v[j] = narrow<T>(v);
    }
    store_vec<T, W>(dst, i, z);
  });
}

#define EPILOGUE(T) \
  KERNEL_BOUNDS(GPU_BLOCK, epilogue_##T, const T* y, const T* bias, const T* residual, T* out, size_t rows, size_t cols, u32 act) { \
    constexpr int W = 16 / sizeof(T); \
    const bool aligned = aligned_to((const void*)((u64)y | (u64)bias | (u64)residual | (u64)out), 16); \
    if (aligned && cols % W == 0) epilogue<T, W>(y, bias, residual, out, rows, cols, act); \
    else epilogue<T, 1>(y, bias, residual, out, rows, cols, act); \
  }
GPU_FLOATS(EPILOGUE)

}  // namespace gpu
