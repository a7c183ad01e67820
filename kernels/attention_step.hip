// One new position of every sequence, from the projections to what its heads see, in one launch: queries and the new key are
// normalised (where there are weights for it) and turned, key and value enter the cache, and the queries attend to all keys.
// attention_step_<D>_T: heads of exactly D, up to eight to a kv head, on mma.sync; for other units there is a launch for each
// (decode.hip, attention_decode.hip), and these kernels are empty.
//
// q, k, v: a row of each sequence, q_row, k_row and v_row elements apart. Caches: (batch, kv_heads, capacity, D), cache_b and cache_h
// elements apart. lengths[b] counts the new position. cos, sin: a row of D/2 for each position, which is the place minus padding[b].
//
// Launch: up to STEP_WAVES waves to a block, batch · kv_heads · splits blocks, or, without splits, fewer, which take several kv heads
// one after the other. A wave takes 16 keys at a time straight into the registers that products read: nobody else needs them. Its
// first ones and angles are on their way before the kernel that makes q, k and v has ended, and those of the next kv head before
// the last one's are joined; the new key comes from shared memory. Parts, scratch and counters as in attention_decode.hip, but a
// part is for 16 keys to each wave, and up to twice as many are one: to join parts takes as long. Traffic: the cache once.
#include "attention-parts.h"
#include "head-norm.h"
#include "turn.h"
namespace gpu {

template <class T> struct Stepping {
  const T *q, *k, *v, *cos, *sin, *q_norm, *k_norm, *sinks;
  const i64 *lengths, *padding;
  T *out, *k_cache, *v_cache;
  f32* scratch;
  u32* counters;
  u32 batch, heads, kv_heads, capacity;
  size_t q_row, k_row, v_row, cache_b, cache_h;
  u32 window, interleaved;
  f32 eps, scale;
  u32 splits;
};

// Queries lie as operands of the unit do, with zeros in place of the heads 8 to 15 that there are not: twice as many words. Rows are
// four vectors of 16 bytes apart modulo eight: two of them are read at once.
template <int D> struct StepPlan {
  static constexpr int HEADS = 8, WAVES = STEP_WAVES, KEYS = 16, PAIRS = D / 64, Q_PITCH = 2 * D + 32, PITCH = D + 2;
  // Of results, behind queries and the new key and value.
  static constexpr int RESULTS = (HEADS * Q_PITCH + 2 * D) * 2;
};

#if GPU_TILE == TILE_MMA
// 16 keys and values of a cache, as mma.m16n8k16 reads them in an order that makes vectors of 16 bytes of memory operands: of keys g
// and g + 8 (g = lane / 4) lane t of four has elements 8 t … of each 32; of keys 2 t, 2 t + 1, 2 t + 8, 2 t + 9 lane g has 8 g … of
// each 64 of the value.
template <class T, int D> struct CacheTile {
  Words4 k[2][D / 32], v[4][D / 64];
  GPU_FN u32 key(int i) { return lane_id() / 4 + 8 * i; }
  GPU_FN u32 value(int i) { return lane_id() % 4 * 2 + i % 2 + i / 2 * 8; }
  // `count` rows from `from` on: in place of those behind the last it comes again, which counts for nothing; zeros where there are none.
  GPU_METHOD void load_keys(const T* from, i32 count) {
    UNROLL for (int i = 0; i < 2; i++) {
      const T* const row = from + ((i32)key(i) < count ? key(i) : count - 1) * D + lane_id() % 4 * 8;
      UNROLL for (int s = 0; s < D / 32; s++) k[i][s] = *(const Words4*)(row + 32 * s);
    }
  }
  GPU_METHOD void load_values(const T* from, i32 count) {
    UNROLL for (int i = 0; i < 4; i++) {
      const T* const row = from + ((i32)value(i) < count ? value(i) : count - 1) * D + lane_id() / 4 * 8;
      UNROLL for (int h = 0; h < D / 64; h++) v[i][h] = *(const Words4*)(row + 64 * h);
    }
  }
  GPU_METHOD void clear() {
    UNROLL for (int i = 0; i < 2; i++) UNROLL for (int s = 0; s < D / 32; s++) k[i][s] = Words4{};
    UNROLL for (int i = 0; i < 4; i++) UNROLL for (int h = 0; h < D / 64; h++) v[i][h] = Words4{};
  }
  // Row `newest` of the tile, where it is one, from shared memory.
  GPU_METHOD void put_newest(const T* new_key, const T* new_value, i32 newest) {
    UNROLL for (int i = 0; i < 2; i++)
      if ((i32)key(i) == newest) UNROLL for (int s = 0; s < D / 32; s++) k[i][s] = *(const Words4*)(new_key + 32 * s + lane_id() % 4 * 8);
    UNROLL for (int i = 0; i < 4; i++)
      if ((i32)value(i) == newest) UNROLL for (int h = 0; h < D / 64; h++) v[i][h] = *(const Words4*)(new_value + 64 * h + lane_id() / 4 * 8);
  }
};

// A wave's sums: of head g the greatest score, in powers of two, and this lane's part of the sum; of heads 2 t and 2 t + 1 results.
template <class T, int D> struct StepSums {
  f32 top, sum, o[D / 16][4];
  GPU_METHOD StepSums() : top(Limits<f32>::lowest()), sum(0) {
    UNROLL for (int i = 0; i < D / 16; i++) UNROLL for (int e = 0; e < 4; e++) o[i][e] = 0;
  }

  // queries: where this lane's operands begin. c: what makes powers of two of scores. The tile's first `end` keys count. `first`: nothing was added before. `between` is called when all keys are done with.
  template <class Between> GPU_METHOD void add(const CacheTile<T, D>& tile, const T* queries, f32 c, i32 end, bool first, Between between) {
    const u32 t = lane_id() % 4;
    f32 s[2][2][4] = {};
    UNROLL for (int i = 0; i < D / 32; i++) UNROLL for (int half = 0; half < 2; half++) {
      const Words4 left = *(const Words4*)(queries + 64 * i + 8 * half);
      UNROLL for (int n = 0; n < 2; n++) mma_m16n8k16(T{}, s[n][half], left.v, tile.k[n][i].v + 2 * half);
    }
    between();
    f32 p[2][2], most = top;
    UNROLL for (int n = 0; n < 2; n++) UNROLL for (int e = 0; e < 2; e++) {
      p[n][e] = 8 * n + (i32)t * 2 + e < end ? (s[n][0][e] + s[n][1][e]) * c : Limits<f32>::lowest();
      most = max_fast(most, p[n][e]);
    }
    most = max_fast(most, shfl_xor(most, 1));
    most = max_fast(most, shfl_xor(most, 2));
    // A head that has seen nothing yet: against −∞ everything would be NaN.
    const f32 shift = most == Limits<f32>::lowest() ? 0 : most, fix = approx_exp2(top - shift);
    top = most;
    f32 added = 0;
    UNROLL for (int n = 0; n < 2; n++) UNROLL for (int e = 0; e < 2; e++) {
      p[n][e] = approx_exp2(p[n][e] - shift);
      added += p[n][e];
    }
    sum = first ? added : m_fma(sum, fix, added);
    if (!first) {
      const f32 own[2] = {shfl(fix, 8 * t), shfl(fix, 8 * t + 4)};
      UNROLL for (int i = 0; i < D / 16; i++) UNROLL for (int e = 0; e < 4; e++) o[i][e] *= own[e % 2];
    }
    const u32 right[2] = {pack2(T{}, p[0][0], p[0][1]), pack2(T{}, p[1][0], p[1][1])};
    UNROLL for (int i = 0; i < D / 16; i++) {
      u32 left[4];
      UNROLL for (int pair = 0; pair < 2; pair++) {
        const u32 one = tile.v[2 * pair][i / 4].v[i % 4], other = tile.v[2 * pair + 1][i / 4].v[i % 4];
        left[2 * pair] = (u32)(u16)one | (u32)(u16)other << 16;
        left[2 * pair + 1] = one >> 16 | other >> 16 << 16;
      }
      mma_m16n8k16(T{}, o[i], left, right);
    }
  }
  // To shared memory: (HEADS, D) results, PITCH apart, and of each head {top, sum}.
  GPU_METHOD void leave(f32* results, f32* pairs, u32 heads) {
    const u32 g = lane_id() / 4, t = lane_id() % 4;
    UNROLL for (u32 mask = 1; mask < 4; mask *= 2) sum += shfl_xor(sum, mask);
    if (t == 0) *(Vec<f32, 2>*)(pairs + 2 * g) = Vec<f32, 2>{{top, sum}};
    UNROLL for (int i = 0; i < D / 16; i++) UNROLL for (u32 e = 0; e < 2; e++)
      if (2 * t + e < heads)
        *(Vec<f32, 2>*)(results + (2 * t + e) * StepPlan<D>::PITCH + i / 4 * 64 + 8 * g + i % 4 * 2) = Vec<f32, 2>{{o[i][e], o[i][2 + e]}};
  }
};

// A head on its way through a warp: pairs PAIRS · lane … of it.
template <class T, int D> struct HeadPairs {
  static constexpr int N = StepPlan<D>::PAIRS;
  typedef Vec<T, N> Side;
  typedef Vec<T, 2 * N> Sides;
  Sides x;
  GPU_METHOD void load(const T* from, bool interleaved) {
    const u32 at = lane_id() * N;
    if (interleaved) {
      const Sides both = *(const Sides*)(from + 2 * at);
      UNROLL for (int j = 0; j < N; j++) x.v[j] = both.v[2 * j], x.v[N + j] = both.v[2 * j + 1];
    } else {
      const Side one = *(const Side*)(from + at), other = *(const Side*)(from + at + D / 2);
      UNROLL for (int j = 0; j < N; j++) x.v[j] = one.v[j], x.v[N + j] = other.v[j];
    }
  }
  GPU_METHOD void store(T* to, bool interleaved) const {
    const u32 at = lane_id() * N;
    if (interleaved) {
      Sides both;
      UNROLL for (int j = 0; j < N; j++) both.v[2 * j] = x.v[j], both.v[2 * j + 1] = x.v[N + j];
      *(Sides*)(to + 2 * at) = both;
    } else {
      Side one, other;
      UNROLL for (int j = 0; j < N; j++) one.v[j] = x.v[j], other.v[j] = x.v[N + j];
      *(Side*)(to + at) = one;
      *(Side*)(to + at + D / 2) = other;
    }
  }
};

// Element `at` of a head among the operands: lane t of four has words 8 t / 2 … of each 32 elements, of which every second is zero.
template <int D> GPU_FN u32 operand_place(u32 at) { return at / 32 * 64 + at % 32 / 8 * 16 + at % 8 / 2 * 4 + at % 2; }
template <class T, int D> GPU_FN void store_query(T* to, const HeadPairs<T, D>& head, bool interleaved) {
  UNROLL for (int j = 0; j < 2 * HeadPairs<T, D>::N; j++) {
    constexpr int N = HeadPairs<T, D>::N;
    const u32 pair = lane_id() * N + j % N, at = interleaved ? 2 * pair + j / N : pair + j / N * (D / 2);
    to[operand_place<D>(at)] = head.x.v[j];
  }
}

// A part of a kv head's keys of one sequence, and what a wave needs of it: tiles from … to − 1 of 16 keys each.
template <class T, int D> struct StepItem {
  u32 place, b, kv_head, split, parts, from, to;
  i32 length, first;
  i64 count;
  GPU_METHOD StepItem(const Stepping<T>& a, u32 item, u32 waves) {
    typedef StepPlan<D> P;
    place = item / a.splits, split = item - place * a.splits, b = place / a.kv_heads, kv_head = place - b * a.kv_heads;
    count = a.lengths[b];
    length = count < 0 ? 0 : count < (i64)a.capacity ? (i32)count : (i32)a.capacity;
    first = a.window && (i32)a.window < length ? length - (i32)a.window : 0;
    const u32 tiles = (u32)(length - first + P::KEYS - 1) / P::KEYS, rounds = (tiles + waves - 1) / waves;
    parts = rounds <= 2 ? 1 : rounds < a.splits ? rounds : a.splits;
    from = tiles * split / parts, to = tiles * (split + 1) / parts;
  }
  // The newest key is the last part's.
  GPU_METHOD bool appends() const { return split + 1 == parts && length > 0; }
  GPU_METHOD size_t line(const Stepping<T>& a) const { return b * a.cache_b + kv_head * a.cache_h; }
  // Of a tile: its first key, and how many keys of the cache it has, without the newest.
  GPU_METHOD i32 first_of(u32 tile) const { return first + (i32)tile * StepPlan<D>::KEYS; }
  GPU_METHOD i32 cached(u32 tile) const { return tile < to ? length - 1 - first_of(tile) : 0; }
};

// Heads on their way from the projections to shared memory, a wave each: those of queries, then key and value.
template <class T, int D> struct StepHead {
  typedef HeadPairs<T, D> Head;
  Head head;
  Vec<T, Head::N> cos, sin;
  GPU_METHOD void load_angles(const Stepping<T>& a, const StepItem<T, D>& item) {
    const i64 position = item.count - 1 - (a.padding ? a.padding[item.b] : 0);
    const size_t angles = (size_t)(position > 0 ? position : 0) * (D / 2) + lane_id() * Head::N;
    cos = *(const typename Head::Side*)(a.cos + angles);
    sin = *(const typename Head::Side*)(a.sin + angles);
  }
  GPU_FN const T* row(const Stepping<T>& a, const StepItem<T, D>& item, u32 heads, u32 job) {
    const u32 b = item.b, kv_head = item.kv_head;
    return job < heads ? a.q + b * a.q_row + (size_t)(kv_head * heads + job) * D : job == heads ? a.k + b * a.k_row + kv_head * D : a.v + b * a.v_row + kv_head * D;
  }
  GPU_METHOD void load(const Stepping<T>& a, const StepItem<T, D>& item, u32 heads, u32 job) {
    if (job < heads + 2) head.load(row(a, item, heads, job), a.interleaved);
  }
  GPU_METHOD void turn_and_store(const Stepping<T>& a, const StepItem<T, D>& item, u32 heads, u32 job, T* queries, T* newest) {
    const bool is_query = job < heads, is_key = job == heads;
    if (!is_query && (job > heads + 1 || !item.appends())) return;
    if (job <= heads) {
      if (a.q_norm) {
        Head weight;
        weight.load(is_query ? a.q_norm : a.k_norm, a.interleaved);
        const f32 factor = head_factor<T, 2 * Head::N>(head.x, row(a, item, heads, job), D, 32, a.eps);
        UNROLL for (int j = 0; j < 2 * Head::N; j++) head.x.v[j] = narrow<T>(widen(head.x.v[j]) * factor * widen(weight.x.v[j]));
      }
      UNROLL for (int j = 0; j < Head::N; j++) turn(head.x.v[j], head.x.v[Head::N + j], cos.v[j], sin.v[j]);
    }
    if (is_query) return store_query(queries + job * StepPlan<D>::Q_PITCH, head, a.interleaved);
    head.store(newest + (is_key ? 0 : D), a.interleaved);
    head.store((is_key ? a.k_cache : a.v_cache) + item.line(a) + (size_t)(item.length - 1) * D, a.interleaved);
  }
};

// What the waves of a block leave, as one: the result, or a part of it.
template <class T, int D>
GPU_FN void join_waves(T* shared, const Stepping<T>& a, const StepItem<T, D>& item, u32 waves, const f32* results, const f32* pairs) {
  typedef StepPlan<D> P;
  const u32 heads = a.heads / a.kv_heads, first_head = item.kv_head * heads;
  f32* const scratch_pairs = a.scratch + (size_t)a.batch * a.heads * a.splits * D;
  for (u32 i = tid_x(); i < heads * (D / 2); i += bdim_x()) {
    const u32 h = i / (D / 2), col = i % (D / 2) * 2;
    const size_t at = (size_t)item.b * a.heads + first_head + h, part_at = at * a.splits + item.split;
    f32 top = Limits<f32>::lowest(), total = 0, x[2] = {};
    UNROLL for (u32 w = 0; w < P::WAVES; w++)
      if (w < waves) top = max_fast(top, pairs[(w * P::HEADS + h) * 2]);
    const f32 shift = top == Limits<f32>::lowest() ? 0 : top;
    UNROLL for (u32 w = 0; w < P::WAVES; w++) {
      if (w >= waves) break;
      const Vec<f32, 2> pair = *(const Vec<f32, 2>*)(pairs + (w * P::HEADS + h) * 2), part = *(const Vec<f32, 2>*)(results + (w * P::HEADS + h) * P::PITCH + col);
      const f32 counts = approx_exp2(pair.v[0] - shift);
      total = m_fma(pair.v[1], counts, total);
      UNROLL for (int e = 0; e < 2; e++) x[e] = m_fma(part.v[e], counts, x[e]);
    }
    if (item.parts > 1) {
      *(Vec<f32, 2>*)(a.scratch + part_at * D + col) = Vec<f32, 2>{{x[0], x[1]}};
      if (col == 0) *(Vec<f32, 2>*)(scratch_pairs + part_at * 2) = Vec<f32, 2>{{top, total}};
      continue;
    }
    // A sink that is greater than all scores leaves little of them.
    const f32 sink = a.sinks ? widen(a.sinks[first_head + h]) * LOG2_E : Limits<f32>::lowest(), greatest = max_fast(shift, sink);
    const f32 fix = a.sinks ? approx_exp2(shift - greatest) : 1.0f, sinks = a.sinks ? approx_exp2(sink - greatest) : 0.0f;
    // A head that sees no key gives zeros.
    const f32 by = item.length > 0 ? fix * approx_recip(m_fma(total, fix, sinks)) : 0.0f;
    Vec<T, 2> y;
    UNROLL for (int e = 0; e < 2; e++) y.v[e] = narrow<T>(x[e] * by);
    *(Vec<T, 2>*)(a.out + at * D + col) = y;
  }
  if (item.parts == 1 || !ends_last((u32*)shared, a.counters + item.place, item.parts)) return;
  Attention<T> all{};
  all.sinks = a.sinks, all.out = a.out, all.heads = a.heads, all.tq = 1, all.dv = D;
  join_parts(all, Group{item.b, first_head, heads, heads}, 0, heads, a.scratch, scratch_pairs, a.splits, item.parts);
}

template <class T, int D> GPU_FN void attention_step(T* shared, const Stepping<T>& a) {
  typedef StepPlan<D> P;
  const u32 wave = tid_x() / 32, waves = bdim_x() / 32, heads = a.heads / a.kv_heads, items = a.batch * a.kv_heads * a.splits;
  T *const queries = shared, *const newest = shared + P::HEADS * P::Q_PITCH;
  f32 *const results = (f32*)((u8*)shared + P::RESULTS), *const pairs = results + waves * P::HEADS * P::PITCH;
  StepItem<T, D> item(a, bid_x(), waves);
  if (item.split >= item.parts) return wait_for_previous();
  CacheTile<T, D> tile;
  const auto bring = [&](const StepItem<T, D>& of, u32 at) {
    if (of.cached(at) > 0) {
      const size_t from = of.line(a) + (size_t)of.first_of(at) * D;
      tile.load_keys(a.k_cache + from, of.cached(at));
      tile.load_values(a.v_cache + from, of.cached(at));
    } else tile.clear();
  };
  bring(item, item.from + wave);
  StepHead<T, D> head;
  head.load_angles(a, item);
  for (u32 i = tid_x(); i < P::HEADS * P::Q_PITCH / 8; i += bdim_x()) ((Words4*)queries)[i] = Words4{};
  const f32 c = a.scale * LOG2_E;
  const T* const operands = queries + lane_id() / 4 * P::Q_PITCH + lane_id() % 4 * 16;
  barrier();
  wait_for_previous();
  head.load(a, item, heads, wave);
  // What the next item needs is on its way while this one is joined.
  NO_UNROLL for (u32 at = bid_x(); at < items; at += gdim_x()) {
    head.turn_and_store(a, item, heads, wave, queries, newest);
    NO_UNROLL for (u32 job = wave + waves; job < heads + 2; job += waves) {
      head.load(a, item, heads, job);
      head.turn_and_store(a, item, heads, job, queries, newest);
    }
    barrier();
    const bool goes_on = at + gdim_x() < items;
    const StepItem<T, D> next(a, goes_on ? at + gdim_x() : at, waves);
    if (goes_on) {
      head.load_angles(a, next);
      head.load(a, next, heads, wave);
    }
    StepSums<T, D> sums;
    const u32 begin = item.from + wave, rounds = (item.to - item.from + waves - 1) / waves;
    bool brought = false;
    NO_UNROLL for (u32 round = 0; round < rounds; round++) {
      const u32 own = begin + round * waves, after = own + waves;
      // Where waves go by themselves, those without keys have done.
      if (!GPU_TILE_LOCKSTEP && own >= item.to) break;
      const i32 end = own < item.to ? item.length - item.first_of(own) : 0;
      if (item.appends() && own + 1 == item.to) tile.put_newest(newest, newest + D, end - 1);
      // Behind its last tile of this item a wave takes its first one of the next.
      brought = goes_on && (GPU_TILE_LOCKSTEP ? round + 1 == rounds : after >= item.to);
      const i32 count = brought ? next.cached(next.from + wave) : item.cached(after);
      const size_t from = brought ? next.line(a) + (size_t)next.first_of(next.from + wave) * D : item.line(a) + (size_t)item.first_of(after) * D;
      sums.add(tile, operands, c, end, round == 0, [&] {
        if (count > 0) tile.load_keys(a.k_cache + from, count);
      });
      if (count > 0) tile.load_values(a.v_cache + from, count);
      else if (brought) tile.clear();
    }
    if (goes_on && !brought) bring(next, next.from + wave);
    sums.leave(results + wave * P::HEADS * P::PITCH, pairs + wave * P::HEADS * 2, heads);
    barrier();
    join_waves<T, D>(shared, a, item, waves, results, pairs);
    item = next;
  }
}
#endif

#if GPU_TILE == TILE_MMA
#define STEP_BODY(T, D) \
  DYNAMIC_SHARED(T, shared); \
  attention_step<T, D>(shared, Stepping<T>{q, k, v, cos, sin, q_norm, k_norm, sinks, lengths, padding, out, k_cache, v_cache, scratch, counters, (u32)batch, \
                                           (u32)heads, (u32)kv_heads, (u32)capacity, q_row, k_row, v_row, cache_b, cache_h, (u32)window, interleaved, (f32)eps, \
                                           (f32)scale, splits});
#else
#define STEP_BODY(T, D)
#endif
#define STEP(T, D) \
  KERNEL_EARLY(STEP_WAVES * 32, 1, attention_step_##D##_##T, const T* q, const T* k, const T* v, const T* cos, const T* sin, const T* q_norm, const T* k_norm, \
               const T* sinks, const i64* lengths, const i64* padding, T* out, T* k_cache, T* v_cache, f32* scratch, u32* counters, size_t batch, size_t heads, \
               size_t kv_heads, size_t capacity, size_t q_row, size_t k_row, size_t v_row, size_t cache_b, size_t cache_h, size_t window, f64 eps, f64 scale, \
               u32 interleaved, u32 splits) { \
    STEP_BODY(T, D) \
  }
#define STEP_ALL(T) STEP(T, 64) STEP(T, 128)
GPU_bf16(STEP_ALL)
GPU_f16(STEP_ALL)

}  // namespace gpu
