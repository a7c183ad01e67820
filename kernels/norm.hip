// rmsnorm_T:   y = x / √(mean(x²) + eps) · alpha
// layernorm_T: y = (x − mean) / √(mean((x − mean)²) + eps) · alpha + beta      (squares of differences: a large mean does no harm)
// add_rmsnorm_T: s = x + residual is stored and normalised in the same pass, which saves a read of s.
// alpha and beta may be null. In f32 (f64 for f64) until the store. Launch and traffic: see row.h.
#include "row.h"
namespace gpu {

GPU_FN bool finite(f32 x) { return (f32_bits(x) & 0x7f800000u) != 0x7f800000u; }
GPU_FN bool finite(f64 x) { return (f64_bits(x) & 0x7ff0000000000000ull) != 0x7ff0000000000000ull; }

// Weights: 0 one vector after the other, 1 all before the statistics, 2 all after them
template <class T, bool Centred, int Weights = 1> struct Norm {
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
    const C n = (C)cols;
    if (!Centred) {
      mean = 0;
      variance = row_all<SumOf>(row.template fold<SumOf>((C)0, [scale](C x) { return x * scale * (x * scale); }), meet, threads) / n;
      return;
    }
    const C count = warp_all<SumOf>((C)row.count());
    const C sum = warp_all<SumOf>(row.template fold<SumOf>((C)0, [scale](C x) { return x * scale; }));
    const C own = count > 0 ? sum / count : (C)0;
    const C squares = warp_all<SumOf>(row.template fold<SumOf>((C)0, [scale, own](C x) { return (x * scale - own) * (x * scale - own); }));
    mean = own, variance = squares / n;
    if (threads == 32) return;
    const C* all = meet.tell(own, squares, count);
    mean = 0;
    for (u32 w = 0; w < threads / 32; w++) {
      const Vec<C, 4> part = load_shared<4>(all, w * 4);
      mean += part.v[0] * part.v[2];
    }
    mean /= n, variance = 0;
    for (u32 w = 0; w < threads / 32; w++) {
      const Vec<C, 4> part = load_shared<4>(all, w * 4);
      variance += part.v[1] + part.v[2] * ((part.v[0] - mean) * (part.v[0] - mean));
    }
    variance /= n;
  }

  template <int W, int Keep> GPU_METHOD void write(const Row<T, W, Keep>& row, T* out, u32 threads) const {
    constexpr bool EARLY = Weights == 1 && Keep > 0;
    Vec<T, W> a[EARLY ? Keep : 1], b[EARLY ? Keep : 1];
    if constexpr (EARLY) UNROLL for (int u = 0; u < Keep; u++) if (row.has(u)) {
      if (alpha) a[u] = load_vec<T, W>(alpha, row.place(u));
      if (Centred && beta) b[u] = load_vec<T, W>(beta, row.place(u));
    }
    C mean, factor, scale = 1;
    // Squares of very large values overflow: such rows go again, scaled by 2^-70, where eps vanishes beside them. All
    // threads of a row see the same variance.
    NO_UNROLL for (u32 again = 0; again < 2; again++) {
      C variance;
      statistics(row, threads, scale, mean, variance);
      factor = scale / m_sqrt(again ? variance : variance + eps);
      mean /= scale;
      if (finite(variance)) break;
      scale = (C)8.470329472543003e-22;
    }
    row.each([&](const Vec<T, W>& v, size_t i, int u) {
      Vec<T, W> p, q, y;
      if (alpha) p = EARLY ? a[u] : load_vec<T, W>(alpha, i);
      if (Centred && beta) q = EARLY ? b[u] : load_vec<T, W>(beta, i);
      UNROLL for (int j = 0; j < W; j++) {
        C z = (widen(v.v[j]) - mean) * factor;
        if (alpha) z *= widen(p.v[j]);
        if (Centred && beta) z += widen(q.v[j]);
        y.v[j] = narrow<T>(z);
      }
      store_vec<T, W>(out, i, y);
      if (Weights == 0) GPU_KEEP_ORDER();
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
    if constexpr (Keep > 0) {
      UNROLL for (int u = 0; u < Keep; u++)
        if (row.has(u)) add_at(row.x[u], row.place(u));
    } else {
      NO_UNROLL for (size_t i = thread; i < row.vectors; i += threads) {
        Vec<T, W> v = load_vec<T, W>(row.src, i);
        add_at(v, i);
      }
      row.src = to;  // each thread reads back only what it wrote
    }
    norm.write(row, norm.dst + at * cols, threads);
  }
};

GPU_FN bool all_aligned(const void* a, const void* b, const void* c, const void* d) {
  return aligned_to((const void*)((u64)a | (u64)b | (u64)c | (u64)d), 16);
}

// block_size as in row.h; n_rows is appended to the catalogue's arguments.
#define RMS_NORM(T, suffix, threads, blocks, Vectors, Weights) \
  KERNEL_CROWDED(threads, blocks, rmsnorm##suffix##_##T, const T* src, T* dst, const T* alpha, size_t n_cols, u32 block_size, f64 eps, \
                size_t n_rows) { \
    ROW_MEETING(compute_t<T>, meet); \
    each_row<T, Vectors>(n_rows, n_cols, block_size, all_aligned(src, dst, alpha, nullptr), \
                         Norm<T, false, Weights>{src, alpha, nullptr, dst, n_cols, (compute_t<T>)eps, meet}); \
  }
#define LAYER_NORM(T, suffix, threads, blocks, Vectors, Weights) \
  KERNEL_CROWDED(threads, blocks, layernorm##suffix##_##T, const T* src, T* dst, const T* alpha, const T* beta, size_t n_cols, \
                u32 block_size, f64 eps, size_t n_rows) { \
    ROW_MEETING(compute_t<T>, meet); \
    each_row<T, Vectors>(n_rows, n_cols, block_size, all_aligned(src, dst, alpha, beta), \
                         Norm<T, true, Weights>{src, alpha, beta, dst, n_cols, (compute_t<T>)eps, meet}); \
  }
#define ADD_RMS_NORM(T, suffix, threads, blocks, Vectors) \
  KERNEL_CROWDED(threads, blocks, add_rmsnorm##suffix##_##T, const T* src, const T* residual, T* sum, T* dst, const T* alpha, \
                size_t n_cols, u32 block_size, f64 eps, size_t n_rows) { \
    ROW_MEETING(compute_t<T>, meet); \
    const bool aligned = all_aligned(src, dst, alpha, residual) && aligned_to(sum, 16); \
    each_row<T, Vectors>(n_rows, n_cols, block_size, aligned, \
                         AddNorm<T>{Norm<T, false>{src, alpha, nullptr, dst, n_cols, (compute_t<T>)eps, meet}, residual, sum}); \
  }
#define NORM(T) \
  RMS_NORM(T, , 256, (sizeof(T) == 4 ? 4 : 2), 4, 0) RMS_NORM(T, _wide, 1024, 1, 0, 0) \
  LAYER_NORM(T, , 256, 3, 4, 1) LAYER_NORM(T, _wide, 1024, 1, 0, 0) \
  ADD_RMS_NORM(T, , 256, (sizeof(T) == 4 ? 3 : 2), 4) ADD_RMS_NORM(T, _wide, 1024, 1, 0)
GPU_FLOATS(NORM)

}  // namespace gpu
