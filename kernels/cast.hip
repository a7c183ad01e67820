// out[i] = D(x[i]) for every pair of dtypes. Floats round to nearest even, float → integer truncates and saturates with
// NaN → 0, integer → integer wraps; i64, u32 and f64 reach the halves through f32. Launch: CAST_VECTORS per thread,
// blocks of WIDE_BLOCK threads where the result is wider: more written than read goes better in larger pieces. Traffic: one read, one write.
#include "elementwise.h"
namespace gpu {

template <class S, class D> struct Cast {
  GPU_METHOD D operator()(S x) const { return convert<D>(x); }
};
template <class T> struct Cast<T, T> {
  GPU_METHOD T operator()(T x) const { return x; }
};

#define CAST(S, D) \
  KERNEL_BOUNDS(WIDE_BLOCK, cast_##S##_##D, const S* x, D* out, size_t numel, size_t num_dims, const size_t* info) { \
    map1<CAST_VECTORS, (sizeof(S) < sizeof(D) ? WIDE_BLOCK : GPU_BLOCK)>(numel, num_dims, info, x, out, Cast<S, D>{}); \
  }
#define CAST_FROM(S) \
  CAST(S, u8) CAST(S, u32) CAST(S, i16) CAST(S, i32) CAST(S, i64) CAST(S, bf16) CAST(S, f16) CAST(S, f32) CAST(S, f64) \
  CAST(S, f8e4m3)
GPU_DTYPES(CAST_FROM)

}  // namespace gpu
