// softmax_T and log_softmax_T over contiguous rows: y = eˣ⁻ᵐ / Σ eˣ⁻ᵐ and y = x − m − log Σ eˣ⁻ᵐ with m the row's maximum.
// All in f32 (f64 for f64) until the store. A row of −∞ gives NaN, as ∞ − ∞ does. Launch and traffic: see row.h.
#include "row.h"
namespace gpu {

template <class T, bool Log> struct Softmax {
  typedef compute_t<T> C;
  const T* src;
  T* dst;
  size_t cols;
  C* meet;
  template <int W, int Keep> GPU_METHOD void run(size_t at, u32 thread, u32 threads, bool active) const {
    const Row<T, W, Keep> row(src + at * cols, cols, thread, threads, active);
    const C own = row.template fold<MaxOf>(Limits<C>::lowest(), [](C x) { return x; });
    const C most = row_all<MaxOf>(own, meet, threads);
    const C total = row_all<SumOf>(row.template fold<SumOf>((C)0, [most](C x) { return m_exp(x - most); }), meet, threads);
    const C scale = (C)1 / total, shift = most + m_log(total);
    T* out = dst + at * cols;
    row.each([&](const Vec<T, W>& v, size_t i) {
      Vec<T, W> y;
      UNROLL for (int j = 0; j < W; j++) {
        const C x = widen(v.v[j]);
        y.v[j] = narrow<T>(Log ? x - shift : m_exp(x - most) * scale);
      }
      store_vec<T, W>(out, i, y);
    });
  }
};

#define SOFTMAX(name, T, Log) \
  KERNEL_BOUNDS(1024, name##_##T, const T* src, T* dst, size_t n_cols, size_t n_rows, u32 block_size) { \
    SHARED(compute_t<T>, meet, 32); \
    const bool aligned = aligned_to(src, 16) && aligned_to(dst, 16); \
    each_row<T>(n_rows, n_cols, block_size, aligned, Softmax<T, Log>{src, dst, n_cols, meet}); \
  }
#define SOFTMAX_BOTH(T) SOFTMAX(softmax, T, false) SOFTMAX(log_softmax, T, true)
GPU_FLOATS(SOFTMAX_BOTH)

}  // namespace gpu
