// Before latent attention (attention_latent.hip): queries are put together, and keys enter the cache.
//   latent_append_T    pairs (i, i + rope/2)      latent_append_i_T  pairs (2i, 2i + 1)
// q (batch·t, heads, rank) and q_rope (batch·t, heads, rope), latent (batch·t, rank) and k_rope (batch·t, rope): any distances but inside
// the last dim. What is of `rope` turns by its position, as in decode.hip. out: (batch, t, heads, pitch), zeros behind rank + rope.
// cache: (batch, capacity, rank + rope), cache_b elements apart; places as in decode.hip, and pages with `tables`, too. Sequences of
// those have t rows each.
// Launch: an element of out or of the cache each. Traffic: everything once, but what turns twice.
#include "pages.h"
#include "turn.h"
namespace gpu {

template <class T> struct LatentAppend {
  const T *q, *q_rope, *latent, *k_rope, *cos, *sin;
  const i64 *lengths, *padding, *tables;
  T *out, *cache;
  size_t batch, t, heads, rank, rope, pitch, past, q_row, q_head, rope_row, rope_head, latent_row, k_rope_row, cache_b, width;
};

template <class T, bool Interleaved> GPU_FN void append_latents(const LatentAppend<T>& a) {
  const u32 width = (u32)(a.rank + a.rope), half = (u32)(a.rope / 2), lines = (u32)a.heads + 1;
  single_loop(a.batch * a.t * lines * a.pitch, [&](size_t item) {
    const size_t line = divide(item, a.pitch), row = divide(line, lines);
    const u32 at = (u32)(item - line * a.pitch), head = (u32)(line - row * lines);
    RowPlace own = place_of(row, a.t, a.past, a.lengths, a.padding);
    if (a.tables) own = in_page(own, a.tables, (u32)a.width, a.padding);
    if (own.slot < 0) return;
    const T *latent, *turning;
    T* to;
    if (head < a.heads) {
      latent = a.q + row * a.q_row + head * a.q_head;
      turning = a.q_rope + row * a.rope_row + head * a.rope_head;
      to = a.out + (row * a.heads + head) * a.pitch + at;
    } else {
      if (at >= width) return;
      latent = a.latent + row * a.latent_row;
      turning = a.k_rope + row * a.k_rope_row;
      to = a.cache + own.b * a.cache_b + (size_t)own.slot * width + at;
    }
    T y = narrow<T>(0.0f);
    if (at < a.rank) {
      y = latent[at];
    } else if (at < width) {
      const u32 i = at - (u32)a.rank, pair = Interleaved ? i / 2 : i < half ? i : i - half;
      const size_t table = (size_t)own.position * half + pair;
      T x = turning[Interleaved ? 2 * pair : pair];
      y = turning[Interleaved ? 2 * pair + 1 : pair + half];
      turn(x, y, a.cos[table], a.sin[table]);
      if (Interleaved ? i % 2 == 0 : i < half) y = x;
    }
    *to = y;
  });
}

#define LATENT_APPEND(name, T, Interleaved) \
  KERNEL_BOUNDS(GPU_BLOCK, name##_##T, const T* q, const T* q_rope, const T* latent, const T* k_rope, const T* cos, const T* sin, \
                const i64* lengths, const i64* padding, const i64* tables, T* out, T* cache, size_t batch, size_t t, size_t heads, size_t rank, size_t rope, \
                size_t pitch, size_t past, size_t q_row, size_t q_head, size_t rope_row, size_t rope_head, size_t latent_row, \
                size_t k_rope_row, size_t cache_b, size_t width) { \
    append_latents<T, Interleaved>(LatentAppend<T>{q, q_rope, latent, k_rope, cos, sin, lengths, padding, tables, out, cache, batch, t, heads, \
                                                   rank, rope, pitch, past, q_row, q_head, rope_row, rope_head, latent_row, k_rope_row, \
                                                   cache_b, width}); \
  }
#define LATENT_APPEND_BOTH(T) LATENT_APPEND(latent_append, T, false) LATENT_APPEND(latent_append_i, T, true)
GPU_bf16(LATENT_APPEND_BOTH)
GPU_f16(LATENT_APPEND_BOTH)
GPU_f32(LATENT_APPEND_BOTH)

}  // namespace gpu
