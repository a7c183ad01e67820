// Decode: few queries against many keys, bound by reading k and v once. attention_decode_<D>_T (no mask, no softcap, positive
// scale) and attention_decode_masked_<D>_T give each block a part of one kv head's keys, for all queries of all heads that
// share it, 16 rows at a time; attention_merge_T joins the parts.
//
// Launch: `threads` threads and `shared` bytes as in attention-plan.ts, batch · kv_heads · ceil(group·tq / 16) · splits blocks.
// Each wave takes 16 keys at a time and meets the others only at the end. Parts follow from the length in device memory, so a
// captured launch stays right while a cache grows. With one split the result is final; else the parts go to `scratch`:
// rows·splits·d results, then rows·splits pairs (greatest score in powers of two, sum), where rows = batch·heads·tq.
#include "attention.h"
namespace gpu {

template <class T, int D> struct Decode {
  typedef tile_t<T> Tile;
  // Queries stay in registers while they are few.
  typedef Shape<T, D, 16, 1, Tile::LANES, (sizeof(typename Tile::A) / 4 * D / 16 <= 32)> S;
  static constexpr int Q_SIZE = 16 * S::PITCH, MOST = ATTENTION_BLOCK / Tile::LANES;
  static constexpr int FIT = (GPU_SHARED_KB * 1024 / (int)sizeof(T) - Q_SIZE) / S::SIZE;
  static constexpr int WAVES = FIT >= MOST ? MOST : FIT >= 2 && MOST >= 2 ? 2 : 1;
};

// The greatest of a row's parts and their sum against it; each part weighs 2^(its greatest − the greatest of all).
struct Parts {
  f32 shift, total;
  GPU_METHOD Parts(const f32* pairs, u32 count, u32 step) : total(0) {
    f32 top = Limits<f32>::lowest();
    for (u32 i = 0; i < count; i++) top = max_fast(top, pairs[i * step]);
    shift = top == Limits<f32>::lowest() ? 0 : top;
    for (u32 i = 0; i < count; i++) total += pairs[i * step + 1] * exp2_fast(pairs[i * step] - shift);
  }
};

template <class T, int D, bool Masked> GPU_FN void decode(T* shared, const Attention<T>& a, f32* scratch, u32 splits) {
  typedef Decode<T, D> P;
  typedef typename P::S S;
  typedef typename P::Tile Tile;
  constexpr i32 STEP = P::WAVES * S::KEYS;
  const u32 wave = tid_x() / Tile::LANES, heads = a.heads / a.kv_heads, row_tiles = (heads * a.tq + 15) / 16;
  const size_t items = (size_t)a.batch * a.kv_heads * row_tiles * splits, all_rows = (size_t)a.batch * a.heads * a.tq;
  T* own = shared + P::Q_SIZE + wave * S::SIZE;
  f32* meet = (f32*)(shared + P::Q_SIZE);
  f32* result = meet + P::WAVES * 32;
  for (size_t item = bid_x(); item < items; item += gdim_x()) {
    const size_t place = divide(item, splits), pair = divide(place, row_tiles);
    const u32 split = (u32)(item - place * splits), row0 = (u32)(place - pair * row_tiles) * 16;
    const u32 b = (u32)divide(pair, a.kv_heads), kv_head = (u32)(pair - (size_t)b * a.kv_heads);
    const Group group{b, kv_head * heads, heads, heads * a.tq};
    const Sight all = sight_of(a, b);
    const i32 begin = all.first(0), stop = all.end((i32)a.tq - 1), span = stop > begin ? stop - begin : 0;
    const i32 part = (i32)(((u32)span + splits * STEP - 1) / (splits * STEP)) * STEP;
    const i32 first = begin + (i32)split * part, end = first + part < stop ? first + part : stop;
    // All waves go round equally often; the last may find no keys.
    const i32 own_first = first + (i32)wave * S::KEYS, rounds = end > first ? (end - first + STEP - 1) / STEP : 0;
    load_queries<S>(shared, a, group, row0, 16);
    barrier();
    const Sight sight{end, all.reach, all.back};
    Flash<S, Masked> flash(a, group, sight, row0, shared);
    const Rows<T> keys(a.k + b * a.k_b + (i64)kv_head * a.k_h, a.k_t, a.d);
    const Rows<T> values(a.v + b * a.v_b + (i64)kv_head * a.v_h, a.v_t, a.d);
    attend<S>(flash, true, own, keys, values, own_first, STEP, own_first + rounds * STEP, end, Tile::lane(), [] { wave_sync(); });
    flash.finish(all, split == 0 && wave == 0);
    barrier();
    UNROLL for (int r = 0; r < Tile::ROWS; r++) {
      // Several lanes have a row; they write the same.
      meet[(wave * 16 + Tile::row(r)) * 2] = flash.best[0][r] * flash.c;
      meet[(wave * 16 + Tile::row(r)) * 2 + 1] = flash.sum[0][r];
    }
    barrier();
    f32 weight[Tile::ROWS];
    UNROLL for (int r = 0; r < Tile::ROWS; r++)
      weight[r] = exp2_fast(flash.best[0][r] * flash.c - Parts(meet + Tile::row(r) * 2, P::WAVES, 32).shift);
    for (u32 w = 0; w < P::WAVES; w++) {
      if (wave == w) flash.each_result([&](int, int r, u32 row, u32 col, const f32* x) {
        f32* to = result + row * D + col;
        UNROLL for (int i = 0; i < Tile::RUN; i++) to[i] = (w ? to[i] : 0) + x[i] * weight[r];
      });
      barrier();
    }
    for (u32 i = tid_x(); i < 16 * a.d; i += bdim_x()) {
      const u32 row = i / a.d, col = i - row * a.d, r = row0 + row;
      if (r >= group.rows) continue;
      const size_t at = ((size_t)b * a.heads + group.head(r)) * a.tq + (u32)group.query(r);
      const Parts parts(meet + row * 2, P::WAVES, 32);
      if (splits == 1) {
        a.out[at * a.d + col] = narrow<T>(result[row * D + col] / parts.total);
      } else {
        scratch[(at * splits + split) * a.d + col] = result[row * D + col];
        if (col == 0) {
          f32* to = scratch + all_rows * splits * a.d + (at * splits + split) * 2;
          bool seen = false;
          for (u32 w = 0; w < P::WAVES; w++) seen = seen || meet[(w * 16 + row) * 2] != Limits<f32>::lowest();
          to[0] = seen ? parts.shift : Limits<f32>::lowest();
          to[1] = parts.total;
        }
      }
    }
    barrier();
  }
}

#define DECODE(name, T, D, Masked) \
  KERNEL_BOUNDS(ATTENTION_BLOCK, name##_##D##_##T, ATTENTION_ARGUMENTS(T), f32 *scratch, u32 splits, u32 threads, u32 shared_bytes) { \
    DYNAMIC_SHARED(T, tiles); \
    decode<T, D, Masked>(tiles, ATTENTION_GATHER(T), scratch, splits); \
  }
#define DECODE_BOTH(T, D) DECODE(attention_decode, T, D, false) DECODE(attention_decode_masked, T, D, true)

// Launch: 128 threads, a warp per row. Traffic: the scratch once, out once.
#define MERGE(T) \
  KERNEL_BOUNDS(ATTENTION_BLOCK, attention_merge_##T, const f32* scratch, T* out, size_t rows, size_t splits, size_t d) { \
    const f32* pairs = scratch + rows * splits * d; \
    for (size_t row = (size_t)bid_x() * 4 + tid_x() / 32; row < rows; row += (size_t)gdim_x() * 4) { \
      const Parts parts(pairs + row * splits * 2, (u32)splits, 2); \
      for (size_t col = lane_id(); col < d; col += 32) { \
        f32 sum = 0; \
        for (size_t s = 0; s < splits; s++) \
          sum += scratch[(row * splits + s) * d + col] * exp2_fast(pairs[(row * splits + s) * 2] - parts.shift); \
        out[row * d + col] = narrow<T>(sum / parts.total); \
      } \
    } \
  }
#define DECODE_ALL(T) DECODE_BOTH(T, 64) DECODE_BOTH(T, 96) DECODE_BOTH(T, 128) DECODE_BOTH(T, 256) MERGE(T)
GPU_bf16(DECODE_ALL)
GPU_f16(DECODE_ALL)
GPU_f32(DECODE_ALL)

}  // namespace gpu
