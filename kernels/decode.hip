// Between the projections and the attention over a cache: queries and keys are turned, keys and values enter the cache.
//   rope_append_T    pairs (i, i + rotary/2)      rope_append_i_T  pairs (2i, 2i + 1)
// q, k, v: batch · t rows, q_row, k_row and v_row elements apart, the heads of a row side by side. The first `rotary` elements of
// each head turn, the others pass. out: (batch, t, heads, d). Caches: (batch, kv_heads, capacity, d), cache_b and cache_h
// elements apart. cos, sin: a row of rotary/2 for each position.
// Row i of a sequence goes to place past + i, where past is lengths[b] − t if lengths are given: so a captured launch
// follows a cache that grows. Its position is the place minus padding[b], but at least 0.
// With q_norm and k_norm (d), each head of q and k is RMS-normalised first, as rmsnorm does it.
// rope_append_f8_T and rope_append_f8_i_T: caches of rows in 8 bits (cache-rows.h), (batch, kv_heads, capacity, d + F8_ROW_TAIL) bytes.
// With `tables` caches are pages (pages, kv_heads, PAGE_SIZE, d), and rows those of `sequences` one behind the other (pages.h).
// Launch: both sides of W pairs each. Traffic: q, k and v once in, once out.
#include "cache-rows.h"
#include "head-norm.h"
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

// All threads of a block go round together: those that share a head ask each other.
template <class T, int W, bool Interleaved, bool F8> GPU_FN void append(const Append<T>& a) {
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
    bool cached = false, turns = true;
    if (head < a.heads) {
      from = a.q + row * a.q_row + head * a.d;
      to = a.out + (row * a.heads + head) * a.d;
    } else {
      head -= (u32)a.heads;
      const bool value = head >= a.kv_heads;
      if (value) head -= (u32)a.kv_heads;
      from = (value ? a.v + row * a.v_row : a.k + row * a.k_row) + head * a.d;
      T* const cache = value ? a.v_cache : a.k_cache;
      const size_t line = own.b * a.cache_b + head * a.cache_h + (size_t)own.slot * (a.d + (F8 ? F8_ROW_TAIL : 0));
      to = F8 ? (T*)((u8*)cache + line) : cache + line;
      cached = true;
      turns = !value;
      weight = value ? nullptr : a.k_norm;
    }
    // Two sides of W elements, half of the turned ones apart or side by side.
    typedef Vec<T, W> Side;
    typedef Vec<T, 2 * W> Sides;
    const auto bring = [&](Sides& to, const T* from, u32 at) {
      if (Interleaved || !turns || at >= half) {
        // One by one, what is not aligned comes: a row may begin at any element.
        if constexpr (W == 1) to.v[0] = from[2 * at], to.v[1] = from[2 * at + 1];
        else to = *(const Sides*)(from + 2 * at);
      } else {
        const Side one = *(const Side*)(from + at), other = *(const Side*)(from + at + half);
        UNROLL for (int j = 0; j < W; j++) to.v[j] = one.v[j], to.v[W + j] = other.v[j];
      }
    };
    Sides x;
    bring(x, from, at);
    const f32 factor = a.q_norm ? head_factor<T, 2 * W>(x, from, (u32)a.d, pieces, a.eps) : 1;
    const auto shape = [&](Sides& x, u32 at) {
      if (a.q_norm && weight) {
        Sides by;
        bring(by, weight, at);
        UNROLL for (int j = 0; j < 2 * W; j++) x.v[j] = narrow<T>(widen(x.v[j]) * factor * widen(by.v[j]));
      }
      if (turns && at < half) {
        const size_t table = (size_t)own.position * half + at;
        Side one, other;
        UNROLL for (int j = 0; j < W; j++) one.v[j] = x.v[Interleaved ? 2 * j : j], other.v[j] = x.v[Interleaved ? 2 * j + 1 : W + j];
        turn<T, W>(one, other, *(const Side*)(a.cos + table), *(const Side*)(a.sin + table));
        UNROLL for (int j = 0; j < W; j++) x.v[Interleaved ? 2 * j : j] = one.v[j], x.v[Interleaved ? 2 * j + 1 : W + j] = other.v[j];
      }
    };
    shape(x, at);
    const bool apart = turns && at < half && !Interleaved, writes = exists && own.slot >= 0;
    if constexpr (F8) {
      const auto most_of = [&](const Sides& x) {
        f32 most = 0;
        UNROLL for (int j = 0; j < 2 * W; j++) most = maximum(most, m_abs(widen(x.v[j])));
        return most;
      };
      f32 most = most_of(x);
      if (share_a_warp(pieces)) for (u32 mask = pieces / 2; mask; mask /= 2) most = maximum(most, shfl_xor(most, mask));
      else if (cached) for (u32 other = 0; other < pieces * W; other += W) {
        Sides y;
        bring(y, from, other);
        shape(y, other);
        most = maximum(most, most_of(y));
      }
      if (cached) {
        const f32 scale = row_scale(most), inverse = inverse_scale(scale);
        u8* const line = (u8*)to;
        Vec<u8, W> one, other;
        UNROLL for (int j = 0; j < W; j++) one.v[j] = to_row(widen(x.v[j]), inverse), other.v[j] = to_row(widen(x.v[W + j]), inverse);
        if (!writes) continue;
        *(Vec<u8, W>*)(line + (apart ? at : 2 * at)) = one;
        *(Vec<u8, W>*)(line + (apart ? at + half : 2 * at + W)) = other;
        if (at == 0) *(f32*)(line + a.d) = scale;
        continue;
      }
    }
    if (!writes) continue;
    if (!apart) *(Sides*)(to + 2 * at) = x;
    else {
      Side one, other;
      UNROLL for (int j = 0; j < W; j++) one.v[j] = x.v[j], other.v[j] = x.v[W + j];
      *(Side*)(to + at) = one;
      *(Side*)(to + at + half) = other;
    }
  }
}

