// out[i] = x[i]·mul + add. Launch: 256 threads, four 16-byte vectors per thread, two of small elements. Traffic: one read, one write.
#include "elementwise.h"
namespace gpu {

template <class T> struct Affine {
  compute_t<T> scale, shift;
  GPU_METHOD T operator()(T x) const { return narrow<T>(add(mul(widen(x), scale), shift)); }
};

#define AFFINE(T) \
  KERNEL_BOUNDS(256, affine_##T, const T* x, T* out, size_t numel, size_t num_dims, const size_t* info, T mul, T add) { \
    map1<(sizeof(T) < 4 ? 2 : 4)>(numel, num_dims, info, x, out, Affine<T>{widen(mul), widen(add)}); \
  }
GPU_NUMBERS(AFFINE)

}  // namespace gpu
