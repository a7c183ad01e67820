// One new position of every sequence, from the projections to what its heads see, in one launch: queries and the new key are
// normalised (where there are weights for it) and turned, key and value enter the cache, and the queries attend to all keys.
// attention_step_<D>_T: heads of exactly D, up to eight to a kv head, on mma.sync; for other units there is a launch for each
// (decode.hip, attention_decode.hip), and these kernels are empty.
//
// q, k, v: a row of each sequence, q_row, k_row and v_row elements apart. Caches: (batch, kv_heads, capacity, D), cache_b and cache_h
// elements apart. lengths[b] counts the new position. cos, sin: a row of D/2 for each position, which is the place minus padding[b].
//
// attention_steps_<D>_T: the same where there are more kv heads of all sequences than blocks, which take them one after the other.
// attention_cluster_<D>_T: the same of few kv heads with few keys, where the device has clusters.
//
// Launch: STEP_WAVES waves to a block, batch · kv_heads · splits blocks; STEPS_WAVES waves to each of `blocks` blocks of attention_steps,
// a multiple of kv_heads, which have one kv head of at most 32 sequences each; CLUSTER_WAVES waves to each of STEP_CLUSTER blocks of a kv
// head of attention_cluster. A wave takes 16 keys straight into the registers that products read, as nobody else needs them, and 16 more by
// way of shared memory, where the new key comes from, too: attention_steps always, attention_step where keys are many at first. Its first
// ones and angles are on their way before the kernel that makes q, k and v has ended, and those of the next kv head before the last one's
// are joined. Parts, scratch and counters as in attention_decode.hip, but a part is for STEP_WAVES · 16 keys, and up to twice as many are
// one: to join parts takes as long.
// Traffic: the cache once.
#include "attention-parts.h"
#include "gpu/cluster.h"
#include "gpu/uniform.h"
#include "gpu/warpgroup.h"
#include "head-norm.h"
#include "turn.h"
#include "x-order.h"
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
  f64 eps, scale;
  u32 splits;
  OrderedRows next;  // where results go in the order of what they are multiplied with, too, where `to` is not null
};

// Queries lie as operands of the unit do: of the heads 8 to 15 that there are not, those of the heads 0 to 7 are in place, but of the other
// half of each 32 elements, so that one operand goes with both halves of keys. Rows are four vectors of 16 bytes apart modulo eight: two of
// them are read at once.
template <int D> struct StepPlan {
  static constexpr int HEADS = 8, KEYS = 16, PAIRS = D / 64, Q_PITCH = D + 32, PITCH = D + 2;
  // In elements: where the new key and value begin behind the queries, and all of them.
  static constexpr int NEWEST = HEADS * Q_PITCH, SHARED = NEWEST + 2 * D;
  // Floats that a wave leaves, and where the pairs of its heads begin.
  static constexpr int PAIRS_AT = HEADS * PITCH, LEFT = PAIRS_AT + 2 * HEADS;
};

#if GPU_TILE == TILE_MMA
// 16 keys and values of a cache, as mma.m16n8k16 reads them in an order that makes vectors of 16 bytes of memory operands: of keys g
// and g + 8 (g = lane / 4) lane t of four has elements 8 t … of each 32; of keys 2 t, 2 t + 1, 2 t + 8, 2 t + 9 lane g has 8 g … of
// each 64 of the value.
template <class T, int D> struct CacheTile {
  Words4 k[2][D / 32], v[4][D / 64];
  GPU_FN u32 key(int i) { return lane_id() / 4 + 8 * i; }
  GPU_FN u32 value(int i) { return lane_id() % 4 * 2 + i % 2 + i / 2 * 8; }
  // `count` rows from `from` on, at least one: in place of those behind the last it comes again, which counts for nothing.
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
  // The newest from shared memory, row `newest` of the tile, and in place of those behind it, where a cache may hold anything.
  GPU_METHOD void put_newest(const T* new_key, const T* new_value, i32 newest) {
    UNROLL for (int i = 0; i < 2; i++)
      if ((i32)key(i) >= newest) UNROLL for (int s = 0; s < D / 32; s++) k[i][s] = *(const Words4*)(new_key + 32 * s + lane_id() % 4 * 8);
    UNROLL for (int i = 0; i < 4; i++)
      if ((i32)value(i) >= newest) UNROLL for (int h = 0; h < D / 64; h++) v[i][h] = *(const Words4*)(new_value + 64 * h + lane_id() / 4 * 8);
  }
};

