// A few queries of prompts against many keys in pages: attention_split_<D>_T (no softcap, positive scale) and
// attention_split_masked_<D>_T give each block a part of one kv head's keys, for ROWS queries of all heads that share it; a decode
// would go over the keys for every 16 rows, and prefill has a block for each head alone, and all keys for it. attention_join_T joins
// the parts: a kernel of its own, as one block for each of few heads would take longer over it than all have over the keys.
//
// Sequences lie one behind the other, and each begins a new block (attention-blocks.h). How many parts its keys are cut into follows
// from its length in device memory, so a captured launch stays right: at most `splits`, of SPLIT_PAGES pages for each
// tile of its queries.
// Launch: `threads` threads and `shared_bytes` as in attention-plan.ts, as many `blocks` as the device holds: tiles of queries by parts
// of keys by kv heads are counted by each, and any grid is right. `scratch` has tq·heads·splits·dv results, then tq·heads·splits
// pairs (greatest score in powers of two, sum).
// Queries, keys and values lie in whole vectors: a block is done in less time than it takes to fetch instructions for other cases.
// Keys before the new ones are on their way while the kernel before, which appends those, still runs (gpu/entry.h).
#include "attention-blocks.h"
#include "attention-parts.h"
namespace gpu {

// The keys that a sequence's queries see, in parts of whole pages: the more tiles of queries go over them, the fewer parts.
struct KeyParts {
  i32 begin, stop;
  u32 pages, tiles, parts;
  GPU_METHOD KeyParts(const Sight& all, u32 tq, u32 queries, u32 splits) {
    begin = all.first(0) / PAGE_SIZE * PAGE_SIZE;
    stop = all.end((i32)tq - 1);
    pages = stop > begin ? ((u32)(stop - begin) + PAGE_SIZE - 1) / PAGE_SIZE : 0;
    tiles = (tq + queries - 1) / queries;
    const u32 most = pages / (SPLIT_PAGES * (tiles < 1 ? 1 : tiles));
    parts = most < 1 ? 1 : most < splits ? most : splits;
  }
  GPU_METHOD i32 first(u32 part) const { return begin + (i32)(pages * part / parts) * PAGE_SIZE; }
};

// A sequence and the place of something in it: `tq` rows from `start` on among all.
struct Found {
  u32 b, start, tq, place;
  i32 length;
};
// The sequence that has number `at`, the same for all lanes of a warp, where the sequences have count(tq, length) numbers each, one
// behind the other; b is that behind the last where none has it. The lanes look at a sequence each, so that what a block must know
// before its keys are on their way takes one access to memory.
template <class T, class Count> GPU_FN Found sequence_with(const Prefilling<T>& a, u32 at, Count count) {
  const Sequences sequences{a.offsets, a.batch, a.tq, a.offsets[0]};
  NO_UNROLL for (u32 from = 0; from < a.batch; from += 32) {
    const u32 b = from + lane_id(), first = sequences.offset(b), next = sequences.offset(b + 1);
    const u32 tq = b < a.batch && next > first ? next - first : 0;
    const i32 length = b < a.batch ? a.length(b) : 0;
    const u32 own = tq ? count(tq, length) : 0;
    u32 until = own;
    UNROLL for (u32 d = 1; d < 32; d *= 2) {
      const u32 before = shfl_up(until, d);
      if (lane_id() >= d) until += before;
    }
    const u32 all = shfl(until, 31);
    if (at < all) {
      u32 passed = until <= at;
      UNROLL for (u32 mask = 16; mask; mask /= 2) passed += shfl_xor(passed, mask);
      return Found{from + passed, shfl(first, passed), shfl(tq, passed), at - shfl(until - own, passed), shfl(length, passed)};
    }
    at -= all;
  }
  return Found{a.batch, 0, 0, 0, 0};
}

template <class T, int D, bool Masked, int Block = ATTENTION_BLOCK> struct Split {
  typedef tile_t<T> Tile;
  static constexpr int BLOCK = Block, STRIPS = Tile::LANES == 64 ? 2 : 1, PITCH = swizzled_pitch<T>(D);
  // Tiles of keys and values in shared memory: where copies run beside arithmetic, all but one are on their way.
  static constexpr int STAGES = !Tile::ASYNC ? 1 : D <= 64 ? SPLIT_STAGES : SPLIT_STAGES - 1;
  GPU_FN constexpr int bytes(int waves, int keys) {
    return (int)sizeof(T) * (waves * STRIPS * 16 * PITCH + stage_size<T>(D, keys, PITCH) * STAGES);
  }
  // As many keys per tile, then as many waves as shared memory has room for.
  GPU_FN constexpr int fit(bool waves) {
    int w = Block / Tile::LANES, k = Tile::ASYNC && D <= 128 && !Masked ? ASYNC_KEYS : PREFILL_KEYS;
    while (k > 16 && bytes(w, k) > GPU_SHARED_KB * 1024) k /= 2;
    while (w > 1 && bytes(w, k) > GPU_SHARED_KB * 1024) w /= 2;
    return waves ? w : k;
  }
  static constexpr int WAVES = fit(true), ROWS = WAVES * STRIPS * 16;
  typedef Shape<T, D, fit(false), STRIPS, Block, D <= (Tile::ASYNC ? PREFILL_KEPT_DIM : SPLIT_KEPT_DIM), PITCH> S;
  static constexpr int COLUMNS = D < 128 ? D : 128, RESULT_PITCH = COLUMNS + 4;
  static_assert(ROWS * RESULT_PITCH * 4 <= bytes(WAVES, S::KEYS), "");
};

// A block's queries to shared memory, several on their way at once: row r of a group, from row0 on.
template <class P, class T> GPU_FN void take_rows(T* shared, const Attention<T>& a, const T* queries, const Group& group, u32 row0) {
  constexpr int W = 16 / sizeof(T), PIECES = P::S::D / W, ALL = P::ROWS * PIECES, EACH = (ALL + P::BLOCK - 1) / P::BLOCK, G = EACH < 4 ? EACH : 4;
  NO_UNROLL for (int base = 0; base < EACH; base += G) {
    Piece x[G];
    UNROLL for (int i = 0; i < G; i++) {
      const u32 item = tid_x() + (base + i) * P::BLOCK, r = row0 + item / PIECES;
      const bool there = item < ALL && r < group.rows;
      Rows<T> row(queries + (there ? (i64)group.head(r) * a.q_h + group.query(r) * a.q_t : 0), 0, a.d);
      row.vectors = true;
      x[i] = row.load(0, item % PIECES, there);
    }
    UNROLL for (int i = 0; i < G; i++) {
      const u32 item = tid_x() + (base + i) * P::BLOCK;
      if (item < ALL) *(Piece*)(shared + P::Tile::template place<P::S::PITCH>(item / PIECES, item % PIECES)) = x[i];
    }
  }
}

// As attend() of attention.h, with more tiles on their way: a part is short, and its tiles come from anywhere.
template <class P, class F, class T, class Ready>
GPU_FN void attend_ahead(F& flash, bool active, T* shared, const Rows<T>& keys, const Rows<T>& values, i32 first, i32 end, Ready ready) {
  typedef typename P::S S;
  if (first >= end) return;
  typename S::KCarrier k;
  typename S::VCarrier v;
  const auto send = [&](i32 j, u32 stage) {
    if (j < end) {
      T* const to = shared + stage * S::STAGE;
      k.fetch(to, keys.tile(j, end), j, end, tid_x());
      v.fetch(to + S::K_SIZE, values.tile(j, end), j, end, tid_x());
    }
    copies_bunch();
  };
  NO_UNROLL for (int i = 0; i < P::STAGES - 1; i++) send(first + i * S::KEYS, i);
  ready();
  u32 now = 0;
  NO_UNROLL for (i32 j = first; j < end; j += S::KEYS) {
    copies_wait_but<P::STAGES - 2>();
    barrier();
    send(j + (P::STAGES - 1) * S::KEYS, now == 0 ? P::STAGES - 1 : now - 1);
    const T* const tile = shared + now * S::STAGE;
    now = now + 1 == P::STAGES ? 0 : now + 1;
    typename F::Scores s;
    if (active && flash.score(s, tile, j, [](int) {})) flash.gather(s, tile + S::K_SIZE);
  }
}

template <class P, class T, bool Masked> GPU_FN void split(T* shared, const Prefilling<T>& a, f32* scratch, u32 splits) {
  typedef typename P::S S;
  typedef typename P::Tile Tile;
  const u32 wave = tid_x() / Tile::LANES, heads = a.heads / a.kv_heads, queries = P::ROWS / heads, strip = wave % P::WAVES * P::STRIPS * 16;
  const bool active = wave < P::WAVES;
  f32* const pairs = scratch + (size_t)a.tq * a.heads * splits * a.dv;
  NO_UNROLL for (u32 item = bid_x();; item += gdim_x()) {
    const u32 at = item / a.kv_heads, kv_head = item - at * a.kv_heads;
    const Found found = sequence_with(a, at, [&](u32 tq, i32 length) {
      const KeyParts own(sight_of(a, length, tq), tq, queries, splits);
      return own.tiles * own.parts;
    });
    const u32 b = found.b, start = found.start, tq = found.tq;
    if (b == a.batch) break;
    const i32 length = found.length;
    const Sight all = sight_of(a, length, tq);
    const KeyParts keys_of(all, tq, queries, splits);
    const u32 tile = found.place / keys_of.parts, part = found.place - tile * keys_of.parts, query0 = tile * queries;
    const i32 first = keys_of.first(part), behind = keys_of.first(part + 1), end = behind < keys_of.stop ? behind : keys_of.stop;
    const Group group{b, kv_head * heads, heads, heads * tq};
    const Sight sight{end, all.reach, all.back};
    const u32 row0 = query0 * heads, left = group.rows - row0, rows = left < queries * heads ? left : queries * heads;
    Flash<S, Masked> flash(a, group, sight, row0 + strip, shared + strip * S::PITCH);
    Rows<T> keys(a, a.k + (i64)kv_head * a.k_h, b, a.k_b, a.k_t, a.d);
    Rows<T> values(a, a.v + (i64)kv_head * a.v_h, b, a.v_b, a.v_t, a.dv);
    keys.vectors = values.vectors = true;
    const auto take_queries = [&] {
      wait_for_previous();
      take_rows<P>(shared, a, a.q + start * a.q_t, group, row0);
      barrier();
      flash.take_queries();
    };
    T* const tiles = shared + P::ROWS * S::PITCH;
    if (first >= end || first + (P::STAGES > 1 ? P::STAGES - 1 : 1) * S::KEYS > length - (i32)tq) wait_for_previous();
    if constexpr (Tile::ASYNC) attend_ahead<P>(flash, active, tiles, keys, values, first, end, take_queries);
    else attend<S>(flash, active, tiles, keys, values, first, S::KEYS, end, end, tid_x(), take_queries, [] { barrier(); });
    flash.finish(all, part == 0);
    // Through shared memory, in as many columns at a time as there is room for, behind each row its pair: whole rows are written.
    f32* const results = (f32*)shared;
    UNROLL for (int from = 0; from < S::D; from += P::COLUMNS) {
      barrier();
      if (active) flash.each_result([&](int, int, u32 row, u32 col, const f32* x) {
        if (S::D > P::COLUMNS && (col < (u32)from || col >= (u32)(from + P::COLUMNS))) return;
        UNROLL for (int i = 0; i < Tile::RUN; i++) results[(strip + row) * P::RESULT_PITCH + col - from + i] = x[i];
      });
      if (active && from == 0) UNROLL for (int m = 0; m < P::STRIPS; m++) UNROLL for (int r = 0; r < Tile::ROWS; r++) {
        // Several lanes have a row; they write the same.
        f32* const pair = results + (strip + m * 16 + Tile::row(r)) * P::RESULT_PITCH + P::COLUMNS;
        pair[0] = flash.best[m][r] * flash.c;
        pair[1] = flash.sum[m][r];
      }
      barrier();
      const u32 columns = a.dv > (u32)from ? (a.dv - from < P::COLUMNS ? a.dv - from : P::COLUMNS) : 0, quads = columns / 4;
      NO_UNROLL for (u32 i = tid_x(); i < rows * quads; i += P::BLOCK) {
        const u32 row = i / quads, col = (i - row * quads) * 4, r = row0 + row;
        const size_t at = ((size_t)(start + (u32)group.query(r)) * a.heads + group.head(r)) * splits + part;
        const f32* const own = results + row * P::RESULT_PITCH;
        *(Vec<f32, 4>*)(scratch + at * a.dv + from + col) = *(const Vec<f32, 4>*)(own + col);
        if (from + col == 0) *(Vec<f32, 2>*)(pairs + at * 2) = *(const Vec<f32, 2>*)(own + P::COLUMNS);
      }
    }
    barrier();
  }
  wait_for_previous();
}

// Four columns of a row to each thread; `rows` is what a tile of the other kernel has.
template <class T> GPU_FN void join(const Prefilling<T>& a, const f32* scratch, u32 splits, u32 rows) {
  const u32 quads = a.heads * (a.dv / 4), blocks = (quads + bdim_x() - 1) / bdim_x(), queries = rows / (a.heads / a.kv_heads);
  const f32* const pairs = scratch + (size_t)a.tq * a.heads * splits * a.dv;
  NO_UNROLL for (u32 item = bid_x(); item < a.tq * blocks; item += gdim_x()) {
    const u32 row = item / blocks, i = (item - row * blocks) * bdim_x() + tid_x();
    const Found found = sequence_with(a, row, [](u32 tq, i32) { return tq; });
    const KeyParts keys_of(sight_of(a, found.length, found.tq), found.tq, queries, splits);
    wait_for_previous();
    if (i >= quads) continue;
    const u32 head = i / (a.dv / 4), col = (i - head * (a.dv / 4)) * 4;
    const size_t at = ((size_t)row * a.heads + head) * splits;
    Joined sum;
    sum.add_all(pairs + at * 2, scratch + at * a.dv + col, keys_of.parts, a.dv);
    sum.add_sink(a, head);
    sum.store(a.out + row * a.out_t + head * a.out_h + col);
  }
  wait_for_previous();
}

#define SPLIT(name, T, D, Masked) \
  KERNEL_EARLY(ATTENTION_BLOCK, D > 128 ? 1 : 2, name##_##D##_##T, PREFILL_OPERANDS(T), f32 *scratch, PREFILL_SIZES, u32 splits) { \
    DYNAMIC_SHARED(T, tiles); \
    split<Split<T, D, Masked>, T, Masked>(tiles, PREFILL_GATHER(T), scratch, splits); \
  }
#define SPLIT_BOTH(T, D) SPLIT(attention_split, T, D, false) SPLIT(attention_split_masked, T, D, true)
#define SPLIT_ALL(T) \
  SPLIT_BOTH(T, 32) SPLIT_BOTH(T, 64) SPLIT_BOTH(T, 96) SPLIT_BOTH(T, 128) SPLIT_BOTH(T, 256) \
  KERNEL_EARLY(ATTENTION_BLOCK, 4, attention_join_##T, PREFILL_OPERANDS(T), f32 *scratch, PREFILL_SIZES, u32 splits, u32 rows) { \
    join<T>(PREFILL_GATHER(T), scratch, splits, rows); \
  }
GPU_bf16(SPLIT_ALL)
GPU_f16(SPLIT_ALL)
GPU_f32(SPLIT_ALL)

}  // namespace gpu
