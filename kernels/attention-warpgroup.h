// Prefill by products of warpgroups (gpu/warpgroup.h): each has 64 queries, and all of a block share tiles of KEYS keys and values.
//
// Scores of the next tile are begun before the values of this one are gathered, and weighed while that runs: the matrix unit has
// work while the others take powers of two, and one warpgroup's while another does the rest. Tiles are STAGES deep in shared memory,
// on their way by copies beside all of it. Warps do not wait for each other at barriers: they say what has landed and what is free,
// and go on until they need it, so that warpgroups can be half a tile apart.
//
// Results of a product lie in pairs of neighbouring columns, far from what one load of a mask brings. So the keys of a tile lie in
// another order, and their values, too: that one in which a lane's columns are RUN consecutive keys.
#ifndef WICK_ATTENTION_WARPGROUP_H
#define WICK_ATTENTION_WARPGROUP_H
#include "attention-blocks.h"
#include "gpu/warpgroup.h"

#if GPU_WARPGROUPS
namespace gpu {

template <class T> struct HasLongExponent { static constexpr bool value = false; };
template <> struct HasLongExponent<bf16> { static constexpr bool value = true; };

// Keys that a lane has of each 32: their mask is one load of 16 bytes.
constexpr int RUN = 8;

// COUNT rows in shared memory as products read them: columns by the 64, those of all rows, then the next 64. InPieces: all of them lie
// in memory so that 16 bytes of each can be copied at once.
template <class T, int Count, int D, int Threads, bool InRuns, bool InPieces> struct Slab {
  static constexpr int CHUNK = Count * 64, CHUNKS = (D + 63) / 64, SIZE = CHUNKS * CHUNK;
  // Rows of CHUNKS · 8 pieces, of which heads of 96 have 12, by a power of two of the threads.
  static constexpr int ACROSS = CHUNKS * 8, COPIERS = Threads < 256 ? 128 : 256, DOWN = COPIERS / ACROSS, SENT = Count / DOWN;
  static_assert(Count % DOWN == 0 && PAGE_SIZE % DOWN == 0, "");

  // Where row r lies. Of 32, those of which lane x of four has columns are the consecutive ones from RUN · x on.
  GPU_FN constexpr u32 position(u32 r) { return InRuns ? r / 32 * 32 + r / 2 % 4 * 8 + r / RUN % 4 * 2 + r % 2 : r; }
  GPU_FN u32 place(u32 position, u32 piece) { return piece / 8 * CHUNK + position * 64 + (piece % 8 ^ position % 8) * 8; }

  // Starts copies of the rows first … first + Count − 1, zeros from `end` on. They are some of a page, or whole pages.
  GPU_FN void fetch(T* shared, const Rows<T>& from, i32 first, i32 end) {
    const u32 r = tid_x() / ACROSS, p = tid_x() % ACROSS;
    const bool wanted = (Threads == COPIERS || tid_x() < COPIERS) && p * 8 < D;
    if (!InPieces && !from.vectors) {
      NO_UNROLL for (u32 i = r; wanted && i < Count; i += DOWN)
        *(Piece*)(shared + place(position(i), p)) = from.tile(first + (i32)i, end).load(first + (i32)i, p, end);
      return;
    }
    const T* at = from.at(first + (i32)r, p);
    if (from.table) at += from.shift(first, end);
    const i32 left = p * 8 < from.d ? end - first - (i32)r : 0;
    const u32 to = place(position(r), p);
    UNROLL for (int i = 0; i < SENT; i++) {
      if (i > 0 && i * DOWN % PAGE_SIZE == 0 && from.table)
        at = from.at(first + (i32)(i * DOWN + r), p) + from.shift(first + i * DOWN, end);
      const u32 on = position(i * DOWN);
      copy16_async(shared + (to ^ on % 8 * 8) + on * 64, at, i * DOWN < left, wanted);
      at += from.stride * DOWN;
    }
  }
};

// GROUPS warpgroups, KEYS keys per tile, STAGES tiles each of keys and values in shared memory, then the words of two meetings and
// the place of the block's queries, for which there is no register while it runs.
// SideBySide: sequences are those of a batch, none lie one behind the other, and their rows are InPieces.
template <class T_, int D_, Kind Which, int Groups, int Keys, int Stages, bool SideBySide = false> struct WarpgroupPrefill {
  typedef T_ T;
  static constexpr bool SIDE_BY_SIDE = SideBySide;
  static constexpr int D = D_, GROUPS = Groups, KEYS = Keys, STAGES = Stages, THREADS = GROUPS * 128, ROWS = GROUPS * 64;
  static constexpr bool MASKED = Which == SHAPED, IS_CAPPED = Which == CAPPED;
  typedef Slab<T, ROWS, D, THREADS, false, SideBySide> Queries;
  typedef Slab<T, KEYS, D, THREADS, true, SideBySide> Stage;
  static constexpr int SIZE = Queries::SIZE + 2 * STAGES * Stage::SIZE;
  static_assert(SIZE * sizeof(T) + 16 + sizeof(Place) <= GPU_SHARED_KB * 1024, "shared memory");
};

// One warpgroup's queries: a lane has rows lane / 4 and that + 8 of its warp's sixteen. Element e of s belongs to row e / 2 % 2.
template <class P> struct WarpgroupFlash {
  typedef typename P::T T;
  static constexpr int KEYS = P::KEYS;
  static constexpr f32 LAG = 8;

  const Attention<T>& a;
  const Sight& sight;
  u32 b, head, first_row;
  // Scores count as 2^(s·c).
  f32 c;
  f32 s[KEYS / 2], o[P::D / 2], best[2], sum[2], fix[2];
  bool grown;
  u32 p[KEYS / 16][4];
  u32 mask[P::MASKED ? 2 : 1][P::MASKED ? KEYS / 8 : 1];
  bool mask_vectors;

  GPU_METHOD WarpgroupFlash(const Attention<T>& a_, const Sight& sight_, u32 b_, u32 head_, u32 row)
      : a(a_), sight(sight_), b(b_), head(head_), first_row(row), c(P::MASKED ? LOG2_E : P::IS_CAPPED ? 1 : a_.scale * LOG2_E) {
    UNROLL for (int e = 0; e < P::D / 2; e++) o[e] = 0;
    UNROLL for (int r = 0; r < 2; r++) best[r] = BOUNDED ? 0 : Limits<f32>::lowest(), sum[r] = 0;
    mask_vectors = a.mask && a.mask_j == 1 && (a.mask_b | a.mask_h | a.mask_i) % RUN == 0 && aligned_to(a.mask, 16);
  }
  GPU_METHOD i32 row(int r) const { return (i32)(first_row + tid_x() % 128 / 32 * 16 + lane_id() / 4 + r * 8); }
  // Of the keys of a tile, this lane's first one, and which after it element e belongs to.
  GPU_FN u32 lane_key() { return lane_id() % 4 * RUN; }
  GPU_FN constexpr int key_after(int e) { return e / 16 * 32 + e / 4 % 4 * 2 + e % 2; }

  // Begins the scores of a tile of keys, and results += weights · values of another.
  GPU_METHOD void score(const T* queries, const T* keys) {
    const WarpgroupRef left = warpgroup_ref(queries, 512, 0), right = warpgroup_ref(keys, 512, 0);
    UNROLL for (int i = 0; i < P::D / 16; i++)
      warpgroup_multiply<0, 0>(T{}, s, left.plus(i / 4 * P::Queries::CHUNK + i % 4 * 16), right.plus(i / 4 * P::Stage::CHUNK + i % 4 * 16), i > 0);
    warpgroup_commit();
  }
  GPU_METHOD void gather(const T* values) {
    const WarpgroupRef ref = warpgroup_ref(values, 512, P::Stage::CHUNK);
    UNROLL for (int j = 0; j < KEYS / 16; j++) warpgroup_multiply<1>(T{}, o, p[j], ref.plus(j * 1024), true);
    warpgroup_commit();
  }

  GPU_METHOD const T* mask_line(int r) const {
    const i32 t = row(r) < (i32)a.tq ? row(r) : (i32)a.tq - 1;
    return a.mask + b * a.mask_b + head * a.mask_h + t * a.mask_i;
  }
  // Before scores are waited for. Places beyond the rows and keys read some other place; they are hidden or dropped.
  GPU_METHOD void fetch_mask(i32 j0) {
    if constexpr (P::MASKED) {
      if (mask_vectors && j0 + KEYS <= (i32)a.tk) {
        UNROLL for (int r = 0; r < 2; r++) {
          const T* line = mask_line(r) + j0 + lane_key();
          UNROLL for (int i = 0; i < KEYS / 32; i++) {
            const Piece x = *(const Piece*)(line + i * 32);
            UNROLL for (int w = 0; w < 4; w++) mask[r][i * 4 + w] = x.v[w];
          }
        }
      } else if (a.mask) {
        UNROLL for (int r = 0; r < 2; r++) {
          const bits_t<T>* line = (const bits_t<T>*)mask_line(r);
          // A few at a time: registers are short here, and this is the way of odd masks and of the last keys.
          NO_UNROLL for (int i = 0; i < KEYS / 8; i += 4) {
            UNROLL for (int w = 0; w < 4; w++) {
              const i32 key = j0 + (i32)lane_key() + key_after((i + w) * 4), next = key + 1;
              const u32 x = line[(key < sight.limit ? key : 0) * a.mask_j] | (u32)line[(next < sight.limit ? next : 0) * a.mask_j] << 16;
              UNROLL for (int k = w; k < KEYS / 8; k += 4)
                if (k - w == i) mask[r][k] = x;
            }
          }
        }
      }
    }
  }
  // s := softcap(s·scale) + mask
  GPU_METHOD void shape_scores() {
    f32 scale = a.scale;
    if (a.softcap != 0) {
      cap_scores(1);
      scale = 1;
    }
    if (a.mask) UNROLL for (int e = 0; e < KEYS / 2; e++) s[e] = s[e] * scale + widen(T{(u16)(mask[e / 2 % 2][e / 4] >> e % 2 * 16)});
    else UNROLL for (int e = 0; e < KEYS / 2; e++) s[e] *= scale;
  }
  GPU_METHOD void cap_scores(f32 unit) {
    // Made anew for each tile: there are no registers for it.
    f32 scale = a.scale;
    warpgroup_hold(scale);
    const Softcap to(scale, a.softcap, unit);
    f32 most[4] = {0, 0, 0, 0};
    UNROLL for (int e = 0; e < KEYS / 2; e++) most[e % 4] = max_fast(most[e % 4], m_abs(s[e]));
    if (max_fast(max_fast(most[0], most[1]), max_fast(most[2], most[3])) <= to.reach) UNROLL for (int e = 0; e < KEYS / 2; e++) s[e] = to.curved(s[e]);
    else UNROLL for (int e = 0; e < KEYS / 2; e++) s[e] = to.any(s[e]);
  }
  GPU_METHOD void hide(i32 j0) {
    i32 first[2], end[2];
    UNROLL for (int r = 0; r < 2; r++) {
      first[r] = sight.first(row(r)) - j0 - (i32)lane_key();
      end[r] = sight.end(row(r)) - j0 - (i32)lane_key();
    }
    UNROLL for (int e = 0; e < KEYS / 2; e++)
      if (key_after(e) < first[e / 2 % 2] || key_after(e) >= end[e / 2 % 2]) s[e] = Limits<f32>::lowest();
  }
  // Scores become powers of two against each row's `best`. That follows the greatest score only when powers would exceed 2^LAG:
  // then sums and, later, results are multiplied with `fix`. Scores that are `bounded` need no such care.
  GPU_METHOD void weigh(i32 j0) {
    if constexpr (P::MASKED) shape_scores();
    if constexpr (P::IS_CAPPED) cap_scores(LOG2_E);
    if (j0 + KEYS > sight.end((i32)first_row) || j0 < sight.first((i32)first_row + 63)) hide(j0);
    if constexpr (BOUNDED) grown = false;
    else find_best();
    const f32 shift[2] = {shift_of(best[0]), shift_of(best[1])};
    UNROLL for (int e = 0; e < KEYS / 2; e++) {
      const int r = e / 2 % 2;
      // A mask may take scores to where only their difference can be multiplied.
      s[e] = approx_exp2(P::MASKED ? (s[e] - shift[r]) * c : BOUNDED ? s[e] : P::IS_CAPPED ? s[e] - shift[r] : s[e] * c - shift[r]);
      sum[r] += s[e];
    }
  }
  // By a cap of at most 64, to powers of two that floats hold, and bf16, however many are summed: `best` stays 0.
  static constexpr bool BOUNDED = P::IS_CAPPED && HasLongExponent<T>::value;
  GPU_METHOD void find_best() {
    f32 top[2][2];
    UNROLL for (int r = 0; r < 2; r++) top[r][0] = best[r], top[r][1] = s[r * 2];
    UNROLL for (int e = 0; e < KEYS / 2; e++) top[e / 2 % 2][e % 2] = max_fast(top[e / 2 % 2][e % 2], s[e]);
    bool grew = false;
    UNROLL for (int r = 0; r < 2; r++) {
      top[r][0] = max_fast(top[r][0], top[r][1]);
      top[r][0] = max_fast(top[r][0], shfl_xor(top[r][0], 1));
      top[r][0] = max_fast(top[r][0], shfl_xor(top[r][0], 2));
      grew = grew || (top[r][0] - best[r]) * c > LAG;
    }
    grown = wave_any(grew);
    if (grown) UNROLL for (int r = 0; r < 2; r++) {
      const f32 shift = shift_of(top[r][0]);
      fix[r] = P::MASKED ? approx_exp2((best[r] - shift) * c) : approx_exp2(best[r] * c - shift);
      best[r] = top[r][0];
      sum[r] *= fix[r];
    }
  }
  // A row that has seen nothing yet: against −∞ everything would be NaN.
  GPU_METHOD f32 shift_of(f32 top) const { return top == Limits<f32>::lowest() ? 0 : P::MASKED ? top : top * c; }
  GPU_METHOD void rescale() {
    if (grown) UNROLL for (int e = 0; e < P::D / 2; e++) o[e] *= fix[e / 2 % 2];
  }
  GPU_METHOD void pack() {
    UNROLL for (int j = 0; j < KEYS / 16; j++) UNROLL for (int i = 0; i < 4; i++) p[j][i] = pack2(T{}, s[8 * j + 2 * i], s[8 * j + 2 * i + 1]);
  }
  GPU_METHOD void hold_scores() { UNROLL for (int e = 0; e < KEYS / 2; e++) warpgroup_hold(s[e]); }
  GPU_METHOD void hold_results() { UNROLL for (int e = 0; e < P::D / 2; e++) warpgroup_hold(o[e]); }
  // Until products that read them have ended.
  GPU_METHOD void hold_weights() { UNROLL for (int j = 0; j < KEYS / 16; j++) UNROLL for (int i = 0; i < 4; i++) warpgroup_hold(p[j][i]); }

  // A row that sees no key gives zeros.
  GPU_METHOD void finish(u32 own) {
    const f32 sink = a.sinks ? widen(a.sinks[own]) * LOG2_E : Limits<f32>::lowest();
    UNROLL for (int r = 0; r < 2; r++) {
      sum[r] += shfl_xor(sum[r], 1);
      sum[r] += shfl_xor(sum[r], 2);
      if (a.sinks) sum[r] += approx_exp2(sink - best[r] * c);
      if (sight.first(row(r)) >= sight.end(row(r))) sum[r] = 1;
    }
  }
};

// The tiles of keys first, first + KEYS, … below `end`, of which there is one at least. Bunch n of copies has keys n + 1 and values n.
template <class P>
GPU_FN void attend_warpgroup(WarpgroupFlash<P>& flash, typename P::T* shared, const typename P::T* queries, const Rows<typename P::T>& keys,
                             const Rows<typename P::T>& values, i32 first, i32 end, u64* landed, u64* freed, u32 round, const Place* kept) {
  typedef typename P::T T;
  typedef typename P::Stage Stage;
  T* const key_tiles = shared;
  T* const value_tiles = shared + P::STAGES * Stage::SIZE;
  // For the place in a table there is no register, either.
  const auto of_sequence = [&](Rows<T> rows) {
    if (rows.table) rows.entry = kept->b * (flash.a.tk / PAGE_SIZE);
    return rows;
  };
  const auto fetch_keys = [&](i32 at, u32 slot) {
    if (at < end) Stage::fetch(key_tiles + slot * Stage::SIZE, of_sequence(keys), at, end);
  };
  const auto fetch_values = [&](i32 at, u32 slot) {
    if (at < end) Stage::fetch(value_tiles + slot * Stage::SIZE, of_sequence(values), at, end);
  };
  const auto on = [](u32 slot, u32 by) { return slot + by < P::STAGES ? slot + by : slot + by - P::STAGES; };
  fetch_keys(first, 0);
  copies_bunch();
  UNROLL for (int n = 0; n < P::STAGES - 1; n++) {
    fetch_values(first + n * P::KEYS, n);
    fetch_keys(first + (n + 1) * P::KEYS, (n + 1) % P::STAGES);
    copies_bunch();
  }
  copies_wait_but<P::STAGES - 1>();
  warpgroup_publish();
  barrier();
  warpgroup_begin();
  flash.score(queries, key_tiles);
  flash.fetch_mask(first);
  copies_wait_but<P::STAGES - 2>();
  warpgroup_publish();
  meeting_come(landed);
  warpgroup_wait<0>();
  flash.hold_scores();
  flash.weigh(first);
  flash.pack();
  meeting_come(freed);
  u32 now = 0;
  NO_UNROLL for (i32 j = first; j + P::KEYS < end; j += P::KEYS) {
    const u32 next = on(now, 1);
    meeting_wait(landed, round);
    flash.hold_scores();
    flash.hold_results();
    warpgroup_begin();
    flash.score(queries, key_tiles + next * Stage::SIZE);
    flash.gather(value_tiles + now * Stage::SIZE);
    flash.fetch_mask(j + P::KEYS);
    warpgroup_wait<1>();
    flash.hold_scores();
    // All are done with the tiles that were used one round before.
    meeting_wait(freed, round);
    fetch_keys(j + P::STAGES * P::KEYS, now);
    fetch_values(j + (P::STAGES - 1) * P::KEYS, on(now, P::STAGES - 1));
    copies_bunch();
    flash.weigh(j + P::KEYS);
    copies_wait_but<P::STAGES - 2>();
    warpgroup_publish();
    flash.hold_scores();
    meeting_come(landed);
    warpgroup_wait<0>();
    flash.hold_results();
    flash.hold_weights();
    meeting_come(freed);
    flash.rescale();
    flash.pack();
    now = next;
    round++;
  }
  meeting_wait(landed, round);
  flash.hold_results();
  warpgroup_begin();
  flash.gather(value_tiles + now * Stage::SIZE);
  warpgroup_wait<0>();
  flash.hold_results();
  meeting_wait(freed, round);
}

// Heads whose keys and values fit in the cache together are done together, the last queries of all of them first: with a causal mask
// they take longest. Hopper's cache has 50 MB, in two halves.
constexpr u64 CACHED_BYTES = 32 << 20;

// Block `item` of a batch side by side.
template <class P> GPU_FN Place place_in_batch(const Prefilling<typename P::T>& a, u32 item) {
  const u32 tiles = blocks_of_head<P::ROWS>(a), pairs = a.batch * a.heads, sharing = a.heads / a.kv_heads;
  const u64 fit = divide(CACHED_BYTES, (u64)(a.tk + 1) * a.d * 2 * sizeof(typename P::T));
  const u32 together = fit * sharing < pairs ? (fit ? (u32)fit : 1) * sharing : pairs;
  const u32 section = item / (together * tiles), within = item - section * together * tiles;
  const u32 count = pairs - section * together < together ? pairs - section * together : together;
  const u32 pair = section * together + within % count, b = pair / a.heads;
  return Place{b, pair % a.heads, (tiles - 1 - within / count) * P::ROWS, a.tq, 0, a.length(b)};
}

template <class P> GPU_FN void prefill_warpgroup(typename P::T* shared, const Prefilling<typename P::T>& a) {
  typedef typename P::T T;
  T* const stages = shared + P::Queries::SIZE;
  u64* const landed = (u64*)(shared + P::SIZE);
  u64* const freed = landed + 1;
  Place* const kept = (Place*)(freed + 1);
  if (tid_x() == 0) {
    meeting_open(landed, P::THREADS / 32);
    meeting_open(freed, P::THREADS / 32);
  }
  u32 met = 0;
  if (P::SIDE_BY_SIDE) barrier();
  NO_UNROLL for (u32 item = bid_x(); item < blocks_of_head<P::ROWS>(a) * a.heads * (a.offsets ? 1 : a.batch); item += gdim_x()) {
    Place place;
    if constexpr (P::SIDE_BY_SIDE) place = place_in_batch<P>(a, item);
    else {
      if (tid_x() < 32) {
        if (a.offsets) place = place_in_rows<P::ROWS>(a, item);
        else place = place_in_batch<P>(a, item);
        if (tid_x() == 0) *kept = place;
      }
      barrier();
      place = *kept;
      if (place.row0 >= place.tq) {
        barrier();
        continue;
      }
    }
    const u32 row0 = place.row0;
    const Sight sight = sight_of(a, place.length, place.tq);
    // Runs of a mask begin where vectors do.
    const i32 first = a.aligned(sight.first((i32)row0) / RUN * RUN, P::KEYS), end = sight.end((i32)(row0 + P::ROWS < place.tq ? row0 + P::ROWS : place.tq) - 1);
    const u32 group = tid_x() / 128;
    const Rows<T> queries(place.queries(a) + (i64)place.head * a.q_h, a.q_t, a.d);
    const Rows<T> keys = place.keys(a), values = place.values(a);
    WarpgroupFlash<P> flash(a, sight, place.b, place.head, row0 + group * 64);
    if (first < end) {
      P::Queries::fetch(shared, queries, (i32)row0, (i32)place.tq);
      attend_warpgroup(flash, stages, shared + group * 64 * 64, keys, values, first, end, landed, freed, met, kept);
      met += (end - first + P::KEYS - 1) / P::KEYS;
    }
    if constexpr (!P::SIDE_BY_SIDE) place = *kept;
    flash.finish(place.head);
    // Each warp's results pass through the place of its queries.
    const u32 warp_row = tid_x() / 32 * 16;
    UNROLL for (int e = 0; e < P::D / 2; e += 2) {
      const int r = e / 2 % 2;
      const f32 by = 1.0f / flash.sum[r];
      Vec<T, 2> y;
      UNROLL for (int i = 0; i < 2; i++) y.v[i] = narrow<T>(flash.o[e + i] * by);
      *(Vec<T, 2>*)(shared + P::Queries::place(warp_row + lane_id() / 4 + r * 8, e / 4) + lane_id() % 4 * 2) = y;
    }
    wave_sync();
    T* out = place.results(a) + warp_row * a.out_t;
    const u32 left = place.tq - place.row0, pieces = a.dv / 8, rows = left < warp_row ? 0 : left - warp_row < 16 ? left - warp_row : 16;
    const bool wide = aligned_to(a.out, 16);
    for (u32 i = lane_id(); i < rows * pieces; i += 32) {
      const u32 row = i / pieces, piece = i % pieces;
      const Vec<T, 8> y = *(const Vec<T, 8>*)(shared + P::Queries::place(warp_row + row, piece));
      T* const to = out + row * a.out_t + piece * 8;
      if (wide) *(Vec<T, 8>*)to = y;
      else UNROLL for (int k = 0; k < 8; k++) to[k] = y.v[k];
    }
    barrier();
  }
}

}  // namespace gpu
#endif

#endif  // WICK_ATTENTION_WARPGROUP_H
