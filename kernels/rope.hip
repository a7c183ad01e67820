// Rotary embeddings: (y₁, y₂) = (x₁·cos − x₂·sin, x₁·sin + x₂·cos), in f32 for halves.
//   rope_T      x (b, h, t, d), pairs (i, i + d/2)      rope_i_T  x (b, h, t, d), pairs (2i, 2i + 1)
//   rope_thd_T  x (b, t, h, d), pairs (i, i + d/2)
// cos and sin: row p of batch i at i·table_stride + p·d/2 (table_stride 0: shared). stride_b is the number of elements
// of x per batch where tables differ by batch, else 0. Launch: 256 threads, a vector of pairs in four heads each; traffic:
// x once in, once out; tables come from the cache.
#include "gpu.h"
namespace gpu {

template <class T, int W> GPU_FN void rotate(const Vec<T, W>& a, const Vec<T, W>& b, const Vec<T, W>& c, const Vec<T, W>& s,
                                             Vec<T, W>& y, Vec<T, W>& z) {
  UNROLL for (int j = 0; j < W; j++) {
    const compute_t<T> p = widen(a.v[j]), q = widen(b.v[j]), cosine = widen(c.v[j]), sine = widen(s.v[j]);
    y.v[j] = narrow<T>(p * cosine - q * sine);
    z.v[j] = narrow<T>(p * sine + q * cosine);
  }
}

// Where the elements of x lie, and how many there are of each kind.
struct Heads {
  size_t batch, heads, positions, d;
  size_t batch_stride, head_stride, position_stride;
};

// A thread turns one vector of pairs of one position in up to four heads, for which it loads the angles once.
template <class T, int W, bool Interleaved>
GPU_FN void rope(const T* src, const T* cos, const T* sin, T* dst, const Heads& x, size_t table_stride) {
  constexpr int Group = 4;
  constexpr int Wide = Interleaved ? 2 * W : W;
  const size_t half = x.d / 2, per_row = half / W, groups = ceil_div(x.heads, Group);
  single_loop(x.batch * groups * x.positions * per_row, [&](size_t i) {
    const size_t row = divide(i, per_row), at = (i - row * per_row) * W;
    const size_t group = divide(row, x.positions), position = row - group * x.positions;
    const size_t batch = divide(group, groups), head = (group - batch * groups) * Group;
    const size_t table = batch * table_stride + position * half + at;
    const size_t first = batch * x.batch_stride + head * x.head_stride + position * x.position_stride + (Interleaved ? 2 * at : at);
    const Vec<T, W> c = *(const Vec<T, W>*)(cos + table), s = *(const Vec<T, W>*)(sin + table);
    Vec<T, Wide> v[Group], w[Group];
    UNROLL for (int g = 0; g < Group; g++)
      if (head + g < x.heads) {
        v[g] = *(const Vec<T, Wide>*)(src + first + g * x.head_stride);
        if (!Interleaved) w[g] = *(const Vec<T, Wide>*)(src + first + g * x.head_stride + half);
      }
    UNROLL for (int g = 0; g < Group; g++)
      if (head + g < x.heads) {
        Vec<T, W> a, b, y, z;
        UNROLL for (int j = 0; j < W; j++) {
          a.v[j] = Interleaved ? v[g].v[2 * j % Wide] : v[g].v[j];
          b.v[j] = Interleaved ? v[g].v[(2 * j + 1) % Wide] : w[g].v[j];
        }
        rotate<T, W>(a, b, c, s, y, z);
        T* to = dst + first + g * x.head_stride;
        if (Interleaved) {
          UNROLL for (int j = 0; j < W; j++) {
            v[g].v[2 * j % Wide] = y.v[j];
            v[g].v[(2 * j + 1) % Wide] = z.v[j];
          }
          *(Vec<T, Wide>*)to = v[g];
        } else {
          *(Vec<T, W>*)to = y;
          *(Vec<T, W>*)(to + half) = z;
        }
      }
  });
}

template <class T, bool Interleaved>
GPU_FN void rope_any(const T* src, const T* cos, const T* sin, T* dst, const Heads& x, size_t table_stride) {
  // Interleaved pairs move 2·W elements at once, so W is half as large there.
  constexpr int W = 16 / sizeof(T) / (Interleaved ? 2 : 1);
  const bool aligned = aligned_to((const void*)((u64)src | (u64)dst | (u64)cos | (u64)sin), 16);
  if (aligned && x.d / 2 % W == 0 && table_stride % W == 0) rope<T, W, Interleaved>(src, cos, sin, dst, x, table_stride);
  else rope<T, 1, Interleaved>(src, cos, sin, dst, x, table_stride);
}
// (b, h, t, d): b·h and t·d are the catalogue's arguments; heads of one batch are those within stride_b elements.
GPU_FN Heads heads_first(size_t bh, size_t td, size_t d, size_t stride_b) {
  const size_t heads = stride_b ? stride_b / td : bh;
  return Heads{bh / heads, heads, td / d, d, heads * td, td, d};
}

// Appended to the catalogue's arguments: d where it was missing, and table_stride.
#define ROPE(T) \
  KERNEL_BOUNDS(256, rope_i_##T, const T* src, const T* cos, const T* sin, T* dst, size_t bh, size_t td, size_t stride_b, \
                size_t d, size_t table_stride) { \
    rope_any<T, true>(src, cos, sin, dst, heads_first(bh, td, d, stride_b), table_stride); \
  } \
  KERNEL_BOUNDS(256, rope_##T, const T* src, const T* cos, const T* sin, T* dst, size_t bh, size_t td, size_t d, \
                size_t stride_b, size_t table_stride) { \
    rope_any<T, false>(src, cos, sin, dst, heads_first(bh, td, d, stride_b), table_stride); \
  } \
  KERNEL_BOUNDS(256, rope_thd_##T, const T* src, const T* cos, const T* sin, T* dst, size_t b, size_t t, size_t h, size_t d, \
                size_t stride_b, size_t table_stride) { \
    (void)stride_b; \
    rope_any<T, false>(src, cos, sin, dst, Heads{b, h, t, d, t * h * d, d, h * d}, table_stride); \
  }
GPU_FLOATS(ROPE)

}  // namespace gpu
