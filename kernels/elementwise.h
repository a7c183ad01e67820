// Elementwise loops: the one shape of every kernel that maps element i of its inputs to element i of its output.
#ifndef WICK_ELEMENTWISE_H
#define WICK_ELEMENTWISE_H
#include "gpu.h"

namespace gpu {
// Elements per vector from A to O: stores of more than 16 bytes per thread would leave gaps between the lanes of each
// store, so a wider O fills 16 bytes; a narrower one may be read from 32.
template <class A, class O> struct VectorWidth {
  static constexpr int value = sizeof(O) >= sizeof(A) ? 16 / sizeof(O) : (16 / sizeof(O) * sizeof(A) > 32 ? 32 / sizeof(A) : 16 / sizeof(O));
};

// A thread's places in [0, n): rounds of Unroll vectors of Width, then single elements. The vectors of a round lie a
// block apart, so that each access of a warp is one contiguous piece; all loads of a round come before its first use,
// which keeps enough bytes in flight to fill the memory system. Without vectors every element is a single one.
template <int Width, int Unroll, int Threads = GPU_BLOCK> struct Walk {
  size_t vectors, thread, first, step, single, single_step;
  GPU_METHOD Walk(size_t n, bool vectorized) {
    thread = (size_t)bid_x() * Threads + tid_x();
    vectors = vectorized ? n / Width : 0;
    first = (size_t)bid_x() * (Threads * Unroll) + tid_x();
    step = (size_t)gdim_x() * (Threads * Unroll);
    single = vectors * Width + thread;
    single_step = (size_t)gdim_x() * Threads;
  }
  GPU_METHOD size_t at(size_t base, int u) const { return base + (size_t)u * Threads; }
};

// One operand of an elementwise kernel, read W consecutive indices at a time. That works for any layout whose inner dim is a
// multiple of W: such a run has one stride, and is one vector where the stride is 1 and every run is aligned.
template <class A, int W> struct Operand {
  const A* p;
  i64 stride;
  bool vector;
  GPU_METHOD Operand(const A* base, int k, size_t num_dims, const size_t* info) : p(base), stride(1), vector(vector_aligned<W>(base)) {
    if (!info) return;
    const size_t* strides = info + num_dims * (k + 1);
    stride = (i64)strides[num_dims - 1];
    vector = vector && stride == 1;
    NO_UNROLL for (size_t d = 0; d + 1 < num_dims; d++) vector = vector && (i64)strides[d] % W == 0;
  }
  GPU_METHOD Vec<A, W> load(i64 at) const {
    if (vector) return *(const Vec<A, W>*)(p + at);
    Vec<A, W> x;
    UNROLL for (int j = 0; j < W; j++) x.v[j] = p[at + j * stride];
    return x;
  }
};
template <int W> GPU_FN bool runs_of(size_t num_dims, const size_t* info) { return !info || info[num_dims - 1] % W == 0; }

// y = op(x), element by element; an operation may have its own.
template <class Op, class A, class O, int W> GPU_FN void apply(const Op& op, const Vec<A, W>& x, Vec<O, W>& y) {
  UNROLL for (int j = 0; j < W; j++) y.v[j] = op(x.v[j]);
}

// out[i] = op(a[i]) where both are contiguous and aligned. A thread does so little that what comes before its load counts: no
// look at layouts here. All loads of a round come before its first use.
template <int W, int Unroll, int Threads, class A, class O, class Op> GPU_FN void map1_contiguous(size_t n, const A* a, O* out, Op op) {
  const size_t vectors = n / W, step = (size_t)gdim_x() * (Threads * Unroll);
  NO_UNROLL for (size_t base = (size_t)bid_x() * (Threads * Unroll) + tid_x(); base < vectors; base += step) {
    Vec<A, W> x[Unroll];
    UNROLL for (int u = 0; u < Unroll; u++)
      if (u == 0 || base + u * Threads < vectors) x[u] = load_vec<A, W>(a, base + u * Threads);
    UNROLL for (int u = 0; u < Unroll; u++)
      if (u == 0 || base + u * Threads < vectors) {
        Vec<O, W> y;
        apply(op, x[u], y);
        store_vec<O, W>(out, base + u * Threads, y);
      }
  }
  const u32 rest = (u32)(n - vectors * W);
  if (bid_x() == 0 && tid_x() < rest) out[vectors * W + tid_x()] = op(a[vectors * W + tid_x()]);
}

// As above, of two inputs.
template <int W, int Unroll, class A, class O, class Op> GPU_FN void map2_contiguous(size_t n, const A* a, const A* b, O* out, Op op) {
  const size_t vectors = n / W, step = (size_t)gdim_x() * (GPU_BLOCK * Unroll);
  NO_UNROLL for (size_t base = (size_t)bid_x() * (GPU_BLOCK * Unroll) + tid_x(); base < vectors; base += step) {
    Vec<A, W> x[Unroll], y[Unroll];
    UNROLL for (int u = 0; u < Unroll; u++)
      if (u == 0 || base + u * GPU_BLOCK < vectors) {
        x[u] = load_vec<A, W>(a, base + u * GPU_BLOCK);
        y[u] = load_vec<A, W>(b, base + u * GPU_BLOCK);
      }
    UNROLL for (int u = 0; u < Unroll; u++)
      if (u == 0 || base + u * GPU_BLOCK < vectors) {
        Vec<O, W> z;
        UNROLL for (int j = 0; j < W; j++) z.v[j] = op(x[u].v[j], y[u].v[j]);
        store_vec<O, W>(out, base + u * GPU_BLOCK, z);
      }
  }
  const u32 rest = (u32)(n - vectors * W);
  if (bid_x() == 0 && tid_x() < rest) out[vectors * W + tid_x()] = op(a[vectors * W + tid_x()], b[vectors * W + tid_x()]);
}

// out[i] = op(a[i]) in any layout. Traffic: each element read once and written once. A thread has Unroll vectors of what is
// contiguous, and one of anything else.
template <int Unroll, int Threads = GPU_BLOCK, class A, class O, class Op>
GPU_FN void map1(size_t n, size_t num_dims, const size_t* info, const A* a, O* out, Op op) {
  constexpr int W = VectorWidth<A, O>::value;
  if (!info && vector_aligned<W>(a) && vector_aligned<W>(out)) return map1_contiguous<W, Unroll, Threads>(n, a, out, op);
  const Operand<A, W> from(a, 0, num_dims, info);
  const Walk<W, 1, Threads> walk(n, vector_aligned<W>(out) && runs_of<W>(num_dims, info));
  NO_UNROLL for (size_t v = walk.thread; v < walk.vectors; v += walk.single_step) {
    i64 at[1] = {(i64)(v * W)};
    if (info) offsets<1>(v * W, num_dims, info, at);
    const Vec<A, W> x = from.load(at[0]);
    Vec<O, W> y;
    UNROLL for (int j = 0; j < W; j++) y.v[j] = op(x.v[j]);
    store_vec<O, W>(out, v, y);
  }
  NO_UNROLL for (size_t i = walk.single; i < n; i += walk.single_step) out[i] = op(a[offset(i, num_dims, info)]);
}

// out[i] = op(a[i], b[i]); info = dims ‖ strides of a ‖ strides of b. Without Vectors every element is a single one: for
// operations so long that sixteen copies of them would be slower than narrow loads.
template <bool Vectors, class A, class O, class Op>
GPU_FN void map2(size_t n, size_t num_dims, const size_t* info, const A* a, const A* b, O* out, Op op) {
  constexpr int W = 16 / sizeof(A);
  if (Vectors && !info && vector_aligned<W>(a) && vector_aligned<W>(b) && vector_aligned<W>(out))
    return map2_contiguous<W, 1>(n, a, b, out, op);
  const Operand<A, W> lhs(a, 0, num_dims, info), rhs(b, 1, num_dims, info);
  const Walk<W, 1> walk(n, Vectors && vector_aligned<W>(out) && runs_of<W>(num_dims, info));
  NO_UNROLL for (size_t v = walk.thread; Vectors && v < walk.vectors; v += walk.single_step) {
    i64 at[2] = {(i64)(v * W), (i64)(v * W)};
    if (info) offsets<2>(v * W, num_dims, info, at);
    const Vec<A, W> x = lhs.load(at[0]), y = rhs.load(at[1]);
    Vec<O, W> z;
    UNROLL for (int j = 0; j < W; j++) z.v[j] = op(x.v[j], y.v[j]);
    store_vec<O, W>(out, v, z);
  }
  NO_UNROLL for (size_t i = walk.single; i < n; i += walk.single_step) {
    i64 at[2] = {(i64)i, (i64)i};
    if (info) offsets<2>(i, num_dims, info, at);
    out[i] = op(a[at[0]], b[at[1]]);
  }
}

}  // namespace gpu

#endif  // WICK_ELEMENTWISE_H
