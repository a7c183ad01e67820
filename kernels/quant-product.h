// The product of many rows with quantized weights: out (rows, n) = x (rows, k) · W (n, k)ᵀ, sums in f32. The weights are the left
// operand, decoded on their way into slices (quant-feed.h) and rounded once; of x nothing is rounded. f32 is multiplied as halves in
// three terms where there is a matrix unit: x comes split, 32 upper halves before their rests (split_f32), and weights are split here.
//
// Blocks make tiles of BM × BN of the turned result: `whole` of them each alone, and of the others equal shares, whatever tiles
// those begin and end in; the last of those that share a tile adds up what they left in memory, in their order.
#ifndef WICK_QUANT_PRODUCT_H
#define WICK_QUANT_PRODUCT_H
#include "product.h"
#include "quant-feed.h"
namespace gpu {

// Rows of x that a block takes: few and some of them are bound by memory, many by arithmetic.
enum Rows { FEW, SOME, MANY };

template <class T> struct IsF32 { static constexpr bool value = false; };
template <> struct IsF32<f32> { static constexpr bool value = true; };
template <bool, class A, class B> struct PickType { typedef A type; };
template <class A, class B> struct PickType<false, A, B> { typedef B type; };

#if GPU_WARPGROUPS
// WideProduct (product.h) where the left operand is decoded: that takes as long as a slice's products, so the next slice is decoded
// while they are under way, before its right operand is waited for. Of the left operand there are LEFT slices, of the right STAGES.
template <class T, int BN, int LEFT, int STAGES, class FeedA, class FeedB> struct DecodedProduct {
  static constexpr int BK = WIDE_ROW, AHEAD = STAGES - 2;
  typedef gpu::Terms<FeedA::SPLIT, BK> Terms;
  static_assert(STAGES >= 3 && LEFT >= 3, "one slice written, one multiplied, one not yet waited for");

  template <class Sink> GPU_FN void run(T* shared, const FeedA& fa, const FeedB& fb, u32 depth, const Sink& sink, size_t row0, size_t col0) {
    const u32 group = tid_x() / 128, slices = (depth + BK - 1) / BK;
    T* const sa = shared;
    T* const sb = shared + LEFT * FeedA::SIZE;
    f32 c[BN / 2];
    UNROLL for (int e = 0; e < BN / 2; e++) c[e] = 0;
    const auto send = [&](u32 s, u32 slot) {
      if (s < slices) fb.copy(sb + slot * FeedB::SIZE, s * BK);
      copies_bunch();
    };
    NO_UNROLL for (u32 s = 0; s < AHEAD; s++) send(s, s);
    u32 left = 0, now = 0, next = AHEAD;
    NO_UNROLL for (u32 s = 0; s < slices; s++) {
      fa.land(sa + left * FeedA::SIZE, s * BK);
      copies_wait_but<AHEAD - 1>();
      warpgroup_publish();
      barrier();
      const WarpgroupRef a = warpgroup_ref(sa + left * FeedA::SIZE + group * 64 * WIDE_ROW, 8 * WIDE_ROW, BK * WIDE_ROW);
      const WarpgroupRef b = warpgroup_ref(sb + now * FeedB::SIZE, 8 * WIDE_ROW, BK * WIDE_ROW);
      warpgroup_begin();
      UNROLL for (int term = 0; term < Terms::COUNT; term++) warpgroup_multiply<0, 0>(T{}, c, a.plus(Terms::a(term)), b.plus(Terms::b(term)), true);
      warpgroup_commit();
      send(s + AHEAD, next);
      fa.next(s + 1);
      warpgroup_wait<1>();
      left = left + 1 == LEFT ? 0 : left + 1;
      now = now + 1 == STAGES ? 0 : now + 1;
      next = next + 1 == STAGES ? 0 : next + 1;
    }
    warpgroup_wait<0>();
    UNROLL for (int e = 0; e < BN / 2; e++) warpgroup_hold(c[e]);
    const size_t row = row0 + group * 64 + tid_x() % 128 / 32 * 16 + tid_x() % 32 / 4, col = col0 + tid_x() % 4 * 2;
    UNROLL for (int e = 0; e < BN / 2; e += 2) {
      const f32 x[2] = {c[e], c[e + 1]};
      sink.put(row + e / 2 % 2 * 8, col + e / 4 * 8, x);
    }
    barrier();  // the next tile's slices go where this one's are read
  }
};
#endif

template <class Q, class T, Rows ROWS> struct QuantBlock {
  static constexpr bool SPLIT = IsF32<T>::value && tile_t<bf16>::REGISTERS;
  typedef typename PickType<SPLIT, bf16, T>::type E;  // what is multiplied
  typedef tile_t<E> Tile;
  static constexpr bool GROUPS = GPU_WARPGROUPS && sizeof(E) == 2, ASYNC = Tile::ASYNC;
  static constexpr int BK = ASYNC ? QUANT_ASYNC_SLICE : SPLIT ? 2 * QUANT_SLICE : QUANT_SLICE;
  static constexpr int BM = GROUPS && ROWS == MANY ? 2 * QUANT_LINES : QUANT_LINES;
  static constexpr int BN = ROWS == FEW ? QUANT_FEW : ROWS == SOME || (!ASYNC && IsF32<T>::value) ? QUANT_SOME : GROUPS ? 4 * QUANT_SOME : 2 * QUANT_SOME;
  static constexpr int PLACES = !ASYNC ? 1 : GROUPS && ROWS == FEW ? 3 : 2;
  static constexpr int THREADS = 2 * BM, WAVES = THREADS / Tile::LANES, ACROSS = WAVES > 2 && ROWS != FEW ? 2 : 1;
  typedef QuantFeed<Q, E, BM, BK, THREADS, 1, PLACES, GROUPS, SPLIT> FeedA;
  typedef DenseFeed<E, BN, BK, ALONG_K, THREADS, GROUPS> FeedB;
  // Slices of either operand.
  static constexpr int LEFT = GROUPS ? 3 : 2, ROOM = QUANT_ROOM - LEFT * FeedA::SIZE * (int)sizeof(E) - PLACES * (int)FeedA::PLACE_WORDS * 4;
  static constexpr int RIGHT = !GROUPS ? 2 : ROWS != SOME && ROOM >= 4 * FeedB::SIZE * (int)sizeof(E) ? 4 : 3;
#if GPU_WARPGROUPS
  typedef typename PickType<GROUPS, DecodedProduct<E, BN, LEFT, GROUPS ? RIGHT : 3, FeedA, FeedB>,
                            TileProduct<E, BM, BN, BK, BM * ACROSS / WAVES, BN / ACROSS, 2, FeedA, FeedB>>::type Product;
#else
  typedef TileProduct<E, BM, BN, BK, BM * ACROSS / WAVES, BN / ACROSS, 2, FeedA, FeedB> Product;
#endif
};

// Results of a tile whose rows are features: turned, and rounded.
template <class T> struct TurnedSink {
  T* out;
  size_t rows, n;
  template <int R> GPU_METHOD void put(size_t feature, size_t row, const f32 (&x)[R]) const {
    if (feature < n) UNROLL for (int r = 0; r < R; r++)
      if (row + r < rows) out[(row + r) * n + feature] = narrow<T>(x[r]);
  }
};
// The same of a part of k: the tile itself.
template <int BM> struct PartSink {
  f32* part;
  template <int R> GPU_METHOD void put(size_t feature, size_t row, const f32 (&x)[R]) const {
    UNROLL for (int r = 0; r < R; r++) part[(row + r) * BM + feature] = x[r];
  }
};

template <class Q, class T, Rows ROWS> struct QuantProduct {
  typedef QuantBlock<Q, T, ROWS> B;
  typedef typename B::E E;
  static constexpr int BM = B::BM, BN = B::BN;
  static constexpr u32 TILE = BM * BN;

  E* shared;
  Stored stored;
  const E* x;
  const u8* w;
  T* out;
  f32* parts;
  u32* counters;
  size_t rows, n;
  u32 k, units, across;

  template <class Sink> GPU_METHOD void range(size_t line, size_t column, u32 from, u32 to, const Sink& sink, size_t row0, size_t col0) {
    constexpr u32 WIDTH = B::SPLIT ? 2 : 1;
    const u32 begin = from * QUANT_FAR, end = to == units ? k : to * QUANT_FAR;
    const typename B::FeedA fa(Blocks{w, n, k, begin, end}, stored, line);
    stored.before += (u32)ceil_div(end - begin, B::FeedA::CHUNK);
    const typename B::FeedB fb(Operand<E>{x + (size_t)begin * WIDTH, rows, (size_t)(end - begin) * WIDTH, (i64)k * WIDTH}, column);
    B::Product::run(shared, fa, fb, (end - begin) * WIDTH, sink, row0, col0);
  }
  GPU_METHOD void whole(u32 tile) {
    const size_t line = (size_t)(tile / across) * BM, column = (size_t)(tile % across) * BN;
    range(line, column, 0, units, TurnedSink<T>{out, rows, n}, line, column);
  }

  // The shares of `blocks` blocks in `all` units of work: where one begins, and whose a unit is.
  struct Shares {
    u64 all;
    u32 blocks;
    GPU_METHOD u32 begin(u32 block) const { return (u32)divide(all * block, blocks); }
    GPU_METHOD u32 of(u32 unit) const { return (u32)divide((u64)(unit + 1) * blocks - 1, all); }
  };
  GPU_METHOD f32* part(const Shares& s, u32 block, u32 tile) const { return parts + (size_t)(block * 2 + (s.begin(block) / units != tile)) * TILE; }
  GPU_METHOD void shared_tile(const Shares& s, u32 tile, u32 from, u32 to, u32 before) {
    const size_t line = (size_t)((before + tile) / across) * BM, column = (size_t)((before + tile) % across) * BN;
    range(line, column, from, to, PartSink<BM>{part(s, bid_x(), tile)}, 0, 0);
    const u32 first = s.of(tile * units), last = s.of((tile + 1) * units - 1);
    // What blocks wrote before they counted is there for the one that counts last.
    device_fence();
    barrier();
    u32* const is_last = (u32*)shared;
    if (tid_x() == 0) {
      *is_last = atomic_add(counters + first, 1u) == last - first;
      if (*is_last) counters[first] = 0;
    }
    barrier();
    if (*is_last) {
      device_fence();
      for (u32 i = tid_x() * 4; i < TILE; i += B::THREADS * 4) {
        f32 sum[4] = {};
        for (u32 b = first; b <= last; b++) {
          const Vec<f32, 4> add = *(const Vec<f32, 4>*)(part(s, b, tile) + i);
          UNROLL for (int j = 0; j < 4; j++) sum[j] += add.v[j];
        }
        const size_t row = column + i / BM, feature = line + i % BM;
        if (row < rows) UNROLL for (int j = 0; j < 4; j++)
          if (feature + j < n) out[row * n + feature + j] = narrow<T>(sum[j]);
      }
    }
    barrier();
  }

  GPU_METHOD void run(u32 alone) {
    const u32 tiles = (u32)(ceil_div(n, (size_t)BM) * across);
    for (u32 tile = bid_x(); tile < alone; tile += gdim_x()) whole(tile);
    if (alone == tiles) return;
    const Shares s{(u64)(tiles - alone) * units, gdim_x()};
    const u32 end = s.begin(bid_x() + 1);
    for (u32 unit = s.begin(bid_x()); unit < end;) {
      const u32 tile = unit / units, from = unit - tile * units, to = end - unit < units - from ? from + end - unit : units;
      if (to - from == units) whole(alone + tile);
      else shared_tile(s, tile, from, to, alone);
      unit += to - from;
    }
  }
};

}  // namespace gpu
#endif
