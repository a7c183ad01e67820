// out[i] = x[i]·mul + add. Launch: AFFINE_VECTORS 16-byte vectors per thread, half as many of small elements. Traffic: one read, one write.
#include "elementwise.h"
namespace gpu {

template <class T> struct Affine {
  compute_t<T> scale, shift;
  GPU_METHOD T operator()(T x) const { return narrow<T>(add(mul(widen(x), scale), shift)); }
};

#define AFFINE(T) \
  KERNEL_BOUNDS(GPU_BLOCK, affine_##T, const T* x, T* out, size_t numel, size_t num_dims, const size_t* info, T mul, T add) { \
    map1<(sizeof(T) < 4 ? AFFINE_VECTORS / 2 : AFFINE_VECTORS)>(numel, num_dims, info, x, out, Affine<T>{widen(mul), widen(add)}); \
  }
GPU_NUMBERS(AFFINE)

}  // namespace gpu
