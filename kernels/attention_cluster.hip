// One new position of few sequences with few kv heads and few keys, as attention_step.hip has it, where the device has clusters:
// attention_cluster_<D>_T; elsewhere its kernels are empty. What they are given: attention-step.h.
//
// Launch: CLUSTER_WAVES waves to each of STEP_CLUSTER blocks of a kv head, which are a cluster; a wave has 16 keys in registers, and 16 more
// by way of shared memory where there are many.
// Traffic: the cache once.
#include "attention-step.h"
#include "gpu/cluster.h"
namespace gpu {

#if GPU_TILE == TILE_MMA
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
    cluster_expect(signal, BLOCKS * HEADS * 4 * (COLUMNS + 2));
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
  const bool staged = a.capacity > STEP_CLUSTER * Waves * KEYS && begin + ALL < tiles;
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
    if (own >= tiles) break;
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

#define STEP_CLUSTERED(threads, crowd, ...) KERNEL_CLUSTER(threads, crowd, STEP_CLUSTER, __VA_ARGS__)
#define CLUSTER_ALL(T) STEP(STEP_CLUSTERED, attention_cluster, T, 64, CLUSTER_WAVES, 1) STEP(STEP_CLUSTERED, attention_cluster, T, 128, CLUSTER_WAVES, 1)
GPU_bf16(CLUSTER_ALL)
GPU_f16(CLUSTER_ALL)

}  // namespace gpu
