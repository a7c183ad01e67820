// One new position of every sequence, from the projections to what its heads see, in one launch: queries and the new key are
// normalised (where there are weights for it) and turned, key and value enter the cache, and the queries attend to all keys.
// attention_step_<D>_T: heads of exactly D, up to eight to a kv head, on mma.sync; for other units there is a launch for each
// (decode.hip, attention_decode.hip), and these kernels are empty. What they are given: attention-step.h.
//
// attention_steps_<D>_T: the same where there are more kv heads of all sequences than blocks, which take them one after the other.
// Few kv heads with few keys have attention_cluster.hip, where the device has clusters.
//
// Launch: STEP_WAVES waves to a block, batch · kv_heads · splits blocks; STEPS_WAVES waves to each of `blocks` blocks of attention_steps,
// a multiple of kv_heads, which have one kv head of at most 32 sequences each. A wave takes 16 keys straight into the registers that
// products read, as nobody else needs them, and 16 more by way of shared memory, where the new key comes from, too: attention_steps
// always, attention_step where keys are many at first. Its first ones and angles are on their way before the kernel that makes q, k and v
// has ended, and those of the next kv head before the last one's are joined. Parts, scratch and counters as in attention_decode.hip, but
// a part is for STEP_WAVES · 16 keys, and up to twice as many are one: to join parts takes as long.
// Traffic: the cache once.
#include "attention-step.h"
#include "turn.h"
namespace gpu {

#if GPU_TILE == TILE_MMA
// A head that a warp turns: pairs PAIRS · lane … of it, first sides and then second ones.
template <class T, int D> struct HeadPairs {
  static constexpr int N = StepPlan<D>::PAIRS;
  typedef Vec<T, N> Side;
  typedef Vec<T, 2 * N> Sides;
  GPU_FN Sides load(const T* from, bool interleaved) {
    const u32 at = lane_id() * N;
    Sides x;
    if (interleaved) {
      const Sides both = *(const Sides*)(from + 2 * at);
      UNROLL for (int j = 0; j < N; j++) x.v[j] = both.v[2 * j], x.v[N + j] = both.v[2 * j + 1];
    } else {
      const Side one = *(const Side*)(from + at), other = *(const Side*)(from + at + D / 2);
      UNROLL for (int j = 0; j < N; j++) x.v[j] = one.v[j], x.v[N + j] = other.v[j];
    }
    return x;
  }
  GPU_FN void store(T* to, const Sides& x, bool interleaved) {
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

template <class T, int D> GPU_FN void store_query(T* to, const typename HeadPairs<T, D>::Sides& x, bool interleaved) {
  UNROLL for (int j = 0; j < 2 * HeadPairs<T, D>::N; j++) {
    constexpr int N = HeadPairs<T, D>::N;
    const u32 pair = lane_id() * N + j % N, at = interleaved ? 2 * pair + j / N : pair + j / N * (D / 2);
    to[operand_place<D>(at)] = x.v[j];
  }
}

// A kv head of sequence b: its keys in pairs of tiles, of which the last has the newest.
template <class T, int D> struct StepItem {
  static constexpr u32 KEYS = 2 * StepPlan<D>::KEYS;
  u32 b;
  i32 length;
  u32 pairs;
  GPU_METHOD StepItem(const Stepping<T>& a, u32 sequence, i32 keys) : b(sequence), length(keys) { pairs = (u32)(length - first(a) + KEYS - 1) / KEYS; }
  GPU_METHOD i32 first(const Stepping<T>& a) const { return a.window && (i32)a.window < length ? length - (i32)a.window : 0; }
  // Of a pair: its first key, and how many keys of the cache there are from there on, without the newest, or −1 where there is no such pair.
  GPU_METHOD i32 first_of(const Stepping<T>& a, u32 pair) const { return first(a) + (i32)(pair * KEYS); }
  GPU_METHOD i32 cached(const Stepping<T>& a, u32 pair) const { return pair < pairs ? length - 1 - first_of(a, pair) : -1; }
};

// Heads from the projections to where the unit reads them, a wave each: those of queries, then key and value.
template <class T, int D> struct StepHeads {
  typedef HeadPairs<T, D> Head;
  typedef typename Head::Sides Sides;
  typedef typename Head::Side Side;
  const Stepping<T>& a;
  const u32 heads;

  GPU_METHOD const T* row(u32 b, u32 kv_head, u32 job) const {
    return job < heads ? a.q + b * a.q_row + (size_t)(kv_head * heads + job) * D : job == heads ? a.k + b * a.k_row + kv_head * D : a.v + b * a.v_row + kv_head * D;
  }
  GPU_METHOD size_t angles(i32 position) const { return (size_t)(position > 0 ? position : 0) * (D / 2); }
  // Of the norm, where there is one.
  GPU_METHOD Sides weight(u32 job) const { return Head::load(job < heads ? a.q_norm : a.k_norm, a.interleaved); }
  // x as it came, cos and sin of this lane's pairs. The new key and value go to the cache, too, `line` being where it begins.
  GPU_METHOD void place(u32 job, Sides x, const Sides& by, const Side& cos, const Side& sin, T* queries, bool appends, size_t line, i32 length) const {
    const bool is_query = job < heads, is_key = job == heads;
    if (!is_query && !appends) return;
    if (job <= heads) {
      if (a.q_norm) {
        const f32 factor = head_factor<T, 2 * Head::N>(x, (const T*)nullptr, D, 32, (f32)a.eps);
        UNROLL for (int j = 0; j < 2 * Head::N; j++) x.v[j] = narrow<T>(widen(x.v[j]) * factor * widen(by.v[j]));
      }
      UNROLL for (int j = 0; j < Head::N; j++) turn(x.v[j], x.v[Head::N + j], cos.v[j], sin.v[j]);
    }
    if (is_query) return store_query<T, D>(queries + job * StepPlan<D>::Q_PITCH, x, a.interleaved);
    Head::store(queries + StepPlan<D>::NEWEST + (is_key ? 0 : D), x, a.interleaved);
    Head::store((is_key ? a.k_cache : a.v_cache) + line + (size_t)(length - 1) * D, x, a.interleaved);
  }
};

// Heads of the item to come, by way of `stage`, with their angles behind them: for what comes to registers a wave would wait as long as
// for its keys, and so it would for copies of its own. `there` is up when both have come, in turns.
template <class T, int D, int Waves> struct StagedHeads {
  typedef StepHeads<T, D> Heads;
  typedef typename Heads::Head Head;
  const Heads all;
  const u32 kv_head;
  T* const stage;
  Signal* const there;
  const u32 wave;

  GPU_METHOD void open() const {
    if (!BULK_COPIES) return;
    if (lane_id() == 0) make_signal(there, 2);
    signals_made();
    wave_sync();
  }
  GPU_METHOD void bring(T* to, const T* from, const T* other, u32 elements) const {
    if (BULK_COPIES) {
      if (!one_lane()) return;
      expect_bytes(there, (other ? 4 : 2) * elements);
      copy_bulk((u32*)to, from, 2 * elements, there);
      if (other) copy_bulk((u32*)(to + elements), other, 2 * elements, there);
      return;
    }
    const u32 pieces = elements / 8;
    copy16_async(to + lane_id() * 8, lane_id() < pieces ? from + lane_id() * 8 : other + (lane_id() - pieces) * 8, true, lane_id() < (other ? 2 : 1) * pieces);
  }
  GPU_METHOD bool has_row() const { return wave < all.heads + 2; }
  GPU_METHOD void bring_angles(i32 position) const {
    if (has_row()) bring(stage + D, all.a.cos + all.angles(position), all.a.sin + all.angles(position), D / 2);
  }
  GPU_METHOD void bring_row(u32 b) const {
    if (has_row()) bring(stage, all.row(b, kv_head, wave), nullptr, D);
  }
  // What has come, and where there are fewer waves than heads the others.
  GPU_METHOD void place(const StepItem<T, D>& item, T* queries, u32 phase) const {
    if (!BULK_COPIES) copies_wait();
    else if (has_row()) await_signal(there, phase);
    wave_sync();
    if (!has_row()) return;
    typedef typename Heads::Side Side;
    const Side cos = ((const Side*)(stage + D))[lane_id()], sin = ((const Side*)(stage + D + D / 2))[lane_id()];
    const size_t line = item.b * all.a.cache_b + kv_head * all.a.cache_h;
    NO_UNROLL for (u32 job = wave; job < all.heads + 2; job += Waves) {
      typename Heads::Sides weight;
      if (all.a.q_norm && job <= all.heads) weight = all.weight(job);
      all.place(job, Head::load(job == wave ? stage : all.row(item.b, kv_head, job), all.a.interleaved), weight, cos, sin, queries, item.length > 0, line, item.length);
    }
  }
};

// What the waves of a block leave as one: the result, or part `split` of it. Code for an order makes that without longer.
// sources(half): as OrderedRows has them.
template <class T, int D, int Waves, bool Ordered, class Sources>
GPU_FN void join_waves(T* shared, const Stepping<T>& a, u32 heads, u32 b, u32 kv_head, u32 split, u32 parts, const f32* results, Sources sources) {
  typedef StepPlan<D> P;
  const u32 first_head = kv_head * heads, first_row = b * a.heads + first_head;
  const f32* const pairs = results + P::PAIRS_AT;
  f32* const scratch_pairs = a.scratch + (size_t)a.batch * a.heads * a.splits * D;
  // Four columns to a thread: of heads of 128 a wave has one.
  for (u32 i = tid_x(); i < heads * (D / 4); i += bdim_x()) {
    const u32 h = i / (D / 4), col = i % (D / 4) * 4;
    const size_t at = first_row + h, part_at = at * a.splits + split;
    f32 top = Limits<f32>::lowest(), total = 0, x[4] = {};
    Vec<f32, 2> pair[Waves];
    const f32* const own = results + h * P::PITCH + col;
    UNROLL for (int w = 0; w < Waves; w++) {
      pair[w] = *(const Vec<f32, 2>*)(pairs + h * 2 + w * P::LEFT);
      top = max_fast(top, pair[w].v[0]);
    }
    const f32 shift = top == Limits<f32>::lowest() ? 0 : top;
    UNROLL for (int w = 0; w < Waves; w++) {
      const f32 counts = approx_exp2(pair[w].v[0] - shift);
      const f32* const part = own + w * P::LEFT;
      const Vec<f32, 2> two[2] = {*(const Vec<f32, 2>*)part, *(const Vec<f32, 2>*)(part + 2)};
      total = m_fma(pair[w].v[1], counts, total);
      UNROLL for (int e = 0; e < 4; e++) x[e] = m_fma(two[e / 2].v[e % 2], counts, x[e]);
    }
    if (parts > 1) {
      *(Vec<f32, 4>*)(a.scratch + part_at * D + col) = Vec<f32, 4>{{x[0], x[1], x[2], x[3]}};
      if (col == 0) *(Vec<f32, 2>*)(scratch_pairs + part_at * 2) = Vec<f32, 2>{{top, total}};
      continue;
    }
    const f32 by = share_of(a, b, first_head + h, shift, total);
    Vec<T, 4> y;
    UNROLL for (int e = 0; e < 4; e++) y.v[e] = narrow<T>(x[e] * by);
    *(Vec<T, 4>*)(a.out + at * D + col) = y;
    if constexpr (D == 128 && Ordered) {
      Vec<u16, 4> bits;
      UNROLL for (int e = 0; e < 4; e++) bits.v[e] = y.v[e].bits;
      if (a.next.to) a.next.put128(bits, Vec<u16, 4>{}, b, (first_head + h) * D, sources((first_head + h) % 2));
    }
  }
  if (parts == 1 || !ends_last((u32*)shared, a.counters + b * a.kv_heads + kv_head, parts)) return;
  Attention<T> all{};
  all.sinks = a.sinks, all.out = a.out, all.heads = a.heads, all.tq = 1, all.dv = D;
  join_parts(all, Group{b, first_head, heads, heads}, 0, heads, a.scratch, scratch_pairs, a.splits, parts);
}

template <class T, int D, int Waves> GPU_FN void attention_step(T* shared, const Stepping<T>& a) {
  typedef StepPlan<D> P;
  typedef HeadPairs<T, D> Head;
  const u32 wave = tid_x() / 32, heads = a.heads / a.kv_heads;
  const u32 b = bid_x() / (a.splits * a.kv_heads), rest = bid_x() - b * (a.splits * a.kv_heads), kv_head = rest / a.splits, split = rest - kv_head * a.splits;
  const i64 count = a.lengths[b];
  const i32 length = count < 0 ? 0 : count < (i64)a.capacity ? (i32)count : (i32)a.capacity;
  const i32 first = a.window && (i32)a.window < length ? length - (i32)a.window : 0;
  const u32 tiles = (u32)(length - first + P::KEYS - 1) / P::KEYS, rounds_in_all = (tiles + Waves - 1) / Waves;
  const u32 parts = rounds_in_all <= 2 ? 1 : rounds_in_all < a.splits ? rounds_in_all : a.splits;
  if (split >= parts) return wait_for_previous();
  const u32 from = tiles * split / parts, to = tiles * (split + 1) / parts, rounds = (to - from + Waves - 1) / Waves;
  // The newest key is the last part's.
  const bool appends = split + 1 == parts && length > 0;
  const size_t line = b * a.cache_b + kv_head * a.cache_h;
  const T *const keys = a.k_cache + line, *const values = a.v_cache + line;
  T* const queries = shared;
  f32* const results = (f32*)(shared + P::SHARED);

  // Of a tile: its first key, and how many keys of the cache it has, without the newest.
  const auto first_of = [&](u32 tile) { return first + (i32)tile * P::KEYS; };
  const auto cached = [&](u32 tile) { return tile < to ? length - 1 - first_of(tile) : 0; };
  CacheTile<T, D> tile;
  const u32 begin = from + wave;
  if (cached(begin) > 0) {
    tile.load_keys(keys + first_of(begin) * D, cached(begin));
    tile.load_values(values + first_of(begin) * D, cached(begin));
  } else tile.clear();
  // The second tile of the wave on its way to shared memory: values, then keys.
  const u32 second = begin + Waves;
  const bool both = STEP_STAGED && second < to;
  typedef StagedTile<T, D> Staged;
  T* const staged = (T*)(results + Waves * P::LEFT) + wave * Staged::ELEMENTS;
  if (both) {
    const size_t at = second < to ? (size_t)first_of(second) * D : 0;
    Staged::load_keys(staged, keys + at, cached(second));
    Staged::load_values(staged, values + at, cached(second));
  }

  const StepHeads<T, D> all{a, heads};
  typename Head::Side cos, sin;
  typename Head::Sides weight;
  if (wave <= heads) {
    const size_t angles = all.angles(length - 1 - (a.padding ? (i32)a.padding[b] : 0)) + lane_id() * Head::N;
    cos = *(const typename Head::Side*)(a.cos + angles);
    sin = *(const typename Head::Side*)(a.sin + angles);
    if (a.q_norm) weight = all.weight(wave);
  }
  for (u32 i = tid_x(); i < P::NEWEST / 8; i += bdim_x()) ((Words4*)queries)[i] = Words4{};
  // Of the head that this wave joins.
  const u32 own_sources = a.next.to ? a.next.sources((kv_head * heads + wave) % 2) : 0;
  const f32 c = (f32)a.scale * LOG2_E;
  const T* const operands = queries + lane_id() / 4 * P::Q_PITCH + lane_id() % 4 * 8;
  barrier();
  wait_for_previous();
  if (wave < heads + 2) all.place(wave, Head::load(all.row(b, kv_head, wave), a.interleaved), weight, cos, sin, queries, appends, line, length);
  barrier();

  StepSums<T, D> sums;
  u32 round = 0;
  if (both) {
    const i32 end = begin < to ? length - first_of(begin) : 0, second_end = second < to ? length - first_of(second) : 0;
    const T* const newest = queries + P::NEWEST;
    copies_wait();
    wave_sync();
    if (appends && second + 1 == to) Staged::put_newest(staged, newest, newest + D, (u32)(second_end - 1));
    wave_sync();
    const u32 next = second + Waves;
    sums.add_pair(tile, Staged(staged), operands, c, end, second_end, true, [&] {
      if (cached(next) > 0) tile.load_keys(keys + first_of(next) * D, cached(next));
    });
    round = 2;
    if (cached(next) > 0) tile.load_values(values + first_of(next) * D, cached(next));
  }
  NO_UNROLL for (; round < rounds; round++) {
    const u32 own = begin + round * Waves, next = own + Waves;
    if (own >= to) break;
    const i32 end = own < to ? length - first_of(own) : 0;
    if (appends && own + 1 == to) tile.put_newest(queries + P::NEWEST, queries + P::NEWEST + D, end - 1);
    sums.add(tile, operands, c, end, round == 0, [&] {
      if (cached(next) > 0) tile.load_keys(keys + first_of(next) * D, cached(next));
    });
    if (cached(next) > 0) tile.load_values(values + first_of(next) * D, cached(next));
  }
  sums.leave(results + wave * P::LEFT, heads);
  barrier();
  const auto sources = [&](u32) { return own_sources; };
  if (a.next.to) join_waves<T, D, Waves, true>(shared, a, heads, b, kv_head, split, parts, results, sources);
  else join_waves<T, D, Waves, false>(shared, a, heads, b, kv_head, split, parts, results, sources);
}

// The same of a kv head of several sequences, one after the other. A wave has two tiles at a time, one in registers and the one behind it
// in shared memory. There is as little arithmetic as can be beside products: a wave has few others to hide behind.
template <class T, int D, int Waves> GPU_FN void attention_steps(T* shared, const Stepping<T>& a) {
  typedef StepPlan<D> P;
  typedef StepItem<T, D> Item;
  typedef StagedTile<T, D> Staged;
  const u32 wave = tid_x() / 32, heads = uniform(a.heads / a.kv_heads);
  // A block has one kv head of every `step`-th sequence.
  const u32 step = uniform(gdim_x() / a.kv_heads), first_b = uniform(bid_x() / a.kv_heads), kv_head = bid_x() - first_b * a.kv_heads;
  u32* const table = (u32*)(shared + Waves * (2 * D + 8));
  T* const tiles = shared + Waves * (2 * D + 8) + 128;
  // What waves share of an item, and what they leave of it: while some join one, others are at the next.
  const auto queries_of = [&](u32 turn) { return tiles + Waves * Staged::ELEMENTS + turn * (P::SHARED + Waves * 2 * P::LEFT); };
  T* const staged = tiles + wave * Staged::ELEMENTS;
  const StagedHeads<T, D, Waves> head{StepHeads<T, D>{a, heads}, kv_head, shared + wave * 2 * D, (Signal*)(shared + Waves * 2 * D) + wave, wave};
  head.open();
  // Lane i knows of item i.
  const u32 lane_b = first_b + lane_id() * step, known = lane_b < a.batch ? lane_b : first_b;
  const i64 known_count = a.lengths[known];
  const i32 known_padding = a.padding ? (i32)a.padding[known] : 0;
  const i32 known_length = known_count < 0 ? 0 : known_count < (i64)a.capacity ? (i32)known_count : (i32)a.capacity;
  const auto item_of = [&](u32 number) { return Item(a, first_b + number * step, (i32)uniform((u32)shfl(known_length, number))); };
  CacheTile<T, D> tile;
  const auto send = [&](u32 number, u32 pair, bool keys) {
    const Item of = item_of(number);
    const i32 count = of.cached(a, pair);
    if (count < 0) return;
    const T* const from = (keys ? a.k_cache : a.v_cache) + of.b * a.cache_b + kv_head * a.cache_h + (size_t)of.first_of(a, pair) * D;
    if (count > 0) keys ? tile.load_keys(from, count) : tile.load_values(from, count);
    keys ? Staged::load_keys(staged, from + P::KEYS * D, count - P::KEYS) : Staged::load_values(staged, from + P::KEYS * D, count - P::KEYS);
  };
  // Heads of an item come where those of the one before have been.
  const auto bring_angles = [&](u32 number) { head.bring_angles(item_of(number).length - 1 - shfl(known_padding, number)); };
  const auto place_heads = [&](u32 number) {
    head.place(item_of(number), queries_of(number % 2), number % 2);
    wave_sync();
    const u32 behind = first_b + (number + 1) * step;
    if (behind < a.batch) bring_angles(number + 1), head.bring_row(behind);
  };
  bring_angles(0);
  send(0, wave, true);
  send(0, wave, false);
  for (u32 turn = 0; turn < 2; turn++)
    for (u32 i = tid_x(); i < P::NEWEST / 8; i += bdim_x()) ((Words4*)queries_of(turn))[i] = Words4{};
  if (a.next.to && tid_x() < 64) table[tid_x()] = a.next.sources(tid_x() / 32);
  const f32 c = (f32)a.scale * LOG2_E;
  const u32 operands = lane_id() / 4 * P::Q_PITCH + lane_id() % 4 * 8;
  const Staged read(staged);
  barrier();
  wait_for_previous();
  head.bring_row(first_b);
  place_heads(0);
  barrier();
  // Pairs of all items are dealt to the waves in turn: this wave's next one.
  u32 own = wave;
  NO_UNROLL for (u32 number = 0;; number++) {
    const bool goes_on = first_b + (number + 1) * step < a.batch;
    const Item item = item_of(number);
    const T* const queries = queries_of(number % 2);
    const u32 rounds = (item.pairs + Waves - 1) / Waves, next_own = (own + Waves - item.pairs % Waves) % Waves;
    StepSums<T, D> sums;
    bool brought = false, is_first = true;
    // What is on its way to registers is waited for where a loop begins.
    NO_UNROLL for (u32 round = 0; round < rounds; round++) {
      if (own >= item.pairs) break;
      const i32 end = own < item.pairs ? item.length - item.first_of(a, own) : 0;
      copies_wait();
      wave_sync();
      if (own + 1 == item.pairs) {
        const T* const newest = queries + P::NEWEST;
        if (end <= P::KEYS) tile.put_newest(newest, newest + D, end - 1);
        else Staged::put_newest(staged, newest, newest + D, (u32)(end - 1 - P::KEYS));
      }
      wave_sync();
      own += Waves;
      // Behind its last pair of this item a wave takes its first one of the next.
      brought = own >= item.pairs;
      if (brought) own = next_own;
      const u32 of = brought ? number + 1 : number;
      const bool more = !brought || goes_on;
      sums.add_pair(tile, read, queries + operands, c, end, end - P::KEYS, is_first, [&] { if (more) send(of, own, true); });
      if (more) send(of, own, false);
      is_first = false;
      if (brought) break;
    }
    if (!brought) {
      own = next_own;
      if (goes_on) send(number + 1, own, true), send(number + 1, own, false);
    }
    f32* const results = (f32*)(queries + P::SHARED);
    sums.leave(results + wave * P::LEFT, heads);
    if (goes_on) place_heads(number + 1);
    // Behind it all waves have left the item.
    barrier();
    join_waves<T, D, Waves, true>(shared, a, heads, item.b, kv_head, 0, 1, results, [&](u32 half) { return table[32 * half + lane_id()]; });
    if (!goes_on) return;
  }
}
#endif

#define STEP_EACH(T, D) STEP(KERNEL_EARLY, attention_step, T, D, STEP_WAVES, 1) STEP(KERNEL_EARLY, attention_steps, T, D, STEPS_WAVES, STEPS_CROWD)
#define STEP_ALL(T) STEP_EACH(T, 64) STEP_EACH(T, 128)
GPU_bf16(STEP_ALL)
GPU_f16(STEP_ALL)

}  // namespace gpu
