// Prefill: attention_<D>_T and attention_masked_<D>_T for head dims up to D, many queries per key tile. The first takes no mask
// and no softcap, and a positive scale; the second takes everything.
// Launch: `threads` threads, one block per `rows` queries of a head, the last queries of all heads first: with a causal mask they
// take longest. `shared_bytes` of dynamic shared memory as in attention-plan.ts. Any grid is right; blocks loop.
// Sequences that lie one behind the other (`offsets`, attention-blocks.h) take as many blocks as their rows fill, one more for each.
// Memory: q and out once; k and v once per `rows` queries, out of the cache. Arithmetic: 4·tq·tk·d per head, half if causal.
#include "attention-warpgroup.h"
namespace gpu {

// Keys: per tile, at most. KeepQ: queries in registers.
template <class T, int D, int Keys, bool KeepQ, int Block = ATTENTION_BLOCK> struct Prefill {
  typedef tile_t<T> Tile;
  static constexpr int BLOCK = Block;
  static constexpr int STRIPS = Tile::LANES == 64 || D <= 128 ? Tile::STRIPS : 1;
  static constexpr bool KEEP_Q = Tile::REGISTERS && KeepQ;
  // Queries that move to registers leave their place to keys and values; results pass through it at the end.
  GPU_FN constexpr int bytes(int waves, int keys) {
    const int q = waves * STRIPS * 16 * tile_pitch<T>(D), kv = stage_size<T>(D, keys) * (Tile::ASYNC ? 2 : 1);
    return (int)sizeof(T) * (!KEEP_Q ? q + kv : q > kv ? q : kv);
  }
  // As many keys per tile, then as many waves as shared memory has room for.
  GPU_FN constexpr int fit(bool waves) {
    int w = Block / Tile::LANES, k = Keys;
    while (k > 16 && bytes(w, k) > GPU_SHARED_KB * 1024) k /= 2;
    while (w > 1 && bytes(w, k) > GPU_SHARED_KB * 1024) w /= 2;
    return waves ? w : k;
  }
  static constexpr int WAVES = fit(true), ROWS = WAVES * STRIPS * 16;
  typedef Shape<T, D, fit(false), STRIPS, Block, KEEP_Q> S;
  static constexpr int KV = KEEP_Q ? 0 : ROWS * S::PITCH;
};

// What registers have room for.
template <class T, int D, bool Masked> using BestPrefill =
    Prefill<T, D, (tile_t<T>::ASYNC && D > 32 && D <= 128 && !Masked ? ASYNC_KEYS : PREFILL_KEYS), D <= (tile_t<T>::ASYNC ? ASYNC_KEPT_DIM : PREFILL_KEPT_DIM)>;

// Starts copies of a block's queries, all at once.
template <class P, class T> GPU_FN void copy_queries(T* shared, const Rows<T>& from, i32 first, i32 end) {
  constexpr int W = 16 / sizeof(T), PIECES = P::S::D / W, ALL = P::ROWS * PIECES;
  UNROLL for (int i = 0; i < (ALL + P::BLOCK - 1) / P::BLOCK; i++) {
    const u32 item = tid_x() + i * P::BLOCK, r = item / PIECES, p = item % PIECES;
    const bool there = first + (i32)r < end && p * W < from.d;
    P::Tile::copy(shared + P::Tile::template place<P::S::PITCH>(r, p), there ? from.at(first + (i32)r, p) : from.base, there,
                  ALL % P::BLOCK == 0 || item < ALL);
  }
}

template <class P, class T, bool Masked> GPU_FN void prefill(T* shared, const Prefilling<T>& a) {
  typedef typename P::S S;
  typedef typename P::Tile Tile;
  constexpr int W = 16 / sizeof(T);
  const u32 wave = tid_x() / Tile::LANES;
  const bool active = wave < P::WAVES;
  const u32 tiles = blocks_of_head<P::ROWS>(a), pairs = (a.offsets ? 1 : a.batch) * a.heads, items = pairs * tiles;
  NO_UNROLL for (u32 item = bid_x(); item < items; item += gdim_x()) {
    Place place;
    if (a.offsets) {
      place = place_in_rows<P::ROWS>(a, item);
      if (place.row0 >= place.tq) continue;
    } else {
      const u32 pair = item % pairs, b = pair / a.heads;
      place = Place{b, pair % a.heads, (tiles - 1 - item / pairs) * P::ROWS, a.tq, 0, a.length(b)};
    }
    const u32 row0 = place.row0;
    const Group group{place.b, place.head, 1, place.tq};
    const Sight sight = sight_of(a, place.length, place.tq);
    const u32 last = row0 + P::ROWS < place.tq ? row0 + P::ROWS - 1 : place.tq - 1;
    const i32 first = a.aligned(sight.first((i32)row0), S::KEYS), end = sight.end((i32)last);
    const Rows<T> queries(place.queries(a) + (i64)place.head * a.q_h, a.q_t, a.d);
    bool loads = true;
    if constexpr (Tile::ASYNC) {
      loads = !queries.vectors;
      if (!loads) {
        copy_queries<P>(shared, queries, (i32)row0, (i32)place.tq);
        Tile::copies_arrive();
      }
    }
    if (loads) load_queries<S>(shared, a, place.queries(a), group, row0, P::ROWS);
    barrier();
    const u32 strip = wave % P::WAVES * P::STRIPS * 16;
    Flash<S, Masked> flash(a, group, sight, row0 + strip, shared + strip * S::PITCH);
    flash.take_queries();
    if (S::KEEP_Q) barrier();
    const Rows<T> keys = place.keys(a), values = place.values(a);
    attend<S>(flash, active, shared + P::KV, keys, values, first, S::KEYS, end, end, tid_x(), [] {}, [] { barrier(); });
    flash.finish(sight, true);
    flash.add_sinks();
    barrier();
    if (active) flash.each_result([&](int m, int r, u32 row, u32 col, const f32* x) {
      const f32 by = 1.0f / flash.sum[m][r];
      Vec<T, Tile::RUN> y;
      UNROLL for (int i = 0; i < Tile::RUN; i++) y.v[i] = narrow<T>(x[i] * by);
      *(Vec<T, Tile::RUN>*)(shared + (strip + row) * S::PITCH + col) = y;
    });
    barrier();
    T* out = place.results(a);
    const u32 pieces = a.dv / W, rows = last - row0 + 1;
    const bool wide = aligned_to(a.out, 16);
    for (u32 i = tid_x(); i < rows * pieces; i += P::BLOCK) {
      const u32 row = i / pieces, col = i % pieces * W;
      const Vec<T, W> y = *(const Vec<T, W>*)(shared + row * S::PITCH + col);
      T* const to = out + row * a.out_t + col;
      if (wide) *(Vec<T, W>*)to = y;
      else UNROLL for (int j = 0; j < W; j++) to[j] = y.v[j];
    }
    barrier();
  }
}

// Halves go by warpgroups where the target has them: so many, with so many keys per tile and so many tiles in shared memory. Small
// heads do not, 0 of them: they are those of small encoders, whose sequences are too short for few large blocks.
template <class T, int D, Kind Which, int Groups, int Keys, int Stages> GPU_FN void best_prefill(T* shared, const Prefilling<T>& a) {
#if GPU_WARPGROUPS
  if constexpr (sizeof(T) == 2 && Groups > 0) prefill_warpgroup<WarpgroupPrefill<T, D, Which, Groups, Keys, Stages>>(shared, a);
  else
#endif
    prefill<BestPrefill<T, D, Which != PLAIN>, T, Which != PLAIN>(shared, a);
}
#if GPU_WARPGROUPS
#define HALVES_BLOCK(groups) (groups > 0 ? groups * 128 : ATTENTION_BLOCK)
#define PREFILL_KERNEL(T, threads, blocks, ...) KERNEL_CROWDED(threads, blocks, __VA_ARGS__)
#else
#define HALVES_BLOCK(groups) ATTENTION_BLOCK
#define PREFILL_KERNEL(T, threads, blocks, ...) KERNEL_MATRIX(T, threads, __VA_ARGS__)
#endif
#define FLOATS_BLOCK(groups) ATTENTION_BLOCK

#define PREFILL(name, T, BLOCK, D, Which, Groups, Keys, Stages, Blocks) \
  PREFILL_KERNEL(T, BLOCK(Groups), Blocks, name##_##D##_##T, PREFILL_OPERANDS(T), PREFILL_SIZES) { \
    DYNAMIC_SHARED(T, tiles); \
    best_prefill<T, D, Which, Groups, Keys, Stages>(tiles, PREFILL_GATHER(T)); \
  }
#define PREFILL_PLAIN(T, BLOCK, D, Groups, Keys, Stages, Blocks) PREFILL(attention, T, BLOCK, D, PLAIN, Groups, Keys, Stages, Blocks)
#define PREFILL_MASKED(T, BLOCK, D, Groups, Keys, Stages) PREFILL(attention_masked, T, BLOCK, D, SHAPED, Groups, Keys, Stages, 1)
#define PREFILL_ALL(T, BLOCK) \
  PREFILL_PLAIN(T, BLOCK, 32, 0, 0, 0, 1) \
  PREFILL_MASKED(T, BLOCK, 32, 0, 0, 0) \
  PREFILL_PLAIN(T, BLOCK, 64, PLAIN_GROUPS_64, PLAIN_KEYS_64, PLAIN_STAGES_64, PLAIN_BLOCKS_64) \
  PREFILL_MASKED(T, BLOCK, 64, MASKED_GROUPS_64, MASKED_KEYS_64, MASKED_STAGES_64) \
  PREFILL_PLAIN(T, BLOCK, 96, PLAIN_GROUPS_96, PLAIN_KEYS_96, PLAIN_STAGES_96, PLAIN_BLOCKS_96) \
  PREFILL_MASKED(T, BLOCK, 96, MASKED_GROUPS_96, MASKED_KEYS_96, MASKED_STAGES_96) \
  PREFILL_PLAIN(T, BLOCK, 128, PLAIN_GROUPS_128, PLAIN_KEYS_128, PLAIN_STAGES_128, PLAIN_BLOCKS_128) \
  PREFILL_MASKED(T, BLOCK, 128, MASKED_GROUPS_128, MASKED_KEYS_128, MASKED_STAGES_128) \
  PREFILL_PLAIN(T, BLOCK, 256, PLAIN_GROUPS_256, PLAIN_KEYS_256, PLAIN_STAGES_256, PLAIN_BLOCKS_256) \
  PREFILL_MASKED(T, BLOCK, 256, MASKED_GROUPS_256, MASKED_KEYS_256, MASKED_STAGES_256)
#define PREFILL_HALVES(T) PREFILL_ALL(T, HALVES_BLOCK)
#define PREFILL_FLOATS(T) PREFILL_ALL(T, FLOATS_BLOCK)
GPU_bf16(PREFILL_HALVES)
GPU_f16(PREFILL_HALVES)
GPU_f32(PREFILL_FLOATS)

}  // namespace gpu