template <class T, bool Interleaved, bool F8> GPU_FN void append_any(const Append<T>& a) {
  // Both sides of W pairs fill 16 bytes.
  constexpr int W = 8 / sizeof(T);
  const u64 pointers = (u64)a.q | (u64)a.k | (u64)a.v | (u64)a.cos | (u64)a.sin | (u64)a.q_norm | (u64)a.k_norm | (u64)a.out | (u64)a.k_cache | (u64)a.v_cache;
  const size_t strides = a.q_row | a.k_row | a.v_row | a.cache_b | a.cache_h | a.d | a.rotary;
  if (aligned_to((const void*)pointers, 16) && strides % (2 * W) == 0) append<T, W, Interleaved, F8>(a);
  else append<T, 1, Interleaved, F8>(a);
}

#define APPEND(name, T, Interleaved, F8) \
  KERNEL_BOUNDS(GPU_BLOCK, name##_##T, const T* q, const T* k, const T* v, const T* cos, const T* sin, const T* q_norm, const T* k_norm, const i64* lengths, \
                const i64* padding, const i64* tables, const i64* offsets, T* out, T* k_cache, T* v_cache, size_t batch, size_t t, size_t heads, size_t kv_heads, size_t d, \
                size_t rotary, size_t past, size_t q_row, size_t k_row, size_t v_row, size_t cache_b, size_t cache_h, size_t sequences, \
                size_t singles, size_t width, f64 eps) { \
    const PagedRows pages{tables, offsets, (u32)sequences, (u32)singles, (u32)width}; \
    append_any<T, Interleaved, F8>(Append<T>{q, k, v, cos, sin, q_norm, k_norm, (f32)eps, out, k_cache, v_cache, lengths, padding, pages, batch, t, heads, kv_heads, \
                                         d, rotary, past, q_row, k_row, v_row, cache_b, cache_h}); \
  }
#define APPEND_ALL(T) \
  APPEND(rope_append, T, false, false) APPEND(rope_append_i, T, true, false) APPEND(rope_append_f8, T, false, true) APPEND(rope_append_f8_i, T, true, true)
GPU_bf16(APPEND_ALL)
GPU_f16(APPEND_ALL)
GPU_f32(APPEND_ALL)

// Rows in 8 bits as T again, for prompts: those of `groups` heads, group_stride bytes apart, out (groups, rows, d). With tables they are
// pages, `groups` heads each: those that hold the lengths[b] positions of each of `sequences` go to the same places in other pages.
// Launch: 16 bytes of T to a thread. Traffic: d + F8_ROW_TAIL bytes of each row in, d of T out.
template <class T> GPU_FN void rows_back(const u8* rows, const i64* lengths, const i64* tables, T* out, size_t groups, size_t group_stride, size_t count, u32 d, u32 sequences, u32 width) {
  constexpr u32 W = 16 / sizeof(T);
  const u32 pieces = d / W, line = d + F8_ROW_TAIL;
  const size_t pages = tables ? (size_t)sequences * width : 1, items = pages * groups * count * pieces;
  single_loop(items, [&](size_t item) {
    const size_t index = divide(item, pieces), group = divide(index, count), i = index - group * count;
    const u32 piece = (u32)(item - index * pieces);
    size_t from = group, to = group;
    if (tables) {
      const size_t entry = divide(group, groups), b = divide(entry, width), first = (entry - b * width) * PAGE_SIZE;
      if ((i64)first >= lengths[b]) return;
      from = to = (size_t)tables[entry] * groups + (group - entry * groups);
    }
    const RowPart<T> part = RowPart<T>::load(rows + from * group_stride + i * line, piece * W, d, true);
    *(Vec<u32, 4>*)(out + (to * count + i) * d + piece * W) = part.made();
  });
}
#define ROWS_BACK(T) \
  KERNEL_BOUNDS(GPU_BLOCK, cache_rows_##T, const u8* rows, const i64* lengths, const i64* tables, T* out, size_t groups, size_t group_stride, \
                size_t count, size_t d, size_t sequences, size_t width) { \
    rows_back<T>(rows, lengths, tables, out, groups, group_stride, count, (u32)d, (u32)sequences, (u32)width); \
  }
GPU_bf16(ROWS_BACK)
GPU_f16(ROWS_BACK)
GPU_f32(ROWS_BACK)

// counts[i] += by, for counters that a captured step moves on by itself. Launch: one element each.
#define ADVANCE(T) \
  KERNEL_BOUNDS(GPU_BLOCK, advance_##T, T* counts, size_t numel, size_t by) { \
    single_loop(numel, [&](size_t i) { counts[i] += (T)by; }); \
  }
GPU_i64(ADVANCE)

// Page `from` of each of `count` pools over page `to`. A page is `vectors` of 16 bytes; starts[i] of them lie between x and pool i: compilers
// know only of arguments that they point to global memory. Launch: a vector each. Traffic: a page of every pool once in, once out.
#define COPY_PAGE(T) \
  KERNEL_BOUNDS(GPU_BLOCK, copy_page_##T, u8* x, const T* starts, size_t count, size_t vectors, size_t from, size_t to) { \
    single_loop(count * vectors, [&](size_t i) { \
      const size_t pool = divide(i, vectors), at = i - pool * vectors; \
      Vec<u32, 4>* const own = (Vec<u32, 4>*)x + starts[pool] + at; \
      own[to * vectors] = own[from * vectors]; \
    }); \
  }
GPU_i64(COPY_PAGE)

}  // namespace gpu
