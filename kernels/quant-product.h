// The product of many rows with quantized weights: out (rows, n) = x (rows, k) · W (n, k)ᵀ, sums in f32. The weights are the left
// operand, decoded on their way into slices (quant-feed.h) and rounded once; of x nothing is rounded. f32 is multiplied as halves in
// three terms where there is a matrix unit: x comes split, 32 upper halves before their rests (split_f32), and weights are split here.
//
// Blocks make tiles of BM × BN of the turned result: `whole` of them each alone, and of the others equal shares, whatever tiles
// those begin and end in; the last of those that share a tile adds up what they left in memory, in their order.
#ifndef WICK_QUANT_PRODUCT_H
#define WICK_QUANT_PRODUCT_H
#include "product.h"
#include "quant-rows.h"
namespace gpu {

// Rows of x that a block takes: few and some of them are bound by memory, many by arithmetic.
enum Rows { FEW, SOME, MANY };

template <class T> struct IsF32 { static constexpr bool value = false; };
template <> struct IsF32<f32> { static constexpr bool value = true; };
template <bool, class A, class B> struct PickType { typedef A type; };
template <class A, class B> struct PickType<false, A, B> { typedef B type; };

// Slices of both operands in shared memory (product.h).
template <class Q, class T, Rows ROWS> struct TileBlock {
  static constexpr bool SPLIT = IsF32<T>::value && tile_t<bf16>::REGISTERS;
  typedef typename PickType<SPLIT, bf16, T>::type E;  // what is multiplied
  typedef tile_t<E> Tile;
  static constexpr bool ASYNC = Tile::ASYNC, GROUPS = GPU_WARPGROUPS && ASYNC && ROWS == MANY;
  static constexpr int BK = ASYNC ? QUANT_ASYNC_SLICE : SPLIT ? 2 * QUANT_SLICE : QUANT_SLICE;
  static constexpr int BM = GROUPS ? 2 * QUANT_LINES : QUANT_LINES;
  // WMMA's operands leave no registers for more columns, nor does shared memory for those of floats.
  static constexpr int TIMES = GROUPS ? 4 : ASYNC || (GPU_TILE == TILE_MFMA && !IsF32<T>::value) ? 2 : 1;
  static constexpr int BN = ROWS == FEW ? QUANT_FEW : ROWS == SOME ? QUANT_SOME : TIMES * QUANT_SOME;
  static constexpr int STAGES = GROUPS ? 3 : ASYNC ? 2 : 1, PLACES = ASYNC ? 2 : 1;
  static constexpr int THREADS = 2 * BM, WAVES = THREADS / Tile::LANES, ACROSS = WAVES > 2 && ROWS != FEW ? 2 : 1;
  typedef QuantFeed<Q, E, BM, BK, THREADS, PLACES, GROUPS, SPLIT> FeedA;
  typedef DenseFeed<E, BN, BK, ALONG_K, THREADS, GROUPS> FeedB;
  static constexpr u32 SLICES_SIZE = STAGES * (FeedA::SIZE + FeedB::SIZE);
#if GPU_WARPGROUPS
  typedef typename PickType<GROUPS, WideProduct<E, BM, BN, STAGES < 3 ? 3 : STAGES, FeedA, FeedB>,
                            TileProduct<E, BM, BN, BK, BM * ACROSS / WAVES, BN / ACROSS, STAGES, FeedA, FeedB>>::type Product;
#else
  typedef TileProduct<E, BM, BN, BK, BM * ACROSS / WAVES, BN / ACROSS, STAGES, FeedA, FeedB> Product;
#endif
  // The product of a tile's lines and columns.
  template <class Sink> GPU_FN void run(E* shared, const Blocks& blocks, size_t line, const Operand<E>& x, size_t column, const Sink& sink) {
    const FeedA fa(blocks, (u32*)(shared + SLICES_SIZE), line);
    const FeedB fb(x, column);
    Product::run(shared, fa, fb, (u32)x.depth, sink, 0, 0);
  }
  static constexpr u32 BYTES = SLICES_SIZE * sizeof(E) + PLACES * FeedA::PLACE_WORDS * 4;
};
#if GPU_TILE == TILE_MMA
// Few and some rows (quant-rows.h).
template <class Q, class T, int ROWS> struct RowsBlock {
  static constexpr bool SPLIT = IsF32<T>::value;
  typedef typename PickType<SPLIT, bf16, T>::type E;
  static constexpr int BM = 2 * QUANT_LINES, BN = ROWS, THREADS = 2 * BM;
  template <int STAGES> struct With {
    typedef RowsProduct<Q, E, BM, BN, STAGES, SPLIT> Product;
    static constexpr u32 X_SIZE = STAGES * Product::X_SIZE, BYTES = X_SIZE * sizeof(E) + STAGES * Product::Weights::PLACE_WORDS * 4;
  };
  typedef With<With<3>::BYTES <= GPU_SHARED_KB * 1024 ? 3 : 2> Fitting;
  static constexpr u32 BYTES = Fitting::BYTES;
  template <class X, class Sink> GPU_FN void run(E* shared, const Blocks& blocks, size_t line, const X& x, size_t column, const Sink& sink) {
    const typename Fitting::Product::Weights weights(blocks, (u32*)(shared + Fitting::X_SIZE), line);
    Fitting::Product::run(shared, weights, x, column, sink);
  }
};
template <class Q, class T, Rows ROWS> struct QuantBlock : PickType<ROWS == MANY, TileBlock<Q, T, ROWS>, RowsBlock<Q, T, ROWS == FEW ? QUANT_FEW : QUANT_SOME>>::type {};
#else
template <class Q, class T, Rows ROWS> struct QuantBlock : TileBlock<Q, T, ROWS> {};
#endif

// N neighbouring results, where there are such.
template <int N, class T> GPU_FN void put_results(T* out, size_t rows, size_t n, size_t row, size_t feature, const Vec<T, N>& x) {
  if (row >= rows) return;
  T* const to = out + row * n + feature;
  if (n % N == 0 && vector_aligned<N>(out)) {
    if (feature < n) *(Vec<T, N>*)to = x;
  } else UNROLL for (int i = 0; i < N; i++)
    if (feature + i < n) to[i] = x.v[i];
}
// Results of a tile whose rows are features, by their places in it: turned and rounded or, of a part of k, as they are.
template <class T, int BM, int BN, int THREADS> struct TurnedSink {
  static constexpr bool IN_ROWS = false;
  static constexpr int V = 16 / sizeof(T), PITCH = BM + V;
  f32* part;
  T* staged;  // shared memory
  T* out;
  size_t rows, n, line, column;
  template <int R> GPU_METHOD void put(size_t feature, size_t row, const f32 (&x)[R]) const {
    UNROLL for (int r = 0; r < R; r++) {
      if (part) part[(row + r) * BM + feature] = x[r];
      else put_results<1>(out, rows, n, column + row + r, line + feature, Vec<T, 1>{{narrow<T>(x[r])}});
    }
  }
  // The same of one result after another: they gather in shared memory, from where neighbours leave together.
  GPU_METHOD void bring(u32 feature, u32 row, f32 x) const {
    if (part) part[row * BM + feature] = x;
    else staged[row * PITCH + feature] = narrow<T>(x);
  }
  GPU_METHOD void leave() const {
    if (part) return;
    barrier();
    UNROLL_SOME for (u32 i = tid_x(); i < BN * (BM / V); i += THREADS) {
      const u32 row = i / (BM / V), feature = i % (BM / V) * V;
      put_results<V>(out, rows, n, column + row, line + feature, load_shared<V>(staged, row * PITCH + feature));
    }
  }
};

template <class Q, class T, Rows ROWS> struct QuantProduct {
  typedef QuantBlock<Q, T, ROWS> B;
  typedef typename B::E E;
  static constexpr int BM = B::BM, BN = B::BN;
  static constexpr u32 TILE = BM * BN;

  E* shared;
  const E* x;
  const u8* w;
  T* out;
  f32* parts;
  u32* counters;
  size_t rows, n;
  u32 k, units, across;

  // The part of a tile that units `from` … `to` of k make, to `part` or, of all of k, to where it belongs.
  GPU_METHOD void multiply(u32 tile, u32 from, u32 to, f32* part) const {
    constexpr u32 WIDTH = B::SPLIT ? 2 : 1;
    const size_t line = (size_t)(tile / across) * BM, column = (size_t)(tile % across) * BN;
    const u32 begin = from * QUANT_FAR, end = to == units ? k : to * QUANT_FAR;
    const Operand<E> right{x + (size_t)begin * WIDTH, rows, (size_t)(end - begin) * WIDTH, (i64)k * WIDTH};
    B::run(shared, Blocks{w, n, k, begin, end}, line, right, column, TurnedSink<T, BM, BN, B::THREADS>{part, (T*)shared, out, rows, n, line, column});
  }

  // The shares of `blocks` blocks in `all` units of work: where one begins, and whose a unit is.
  struct Shares {
    u64 all;
    u32 blocks;
    GPU_METHOD u32 begin(u32 block) const { return (u32)divide(all * block, blocks); }
    GPU_METHOD u32 of(u32 unit) const { return (u32)divide((u64)(unit + 1) * blocks - 1, all); }
  };
  GPU_METHOD f32* part(const Shares& s, u32 block, u32 tile) const { return parts + (size_t)(block * 2 + (s.begin(block) / units != tile)) * TILE; }
  // What the blocks left of a tile that they share, by the last of them.
  GPU_METHOD void join(const Shares& s, u32 tile, u32 before) const {
    const size_t line = (size_t)((before + tile) / across) * BM, column = (size_t)((before + tile) % across) * BN;
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
        Vec<T, 4> y;
        UNROLL for (int j = 0; j < 4; j++) y.v[j] = narrow<T>(sum[j]);
        put_results<4>(out, rows, n, column + i / BM, line + i % BM, y);
      }
    }
    barrier();
  }

  GPU_METHOD void run(u32 alone) const {
    const u32 tiles = (u32)(ceil_div(n, (size_t)BM) * across);
    const Shares s{(u64)(tiles - alone) * units, gdim_x()};
    const u32 end = s.begin(bid_x() + 1);
    u32 whole = bid_x(), unit = s.begin(bid_x());
    while (whole < alone || unit < end) {
      const bool is_whole = whole < alone;
      const u32 tile = unit / units, from = is_whole ? 0 : unit - tile * units, left = end - unit;
      const u32 to = is_whole || left >= units - from ? units : from + left;
      const bool is_part = to - from < units;
      multiply(is_whole ? whole : alone + tile, from, to, is_part ? part(s, bid_x(), tile) : nullptr);
      if (is_part) join(s, tile, alone);
      if (is_whole) whole += gdim_x();
      else unit += to - from;
    }
  }
};

}  // namespace gpu
#endif
