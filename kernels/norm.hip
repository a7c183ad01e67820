// rmsnorm_T:   y = x / √(mean(x²) + eps) · alpha
// layernorm_T: y = (x − mean) / √(mean((x − mean)²) + eps) · alpha + beta      (squares of differences: a large mean does no harm)
// add_rmsnorm_T: s = x + residual is stored and normalised in the same pass, which saves a read of s.
// alpha and beta may be null. In f32 (f64 for f64) until the store. Launch and traffic: see row.h.
#include "row.h"
namespace gpu {

GPU_FN bool finite(f32 x) { return (f32_bits(x) & 0x7f800000u) != 0x7f800000u; }
GPU_FN bool finite(f64 x) { return (f64_bits(x) & 0x7ff0000000000000ull) != 0x7ff0000000000000ull; }

template <class T, bool Centred> struct Norm {
  typedef compute_t<T> C;
  const T *src, *alpha, *beta;
  T* dst;
  size_t cols;
  C eps;
  Meeting<C>& meet;

  template <int W, int Keep> GPU_METHOD void run(size_t at, u32 thread, u32 threads, bool active) const {
    const Row<T, W, Keep> row(src + at * cols, cols, thread, threads, active);
    write(row, dst + at * cols, threads);
  }

  // mean and variance of x·scale. Each warp takes both of its own elements; they meet once.
  template <class R> GPU_METHOD void statistics(const R& row, u32 threads, C scale, C& mean, C& variance) const {
    const C share = inverse((C)cols);
    if (!Centred) {
      mean = 0;
      variance = share * row_all<SumOf>(row.template fold<SumOf>((C)0, [scale](C x) { return x * scale * (x * scale); }), meet, threads);
      return;
    }
    const C count = warp_all<SumOf>((C)row.count());
    const C sum = warp_all<SumOf>(row.template fold<SumOf>((C)0, [scale](C x) { return x * scale; }));
    const C own = count > 0 ? sum * inverse(count) : (C)0;
    const C squares = warp_all<SumOf>(row.template fold<SumOf>((C)0, [scale, own](C x) { return (x * scale - own) * (x * scale - own); }));
    mean = own, variance = squares * share;
    if (threads == 32) return;
    const C* all = meet.tell(own, squares, count);
    mean = 0;
    NO_UNROLL for (u32 w = 0; w < threads / 32; w++) {
      const Vec<C, 4> part = load_shared<4>(all, w * 4);
      mean += part.v[0] * part.v[2];
    }
    mean *= share, variance = 0;
    NO_UNROLL for (u32 w = 0; w < threads / 32; w++) {
      const Vec<C, 4> part = load_shared<4>(all, w * 4);
      variance += part.v[1] + part.v[2] * ((part.v[0] - mean) * (part.v[0] - mean));
    }
    variance *= share;
  }

  template <int W, int Keep> GPU_METHOD void write(const Row<T, W, Keep>& row, T* out, u32 threads) const {
    C mean, factor;
    measure(row, threads, mean, factor);
    if (alpha && (!Centred || beta)) finish<true>(row, out, mean, factor);
    else finish<false>(row, out, mean, factor);
  }
  template <class R> GPU_METHOD void measure(const R& row, u32 threads, C& mean, C& factor) const {
    C scale = 1, back = 1;
    // Squares of very large values overflow and those of very small ones vanish: such rows go again, scaled by 2^∓70. All
    // threads of a row see the same variance.
    NO_UNROLL for (u32 again = 0; again < 2; again++) {
      C variance;
      statistics(row, threads, scale, mean, variance);
      variance += eps * scale * scale;
      factor = scale * inverse_root(variance);
      mean *= back;
      if (finite(variance) && variance > (C)1e-30) break;
      const bool large = !(variance < (C)1);
      scale = (C)(large ? 8.470329472543003e-22 : 1.1805916207174113e21);
      back = (C)(large ? 1.1805916207174113e21 : 8.470329472543003e-22);
    }
  }

  // All: there are all weights that there can be, so that they are loaded together.
  template <bool All, int W, int Keep> GPU_METHOD void finish(const Row<T, W, Keep>& row, T* out, C mean, C factor) const {
    row.each([&](const Vec<T, W>& v, size_t i) {
      Whole<T, W> p, q;
      if (All) p.load(alpha, i);
      if (All && Centred) q.load(beta, i);
      Scaled<W> z(v, mean, factor);
      if (All) {
        z.times(p.get());
        if (Centred) z.plus(q.get());
      } else {
        if (alpha) z.times(load_vec<T, W>(alpha, i));
        if (Centred && beta) z.plus(load_vec<T, W>(beta, i));
      }
      store_vec<T, W>(out, i, z.rounded());
    });
  }

  // One vector on its way to the result.
  template <int W> struct Scaled {
    C z[W];
    GPU_METHOD Scaled(const Vec<T, W>& v, C mean, C factor) {
      UNROLL for (int j = 0; j < W; j++) z[j] = (widen(v.v[j]) - mean) * factor;
    }
    GPU_METHOD void times(const Vec<T, W>& p) { UNROLL for (int j = 0; j < W; j++) z[j] *= widen(p.v[j]); }
    GPU_METHOD void plus(const Vec<T, W>& q) { UNROLL for (int j = 0; j < W; j++) z[j] += widen(q.v[j]); }
    GPU_METHOD Vec<T, W> rounded() const {
      Vec<T, W> y;
      UNROLL for (int j = 0; j < W; j++) y.v[j] = narrow<T>(z[j]);
      return y;
    }
  };
};

// Rows of a block each whose weights fit in registers: they are on their way before the kernel that makes x has ended (gpu/entry.h).
template <class T, int Keep> GPU_FN void each_row_early(size_t rows, u32 threads, const Norm<T, false>& norm) {
  constexpr int W = 16 / sizeof(T);
  Whole<T, W> weights[Keep];
  UNROLL for (int u = 0; u < Keep; u++)
    if ((tid_x() + u * threads) * W < norm.cols) weights[u].load(norm.alpha, tid_x() + u * threads);
  wait_for_previous();
  for (size_t at = bid_x(); at < rows; at += gdim_x()) {
    const Row<T, W, Keep> row(norm.src + at * norm.cols, norm.cols, tid_x(), threads, true);
    compute_t<T> mean, factor;
    norm.measure(row, threads, mean, factor);
    UNROLL for (int u = 0; u < Keep; u++) {
      if (!row.has(u)) continue;
      typename Norm<T, false>::template Scaled<W> z(row.x[u].get(), mean, factor);
      z.times(weights[u].get());
      store_vec<T, W>(norm.dst + at * norm.cols, row.place(u), z.rounded());
    }
  }
}

// The sum is what later layers see, so it is rounded to T before it is normalised.
template <class T> struct AddNorm {
  Norm<T, false> norm;
  const T* residual;
  T* sum;
  template <int W, int Keep> GPU_METHOD void run(size_t at, u32 thread, u32 threads, bool active) const {
    const size_t cols = norm.cols;
    Row<T, W, Keep> row(norm.src + at * cols, cols, thread, threads, active);
    const T* other = residual + at * cols;
    T* to = sum + at * cols;
    auto add_at = [&](Vec<T, W> v, size_t i) {
      const Vec<T, W> r = load_vec<T, W>(other, i);
      UNROLL for (int j = 0; j < W; j++) v.v[j] = narrow<T>(widen(v.v[j]) + widen(r.v[j]));
      store_vec<T, W>(to, i, v);
      return v;
    };
    if constexpr (Keep > 0) {
      UNROLL for (int u = 0; u < Keep; u++)
        if (row.has(u)) row.x[u].set(add_at(row.x[u].get(), row.place(u)));
    } else {
      NO_UNROLL for (size_t i = thread; i < row.vectors; i += threads) add_at(load_vec<T, W>(row.src, i), i);
      row.src = to;  // each thread reads back only what it wrote
    }
    norm.write(row, norm.dst + at * cols, threads);
  }
};

GPU_FN bool all_aligned(const void* a, const void* b, const void* c, const void* d) {
  return aligned_to((const void*)((u64)a | (u64)b | (u64)c | (u64)d), 16);
}

// row_threads as in row.h.
#define RMS_NORM(T, suffix, threads, blocks, Vectors) \
  KERNEL_EARLY(threads, blocks, rmsnorm##suffix##_##T, const T* x, const T* alpha, T* out, size_t rows, size_t cols, f64 eps, \
               u32 row_threads) { \
    ROW_MEETING(compute_t<T>, meet); \
    const bool aligned = all_aligned(x, out, alpha, nullptr); \
    const Norm<T, false> norm{x, alpha, nullptr, out, cols, (compute_t<T>)eps, meet}; \
    constexpr u32 W = 16 / sizeof(T); \
    if constexpr (Vectors > 0) \
      if (row_threads > 32 && alpha && aligned && cols % W == 0 && cols / W <= row_threads * Vectors) \
        return each_row_early<T, Vectors>(rows, row_threads, norm); \
    wait_for_previous(); \
    each_row<T, Vectors>(rows, cols, row_threads, aligned, norm); \
  }
#define LAYER_NORM(T, suffix, threads, blocks, Vectors) \
  KERNEL_CROWDED(threads, blocks, layernorm##suffix##_##T, const T* x, const T* alpha, const T* beta, T* out, size_t rows, \
                 size_t cols, f64 eps, u32 row_threads) { \
    ROW_MEETING(compute_t<T>, meet); \
    each_row<T, Vectors>(rows, cols, row_threads, all_aligned(x, out, alpha, beta), \
                         Norm<T, true>{x, alpha, beta, out, cols, (compute_t<T>)eps, meet}); \
  }
#define ADD_RMS_NORM(T, suffix, threads, blocks, Vectors) \
  KERNEL_CROWDED(threads, blocks, add_rmsnorm##suffix##_##T, const T* x, const T* residual, const T* alpha, T* sum, T* out, \
                 size_t rows, size_t cols, f64 eps, u32 row_threads) { \
    ROW_MEETING(compute_t<T>, meet); \
    const bool aligned = all_aligned(x, out, alpha, residual) && aligned_to(sum, 16); \
    each_row<T, Vectors>(rows, cols, row_threads, aligned, \
                         AddNorm<T>{Norm<T, false>{x, alpha, nullptr, out, cols, (compute_t<T>)eps, meet}, residual, sum}); \
  }
// Registers for four blocks, two in f64.
#define NORM(T) \
  RMS_NORM(T, , GPU_BLOCK, (sizeof(T) == 8 ? 2 : 4), ROW_VECTORS) RMS_NORM(T, _wide, WIDE_BLOCK, 1, 0) \
  LAYER_NORM(T, , GPU_BLOCK, (sizeof(T) == 8 ? 2 : 4), ROW_VECTORS) LAYER_NORM(T, _wide, WIDE_BLOCK, 1, 0) \
  ADD_RMS_NORM(T, , GPU_BLOCK, (sizeof(T) == 8 ? 2 : 4), ROW_VECTORS) ADD_RMS_NORM(T, _wide, WIDE_BLOCK, 1, 0)
GPU_FLOATS(NORM)

}  // namespace gpu
