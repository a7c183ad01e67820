// Decode: few queries against many keys, bound by reading k and v once. attention_decode_<D>_T (no mask, no softcap, positive
// scale) and attention_decode_masked_<D>_T give each block a part of one kv head's keys, for all queries of all heads that
// share it, 16 rows at a time; the block of a head that ends last joins its parts.
//
// Launch: `threads` threads and `shared_bytes` as in attention-plan.ts, batch · kv_heads · ceil(group·tq / 16) · splits blocks.
// Each wave takes 16 keys at a time and meets the others only at the end. Parts follow from the length in device memory, so a
// captured launch stays right while a cache grows; while it is short not all blocks have one. With one part the result is final;
// else the parts go to `scratch`: rows·splits·dv results, then rows·splits pairs (greatest score in powers of two, sum), where
// rows = batch·heads·tq. In `counters`, a zero for each 16 rows of a kv head, blocks count who is the last; it leaves zeros.
// Sequences of very different lengths have different numbers of parts: `plan`, where it is given, lists those of all sequences, at most
// `splits` of each, behind how many there are (paged-plan.ts). There may be more blocks than are needed for it, and fewer.
// attention_decode_f8_<D>_T takes all of that over keys and values in 8 bits (cache-rows.h), whose strides count bytes.
// Where lengths are given, the kernel before is the one that appends the last tq keys: those before them are on their way while it
// runs (gpu/entry.h).
#include "attention-parts.h"
namespace gpu {

template <class T, int D, class R, int Block = ATTENTION_BLOCK> struct Decode {
  typedef tile_t<T> Tile;
  // Queries stay in registers while they are few, and while nothing else is on its way there.
  typedef Shape<T, D, 16, 1, Tile::LANES, (sizeof(typename Tile::A) / 4 * D / 16 <= (R::COPIED ? 32 : 16)), swizzled_pitch<T>(D), R> S;
  // At the end a wave's results take the place of its keys and values: 16 rows, then a pair for each.
  static constexpr int RESULT_PITCH = D + 4, PAIRS = 16 * RESULT_PITCH, RESULTS = (PAIRS + 32) * 4 / (int)sizeof(T);
  static constexpr int OWN = S::SIZE > RESULTS ? S::SIZE : RESULTS;
  static constexpr int Q_SIZE = 16 * S::PITCH, MOST = Block / Tile::LANES;
  static constexpr int FIT = (GPU_SHARED_KB * 1024 / (int)sizeof(T) - Q_SIZE) / OWN;
  static constexpr int WAVES = FIT >= MOST ? MOST : FIT >= 2 && MOST >= 2 ? 2 : 1;
};

// The keys or values of a kv head, whose rows lie as they are, or in 8 bits.
template <class T> GPU_FN Rows<T> rows_of(const Rows<T>*, const Attention<T>& a, const T* p, i64 head, u32 b, i64 b_stride, i64 row_stride, u32 d) {
  return Rows<T>(a, p + head, b, b_stride, row_stride, d);
}
template <class T> GPU_FN F8Rows<T> rows_of(const F8Rows<T>*, const Attention<T>& a, const T* p, i64 head, u32 b, i64 b_stride, i64 row_stride, u32 d) {
  return F8Rows<T>(a, p, head, b, b_stride, row_stride, d);
}

template <class P, class T, bool Masked> GPU_FN void decode(T* shared, const Attention<T>& a, f32* scratch, u32* counters, const i64* plan, u32 splits) {
  typedef typename P::S S;
  typedef typename P::Tile Tile;
  constexpr i32 STEP = P::WAVES * S::KEYS;
  const u32 wave = tid_x() / Tile::LANES, heads = a.heads / a.kv_heads, row_tiles = (heads * a.tq + 15) / 16;
  // Read anew for each item, as registers are short.
  const auto items = [&] { return (plan ? (size_t)plan[0] : (size_t)a.batch * splits) * a.kv_heads * row_tiles; };
  f32* pairs = scratch + (size_t)a.batch * a.heads * a.tq * splits * a.dv;
  T* own = shared + P::Q_SIZE + wave * P::OWN;
  if (!a.lengths) wait_for_previous();
  for (size_t item = bid_x(); item < items(); item += gdim_x()) {
    size_t place = divide(item, splits);
    u32 split = (u32)(item - place * splits), planned = 0;
    if (plan) {
      const u32 tiles_of = a.kv_heads * row_tiles, entry = (u32)divide(item, tiles_of), word = (u32)plan[1 + entry];
      place = (size_t)(word % PLAN_SEQUENCES) * tiles_of + (item - (size_t)entry * tiles_of);
      split = word / PLAN_SEQUENCES % PLAN_PARTS;
      planned = word / (PLAN_SEQUENCES * PLAN_PARTS);
    }
    const size_t pair = divide(place, row_tiles);
    const u32 row0 = (u32)(place - pair * row_tiles) * 16;
    const u32 b = (u32)divide(pair, a.kv_heads), kv_head = (u32)(pair - (size_t)b * a.kv_heads);
    const Group group{b, kv_head * heads, heads, heads * a.tq};
    const Sight all = sight_of(a, a.length(b), a.tq);
    const i32 begin = a.aligned(all.first(0), S::KEYS), stop = all.end((i32)a.tq - 1);
    const u32 span = stop > begin ? (u32)(stop - begin) : 0, tiles = (span + S::KEYS - 1) / S::KEYS;
    // Every part has something for all waves. To join parts takes as long as to go round once more.
    const u32 most = (span + STEP - 1) / STEP, parts = planned ? planned : most <= 2 ? 1 : most < splits ? most : splits;
    if (split >= parts) continue;
    const i32 first = begin + (i32)(divide((u64)tiles * split, parts) * S::KEYS);
    const i32 next = begin + (i32)(divide((u64)tiles * (split + 1), parts) * S::KEYS), end = next < stop ? next : stop;
    // All waves go round equally often; the last may find no keys.
    const i32 own_first = first + (i32)wave * S::KEYS, rounds = end > first ? (end - first + STEP - 1) / STEP : 0;
    const Sight sight{end, all.reach, all.back};
    Flash<S, Masked> flash(a, group, sight, row0, shared);
    typedef typename S::R R;
    const R keys = rows_of((const R*)nullptr, a, a.k, (i64)kv_head * a.k_h, b, a.k_b, a.k_t, a.d);
    const R values = rows_of((const R*)nullptr, a, a.v, (i64)kv_head * a.v_h, b, a.v_b, a.v_t, a.dv);
    const auto take_queries = [&] {
      wait_for_previous();
      load_queries<S>(shared, a, a.q + b * a.q_b, group, row0, 16);
      barrier();
      flash.take_queries();
    };
    if (own_first + S::KEYS > a.length(b) - (i32)a.tq) wait_for_previous();
    attend<S>(flash, true, own, keys, values, own_first, STEP, own_first + rounds * STEP, end, Tile::lane(), take_queries,
              [] { wave_sync(); });
    wait_for_previous();
    flash.finish(all, split == 0 && wave == 0);
    wave_sync();
    const u32 rows = group.rows - row0 < 16 ? group.rows - row0 : 16;
    f32* results = (f32*)own;
    flash.each_result([&](int, int, u32 row, u32 col, const f32* x) {
      if (row < rows) UNROLL for (int i = 0; i < Tile::RUN; i++) results[row * P::RESULT_PITCH + col + i] = x[i];
    });
    UNROLL for (int r = 0; r < Tile::ROWS; r++) {
      // Several lanes have a row; they write the same.
      results[P::PAIRS + Tile::row(r) * 2] = flash.best[0][r] * flash.c;
      results[P::PAIRS + Tile::row(r) * 2 + 1] = flash.sum[0][r];
    }
    barrier();
    each_quad(a, group, row0, rows, [&](u32 row, size_t at, u32 col) {
      Joined sum;
      UNROLL for (u32 w = 0; w < P::WAVES; w++) {
        const f32* part = (const f32*)(shared + P::Q_SIZE + w * P::OWN);
        sum.add(*(const Vec<f32, 2>*)(part + P::PAIRS + row * 2), *(const Vec<f32, 4>*)(part + row * P::RESULT_PITCH + col));
      }
      if (parts == 1) {
        sum.add_sink(a, group.head(row0 + row));
        return sum.store(a.out + at * a.dv + col);
      }
      *(Vec<f32, 4>*)(scratch + (at * splits + split) * a.dv + col) = sum.sum;
      if (col == 0) *(Vec<f32, 2>*)(pairs + (at * splits + split) * 2) = Vec<f32, 2>{{sum.top, sum.total}};
    });
    if (parts > 1 && ends_last((u32*)shared, counters + place, parts)) join_parts(a, group, row0, rows, scratch, pairs, splits, parts);
    barrier();
  }
  wait_for_previous();
}

// As many blocks to a multiprocessor as attention-plan.ts counts on.
#define DECODE(name, T, D, R, Masked) \
  KERNEL_EARLY(ATTENTION_BLOCK, D > 128 ? 1 : D > 64 || sizeof(T) > 2 ? 3 : 4, name##_##D##_##T, ATTENTION_OPERANDS(T), \
               f32 *scratch, u32 *counters, const i64 *plan, ATTENTION_SIZES, u32 splits) { \
    DYNAMIC_SHARED(T, tiles); \
    decode<Decode<T, D, R>, T, Masked>(tiles, ATTENTION_GATHER(T), scratch, counters, plan, splits); \
  }
#define DECODE_EACH(T, D) \
  DECODE(attention_decode, T, D, Rows<T>, false) \
  DECODE(attention_decode_masked, T, D, Rows<T>, true) \
  DECODE(attention_decode_f8, T, D, F8Rows<T>, true)
#define DECODE_ALL(T) DECODE_EACH(T, 32) DECODE_EACH(T, 64) DECODE_EACH(T, 96) DECODE_EACH(T, 128) DECODE_EACH(T, 256)
GPU_bf16(DECODE_ALL)
GPU_f16(DECODE_ALL)
GPU_f32(DECODE_ALL)

}  // namespace gpu
