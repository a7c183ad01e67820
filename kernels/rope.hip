// Rotary embeddings: (y₁, y₂) = (x₁·cos − x₂·sin, x₁·sin + x₂·cos), in f32 for halves.
//   rope_T      x (b, h, t, d), pairs (i, i + d/2)      rope_i_T  x (b, h, t, d), pairs (2i, 2i + 1)
//   rope_thd_T  x (b, t, h, d), pairs (i, i + d/2)
// cos and sin: row p of batch i at i·table_stride + p·d/2 (table_stride 0: shared). stride_b is the number of elements
// of x per batch where tables differ by batch, else 0. Launch: 256 threads, two vectors of pairs each; traffic: x once
// in, once out; tables come from the cache.
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

// One vector of pairs: where it lies, its two sides and its angles.
template <class T, int W> struct Pairs {
  size_t place;
  Vec<T, W> a, b, c, s;
};

// `group` rows of x in a row share a position; positions repeat after `positions`.
template <class T, int W, bool Interleaved>
GPU_FN void rope(const T* src, const T* cos, const T* sin, T* dst, size_t rows, size_t positions, size_t group, size_t d,
                 size_t stride_b, size_t table_stride) {
  constexpr int Unroll = 2;
  const size_t half = d / 2, per_row = half / W, n = rows * per_row;
  const Walk<1, Unroll> walk(n, true);
  for (size_t base = walk.first; base < n; base += walk.step) {
    Pairs<T, W> p[Unroll];
    UNROLL for (int u = 0; u < Unroll; u++)
      if (walk.at(base, u) < n) {
        const size_t i = walk.at(base, u), row = divide(i, per_row), at = (i - row * per_row) * W, x = row * d;
        const size_t index = group == 1 ? row : divide(row, group), position = index - divide(index, positions) * positions;
        const size_t table = (stride_b ? divide(x, stride_b) * table_stride : 0) + position * half + at;
        p[u].c = *(const Vec<T, W>*)(cos + table);
        p[u].s = *(const Vec<T, W>*)(sin + table);
        if (Interleaved) {
          p[u].place = x + 2 * at;
          const Vec<T, 2 * W> v = *(const Vec<T, 2 * W>*)(src + p[u].place);
          UNROLL for (int j = 0; j < W; j++) {
            p[u].a.v[j] = v.v[2 * j];
            p[u].b.v[j] = v.v[2 * j + 1];
          }
        } else {
          p[u].place = x + at;
          p[u].a = *(const Vec<T, W>*)(src + p[u].place);
          p[u].b = *(const Vec<T, W>*)(src + p[u].place + half);
        }
      }
    UNROLL for (int u = 0; u < Unroll; u++)
      if (walk.at(base, u) < n) {
        Vec<T, W> y, z;
        rotate<T, W>(p[u].a, p[u].b, p[u].c, p[u].s, y, z);
        if (Interleaved) {
          Vec<T, 2 * W> v;
          UNROLL for (int j = 0; j < W; j++) {
            v.v[2 * j] = y.v[j];
            v.v[2 * j + 1] = z.v[j];
          }
          *(Vec<T, 2 * W>*)(dst + p[u].place) = v;
        } else {
          *(Vec<T, W>*)(dst + p[u].place) = y;
          *(Vec<T, W>*)(dst + p[u].place + half) = z;
        }
      }
  }
}

template <class T, bool Interleaved>
GPU_FN void rope_any(const T* src, const T* cos, const T* sin, T* dst, size_t rows, size_t positions, size_t group, size_t d,
                     size_t stride_b, size_t table_stride) {
  // Both sides of W pairs fill 16 bytes: wider ones would take so many registers that too few threads are in flight.
  constexpr int W = 8 / sizeof(T);
  const bool aligned = aligned_to((const void*)((u64)src | (u64)dst | (u64)cos | (u64)sin), 16);
  if (aligned && d / 2 % W == 0 && table_stride % W == 0)
    rope<T, W, Interleaved>(src, cos, sin, dst, rows, positions, group, d, stride_b, table_stride);
  else rope<T, 1, Interleaved>(src, cos, sin, dst, rows, positions, group, d, stride_b, table_stride);
}

// Appended to the catalogue's arguments: d where it was missing, and table_stride.
#define ROPE(T) \
  KERNEL_BOUNDS(256, rope_i_##T, const T* src, const T* cos, const T* sin, T* dst, size_t bh, size_t td, size_t stride_b, \
                size_t d, size_t table_stride) { \
    rope_any<T, true>(src, cos, sin, dst, bh * (td / d), td / d, 1, d, stride_b, table_stride); \
  } \
  KERNEL_BOUNDS(256, rope_##T, const T* src, const T* cos, const T* sin, T* dst, size_t bh, size_t td, size_t d, \
                size_t stride_b, size_t table_stride) { \
    rope_any<T, false>(src, cos, sin, dst, bh * (td / d), td / d, 1, d, stride_b, table_stride); \
  } \
  KERNEL_BOUNDS(256, rope_thd_##T, const T* src, const T* cos, const T* sin, T* dst, size_t b, size_t t, size_t h, size_t d, \
                size_t stride_b, size_t table_stride) { \
    rope_any<T, false>(src, cos, sin, dst, b * t * h, t, h, d, stride_b, table_stride); \
  }
GPU_FLOATS(ROPE)

}  // namespace gpu
