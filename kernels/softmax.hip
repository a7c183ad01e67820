// softmax_T and log_softmax_T over contiguous rows: y = eˣ⁻ᵐ / Σ eˣ⁻ᵐ and y = x − m − log Σ eˣ⁻ᵐ with m the row's maximum.
// All in f32 (f64 for f64) until the store. A row of −∞ gives NaN, as ∞ − ∞ does. Launch and traffic: see row.h.
#include "row.h"
namespace gpu {

// e^(x − m) ≤ 1, so that the approximation's error is far below the sum's; f64 stays accurate.
GPU_FN f32 power(f32 x, f32 most) { return approx_exp2((x - most) * 1.44269504088896341f); }
GPU_FN f64 power(f64 x, f64 most) { return m_exp(x - most); }

template <class T, bool Log> struct Softmax {
  typedef compute_t<T> C;
  const T* src;
  T* dst;
  size_t cols;
  Meeting<C>& meet;
  template <int W, int Keep> GPU_METHOD void run(size_t at, u32 thread, u32 threads, bool active) const {
    const Row<T, W, Keep> row(src + at * cols, cols, thread, threads, active);
    const C own = row.template fold<MaxOf>(Limits<C>::lowest(), [](C x) { return x; });
    const C most = row_all<MaxOf>(own, meet, threads);
    const C total = row_all<SumOf>(row.template fold<SumOf>((C)0, [most](C x) { return power(x, most); }), meet, threads);
    const C scale = inverse(total), logarithm = m_log(total);
    T* out = dst + at * cols;
    row.each([&](const Vec<T, W>& v, size_t i) {
      Vec<T, W> y;
      UNROLL for (int j = 0; j < W; j++) {
        const C x = widen(v.v[j]);
        y.v[j] = narrow<T>(Log ? (x - most) - logarithm : power(x, most) * scale);
      }
      store_vec<T, W>(out, i, y);
    });
  }
};

#define SOFTMAX(name, T, Log, threads, Vectors) \
  KERNEL_BOUNDS(threads, name##_##T, const T* x, T* out, size_t rows, size_t cols, u32 row_threads) { \
    ROW_MEETING(compute_t<T>, meet); \
    const bool aligned = aligned_to(x, 16) && aligned_to(out, 16); \
    each_row<T, Vectors>(rows, cols, row_threads, aligned, Softmax<T, Log>{x, out, cols, meet}); \
  }
#define SOFTMAX_ALL(T) \
  SOFTMAX(softmax, T, false, GPU_BLOCK, ROW_VECTORS) SOFTMAX(softmax_wide, T, false, WIDE_BLOCK, 0) \
  SOFTMAX(log_softmax, T, true, GPU_BLOCK, ROW_VECTORS) SOFTMAX(log_softmax_wide, T, true, WIDE_BLOCK, 0)
GPU_FLOATS(SOFTMAX_ALL)

}  // namespace gpu
