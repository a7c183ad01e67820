// Matrix products for machines without a BLAS: any strides, so transposes and broadcasts need no copy. Halves are widened on
// the way into shared memory and summed in f32. out is contiguous (batch, m, n).
#include "gpu.h"
namespace gpu {

// A tile of `Rows` rows (or columns of b) by Depth, as this thread's L consecutive elements: along k or along the rows,
// whichever lies closer together in memory.
template <class T, int Rows, int Depth> struct Panel {
  typedef compute_t<T> C;
  static constexpr int L = Rows * Depth / GPU_BLOCK;
  static constexpr int Stride = Rows + 16 / (int)sizeof(C);  // keeps vectors aligned and spreads the banks

  const T* base;
  size_t rows, depth, first;
  i64 row_step, k_step;
  bool along_k, vectors;
  u32 r, k;

  GPU_METHOD Panel(const T* p, size_t rows_, size_t depth_, size_t first_, i64 row_stride, i64 k_stride)
      : base(p), rows(rows_), depth(depth_), first(first_), row_step(row_stride), k_step(k_stride) {
    along_k = k_stride == 1 || (row_stride != 1 && (k_stride < 0 ? -k_stride : k_stride) < (row_stride < 0 ? -row_stride : row_stride));
    vectors = (along_k ? k_stride == 1 && row_stride % L == 0 : row_stride == 1 && k_stride % L == 0) && vector_aligned<L>(p);
    r = along_k ? tid_x() / (Depth / L) : tid_x() % (Rows / L) * L;
    k = along_k ? tid_x() % (Depth / L) * L : tid_x() / (Rows / L);
  }
  GPU_METHOD Vec<T, L> load(size_t k0) const {
    const size_t row = first + r, at = k0 + k;
    Vec<T, L> x;
    if (vectors && row + (along_k ? 1 : L) <= rows && at + (along_k ? L : 1) <= depth) {
      const Vec<T, L> whole = *(const Vec<T, L>*)(base + (i64)row * row_step + (i64)at * k_step);
      UNROLL for (int j = 0; j < L; j++) x.v[j] = whole.v[j];
      return x;
    }
    UNROLL for (int j = 0; j < L; j++) {
      const size_t rj = along_k ? row : row + j, kj = along_k ? at + j : at;
      x.v[j] = rj < rows && kj < depth ? base[(i64)rj * row_step + (i64)kj * k_step] : T{};
    }
    return x;
  }
  GPU_METHOD void store(C* tile, const Vec<T, L>& x) const {
    Vec<C, L> y;
    UNROLL for (int j = 0; j < L; j++) y.v[j] = widen(x.v[j]);
    if (along_k) UNROLL for (int j = 0; j < L; j++) tile[(k + j) * Stride + r] = y.v[j];
    else store_shared<L>(tile, k * Stride + r, y);
  }
};

// c = a·b. A block makes Tile × Tile of c, each thread an Edge × Edge part kept in registers, in groups of G
// neighbours so that shared memory is read as vectors. While one slice of Depth is multiplied, the next is on its way:
// global → registers → the other half of shared memory; one barrier per slice. Traffic: a is read n/Tile times, b m/Tile times.
template <class T, int Tile, int Edge, int Depth>
GPU_FN void gemm(compute_t<T>* sa, compute_t<T>* sb, size_t batch, size_t m, size_t n, size_t k, i64 a_row, i64 a_col, i64 b_row, i64 b_col,
                 size_t num_dims, const size_t* info, const T* a, const T* b, T* c) {
  typedef compute_t<T> C;
  typedef Panel<T, Tile, Depth> P;
  constexpr int G = 16 / sizeof(C) < Edge ? 16 / sizeof(C) : Edge, Groups = Edge / G, Spread = Tile / Groups, Half = Depth * P::Stride;
  const u32 ty = tid_x() / (Tile / Edge), tx = tid_x() % (Tile / Edge);
  const size_t down = ceil_div(m, Tile), across = ceil_div(n, Tile), tiles = down * across * batch;
  for (size_t tile = bid_x(); tile < tiles; tile += gdim_x()) {
    const size_t z = divide(tile, down * across), in = tile - z * (down * across);
    const size_t row0 = divide(in, across) * Tile, col0 = (in - divide(in, across) * across) * Tile;
    i64 at[2] = {0, 0};
    if (batch > 1) offsets<2>(z, num_dims, info, at);
    const P pa(a + at[0], m, k, row0, a_row, a_col), pb(b + at[1], n, k, col0, b_col, b_row);
    C acc[Edge][Edge];
    UNROLL for (int i = 0; i < Edge; i++) UNROLL for (int j = 0; j < Edge; j++) acc[i][j] = 0;
    pa.store(sa, pa.load(0));
    pb.store(sb, pb.load(0));
    barrier();
    u32 half = 0;
    for (size_t k0 = 0; k0 < k; k0 += Depth) {
      const bool more = k0 + Depth < k;
      const Vec<T, P::L> next_a = pa.load(k0 + Depth), next_b = pb.load(k0 + Depth);
      const C* ta = sa + half * Half;
      const C* tb = sb + half * Half;
      UNROLL_SOME for (int kk = 0; kk < Depth; kk++) {
        Vec<C, G> x[Groups], y[Groups];
        UNROLL for (int g = 0; g < Groups; g++) {
          x[g] = load_shared<G>(ta, kk * P::Stride + g * Spread + ty * G);
          y[g] = load_shared<G>(tb, kk * P::Stride + g * Spread + tx * G);
        }
        UNROLL for (int i = 0; i < Edge; i++)
          UNROLL for (int j = 0; j < Edge; j++) acc[i][j] += x[i / G].v[i % G] * y[j / G].v[j % G];
      }
      if (more) {
        half ^= 1;
        pa.store(sa + half * Half, next_a);
        pb.store(sb + half * Half, next_b);
        barrier();
      }
    }
    const bool wide = n % G == 0 && vector_aligned<G>(c);
    UNROLL for (int i = 0; i < Edge; i++) {
      const size_t row = row0 + (i / G) * Spread + ty * G + i % G;
      if (row < m) UNROLL for (int g = 0; g < Groups; g++) {
        const size_t col = col0 + g * Spread + tx * G;
        T* to = c + (z * m + row) * n + col;
        Vec<T, G> out;
        UNROLL for (int j = 0; j < G; j++) out.v[j] = narrow<T>(acc[i][g * G + j]);
        if (wide && col < n) *(Vec<T, G>*)to = out;
        else UNROLL for (int j = 0; j < G; j++)
          if (col + j < n) to[j] = out.v[j];
      }
    }
    barrier();
  }
}

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
// fill the device. Launch: a block per tile of GEMM_TILE², half and quarter as wide for small products and 8 bytes.
#define GEMM_KERNEL(name, T, Tile, Edge, Depth) \
  KERNEL_BOUNDS(GPU_BLOCK, name##_##T, const T* a, const T* b, T* out, size_t batch, size_t m, size_t n, size_t k, size_t a_row_stride, \
                size_t a_col_stride, size_t b_row_stride, size_t b_col_stride, size_t num_dims, const size_t* info) { \
    SHARED(compute_t<T>, sa, 2 * Depth * (Panel<T, Tile, Depth>::Stride)); \
    SHARED(compute_t<T>, sb, 2 * Depth * (Panel<T, Tile, Depth>::Stride)); \
    gemm<T, Tile, Edge, Depth>(sa, sb, batch, m, n, k, (i64)a_row_stride, (i64)a_col_stride, (i64)b_row_stride, \
                               (i64)b_col_stride, num_dims, info, a, b, out); \
  }
#define GEMV_KERNEL(T) \
  KERNEL_BOUNDS(GPU_BLOCK, gemv_##T, const T* a, const T* x, T* out, size_t batch, size_t m, size_t k, size_t a_row_stride, \
                size_t a_col_stride, size_t x_stride, size_t num_dims, const size_t* info, u32 row_threads) { \
    SHARED(compute_t<T>, shared, GPU_BLOCK * (16 / sizeof(T))); \
    gemv<T>(shared, batch, m, k, (i64)a_row_stride, (i64)a_col_stride, (i64)x_stride, num_dims, info, a, x, out, row_threads); \
  }
#define GEMM(T) GEMM_KERNEL(gemm, T, GEMM_TILE, 8, 8) GEMM_KERNEL(gemm_small, T, GEMM_TILE / 2, 4, 16) GEMV_KERNEL(T)
#define GEMM_F64(T) GEMM_KERNEL(gemm, T, GEMM_TILE / 2, 4, 8) GEMM_KERNEL(gemm_small, T, GEMM_TILE / 4, 2, 16) GEMV_KERNEL(T)
GPU_bf16(GEMM)
GPU_f16(GEMM)
GPU_f32(GEMM)
GPU_f64(GEMM_F64)
GPU_u8(GEMM)
GPU_u32(GEMM)
GPU_i16(GEMM)
GPU_i32(GEMM)
GPU_i64(GEMM_F64)

}  // namespace gpu
