// rmsnorm_T:   y = x / √(mean(x²) + eps) · alpha
// layernorm_T: y = (x − mean) / √(mean((x − mean)²) + eps) · alpha + beta      (two passes: a large mean does no harm)
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
    write<W>(row, dst + at * cols, threads);
  }

  // mean and variance of x·scale.
  template <class R> GPU_METHOD void statistics(const R& row, u32 threads, C scale, C& mean, C& variance) const {
    const C n = (C)cols;
    mean = Centred ? row_all<SumOf>(row.template fold<SumOf>((C)0, [scale](C x) { return x * scale; }), meet, threads) / n : (C)0;
    const C centre = mean;
    variance = row_all<SumOf>(row.template fold<SumOf>((C)0, [scale, centre](C x) { return (x * scale - centre) * (x * scale - centre); }), meet, threads) / n;
  }

  template <int W, class R> GPU_METHOD void write(const R& row, T* out, u32 threads) const {
    C mean, variance;
    statistics(row, threads, (C)1, mean, variance);
    C factor = (C)1 / m_sqrt(variance + eps);
    // Squares of very large values overflow: such rows go again, scaled by 2^-70, where eps vanishes beside them. All
    // threads of a row see the same variance.
    if (!finite(variance)) {
      const C scale = (C)8.470329472543003e-22;
      statistics(row, threads, scale, mean, variance);
      mean /= scale;
      factor = scale / m_sqrt(variance);
    }
    row.each_in_turn([&](const Vec<T, W>& v, size_t i) {
      Vec<T, W> a, b, y;
      if (alpha) a = load_vec<T, W>(alpha, i);
      if (beta) b = load_vec<T, W>(beta, i);
      UNROLL for (int j = 0; j < W; j++) {
        C z = (widen(v.v[j]) - mean) * factor;
        if (alpha) z *= widen(a.v[j]);
        if (beta) z += widen(b.v[j]);
        y.v[j] = narrow<T>(z);
      }
      store_vec<T, W>(out, i, y);
    });
  }
};

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
    auto add_at = [&](Vec<T, W>& v, size_t i) {
      const Vec<T, W> r = load_vec<T, W>(other, i);
      UNROLL for (int j = 0; j < W; j++) v.v[j] = narrow<T>(widen(v.v[j]) + widen(r.v[j]));
      store_vec<T, W>(to, i, v);
    };
    if (row.kept) {
      UNROLL for (int u = 0; u < Keep; u++)
        if (row.has(u)) add_at(row.x[u], row.place(u));
    } else {
      for (size_t i = thread; i < row.vectors; i += threads) {
        Vec<T, W> v = load_vec<T, W>(row.src, i);
        add_at(v, i);
      }
      row.src = to;  // each thread reads back only what it wrote
    }
    norm.template write<W>(row, norm.dst + at * cols, threads);
  }
};

GPU_FN bool all_aligned(const void* a, const void* b, const void* c, const void* d) {
  return aligned_to((const void*)((u64)a | (u64)b | (u64)c | (u64)d), 16);
}

// block_size as in row.h; n_rows is appended to the catalogue's arguments.
#define NORM_KERNELS(T, suffix, threads, blocks, Vectors) \
  KERNEL_CROWDED(threads, blocks, rmsnorm##suffix##_##T, const T* src, T* dst, const T* alpha, size_t n_cols, u32 block_size, f64 eps, \
                size_t n_rows) { \
    SHARED(compute_t<T>, places, 64); \
    Meeting<compute_t<T>> meet{places, 0}; \
    each_row<T, Vectors>(n_rows, n_cols, block_size, all_aligned(src, dst, alpha, nullptr), \
                         Norm<T, false>{src, alpha, nullptr, dst, n_cols, (compute_t<T>)eps, meet}); \
  } \
  KERNEL_CROWDED(threads, (blocks > 3 ? 3 : blocks), layernorm##suffix##_##T, const T* src, T* dst, const T* alpha, const T* beta, size_t n_cols, \
                u32 block_size, f64 eps, size_t n_rows) { \
    SHARED(compute_t<T>, places, 64); \
    Meeting<compute_t<T>> meet{places, 0}; \
    each_row<T, Vectors>(n_rows, n_cols, block_size, all_aligned(src, dst, alpha, beta), \
                         Norm<T, true>{src, alpha, beta, dst, n_cols, (compute_t<T>)eps, meet}); \
  } \
  KERNEL_CROWDED(threads, (blocks > 3 ? 3 : blocks), add_rmsnorm##suffix##_##T, const T* src, const T* residual, T* sum, T* dst, const T* alpha, \
                size_t n_cols, u32 block_size, f64 eps, size_t n_rows) { \
    SHARED(compute_t<T>, places, 64); \
    Meeting<compute_t<T>> meet{places, 0}; \
    const bool aligned = all_aligned(src, dst, alpha, residual) && aligned_to(sum, 16); \
    each_row<T, Vectors>(n_rows, n_cols, block_size, aligned, \
                         AddNorm<T>{Norm<T, false>{src, alpha, nullptr, dst, n_cols, (compute_t<T>)eps, meet}, residual, sum}); \
  }
#define NORM(T) NORM_KERNELS(T, , 256, (sizeof(T) == 4 ? 4 : 2), 4) NORM_KERNELS(T, _wide, 1024, 1, 1)
GPU_FLOATS(NORM)

}  // namespace gpu
