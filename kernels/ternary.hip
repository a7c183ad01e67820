// out[i] = cond[i] ? on_true[i] : on_false[i]. Only bits move, so the body depends on the element's size alone. Launch:
// a 16-byte vector of both choices per thread. Traffic: the condition and both choices read once, out written once.
// info = dims ‖ cond strides ‖ on_true strides ‖ on_false strides.
#include "elementwise.h"
namespace gpu {

template <class I, class B>
GPU_FN void where(size_t n, size_t num_dims, const size_t* info, const I* cond, const B* on_true, const B* on_false, B* out) {
  constexpr int W = 16 / sizeof(B);
  const Operand<I, W> condition(cond, 0, num_dims, info);
  const Operand<B, W> yes(on_true, 1, num_dims, info), no(on_false, 2, num_dims, info);
  const Walk<W, 1> walk(n, vector_aligned<W>(out) && runs_of<W>(num_dims, info));
  NO_UNROLL for (size_t v = walk.thread; v < walk.vectors; v += walk.single_step) {
    i64 at[3] = {(i64)(v * W), (i64)(v * W), (i64)(v * W)};
    if (info) offsets<3>(v * W, num_dims, info, at);
    const Vec<I, W> c = condition.load(at[0]);
    const Vec<B, W> x = yes.load(at[1]), y = no.load(at[2]);
    Vec<B, W> z;
    UNROLL for (int j = 0; j < W; j++) z.v[j] = c.v[j] ? x.v[j] : y.v[j];
    store_vec<B, W>(out, v, z);
  }
  NO_UNROLL for (size_t i = walk.single; i < n; i += walk.single_step) {
    i64 at[3] = {(i64)i, (i64)i, (i64)i};
    if (info) offsets<3>(i, num_dims, info, at);
    out[i] = cond[at[0]] ? on_true[at[1]] : on_false[at[2]];
  }
}

#define WHERE(I, T) \
  KERNEL_BOUNDS(GPU_BLOCK, where_##I##_##T, const I* cond, const T* on_true, const T* on_false, T* out, size_t numel, \
                size_t num_dims, const size_t* info) { \
    typedef bits_t<T> B; \
    where<I, B>(numel, num_dims, info, cond, (const B*)on_true, (const B*)on_false, (B*)out); \
  }
#define WHERE_ALL(T) WHERE(u8, T) WHERE(u32, T) WHERE(i64, T)
GPU_DTYPES(WHERE_ALL)

}  // namespace gpu
