// Kernels over rows: softmax and norms. A row is read once into registers where it fits, so that its statistics and its
// result cost one read and one write of memory; longer rows are read again for each pass (mostly from the cache).
//
// Launch: row_threads threads per row. 32: a block holds several rows, one warp each, and needs no barrier. More: one row
// per block of row_threads threads, any multiple of 32, up to GPU_BLOCK; the kernels named …_wide take up to WIDE_BLOCK, and keep nothing:
// the rows that they are for are longer than registers. Rows beyond the grid follow in a loop.
#ifndef WICK_ROW_H
#define WICK_ROW_H
#include "gpu.h"
namespace gpu {

// Compilers make a call of an exact division or root, and with a call a kernel needs many more registers. These start from the
// hardware's approximation and end within a unit in the last place, for normal x. What has no better value stays: 1/0, 1/∞.
GPU_FN f32 inverse(f32 x) {
  const f32 y = approx_recip(x), rest = m_fma(-x, y, 1.0f);
  return rest == rest ? m_fma(y, rest, y) : y;
}
GPU_FN f64 inverse(f64 x) { return 1 / x; }
GPU_FN f32 inverse_root(f32 x) {
  const f32 y = approx_rsqrt(x), rest = m_fma(-x * y, y, 1.0f);
  return rest == rest ? m_fma(0.5f * y, rest, y) : y;
}
GPU_FN f64 inverse_root(f64 x) { return 1 / m_sqrt(x); }
// 1 / √(squares / k + eps): what makes the mean square of k elements 1.
GPU_FN f32 rms_factor(f32 squares, u32 k, f32 eps) {
  const f32 mean = squares * inverse((f32)k) + eps;
  const bool tiny = mean < 1e-30f;  // or no normal number
  return inverse_root(tiny ? mean * 0x1p48f : mean) * (tiny ? 0x1p24f : 1.0f);
}

struct SumOf {
  template <class A> GPU_FN A join(A a, A b) { return a + b; }
};
struct MaxOf {
  template <class A> GPU_FN A join(A a, A b) { return maximum(a, b); }
};

// The value of all lanes of the warp, known to each.
template <class Op, class A> GPU_FN A warp_all(A a) {
  for (u32 mask = 16; mask; mask /= 2) a = Op::join(a, shfl_xor(a, mask));
  return a;
}

// Shared memory in which the warps of a row meet: two halves in turn, so that one barrier per meeting is enough. (Who writes
// a half again has passed the barrier of the other, and so have all who read it.)
template <class A> struct Meeting {
  A* places;
  u32 half;
  // Four numbers of each warp that exists, warp after warp.
  GPU_METHOD const A* tell(A a, A b, A c) {
    A* now = places + half * 128;
    half ^= 1;
    if (lane_id() == 0) store_shared<4>(now, tid_x() / 32 * 4, Vec<A, 4>{{a, b, c, (A)0}});
    barrier();
    return now;
  }
};
#define ROW_MEETING(A, name) \
  SHARED(A, name##_places, 256); \
  Meeting<A> name{name##_places, 0}

// The value of all threads of the row, known to each. Only the places of warps that exist are read.
template <class Op, class A> GPU_FN A row_all(A a, Meeting<A>& meet, u32 threads) {
  a = warp_all<Op>(a);
  if (threads == 32) return a;
  const A* all = meet.tell(a, (A)0, (A)0);
  a = all[0];
  NO_UNROLL for (u32 w = 1; w < threads / 32; w++) a = Op::join(a, all[w * 4]);
  return a;
}

// A vector of T as whole words where it fills 16 bytes: compilers would keep halves in a register each, or even widened.
template <class T, int W, bool = sizeof(T) * W == 16> struct Whole {
  Vec<u32, 4> words;
  GPU_METHOD void load(const T* from, size_t i) { words = ((const Vec<u32, 4>*)from)[i]; }
  GPU_METHOD void set(const Vec<T, W>& v) {
    union { Vec<T, W> elements; Vec<u32, 4> words; } both{v};
    words = both.words;
  }
  // Widened anew by each who gets it.
  GPU_METHOD Vec<T, W> get() const {
    union { Vec<u32, 4> words; Vec<T, W> elements; } both{words};
    UNROLL for (int j = 0; sizeof(T) == 2 && j < 4; j++) forget(both.words.v[j]);
    return both.elements;
  }
};
template <class T, int W> struct Whole<T, W, false> {
  Vec<T, W> elements;
  GPU_METHOD void load(const T* from, size_t i) { elements = load_vec<T, W>(from, i); }
  GPU_METHOD void set(const Vec<T, W>& v) { elements = v; }
  GPU_METHOD Vec<T, W> get() const { return elements; }
};

// One row in vectors of W; vector i belongs to thread i mod threads. Each thread keeps its vectors, at most Keep; with Keep = 0
// it reads them anew for each pass.
template <class T, int W, int Keep> struct Row {
  typedef compute_t<T> C;
  const T* src;
  size_t vectors;
  u32 thread, threads;
  Whole<T, W> x[Keep > 0 ? Keep : 1];

  GPU_METHOD Row(const T* src, size_t cols, u32 thread, u32 threads, bool active)
      : src(src), vectors(active ? cols / W : 0), thread(thread), threads(threads) {
    UNROLL for (int u = 0; u < Keep; u++)
      if (has(u)) x[u].load(src, place(u));
  }
  // Of kept vectors; their numbers have 32 bits: registers are what limits how many rows are in flight.
  GPU_METHOD u32 place(int u) const { return thread + u * threads; }
  GPU_METHOD bool has(int u) const { return place(u) < (u32)vectors; }

  // How many elements this thread has.
  GPU_METHOD u32 count() const {
    u32 n = 0;
    if constexpr (Keep > 0) UNROLL for (int u = 0; u < Keep; u++) n += has(u) ? W : 0;
    else NO_UNROLL for (size_t i = thread; i < vectors; i += threads) n += W;
    return n;
  }
  // f(vector, its number) for each of this thread's vectors.
  template <class F> GPU_METHOD void each(F f) const {
    if constexpr (Keep > 0) {
      UNROLL for (int u = 0; u < Keep; u++)
        if (has(u)) f(x[u].get(), place(u));
    } else {
      NO_UNROLL for (size_t i = thread; i < vectors; i += threads) f(load_vec<T, W>(src, i), i);
    }
  }
  // Folds g(x) of this thread's elements.
  template <class Op, class G> GPU_METHOD C fold(C start, G g) const {
    C acc = start;
    each([&](const Vec<T, W>& v, size_t) {
      UNROLL for (int j = 0; j < W; j++) acc = Op::join(acc, g(widen(v.v[j])));
    });
    return acc;
  }
};

// Calls body.template run<W, Keep>(row number, thread in row, threads, active) for each row of this block, with vectors
// where the row length and `vectorized` allow them and, unless Vectors is 0, there are at most so many per thread: then they
// are kept.
template <class T, int Vectors, class Body> GPU_FN void each_row(size_t rows, size_t cols, u32 threads, bool vectorized, Body body) {
  constexpr int W = 16 / sizeof(T);
  const u32 per_block = threads == 32 ? bdim_x() / 32 : 1, group = threads == 32 ? tid_x() / 32 : 0;
  const u32 thread = threads == 32 ? lane_id() : tid_x();
  for (size_t base = (size_t)bid_x() * per_block; base < rows; base += (size_t)gdim_x() * per_block) {
    const size_t row = base + group;
    const bool fits = Vectors == 0 || cols / W <= threads * Vectors;
    if (vectorized && cols % W == 0 && fits) body.template run<W, Vectors>(row, thread, threads, row < rows);
    else body.template run<1, 0>(row, thread, threads, row < rows);
  }
}

}  // namespace gpu
#endif
