// out[i] = ids[i] ? t[i] : f[i]. Only bits move, so the body depends on the element's size alone. Launch: 256 threads,
// one or two 16-byte vectors of t and f per thread. Traffic: condition, t and f read once, out written once.
// info = dims ‖ condition strides ‖ t strides ‖ f strides.
#include "gpu.h"
namespace gpu {

template <class I, class B>
GPU_FN void where(size_t n, size_t num_dims, const size_t* info, const I* ids, const B* t, const B* f, B* out) {
  constexpr int W = 16 / sizeof(B), Unroll = sizeof(I) > sizeof(B) ? 1 : 2;
  const Walk<W, Unroll> walk(
      n, !info && vector_aligned<W>(ids) && vector_aligned<W>(t) && vector_aligned<W>(f) && vector_aligned<W>(out));
  for (size_t base = walk.first; base < walk.vectors; base += walk.step) {
    Vec<I, W> c[Unroll];
    Vec<B, W> x[Unroll], y[Unroll];
    UNROLL for (int u = 0; u < Unroll; u++)
      if (walk.at(base, u) < walk.vectors) {
        c[u] = load_vec<I, W>(ids, walk.at(base, u));
        x[u] = load_vec<B, W>(t, walk.at(base, u));
        y[u] = load_vec<B, W>(f, walk.at(base, u));
      }
    UNROLL for (int u = 0; u < Unroll; u++)
      if (walk.at(base, u) < walk.vectors) {
        UNROLL for (int j = 0; j < W; j++) x[u].v[j] = c[u].v[j] ? x[u].v[j] : y[u].v[j];
        store_vec<B, W>(out, walk.at(base, u), x[u]);
      }
  }
  NO_UNROLL for (size_t i = walk.single; i < n; i += walk.single_step) {
    i64 at[3] = {(i64)i, (i64)i, (i64)i};
    if (info) offsets<3>(i, num_dims, info, at);
    out[i] = ids[at[0]] ? t[at[1]] : f[at[2]];
  }
}

#define WHERE(I, T) \
  KERNEL_BOUNDS(256, where_##I##_##T, size_t numel, size_t num_dims, const size_t* info, const I* ids, const T* t, \
                const T* f, T* out) { \
    typedef bits_t<T> B; \
    where<I, B>(numel, num_dims, info, ids, (const B*)t, (const B*)f, (B*)out); \
  }
#define WHERE_ALL(T) WHERE(u8, T) WHERE(u32, T) WHERE(i64, T)
GPU_DTYPES(WHERE_ALL)

}  // namespace gpu
