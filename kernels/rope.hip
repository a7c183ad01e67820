// Rotary embeddings: (y₁, y₂) = (x₁·cos − x₂·sin, x₁·sin + x₂·cos), in f32 for halves.
//   rope_T      x (b, h, t, d), pairs (i, i + d/2)      rope_i_T  x (b, h, t, d), pairs (2i, 2i + 1)
//   rope_thd_T  x (b, t, h, d), pairs (i, i + d/2)
// cos and sin: row p of batch i at i·table_stride + p·d/2 (table_stride 0: shared). Heads that share a table and lie one after
// another may count as those of one batch. Launch: a thread turns the same places of ROPE_HEADS
// heads, for which it needs the angles and its whereabouts once. Traffic: x once in, once out; tables come from the cache.
#include "turn.h"
namespace gpu {

// Heads of `batches` batches: element (batch, position, head) at batch·batch_stride + position·position_stride +
// head·head_stride.
struct RopeShape {
  size_t batches, positions, heads, d, batch_stride, position_stride, head_stride, table_stride;
};

// W pairs of one head: both sides, apart or interleaved.
template <class T, int W, bool Interleaved> struct Pairs {
  Vec<T, W> a, b;
  GPU_METHOD void load(const T* x, size_t half) {
    if (Interleaved && W == 1) {
      // What is not aligned comes this way: a pair may begin at any element.
      a.v[0] = x[0], b.v[0] = x[1];
    } else if (Interleaved) {
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
  // A side fills ROPE_SIDE bytes, or both together, where they lie side by side or the head is short.
  constexpr int W = (Interleaved ? ROPE_SIDE / 2 : ROPE_SIDE) / sizeof(T), Half = W > 1 ? W / 2 : 1;
  const bool aligned = aligned_to((const void*)((u64)src | (u64)dst | (u64)cos | (u64)sin), 16);
  const size_t steps = (r.d / 2) | r.table_stride;
  if (aligned && steps % W == 0) rope<T, W, H, Interleaved>(src, cos, sin, dst, r);
  else if (aligned && steps % Half == 0) rope<T, Half, H, Interleaved>(src, cos, sin, dst, r);
  else rope<T, 1, H, Interleaved>(src, cos, sin, dst, r);
}

// Heads outside of positions, (batch, heads, positions, d), or inside.
GPU_FN RopeShape heads_outside(size_t batch, size_t heads, size_t positions, size_t d, size_t table_stride) {
  return RopeShape{batch, positions, heads, d, heads * positions * d, d, positions * d, table_stride};
}
GPU_FN RopeShape heads_inside(size_t batch, size_t heads, size_t positions, size_t d, size_t table_stride) {
  return RopeShape{batch, positions, heads, d, heads * positions * d, heads * d, d, table_stride};
}

#define ROPE_KERNEL(name, T, Interleaved, shape) \
  KERNEL_BOUNDS(GPU_BLOCK, name##_##T, const T* x, const T* cos, const T* sin, T* out, size_t batch, size_t heads, size_t positions, \
                size_t d, size_t table_stride) { \
    rope_any<T, Interleaved>(x, cos, sin, out, shape(batch, heads, positions, d, table_stride)); \
  }
#define ROPE(T) \
  ROPE_KERNEL(rope, T, false, heads_outside) ROPE_KERNEL(rope_i, T, true, heads_outside) ROPE_KERNEL(rope_thd, T, false, heads_inside)
GPU_FLOATS(ROPE)

}  // namespace gpu
