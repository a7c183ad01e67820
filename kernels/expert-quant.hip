// Products of many rows by expert with quantized weights (expert-product.h); of x nothing is rounded, and f32 comes split, 32 upper
// halves before their rests (split_f32), where there is a matrix unit.
//
//   expert_quant{_few,_some,}_Q_T  by the rows of x to a tile; _few exists for mma.sync alone. Launch: as many blocks as run at once;
//     they share the tiles.
#include "expert-product.h"
#include "quant-product.h"
namespace gpu {

// Weights are decoded on their way into slices (quant-feed.h), with which the rows' slices are multiplied.
template <class Q, class T, Rows ROWS> struct ExpertTiles {
  static constexpr bool EXISTS = ROWS != FEW, SPLIT = IsF32<T>::value && tile_t<bf16>::REGISTERS;
  typedef typename PickType<SPLIT, bf16, T>::type E;  // what is multiplied
  typedef tile_t<E> Tile;
  static constexpr bool ASYNC = Tile::ASYNC;
  static constexpr int BK = ASYNC ? QUANT_ASYNC_SLICE : SPLIT ? 2 * QUANT_SLICE : QUANT_SLICE, COLUMNS = EXPERT_TILE, THREADS = 2 * COLUMNS;
  static constexpr int ROWS_OF_X = EXPERT_TILE * (ROWS == MANY && (ASYNC || (GPU_TILE == TILE_MFMA && !IsF32<T>::value)) ? 2 : 1);
  static constexpr int STAGES = ASYNC ? 2 : 1, PLACES = ASYNC ? 2 : 1, WAVES = THREADS / Tile::LANES, ACROSS = WAVES / 2;
  typedef GatheredFeed<E, ROWS_OF_X, BK, THREADS, false, SPLIT> FeedX;
  typedef QuantFeed<Q, E, COLUMNS, BK, THREADS, PLACES, false, SPLIT> FeedW;
  typedef TileProduct<E, ROWS_OF_X, COLUMNS, BK, ROWS_OF_X / 2, COLUMNS / ACROSS, STAGES, FeedX, FeedW> Product;
  static constexpr u32 SLICES = STAGES * (FeedX::SIZE + FeedW::SIZE), BYTES = SLICES * sizeof(E) + PLACES * FeedW::PLACE_WORDS * 4;

  GPU_FN void run(E* shared, const Blocks& weights, const Gathered<E>& x, const ExpertResults<T>& results, const ExpertTile& tile, size_t column) {
    const FeedX fx(x, tile.first);
    const FeedW fw(weights, (u32*)(shared + SLICES), tile.expert * results.n + column);
    Product::run(shared, fx, fw, (u32)x.depth, ExpertSink<T>(results, tile), tile.first, column);
  }
};

#if GPU_TILE == TILE_MMA
// Results whose features come one after another: they gather in shared memory, from where neighbours leave together.
template <class T, int LINES, int ROWS_OF_X, int THREADS> struct ExpertTurnedSink {
  static constexpr int V = 16 / sizeof(T), PITCH = LINES + V;
  T* staged;
  ExpertSink<T> sink;
  size_t first, column;
  GPU_METHOD void bring(u32 feature, u32 row, f32 x) const {
    const size_t col = column + feature;
    staged[row * PITCH + feature] = narrow<T>(sink.bias && col < sink.n ? x + widen(sink.bias[col]) : x);
  }
  GPU_METHOD void leave() const {
    barrier();
    UNROLL_SOME for (u32 i = tid_x(); i < ROWS_OF_X * (LINES / V); i += THREADS) {
      const u32 row = i / (LINES / V), feature = i % (LINES / V) * V;
      if (first + row < sink.end) put_results<V>(sink.out + sink.order[first + row] * sink.n, 1, sink.n, 0, column + feature, load_shared<V>(staged, row * PITCH + feature));
    }
  }
};
// Few and some rows: weights are decoded straight into registers (quant-rows.h).
template <class Q, class T, int ROWS_OF_X> struct ExpertRows : RowsBlock<Q, T, ROWS_OF_X> {
  typedef RowsBlock<Q, T, ROWS_OF_X> Block;
  typedef typename Block::E E;
  static constexpr bool EXISTS = true;
  static constexpr int COLUMNS = Block::BM;

  GPU_FN void run(E* shared, const Blocks& weights, const Gathered<E>& x, const ExpertResults<T>& results, const ExpertTile& tile, size_t column) {
    const ExpertTurnedSink<T, COLUMNS, ROWS_OF_X, Block::THREADS> sink{(T*)shared, ExpertSink<T>(results, tile), tile.first, column};
    Block::run(shared, weights, tile.expert * results.n + column, x, tile.first, sink);
  }
};
template <class Q, class T, Rows ROWS> struct ExpertQuant : PickType<ROWS == MANY, ExpertTiles<Q, T, ROWS>, ExpertRows<Q, T, ROWS == FEW ? QUANT_FEW : QUANT_SOME>>::type {};
#else
template <class Q, class T, Rows ROWS> struct ExpertQuant : ExpertTiles<Q, T, ROWS> {};
#endif

template <class Q, class T, Rows ROWS>
GPU_FN void expert_quant(typename ExpertQuant<Q, T, ROWS>::E* shared, const void* x, const u8* w, const ExpertResults<T>& results, const u32* tiles, u32 k, u32 share) {
  typedef ExpertQuant<Q, T, ROWS> P;
  typedef typename P::E E;
  const size_t n = results.n, depth = (size_t)k * (P::SPLIT ? 2 : 1);
  each_expert_tile(tiles, n, P::COLUMNS, [&](const ExpertTile& tile, size_t column) {
    const Gathered<E> rows{(const E*)x, tile.end, depth, (i64)depth, results.order, share};
    P::run(shared, Blocks{w, (tile.expert + 1) * n, k, 0, k}, rows, results, tile, column);
  });
}

#define EXPERT_QUANT(size, ROWS, Q, T) \
  KERNEL_BOUNDS((ExpertQuant<Q, T, ROWS>::THREADS), expert_quant##size##_##Q##_##T, const void* x, const u8* w, const T* bias, T* out, \
                const u32* order, const u32* tiles, size_t n, size_t k, u32 share) { \
    typedef ExpertQuant<Q, T, ROWS> P; \
    if constexpr (P::EXISTS) { \
      DYNAMIC_SHARED(typename P::E, shared); \
      expert_quant<Q, T, ROWS>(shared, x, w, ExpertResults<T>{out, bias, order, n}, tiles, (u32)k, share); \
    } \
  }
#define EXPERT_QUANT_SIZES(Q, T) EXPERT_QUANT(_few, FEW, Q, T) EXPERT_QUANT(_some, SOME, Q, T) EXPERT_QUANT(, MANY, Q, T)
#define EXPERT_QUANTS(Q) EXPERT_QUANT_SIZES(Q, bf16) EXPERT_QUANT_SIZES(Q, f16) EXPERT_QUANT_SIZES(Q, f32)
QUANT_TYPES(EXPERT_QUANTS)

}  // namespace gpu
