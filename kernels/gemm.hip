// Matrix products for machines without a BLAS, of halves where there is no matrix unit either (product.hip): any strides, so
// transposes and broadcasts need no copy. out is contiguous (batch, m, n).
#include "gemm.h"
namespace gpu {

// Where b has one column: y = A·x, bound by reading A once. Rows contiguous: row_threads threads (32 … GPU_BLOCK) per row with four
// 16-byte vectors in flight each.
template <class T> GPU_FN compute_t<T> dot_vectors(const T* row, const T* x, size_t vectors, u32 t, u32 threads) {
  typedef compute_t<T> C;
  constexpr int V = 16 / sizeof(T), U = 4;
  C acc[U];
  UNROLL for (int u = 0; u < U; u++) acc[u] = 0;
  for (size_t j = t; j < vectors; j += U * threads) {
    Vec<T, V> a[U], b[U];
    UNROLL for (int u = 0; u < U; u++)
      if (j + u * threads < vectors) {
        a[u] = load_vec<T, V>(row, j + u * threads);
        b[u] = load_vec<T, V>(x, j + u * threads);
      }
    UNROLL for (int u = 0; u < U; u++)
      if (j + u * threads < vectors) UNROLL for (int v = 0; v < V; v++) acc[u] += widen(a[u].v[v]) * widen(b[u].v[v]);
  }
  return (acc[0] + acc[1]) + (acc[2] + acc[3]);
}
template <class T>
GPU_FN void gemv_rows(compute_t<T>* shared, size_t batch, size_t m, size_t k, i64 a_row, i64 a_col, i64 x_step, size_t num_dims,
                      const size_t* info, const T* a, const T* x, T* y, u32 row_threads) {
  typedef compute_t<T> C;
  constexpr i64 V = 16 / sizeof(T);
  const u32 groups = GPU_BLOCK / row_threads, group = tid_x() / row_threads, t = tid_x() % row_threads;
  const size_t items = batch * m;
  for (size_t base = (size_t)bid_x() * groups; base < items; base += (size_t)gdim_x() * groups) {
    const size_t item = base + group;
    C acc = 0;
    if (item < items) {
      const size_t z = batch > 1 ? divide(item, m) : 0;
      i64 at[2] = {0, 0};
      if (batch > 1) offsets<2>(z, num_dims, info, at);
      const T* row = a + at[0] + (i64)(item - z * m) * a_row;
      const T* vec = x + at[1];
      if (a_col == 1 && x_step == 1 && (i64)k % V == 0 && aligned_to(row, 16) && aligned_to(vec, 16))
        acc = dot_vectors(row, vec, k / V, t, row_threads);
      else
        for (size_t j = t; j < k; j += row_threads) acc += widen(row[(i64)j * a_col]) * widen(vec[(i64)j * x_step]);
    }
    UNROLL for (u32 mask = 16; mask; mask /= 2) acc += shfl_xor(acc, mask);
    if (row_threads > 32) {
      if (lane_id() == 0) shared[tid_x() / 32] = acc;
      barrier();
      if (t == 0) for (u32 w = 1; w < row_threads / 32; w++) acc += shared[tid_x() / 32 + w];
      barrier();
    }
    if (t == 0 && item < items) y[item] = narrow<T>(acc);
  }
}
// Columns contiguous (a_row is 1): X threads with 16-byte vectors side by side along m, and the block's others down k, joined in shared
// memory. X is 8 where that makes blocks enough, down to GEMV_VECTORS: narrower pieces of each row of a, more blocks.
template <class T, int W>
GPU_FN void gemv_cols(compute_t<T>* shared, size_t batch, size_t m, size_t k, i64 a_col, i64 x_step, size_t num_dims, const size_t* info,
                      const T* a, const T* x, T* y) {
  typedef compute_t<T> C;
  u32 X = 8;
  while (X > GEMV_VECTORS && m * batch < (size_t)X * W * 256) X /= 2;
  const u32 Y = GPU_BLOCK / X, tx = tid_x() % X, ty = tid_x() / X;
  const size_t across = ceil_div(m, X * W), tiles = across * batch;
  for (size_t tile = bid_x(); tile < tiles; tile += gdim_x()) {
    const size_t z = divide(tile, across), r = ((tile - z * across) * X + tx) * W;
    i64 at[2] = {0, 0};
    if (batch > 1) offsets<2>(z, num_dims, info, at);
    C acc[W];
    UNROLL for (int w = 0; w < W; w++) acc[w] = 0;
    if (r < m) {
      const T* from = a + at[0] + (i64)r;
      const T* vec = x + at[1];
      for (size_t j = ty; j < k; j += 4 * Y) {
        Vec<T, W> v[4];
        C s[4];
        UNROLL for (int u = 0; u < 4; u++)
          if (j + u * Y < k) {
            v[u] = *(const Vec<T, W>*)(from + (i64)(j + u * Y) * a_col);
            s[u] = widen(vec[(i64)(j + u * Y) * x_step]);
          }
        UNROLL for (int u = 0; u < 4; u++)
          if (j + u * Y < k) UNROLL for (int w = 0; w < W; w++) acc[w] += widen(v[u].v[w]) * s[u];
      }
    }
    UNROLL for (int w = 0; w < W; w++) shared[w * GPU_BLOCK + tid_x()] = acc[w];
    barrier();
    for (u32 half = Y / 2; half; half /= 2) {
      if (ty < half) UNROLL for (int w = 0; w < W; w++) shared[w * GPU_BLOCK + tid_x()] += shared[w * GPU_BLOCK + tid_x() + half * X];
      barrier();
    }
    if (ty == 0 && r < m) UNROLL for (int w = 0; w < W; w++) y[z * m + r + w] = narrow<T>(shared[w * GPU_BLOCK + tx]);
    barrier();
  }
}
template <class T>
GPU_FN void gemv(compute_t<T>* shared, size_t batch, size_t m, size_t k, i64 a_row, i64 a_col, i64 x_step, size_t num_dims,
                 const size_t* info, const T* a, const T* x, T* y, u32 row_threads) {
  constexpr i64 V = 16 / sizeof(T);
  if (a_row != 1 || a_col == 1) {
    gemv_rows<T>(shared, batch, m, k, a_row, a_col, x_step, num_dims, info, a, x, y, row_threads);
    return;
  }
  bool vectors = ((i64)m | a_col) % V == 0 && aligned_to(a, 16);
  if (batch > 1) for (size_t d = 0; d < num_dims; d++) vectors = vectors && (i64)info[num_dims + d] % V == 0;
  if (vectors) gemv_cols<T, (int)V>(shared, batch, m, k, a_col, x_step, num_dims, info, a, x, y);
  else gemv_cols<T, 1>(shared, batch, m, k, a_col, x_step, num_dims, info, a, x, y);
}

// info = batch dims ‖ a strides ‖ b strides. gemm_T is for large products, gemm_small_T for those with too few large tiles to
// fill the device. Where `depth` is less than k, out is (parts of k, batch, m, n). Launch: a block per tile and part. gemm_pair_T and
// gemm_split_T have a cluster per tile, whose blocks multiply `depth` each and add it up.
#define GEMM_ARGUMENTS(T) \
  const T *a, const T *b, T *out, size_t batch, size_t m, size_t n, size_t k, size_t a_row_stride, size_t a_col_stride, \
      size_t b_row_stride, size_t b_col_stride, size_t num_dims, const size_t *info, size_t depth
#define GEMM_BODY(T, Size, threads) \
  typedef GemmOf<T>::Size Gemm; \
  static_assert(Gemm::THREADS == threads, ""); \
  SHARED(compute_t<T>, shared, Gemm::ROOM); \
  Gemm::all(shared, a, b, out, batch, m, n, k, (i64)a_row_stride, (i64)a_col_stride, (i64)b_row_stride, (i64)b_col_stride, num_dims, \
            info, depth);
#define GEMM_KERNEL(name, T, Size, threads, blocks) \
  KERNEL_CROWDED(threads, blocks, name##_##T, GEMM_ARGUMENTS(T)) { GEMM_BODY(T, Size, threads) }
#if GPU_CLUSTERS
#define GEMM_CLUSTER_BODY GEMM_BODY
#else
#define GEMM_CLUSTER_BODY(T, Size, threads)
#endif
#define GEMM_CLUSTER(name, T, Size, threads, blocks, size) \
  KERNEL_CLUSTER(threads, blocks, size, name##_##T, GEMM_ARGUMENTS(T)) { \
    wait_for_previous(); \
    GEMM_CLUSTER_BODY(T, Size, threads) \
  }
#define GEMV_KERNEL(T) \
  KERNEL_BOUNDS(GPU_BLOCK, gemv_##T, const T* a, const T* x, T* out, size_t batch, size_t m, size_t k, size_t a_row_stride, \
                size_t a_col_stride, size_t x_stride, size_t num_dims, const size_t* info, u32 row_threads) { \
    SHARED(compute_t<T>, shared, GPU_BLOCK * (16 / sizeof(T))); \
    gemv<T>(shared, batch, m, k, (i64)a_row_stride, (i64)a_col_stride, (i64)x_stride, num_dims, info, a, x, out, row_threads); \
  }
#define GEMM_CLUSTERS(T) \
  GEMM_CLUSTER(gemm_pair, T, Pair, GPU_BLOCK / 2, 3, 2) GEMM_CLUSTER(gemm_split, T, Split, GPU_BLOCK / 2, 4, GEMM_SPLIT)
#define GEMM_SMALL(T) GEMM_KERNEL(gemm_small, T, Small, GPU_BLOCK / 2, 4) GEMV_KERNEL(T)
#define GEMM(T) GEMM_KERNEL(gemm, T, Large, GPU_BLOCK, 1) GEMM_SMALL(T)
GPU_bf16(GEMM)
GPU_f16(GEMM)
GPU_f32(GEMM)
GPU_f64(GEMM)
GPU_u8(GEMM_SMALL)
GPU_u32(GEMM_SMALL)
GPU_i16(GEMM_SMALL)
GPU_i32(GEMM_SMALL)
GPU_i64(GEMM_SMALL)
GPU_f32(GEMM_CLUSTERS)

}  // namespace gpu
