// Rotary embeddings: (y₁, y₂) = (x₁·cos − x₂·sin, x₁·sin + x₂·cos), in f32 for halves.
//   rope_T      x (b, h, t, d), pairs (i, i + d/2)      rope_i_T  x (b, h, t, d), pairs (2i, 2i + 1)
//   rope_thd_T  x (b, t, h, d), pairs (i, i + d/2)
// cos and sin: row p of batch i at i·table_stride + p·d/2 (table_stride 0: shared). stride_b is the number of elements
// of x per batch where tables differ by batch, else 0. Launch: 256 threads; a thread turns the same places of ROPE_HEADS
// heads, for which it needs the angles and its whereabouts once. Traffic: x once in, once out; tables come from the cache.
#include "turn.h"
namespace gpu {

constexpr int ROPE_HEADS = 2;

// Heads of `batches` batches: element (batch, position, head) at batch·batch_stride + position·position_stride +
// head·head_stride.
struct RopeShape {
  size_t batches, positions, heads, d, batch_stride, position_stride, head_stride, table_stride;
};

// W pairs of one head: both sides, apart or interleaved.
template <class T, int W, bool Interleaved> struct Pairs {
  Vec<T, W> a, b;
  GPU_METHOD void load(const T* x, size_t half) {
    if (Interleaved) {
      const Vec<T, 2 * W> v = *(const Vec<T, 2 * W>*)x;
      UNROLL for (int j = 0; j < W; j++) a.v[j] = v.v[2 * j], b.v[j] = v.v[2 * j + 1];
    } else {
      a = *(const Vec<T, W>*)x;
      b = *(const Vec<T, W>*)(x + half);
    }
  }
  GPU_METHOD void store(T* to, size_t half, const Vec<T, W>& c, const Vec<T, W>& s) const {
    Vec<T, W> y = a, z = b;
    Vec<T, 2 * W> both;
    UNROLL for (int j = 0; j < W; j++) {
      turn(y.v[j], z.v[j], c.v[j], s.v[j]);
      both.v[2 * j] = y.v[j], both.v[2 * j + 1] = z.v[j];
    }
    if (Interleaved) {
      put(to, both);
    } else {
      put(to, y);
      put(to + half, z);
    }
  }
};

template <class T, int W, int H, bool Interleaved>
GPU_FN void rope(const T* src, const T* cos, const T* sin, T* dst, const RopeShape& r) {
  const size_t half = r.d / 2, per_row = half / W, places = r.positions * per_row, chunks = (r.heads + H - 1) / H;
  single_loop(r.batches * chunks * places, [&](size_t i) {
    const size_t chunk = divide(i, places), place = i - chunk * places, position = divide(place, per_row);
    const size_t at = (place - position * per_row) * W, batch = r.batches == 1 ? 0 : divide(chunk, chunks);
    const size_t head = (chunk - batch * chunks) * H, table = batch * r.table_stride + position * half + at;
    const size_t x = batch * r.batch_stride + position * r.position_stride + head * r.head_stride + (Interleaved ? 2 * at : at);
    const u32 count = r.heads - head < H ? (u32)(r.heads - head) : H;
    Pairs<T, W, Interleaved> pairs[H];
    UNROLL for (u32 h = 0; h < H; h++)
      if (h < count) pairs[h].load(src + x + h * r.head_stride, half);
    const Vec<T, W> c = *(const Vec<T, W>*)(cos + table), s = *(const Vec<T, W>*)(sin + table);
    UNROLL for (u32 h = 0; h < H; h++)
      if (h < count) pairs[h].store(dst + x + h * r.head_stride, half, c, s);
  });
}

template <class T, bool Interleaved, int H = ROPE_HEADS>
GPU_FN void rope_any(const T* src, const T* cos, const T* sin, T* dst, const RopeShape& r) {
  // A side fills 16 bytes, or both together, where they lie side by side or the head is short.
  constexpr int W = (Interleaved ? 8 : 16) / sizeof(T), Half = W > 1 ? W / 2 : 1;
  const bool aligned = aligned_to((const void*)((u64)src | (u64)dst | (u64)cos | (u64)sin), 16);
  const size_t steps = (r.d / 2) | r.table_stride;
  if (aligned && steps % W == 0) rope<T, W, H, Interleaved>(src, cos, sin, dst, r);
  else if (aligned && steps % Half == 0) rope<T, Half, H, Interleaved>(src, cos, sin, dst, r);
  else rope<T, 1, H, Interleaved>(src, cos, sin, dst, r);
}

// x (b, h, t, d) in which td = t·d; without stride_b all heads share the tables, whatever their batch.
GPU_FN RopeShape heads_outside(size_t bh, size_t td, size_t d, size_t stride_b, size_t table_stride) {
  const size_t heads = stride_b ? divide(stride_b, td) : bh;
  return RopeShape{stride_b ? divide(bh, heads) : 1, divide(td, d), heads, d, stride_b, d, td, table_stride};
}

// Appended to the catalogue's arguments: d where it was missing, and table_stride.
#define ROPE(T) \
  KERNEL_BOUNDS(256, rope_i_##T, const T* src, const T* cos, const T* sin, T* dst, size_t bh, size_t td, size_t stride_b, \
                size_t d, size_t table_stride) { \
    rope_any<T, true>(src, cos, sin, dst, heads_outside(bh, td, d, stride_b, table_stride)); \
  } \
  KERNEL_BOUNDS(256, rope_##T, const T* src, const T* cos, const T* sin, T* dst, size_t bh, size_t td, size_t d, \
                size_t stride_b, size_t table_stride) { \
    rope_any<T, false>(src, cos, sin, dst, heads_outside(bh, td, d, stride_b, table_stride)); \
  } \
  KERNEL_BOUNDS(256, rope_thd_##T, const T* src, const T* cos, const T* sin, T* dst, size_t b, size_t t, size_t h, size_t d, \
                size_t stride_b, size_t table_stride) { \
    rope_any<T, false>(src, cos, sin, dst, RopeShape{b, t, h, d, t * h * d, h * d, d, table_stride}); \
  }
GPU_FLOATS(ROPE)

}  // namespace gpu
