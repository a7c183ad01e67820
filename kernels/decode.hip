// Between the projections and the attention over a cache: queries and keys are turned, keys and values enter the cache.
//   rope_append_T    pairs (i, i + rotary/2)      rope_append_i_T  pairs (2i, 2i + 1)
// q, k, v: batch · t rows, q_row, k_row and v_row elements apart, the heads of a row side by side. The first `rotary` elements of
// each head turn, the others pass. out: (batch, t, heads, d). Caches: (batch, kv_heads, capacity, d), cache_b and cache_h
// elements apart. cos, sin: a row of rotary/2 for each position.
// Row i of a sequence goes to place past + i, where past is lengths[b] − t if lengths are given: so a captured launch
// follows a cache that grows. Its position is the place minus padding[b], but at least 0.
// With q_norm and k_norm (d), each head of q and k is RMS-normalised first, as rmsnorm does it.
// With `tables` caches are pages (pages, kv_heads, PAGE_SIZE, d), and rows those of `sequences` one behind the other (pages.h).
// Launch: both sides of W pairs each. Traffic: q, k and v once in, once out.
#include "pages.h"
#include "turn.h"
namespace gpu {

template <class T> struct Append {
  const T *q, *k, *v, *cos, *sin, *q_norm, *k_norm;
  f32 eps;
  T *out, *k_cache, *v_cache;
  const i64 *lengths, *padding;
  PagedRows pages;
  size_t batch, t, heads, kv_heads, d, rotary, past, q_row, k_row, v_row, cache_b, cache_h;
};

template <class T, int W> GPU_FN void turn(Vec<T, W>& x, Vec<T, W>& y, const Vec<T, W>& c, const Vec<T, W>& s) {
  UNROLL for (int j = 0; j < W; j++) turn(x.v[j], y.v[j], c.v[j], s.v[j]);
}

// What makes the mean square of a head 1, of which each of `lanes` neighbours has N elements; where these are no power of two that a
// warp has, every thread goes through the head by itself. Squares are taken near 1, so that none overflows or vanishes.
template <class T, int N> GPU_FN f32 head_factor(const Vec<T, N>& own, const T* head, u32 d, u32 lanes, f32 eps) {
  const bool together = lanes <= 32 && (lanes & (lanes - 1)) == 0;
  f32 most = 0, squares = 0;
  if (together) {
    UNROLL for (int j = 0; j < N; j++) most = maximum(most, m_abs(widen(own.v[j])));
    for (u32 mask = lanes / 2; mask; mask /= 2) most = maximum(most, shfl_xor(most, mask));
  } else for (u32 i = 0; i < d; i++) most = maximum(most, m_abs(widen(head[i])));
  const u32 exponent = f32_bits(most) >> 23;
  const f32 scale = f32_from_bits((exponent < 67 ? 187 : exponent > 247 ? 7 : 254 - exponent) << 23);
  const auto add = [&](f32 x) { squares = m_fma(x * scale, x * scale, squares); };
  if (together) {
    UNROLL for (int j = 0; j < N; j++) add(widen(own.v[j]));
    for (u32 mask = lanes / 2; mask; mask /= 2) squares += shfl_xor(squares, mask);
  } else for (u32 i = 0; i < d; i++) add(widen(head[i]));
  return scale / m_sqrt(squares / (f32)d + eps * scale * scale);
}

// All threads of a block go round together: those that share a head ask each other.
template <class T, int W, bool Interleaved> GPU_FN void append(const Append<T>& a) {
  const u32 pieces = (u32)(a.d / 2 / W), all = (u32)(a.heads + 2 * a.kv_heads), half = (u32)(a.rotary / 2);
  const size_t items = a.batch * a.t * all * pieces, step = (size_t)gdim_x() * bdim_x();
  NO_UNROLL for (size_t base = (size_t)bid_x() * bdim_x(); base < items; base += step) {
    const bool exists = base + tid_x() < items;
    const size_t item = exists ? base + tid_x() : 0, place = divide(item, pieces), row = divide(place, all);
    const u32 at = (u32)(item - place * pieces) * W;
    u32 head = (u32)(place - row * all);
    const RowPlace own = a.pages.tables ? a.pages.place((u32)row, a.lengths, a.padding) : place_of(row, a.t, a.past, a.lengths, a.padding);
    const T* from;
    const T* weight = a.q_norm;
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
      weight = value ? nullptr : a.k_norm;
    }
    // Two sides of W elements, half of the turned ones apart or side by side.
    const bool apart = turned && !Interleaved;
    typedef Vec<T, W> Side;
    Vec<T, 2 * W> x;
    const auto bring = [&](Vec<T, 2 * W>& to, const T* from) {
      if (!apart) to = *(const Vec<T, 2 * W>*)(from + 2 * at);
      else {
        const Side one = *(const Side*)(from + at), other = *(const Side*)(from + at + half);
        UNROLL for (int j = 0; j < W; j++) to.v[j] = one.v[j], to.v[W + j] = other.v[j];
      }
    };
    bring(x, from);
    if (a.q_norm) {
      const f32 factor = head_factor<T, 2 * W>(x, from, (u32)a.d, pieces, a.eps);
      if (weight) {
        Vec<T, 2 * W> by;
        bring(by, weight);
        UNROLL for (int j = 0; j < 2 * W; j++) x.v[j] = narrow<T>(widen(x.v[j]) * factor * widen(by.v[j]));
      }
    }
    if (turned) {
      const size_t table = (size_t)own.position * half + at;
      Side one, other;
      UNROLL for (int j = 0; j < W; j++) one.v[j] = x.v[Interleaved ? 2 * j : j], other.v[j] = x.v[Interleaved ? 2 * j + 1 : W + j];
      turn<T, W>(one, other, *(const Side*)(a.cos + table), *(const Side*)(a.sin + table));
      UNROLL for (int j = 0; j < W; j++) x.v[Interleaved ? 2 * j : j] = one.v[j], x.v[Interleaved ? 2 * j + 1 : W + j] = other.v[j];
    }
    if (!exists || own.slot < 0) continue;
    if (!apart) *(Vec<T, 2 * W>*)(to + 2 * at) = x;
    else {
      Side one, other;
      UNROLL for (int j = 0; j < W; j++) one.v[j] = x.v[j], other.v[j] = x.v[W + j];
      *(Side*)(to + at) = one;
      *(Side*)(to + at + half) = other;
    }
  }
}

