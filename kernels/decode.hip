// Between the projections and the attention over a cache: queries and keys are turned, keys and values enter the cache.
//   rope_append_T    pairs (i, i + rotary/2)      rope_append_i_T  pairs (2i, 2i + 1)
// q, k, v: batch · t rows, q_row, k_row and v_row elements apart, the heads of a row side by side. The first `rotary` elements of
// each head turn, the others pass. out: (batch, t, heads, d). Caches: (batch, kv_heads, capacity, d), cache_b and cache_h
// elements apart. cos, sin: a row of rotary/2 for each position.
// Row i of a sequence goes to place past + i, where past is lengths[b] − t if lengths are given: so a captured launch
// follows a cache that grows. Its position is the place minus padding[b], but at least 0.
// With `tables` caches are pages (pages, kv_heads, PAGE_SIZE, d), and rows those of `sequences` one behind the other (pages.h).
// Launch: both sides of W pairs each. Traffic: q, k and v once in, once out.
#include "pages.h"
#include "turn.h"
namespace gpu {

template <class T> struct Append {
  const T *q, *k, *v, *cos, *sin;
  T *out, *k_cache, *v_cache;
  const i64 *lengths, *padding;
  PagedRows pages;
  size_t batch, t, heads, kv_heads, d, rotary, past, q_row, k_row, v_row, cache_b, cache_h;
};

template <class T, int W> GPU_FN void turn(Vec<T, W>& x, Vec<T, W>& y, const Vec<T, W>& c, const Vec<T, W>& s) {
  UNROLL for (int j = 0; j < W; j++) turn(x.v[j], y.v[j], c.v[j], s.v[j]);
}

template <class T, int W, bool Interleaved> GPU_FN void append(const Append<T>& a) {
  const u32 pieces = (u32)(a.d / 2 / W), all = (u32)(a.heads + 2 * a.kv_heads), half = (u32)(a.rotary / 2);
  single_loop(a.batch * a.t * all * pieces, [&](size_t item) {
    const size_t place = divide(item, pieces), row = divide(place, all);
    const u32 at = (u32)(item - place * pieces) * W;
    u32 head = (u32)(place - row * all);
    const RowPlace own = a.pages.tables ? a.pages.place((u32)row, a.lengths, a.padding) : place_of(row, a.t, a.past, a.lengths, a.padding);
    if (own.slot < 0) return;
    const T* from;
    T* to;
    bool turned = at < half;
    if (head < a.heads) {
      from = a.q + row * a.q_row + head * a.d;
      to = a.out + (row * a.heads + head) * a.d;
    } else {
      head -= (u32)a.heads;
      const bool value = head >= a.kv_heads;
      if (value) head -= (u32)a.kv_heads;
      from = (value ? a.v + row * a.v_row : a.k + row * a.k_row) + head * a.d;
      to = (value ? a.v_cache : a.k_cache) + own.b * a.cache_b + head * a.cache_h + (size_t)own.slot * a.d;
      turned = turned && !value;
    }
    const size_t table = (size_t)own.position * half + at;
    if (!turned || Interleaved) {
      Vec<T, 2 * W> both = *(const Vec<T, 2 * W>*)(from + 2 * at);
      if (turned) {
        Vec<T, W> x, y;
        UNROLL for (int j = 0; j < W; j++) x.v[j] = both.v[2 * j], y.v[j] = both.v[2 * j + 1];
        turn<T, W>(x, y, *(const Vec<T, W>*)(a.cos + table), *(const Vec<T, W>*)(a.sin + table));
        UNROLL for (int j = 0; j < W; j++) both.v[2 * j] = x.v[j], both.v[2 * j + 1] = y.v[j];
      }
      *(Vec<T, 2 * W>*)(to + 2 * at) = both;
    } else {
      Vec<T, W> x = *(const Vec<T, W>*)(from + at), y = *(const Vec<T, W>*)(from + at + half);
      turn<T, W>(x, y, *(const Vec<T, W>*)(a.cos + table), *(const Vec<T, W>*)(a.sin + table));
      *(Vec<T, W>*)(to + at) = x;
      *(Vec<T, W>*)(to + at + half) = y;
    }
  });
}

template <class T, bool Interleaved> GPU_FN void append_any(const Append<T>& a) {
  // Both sides of W pairs fill 16 bytes.
  constexpr int W = 8 / sizeof(T);
  const u64 pointers = (u64)a.q | (u64)a.k | (u64)a.v | (u64)a.cos | (u64)a.sin | (u64)a.out | (u64)a.k_cache | (u64)a.v_cache;
  const size_t strides = a.q_row | a.k_row | a.v_row | a.cache_b | a.cache_h | a.d | a.rotary;
  if (aligned_to((const void*)pointers, 16) && strides % (2 * W) == 0) append<T, W, Interleaved>(a);
  else append<T, 1, Interleaved>(a);
}

#define APPEND(name, T, Interleaved) \
  KERNEL_BOUNDS(GPU_BLOCK, name##_##T, const T* q, const T* k, const T* v, const T* cos, const T* sin, const i64* lengths, \
                const i64* padding, const i64* tables, const i64* offsets, T* out, T* k_cache, T* v_cache, size_t batch, size_t t, size_t heads, size_t kv_heads, size_t d, \
                size_t rotary, size_t past, size_t q_row, size_t k_row, size_t v_row, size_t cache_b, size_t cache_h, size_t sequences, \
                size_t singles, size_t width) { \
    const PagedRows pages{tables, offsets, (u32)sequences, (u32)singles, (u32)width}; \
    append_any<T, Interleaved>(Append<T>{q, k, v, cos, sin, out, k_cache, v_cache, lengths, padding, pages, batch, t, heads, kv_heads, \
                                         d, rotary, past, q_row, k_row, v_row, cache_b, cache_h}); \
  }
#define APPEND_BOTH(T) APPEND(rope_append, T, false) APPEND(rope_append_i, T, true)
GPU_bf16(APPEND_BOTH)
GPU_f16(APPEND_BOTH)
GPU_f32(APPEND_BOTH)

// counts[i] += by, for counters that a captured step moves on by itself. Launch: one element each.
#define ADVANCE(T) \
  KERNEL_BOUNDS(GPU_BLOCK, advance_##T, T* counts, size_t numel, size_t by) { \
    single_loop(numel, [&](size_t i) { counts[i] += (T)by; }); \
  }
GPU_i64(ADVANCE)

}  // namespace gpu