// 16 keys and values on their way to shared memory, values first, without a register for them. Pieces of 16 bytes are mixed so that those
// that a product reads at once are in different banks. Places are sums of what a lane has once and constants.
template <class T, int D> struct StagedTile {
  static constexpr u32 ELEMENTS = 2 * StepPlan<D>::KEYS * D, ROWS = 256 / D, PIECES = D / 8;
  static constexpr int KEYS_AT = StepPlan<D>::KEYS * D;
  GPU_FN u32 key_piece(u32 row, u32 piece) { return piece ^ row % 2 * 4; }
  GPU_FN u32 value_piece(u32 row, u32 piece) { return piece ^ row / 2 % 4 * 2; }
  // Where this lane reads: of keys pieces 4 i + lane % 4 of row lane / 4, for even i and odd ones; of values piece lane / 4 of row 2 (lane % 4).
  const T *even, *odd, *values;
  GPU_METHOD explicit StagedTile(const T* staged) {
    const u32 g = lane_id() / 4, t = lane_id() % 4;
    even = staged + KEYS_AT + g * D + key_piece(g, t) * 8, odd = staged + KEYS_AT + g * D + key_piece(g, 4 + t) * 8;
    values = staged + 2 * t * D + value_piece(2 * t, g) * 8;
  }
  GPU_METHOD Words4 key(int n, int i) const { return *(const Words4*)((i % 2 ? odd : even) + n * 8 * D + i / 2 * 64); }
  GPU_METHOD Words4 value(int i, int h) const { return *(const Words4*)(values + (i % 2 + i / 2 * 8) * D + 64 * h); }
  // `count` rows from `from` on, and zeros behind them.
  GPU_FN void load_keys(T* staged, const T* from, i32 count) {
    const u32 row = lane_id() / PIECES;
    T* const to = staged + KEYS_AT + row * D + key_piece(row, lane_id() % PIECES) * 8;
    const T* const own = from + lane_id() * 8;
    UNROLL for (int i = 0; i < StepPlan<D>::KEYS / (int)ROWS; i++) copy16_async(to + i * 256, own + i * 256, (i32)row + i * (i32)ROWS < count, true);
  }
  GPU_FN void load_values(T* staged, const T* from, i32 count) {
    const u32 row = lane_id() / PIECES;
    const T* const own = from + lane_id() * 8;
    UNROLL for (int i = 0; i < StepPlan<D>::KEYS / (int)ROWS; i++)
      copy16_async(staged + row * D + value_piece(row + i * ROWS, lane_id() % PIECES) * 8 + i * 256, own + i * 256, (i32)row + i * (i32)ROWS < count, true);
  }
  // Row `row` of the newest, from shared memory.
  GPU_FN void put_newest(T* staged, const T* new_key, const T* new_value, u32 row) {
    for (u32 piece = lane_id(); piece < 2 * PIECES; piece += 32) {
      const u32 own = piece % PIECES;
      const bool is_key = piece < PIECES;
      *(Words4*)(staged + (is_key ? KEYS_AT : 0) + row * D + (is_key ? key_piece(row, own) : value_piece(row, own)) * 8) = *(const Words4*)((is_key ? new_key : new_value) + own * 8);
    }
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
    UNROLL for (int i = 0; i < D / 32; i++) {
      const Words4 left = *(const Words4*)(queries + 32 * i);
      UNROLL for (int half = 0; half < 2; half++) UNROLL for (int n = 0; n < 2; n++) mma_m16n8k16(T{}, s[n][half], left.v, tile.k[n][i].v + 2 * half);
    }
    between();
    f32 p[2][2], most = top;
    UNROLL for (int n = 0; n < 2; n++) UNROLL for (int e = 0; e < 2; e++) {
      p[n][e] = 8 * n + (i32)t * 2 + e < end ? (s[n][0][e] + s[n][1][2 + e]) * c : Limits<f32>::lowest();
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
  // The same of two tiles at once, so that neither waits for the other, of which the second is staged: its first `second_end` keys count.
  // `between` is called when all keys are done with, and all lanes have read theirs.
  template <class Between> GPU_METHOD void add_pair(const CacheTile<T, D>& tile, const StagedTile<T, D>& staged, const T* queries, f32 c, i32 end, i32 second_end, bool first, Between between) {
    const u32 t = lane_id() % 4;
    f32 s[2][2][4] = {};
    UNROLL for (int i = 0; i < D / 32; i++) {
      Words4 k[2];
      UNROLL for (int n = 0; n < 2; n++) k[n] = staged.key(n, i);
      // The second half of queries in place of the first, with sums in the same registers.
      const Words4 one = *(const Words4*)(queries + 32 * i), other{{one.v[1], one.v[1], one.v[3], one.v[3]}};
      UNROLL for (int half = 0; half < 2; half++) {
        const Words4& left = half ? other : one;
        UNROLL for (int n = 0; n < 2; n++) {
          mma_m16n8k16(T{}, s[0][n], left.v, tile.k[n][i].v + 2 * half);
          mma_m16n8k16(T{}, s[1][n], left.v, k[n].v + 2 * half);
        }
      }
    }
    f32 p[2][2][2], most = top;
    UNROLL for (int w = 0; w < 2; w++) UNROLL for (int n = 0; n < 2; n++) UNROLL for (int e = 0; e < 2; e++) {
      p[w][n][e] = 8 * n + (i32)t * 2 + e < (w ? second_end : end) ? s[w][n][e] * c : Limits<f32>::lowest();
      most = max_fast(most, p[w][n][e]);
    }
    most = max_fast(most, shfl_xor(most, 1));
    most = max_fast(most, shfl_xor(most, 2));
    const f32 shift = most == Limits<f32>::lowest() ? 0 : most, fix = approx_exp2(top - shift);
    top = most;
    f32 added = 0;
    u32 right[2][2];
    UNROLL for (int w = 0; w < 2; w++) UNROLL for (int n = 0; n < 2; n++) {
      UNROLL for (int e = 0; e < 2; e++) {
        p[w][n][e] = approx_exp2(p[w][n][e] - shift);
        added += p[w][n][e];
      }
      right[w][n] = pack2(T{}, p[w][n][0], p[w][n][1]);
    }
    wave_sync();
    between();
    sum = first ? added : m_fma(sum, fix, added);
    if (!first) {
      const f32 own[2] = {shfl(fix, 8 * t), shfl(fix, 8 * t + 4)};
      UNROLL for (int i = 0; i < D / 16; i++) UNROLL for (int e = 0; e < 4; e++) o[i][e] *= own[e % 2];
    }
    UNROLL for (int h = 0; h < D / 64; h++) {
      Words4 v[4];
      UNROLL for (int i = 0; i < 4; i++) v[i] = staged.value(i, h);
      UNROLL for (int j = 0; j < 4; j++) UNROLL for (int w = 0; w < 2; w++) {
        u32 left[4];
        UNROLL for (int pair = 0; pair < 2; pair++) {
          const u32 one = w ? v[2 * pair].v[j] : tile.v[2 * pair][h].v[j], other = w ? v[2 * pair + 1].v[j] : tile.v[2 * pair + 1][h].v[j];
          left[2 * pair] = (u32)(u16)one | (u32)(u16)other << 16;
          left[2 * pair + 1] = one >> 16 | other >> 16 << 16;
        }
        mma_m16n8k16(T{}, o[4 * h + j], left, right[w]);
      }
    }
    wave_sync();
  }
  // To shared memory: (HEADS, D) results, PITCH apart, and behind them of each head {top, sum}.
  GPU_METHOD void leave(f32* results, u32 heads) {
    const u32 g = lane_id() / 4, t = lane_id() % 4;
    f32* const pairs = results + StepPlan<D>::PAIRS_AT;
    UNROLL for (u32 mask = 1; mask < 4; mask *= 2) sum += shfl_xor(sum, mask);
    if (t == 0 && g < heads) *(Vec<f32, 2>*)(pairs + 2 * g) = Vec<f32, 2>{{top, sum}};
    UNROLL for (int i = 0; i < D / 16; i++) UNROLL for (u32 e = 0; e < 2; e++)
      if (2 * t + e < heads)
        *(Vec<f32, 2>*)(results + (2 * t + e) * StepPlan<D>::PITCH + i / 4 * 64 + 8 * g + i % 4 * 2) = Vec<f32, 2>{{o[i][e], o[i][2 + e]}};
  }
};

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

// Element `at` of a head among the operands: lane t of four has words 8 t / 2 … of each 32 elements, the first of both halves before the others.
template <int D> GPU_FN u32 operand_place(u32 at) { return at / 8 * 8 + at % 4 / 2 * 4 + at % 8 / 4 * 2 + at % 2; }
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

// What sums of a head are multiplied with, of which `shift` is the greatest score.
template <class T> GPU_FN f32 share_of(const Stepping<T>& a, u32 b, u32 head, f32 shift, f32 total) {
  // A sink that is greater than all scores leaves little of them.
  const f32 sink = a.sinks ? widen(a.sinks[head]) * LOG2_E : Limits<f32>::lowest(), greatest = max_fast(shift, sink);
  const f32 fix = a.sinks ? approx_exp2(shift - greatest) : 1.0f, sinks = a.sinks ? approx_exp2(sink - greatest) : 0.0f;
  // A head that sees no key gives zeros.
  return total == 0 && a.lengths[b] <= 0 ? 0.0f : fix * approx_recip(m_fma(total, fix, sinks));
}

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
  const bool both = STEP_STAGED && (GPU_TILE_LOCKSTEP ? from + Waves < to : second < to);
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
    if (GPU_TILE_LOCKSTEP && appends && begin + 1 == to) tile.put_newest(newest, newest + D, end - 1);
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
    // Where waves go by themselves, those without keys have done.
    if (!GPU_TILE_LOCKSTEP && own >= to) break;
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
  // Where waves go in step, those without keys multiply, too.
  if (GPU_TILE_LOCKSTEP) {
    tile.clear();
    for (u32 i = lane_id(); i < Staged::ELEMENTS / 8; i += 32) ((Words4*)staged)[i] = Words4{};
  }
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
      if (!GPU_TILE_LOCKSTEP && own >= item.pairs) break;
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
      brought = GPU_TILE_LOCKSTEP ? round + 1 == rounds : own >= item.pairs;
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

// A head of D elements over Lanes lanes, in two pieces of N: neighbouring pairs, or first sides and then second ones.
template <class T, int D, int Lanes> struct LaneHead {
  static constexpr int N = D / 2 / Lanes;
  typedef Vec<u32, N / 2> Piece;
  Piece piece[2];
  // Where this lane's pieces begin, and how far the second is from the first.
  GPU_FN u32 at(bool interleaved) { return lane_id() % Lanes * N * (interleaved ? 2 : 1); }
  GPU_FN u32 apart(bool interleaved) { return interleaved ? N : D / 2; }
  GPU_METHOD void load(const T* from, u32 far) { UNROLL for (int i = 0; i < 2; i++) piece[i] = *(const Piece*)(from + i * far); }
  GPU_METHOD void store(T* to, u32 far) const { UNROLL for (int i = 0; i < 2; i++) *(Piece*)(to + i * far) = piece[i]; }
  // As operands lie: of each eight elements the second pair of words between the first (operand_place).
  GPU_METHOD void store_operand(T* to, u32 from, u32 far) const {
    UNROLL for (u32 i = 0; i < 2; i++) {
      if constexpr (N == 8) *(Words4*)(to + from + i * far) = Words4{{piece[i].v[0], piece[i].v[2], piece[i].v[1], piece[i].v[3]}};
      else UNROLL for (u32 j = 0; j < N / 2; j++) *(u32*)(to + operand_place<D>(from + i * far + 2 * j)) = piece[i].v[j];
    }
  }
  GPU_METHOD void widen(f32 (&x)[2 * N]) const { UNROLL for (int j = 0; j < 2 * N; j++) x[j] = gpu::widen(T{(u16)(piece[j / N].v[j % N / 2] >> 16 * (j % 2))}); }
  GPU_METHOD void narrow(const f32 (&x)[2 * N]) { UNROLL for (int j = 0; j < 2 * N; j += 2) piece[j / N].v[j % N / 2] = pack2(T{}, x[j], x[j + 1]); }
  // As head_factor. Squares that overflow or vanish are rare.
  GPU_METHOD f32 factor(const f32 (&x)[2 * N], f32 eps) const {
    f32 squares = 0;
    UNROLL for (int j = 0; j < 2 * N; j++) squares = m_fma(x[j], x[j], squares);
    UNROLL for (u32 mask = Lanes / 2; mask; mask /= 2) squares += shfl_xor(squares, mask);
    if (wave_any(!(squares > 1e-20f && squares < 1e30f))) {
      Vec<f32, 2 * N> own;
      UNROLL for (int j = 0; j < 2 * N; j++) own.v[j] = x[j];
      return head_factor<f32, 2 * N>(own, (const f32*)nullptr, D, Lanes, eps);
    }
    return approx_rsqrt(m_fma(squares, 1.0f / D, eps));
  }
};

// N sums and {top, sum} of Parts parts as one.
template <int Parts, int N> GPU_FN Vec<f32, 2> join(const f32* pairs, u32 pairs_apart, const f32* results, u32 apart, Vec<f32, N>& sum) {
  Vec<f32, 2> pair[Parts];
  Vec<f32, N> x[Parts];
  UNROLL for (u32 i = 0; i < Parts; i++) {
    pair[i] = *(const Vec<f32, 2>*)(pairs + i * pairs_apart);
    x[i] = *(const Vec<f32, N>*)(results + i * apart);
  }
  f32 top = pair[0].v[0], total = 0;
  UNROLL for (u32 i = 1; i < Parts; i++) top = max_fast(top, pair[i].v[0]);
  UNROLL for (int e = 0; e < N; e++) sum.v[e] = 0;
  UNROLL for (u32 i = 0; i < Parts; i++) {
    const f32 counts = approx_exp2(pair[i].v[0] - top);
    total = m_fma(pair[i].v[1], counts, total);
    UNROLL for (int e = 0; e < N; e++) sum.v[e] = m_fma(x[i].v[e], counts, sum.v[e]);
  }
  return Vec<f32, 2>{{top, total}};
}

// The same by clusters of blocks that share the keys of one kv head, a tile to each of their waves as long as there are enough. A block joins its
// waves, and COLUMNS columns of all blocks, which send them there. It has a wave for each quarter of a multiprocessor, so that it stands beside
// blocks of the products before and behind it: its keys are there before the queries are, and the weights behind it soon after. What comes
// behind the wait runs once, and as long as it has instructions: there are no heads or parts less than eight.
template <class T, int D, int Waves> GPU_FN void attention_cluster(T* shared, const Stepping<T>& a) {
  constexpr u32 KEYS = StepPlan<D>::KEYS, HEADS = StepPlan<D>::HEADS, PITCH = D + 4, Q_PITCH = StepPlan<D>::Q_PITCH;
  constexpr u32 BLOCKS = GPU_CLUSTERS ? STEP_CLUSTER : 1, ALL = BLOCKS * Waves, COLUMNS = D / BLOCKS, LANES = 8;
  typedef LaneHead<T, D, LANES> Head;
  const u32 wave = tid_x() / 32, g = lane_id() / 4, t = lane_id() % 4, heads = a.heads / a.kv_heads;
  const u32 place = bid_x() / STEP_CLUSTER, rank = bid_x() % STEP_CLUSTER, b = place / a.kv_heads, kv_head = place - b * a.kv_heads;
  if (rank >= BLOCKS) return wait_for_previous();
  // Queries, the new key and value; of each wave (HEADS, D) results and {top, sum} of each head; of each block (HEADS, COLUMNS) and the
  // same; a second tile of each wave.
  T* const queries = shared;
  T* const newest = queries + HEADS * Q_PITCH;
  f32* const results = (f32*)(newest + 2 * D);
  f32* const pairs = results + Waves * HEADS * PITCH;
  f32* const sent = pairs + Waves * HEADS * 2;
  f32* const sent_pairs = sent + BLOCKS * HEADS * COLUMNS;
  Signal* const signal = (Signal*)(sent_pairs + BLOCKS * HEADS * 2);
  if (tid_x() == 0) {
    make_signal(signal, 1);
    signals_made();
    expect_bytes(signal, BLOCKS * HEADS * 4 * (COLUMNS + 2));
  }
  cluster_come();

  const i64 count = a.lengths[b];
  const i32 length = count < 0 ? 0 : count < (i64)a.capacity ? (i32)count : (i32)a.capacity;
  const i32 first = a.window && (i32)a.window < length ? length - (i32)a.window : 0;
  const u32 tiles = (u32)(length - first + KEYS - 1) / KEYS;
  const size_t line = b * a.cache_b + kv_head * a.cache_h;
  const T *const keys = a.k_cache + line, *const values = a.v_cache + line;
  // Of a tile: its first key, and how many keys of the cache it has, without the newest.
  const auto first_of = [&](u32 tile) { return first + (i32)(tile * KEYS); };
  const auto cached = [&](u32 tile) { return tile < tiles ? length - 1 - first_of(tile) : 0; };
  CacheTile<T, D> tile;
  const u32 begin = wave * BLOCKS + rank;
  if (cached(begin) > 0) {
    tile.load_keys(keys + first_of(begin) * D, cached(begin));
    tile.load_values(values + first_of(begin) * D, cached(begin));
  } else tile.clear();
  // The second tile of the wave on its way to shared memory, if there may be one: keys, then values.
  const bool staged = a.capacity > STEP_CLUSTER * Waves * KEYS && (GPU_TILE_LOCKSTEP ? ALL : begin + ALL) < tiles;
  T* const second = (T*)(signal + 2) + wave * 2 * KEYS * D;
  if (staged) UNROLL for (u32 i = 0; i < KEYS * D / 256; i++) {
    const u32 at = (i * 32 + lane_id()) * 8;
    const bool is = (i32)(at / D) < cached(begin + ALL);
    const size_t from = is ? (size_t)first_of(begin + ALL) * D + at : 0;
    copy16_async(second + at, keys + from, is, true);
    copy16_async(second + KEYS * D + at, values + from, is, true);
  }

  // A head to LANES lanes: queries, then key and value in the block of the last tile, which has the newest.
  const u32 job = tid_x() / LANES, far = Head::apart(a.interleaved), lane_at = Head::at(a.interleaved);
  const bool is_query = job < heads, is_new = (job == HEADS || job == HEADS + 1) && tiles && (tiles - 1) % BLOCKS == rank, works = wave * (32 / LANES) < HEADS + 2;
  Head x, by;
  f32 weight[2 * Head::N], cos[Head::N], sin[Head::N];
  const T* const row = (is_query ? a.q + b * a.q_row + (kv_head * heads + job) * D : job == HEADS + 1 ? a.v + b * a.v_row + kv_head * D : a.k + b * a.k_row + kv_head * D) + lane_at;
  if (works) {
    if (a.q_norm) by.load((is_query ? a.q_norm : a.k_norm) + lane_at, far), by.widen(weight);
    const i32 position = length - 1 - (a.padding ? (i32)a.padding[b] : 0);
    const size_t angles = (size_t)(position > 0 ? position : 0) * (D / 2) + lane_id() % LANES * Head::N;
    const auto side = [](const T* from, f32 (&to)[Head::N]) {
      const Vec<T, Head::N> x = *(const Vec<T, Head::N>*)from;
      UNROLL for (int j = 0; j < Head::N; j++) to[j] = widen(x.v[j]);
    };
    side(a.cos + angles, cos), side(a.sin + angles, sin);
  }
  // Waves without keys count for nothing, and heads that there are not see what is not looked at.
  constexpr f32 NOTHING = -1e30f;
  for (u32 i = heads * Q_PITCH / 8 + tid_x(); i < HEADS * Q_PITCH / 8; i += bdim_x()) ((Words4*)queries)[i] = Words4{};
  if (begin >= tiles) {
    for (u32 i = lane_id(); i < HEADS * PITCH / 4; i += 32) ((Vec<f32, 4>*)(results + wave * HEADS * PITCH))[i] = Vec<f32, 4>{};
    if (lane_id() < HEADS) *(Vec<f32, 2>*)(pairs + (wave * HEADS + lane_id()) * 2) = Vec<f32, 2>{{NOTHING, 0}};
  }
  const f32 c = (f32)a.scale * LOG2_E, eps = (f32)a.eps;
  cluster_wait();
  wait_for_previous();

  if (works) {
    x.load(row, far);
    Head y = x;
    f32 e[2 * Head::N];
    x.widen(e);
    if (a.q_norm) {
      const f32 factor = x.factor(e, eps);
      UNROLL for (int j = 0; j < 2 * Head::N; j++) e[j] = e[j] * factor * weight[j];
      y.narrow(e);
      y.widen(e);
    }
    const auto turn = [&](f32& p, f32& q, int j) {
      const f32 one = m_fma(p, cos[j], -(q * sin[j]));
      q = m_fma(p, sin[j], q * cos[j]);
      p = one;
    };
    if (a.interleaved) UNROLL for (int j = 0; j < Head::N; j++) turn(e[2 * j], e[2 * j + 1], j);
    else UNROLL for (int j = 0; j < Head::N; j++) turn(e[j], e[Head::N + j], j);
    if (job != HEADS + 1) x.narrow(e);
    if (is_query) x.store_operand(queries + job * Q_PITCH, lane_at, far);
    else if (is_new) {
      x.store(newest + (job - HEADS) * D + lane_at, far);
      x.store((job == HEADS ? a.k_cache : a.v_cache) + line + (size_t)(length - 1) * D + lane_at, far);
    }
  }
  barrier();

  StepSums<T, D> sums;
  if (staged) {
    copies_wait();
    wave_sync();
  }
  NO_UNROLL for (u32 round = 0; round < (tiles + ALL - 1) / ALL; round++) {
    const u32 own = begin + round * ALL, next = own + ALL;
    if (!GPU_TILE_LOCKSTEP && own >= tiles) break;
    const i32 end = own < tiles ? length - first_of(own) : 0;
    if (own + 1 == tiles) tile.put_newest(newest, newest + D, end - 1);
    const bool from_shared = staged && round == 0;
    const i32 left = from_shared ? (i32)KEYS : cached(next);
    sums.add(tile, queries + g * Q_PITCH + t * 8, c, end, round == 0, [&] {
      if (left > 0) tile.load_keys(from_shared ? second : keys + first_of(next) * D, left);
    });
    if (left > 0) tile.load_values(from_shared ? second + KEYS * D : values + first_of(next) * D, left);
  }
  UNROLL for (u32 mask = 1; mask < 4; mask *= 2) sums.sum += shfl_xor(sums.sum, mask);
  if (begin < tiles) {
    if (t == 0) *(Vec<f32, 2>*)(pairs + (wave * HEADS + g) * 2) = Vec<f32, 2>{{sums.top, sums.sum}};
    UNROLL for (u32 e = 0; e < 2; e++) UNROLL for (u32 i = 0; i < D / 16; i += 2)
      *(Vec<f32, 4>*)(results + (wave * HEADS + 2 * t + e) * PITCH + i / 4 * 64 + 8 * g + i % 4 * 2) =
          Vec<f32, 4>{{sums.o[i][e], sums.o[i][2 + e], sums.o[i + 1][e], sums.o[i + 1][2 + e]}};
  }
  barrier();
  // Four columns of a head to a thread, those for one block behind those for another.
  constexpr u32 PIECES = COLUMNS / 4, TIMES = HEADS * D / 4 / (Waves * 32);
  Vec<f32, 2> own_pair[TIMES];
  Vec<f32, 4> own[TIMES];
  UNROLL for (u32 i = 0; i < TIMES; i++) {
    const u32 at = tid_x() + i * Waves * 32, h = at / PIECES % HEADS, column = at / (PIECES * HEADS) * COLUMNS + at % PIECES * 4;
    own_pair[i] = join<Waves>(pairs + h * 2, HEADS * 2, results + h * PITCH + column, HEADS * PITCH, own[i]);
  }
  UNROLL for (u32 i = 0; i < TIMES; i++) {
    const u32 at = tid_x() + i * Waves * 32, h = at / PIECES % HEADS, to = at / (PIECES * HEADS);
    cluster_send(sent + (rank * HEADS + h) * COLUMNS + at % PIECES * 4, own[i], to, signal);
    if (at % PIECES == 0) cluster_send(sent_pairs + (rank * HEADS + h) * 2, own_pair[i], to, signal);
  }
  cluster_await(signal);
  for (u32 i = tid_x(); i < heads * COLUMNS; i += bdim_x()) {
    const u32 h = i / COLUMNS, head = kv_head * heads + h;
    Vec<f32, 1> sum;
    const Vec<f32, 2> pair = join<BLOCKS>(sent_pairs + h * 2, HEADS * 2, sent + i, HEADS * COLUMNS, sum);
    a.out[((size_t)b * a.heads + head) * D + rank * COLUMNS + i % COLUMNS] = narrow<T>(sum.v[0] * share_of(a, b, head, pair.v[0], pair.v[1]));
  }
}
#endif

#if GPU_TILE == TILE_MMA
#define STEP_BODY(name, T, D, waves) \
  DYNAMIC_SHARED(T, shared); \
  name<T, D, waves>(shared, Stepping<T>{q, k, v, cos, sin, q_norm, k_norm, sinks, lengths, padding, out, k_cache, v_cache, scratch, counters, (u32)batch, \
                                        (u32)heads, (u32)kv_heads, (u32)capacity, q_row, k_row, v_row, cache_b, cache_h, (u32)window, interleaved, eps, \
                                        scale, splits, OrderedRows{(u16*)ordered, nullptr, 1, order, (u32)(heads * D), (u32)batch}});
#else
#define STEP_BODY(name, T, D, waves)
#endif
#define STEP_CLUSTERED(threads, crowd, ...) KERNEL_CLUSTER(threads, crowd, STEP_CLUSTER, __VA_ARGS__)
#define STEP(kind, name, T, D, waves, crowd) \
  kind(waves * 32, crowd, name##_##D##_##T, const T* q, const T* k, const T* v, const T* cos, const T* sin, const T* q_norm, const T* k_norm, \
               const T* sinks, const i64* lengths, const i64* padding, T* out, T* ordered, T* k_cache, T* v_cache, f32* scratch, u32* counters, size_t batch, size_t heads, \
               size_t kv_heads, size_t capacity, size_t q_row, size_t k_row, size_t v_row, size_t cache_b, size_t cache_h, size_t window, f64 eps, f64 scale, \
               u32 interleaved, u32 splits, u32 order) { \
    STEP_BODY(name, T, D, waves) \
  }
#define STEP_EACH(T, D) \
  STEP(KERNEL_EARLY, attention_step, T, D, STEP_WAVES, 1) STEP(KERNEL_EARLY, attention_steps, T, D, STEPS_WAVES, STEPS_CROWD) \
  STEP(STEP_CLUSTERED, attention_cluster, T, D, CLUSTER_WAVES, 1)
#define STEP_ALL(T) STEP_EACH(T, 64) STEP_EACH(T, 128)
GPU_bf16(STEP_ALL)
GPU_f16(STEP_ALL)

}  // namespace gpu