template <class T, bool Interleaved> GPU_FN void append_any(const Append<T>& a) {
  // Both sides of W pairs fill 16 bytes.
  constexpr int W = 8 / sizeof(T);
  const u64 pointers = (u64)a.q | (u64)a.k | (u64)a.v | (u64)a.cos | (u64)a.sin | (u64)a.q_norm | (u64)a.k_norm | (u64)a.out | (u64)a.k_cache | (u64)a.v_cache;
  const size_t strides = a.q_row | a.k_row | a.v_row | a.cache_b | a.cache_h | a.d | a.rotary;
  if (aligned_to((const void*)pointers, 16) && strides % (2 * W) == 0) append<T, W, Interleaved>(a);
  else append<T, 1, Interleaved>(a);
}

#define APPEND(name, T, Interleaved) \
  KERNEL_BOUNDS(GPU_BLOCK, name##_##T, const T* q, const T* k, const T* v, const T* cos, const T* sin, const T* q_norm, const T* k_norm, const i64* lengths, \
                const i64* padding, const i64* tables, const i64* offsets, T* out, T* k_cache, T* v_cache, size_t batch, size_t t, size_t heads, size_t kv_heads, size_t d, \
                size_t rotary, size_t past, size_t q_row, size_t k_row, size_t v_row, size_t cache_b, size_t cache_h, size_t sequences, \
                size_t singles, size_t width, f64 eps) { \
    const PagedRows pages{tables, offsets, (u32)sequences, (u32)singles, (u32)width}; \
    append_any<T, Interleaved>(Append<T>{q, k, v, cos, sin, q_norm, k_norm, (f32)eps, out, k_cache, v_cache, lengths, padding, pages, batch, t, heads, kv_heads, \
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
