// What kernels of one new position of every sequence share (attention_step.hip, attention_cluster.hip): what they are given, tiles of keys and
// values, and a wave's sums over them.
//
// q, k, v: a row of each sequence, q_row, k_row and v_row elements apart. Caches: (batch, kv_heads, capacity, D), cache_b and cache_h
// elements apart. lengths[b] counts the new position. cos, sin: a row of D/2 for each position, which is the place minus padding[b].
#ifndef WICK_ATTENTION_STEP_H
#define WICK_ATTENTION_STEP_H
#include "attention-parts.h"
#include "gpu/uniform.h"
#include "gpu/warpgroup.h"
#include "head-norm.h"
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

// Element `at` of a head among the operands: lane t of four has words 8 t / 2 … of each 32 elements, the first of both halves before the others.
template <int D> GPU_FN u32 operand_place(u32 at) { return at / 8 * 8 + at % 4 / 2 * 4 + at % 8 / 4 * 2 + at % 2; }

// What sums of a head are multiplied with, of which `shift` is the greatest score.
template <class T> GPU_FN f32 share_of(const Stepping<T>& a, u32 b, u32 head, f32 shift, f32 total) {
  // A sink that is greater than all scores leaves little of them.
  const f32 sink = a.sinks ? widen(a.sinks[head]) * LOG2_E : Limits<f32>::lowest(), greatest = max_fast(shift, sink);
  const f32 fix = a.sinks ? approx_exp2(shift - greatest) : 1.0f, sinks = a.sinks ? approx_exp2(sink - greatest) : 0.0f;
  // A head that sees no key gives zeros.
  return total == 0 && a.lengths[b] <= 0 ? 0.0f : fix * approx_recip(m_fma(total, fix, sinks));
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
#define STEP(kind, name, T, D, waves, crowd) \
  kind(waves * 32, crowd, name##_##D##_##T, const T* q, const T* k, const T* v, const T* cos, const T* sin, const T* q_norm, const T* k_norm, \
               const T* sinks, const i64* lengths, const i64* padding, T* out, T* ordered, T* k_cache, T* v_cache, f32* scratch, u32* counters, size_t batch, size_t heads, \
               size_t kv_heads, size_t capacity, size_t q_row, size_t k_row, size_t v_row, size_t cache_b, size_t cache_h, size_t window, f64 eps, f64 scale, \
               u32 interleaved, u32 splits, u32 order) { \
    STEP_BODY(name, T, D, waves) \
  }

}  // namespace gpu
#endif
