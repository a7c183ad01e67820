// Products of many rows by expert with quantized weights (expert-product.h): weights are decoded on their way into slices
// (quant-feed.h), of x nothing is rounded; f32 comes split, 32 upper halves before their rests (split_f32), where there is a matrix
// unit. `some`: of half as many rows of x to a tile. Launch: as many blocks as run at once; they share the tiles.
#include "expert-product.h"
#include "quant-feed.h"
namespace gpu {

template <class T> struct IsFloat32 { static constexpr bool value = false; };
template <> struct IsFloat32<f32> { static constexpr bool value = true; };
template <bool, class A, class B> struct Either { typedef A type; };
template <class A, class B> struct Either<false, A, B> { typedef B type; };

template <class Q, class T, bool SOME> struct ExpertQuant {
  static constexpr bool SPLIT = IsFloat32<T>::value && tile_t<bf16>::REGISTERS;
  typedef typename Either<SPLIT, bf16, T>::type E;  // what is multiplied
  typedef tile_t<E> Tile;
  static constexpr bool ASYNC = Tile::ASYNC;
  static constexpr int BK = ASYNC ? QUANT_ASYNC_SLICE : SPLIT ? 2 * QUANT_SLICE : QUANT_SLICE, BN = EXPERT_TILE, THREADS = 2 * BN;
  static constexpr int BM = EXPERT_TILE * (!SOME && (ASYNC || (GPU_TILE == TILE_MFMA && !IsFloat32<T>::value)) ? 2 : 1);
  static constexpr int STAGES = ASYNC ? 2 : 1, PLACES = ASYNC ? 2 : 1, WAVES = THREADS / Tile::LANES, ACROSS = WAVES / 2;
  typedef GatheredFeed<E, BM, BK, THREADS, false, SPLIT> FeedX;
  typedef QuantFeed<Q, E, BN, BK, THREADS, PLACES, false, SPLIT> FeedW;
  typedef TileProduct<E, BM, BN, BK, BM / 2, BN / ACROSS, STAGES, FeedX, FeedW> Product;
  static constexpr u32 SLICES = STAGES * (FeedX::SIZE + FeedW::SIZE), BYTES = SLICES * sizeof(E) + PLACES * FeedW::PLACE_WORDS * 4;

  GPU_FN void run(E* shared, const E* x, const u8* w, const ExpertResults<T>& results, const u32* tiles, u32 k, u32 share) {
    constexpr u32 WIDTH = SPLIT ? 2 : 1;
    u16* const table = (u16*)((char*)shared + BYTES);
    fill_table<Q>(table);
    barrier();
    const size_t n = results.n;
    each_expert_tile(tiles, n, BN, [&](const ExpertTile& tile, size_t column) {
      const FeedX fx(Gathered<E>{x, tile.end, (size_t)k * WIDTH, (i64)k * WIDTH, results.order, share}, tile.first);
      const FeedW fw(Blocks{w, (tile.expert + 1) * n, k, 0, k}, Stored{(u32*)(shared + SLICES), table}, tile.expert * n + column);
      Product::run(shared, fx, fw, k * WIDTH, ExpertSink<T>(results, tile), tile.first, column);
    });
  }
};

#define EXPERT_QUANT(size, SOME, Q, T) \
  KERNEL_BOUNDS((ExpertQuant<Q, T, SOME>::THREADS), expert_quant##size##_##Q##_##T, const void* x, const u8* w, const T* bias, T* out, \
                const u32* order, const u32* tiles, size_t n, size_t k, u32 share) { \
    typedef ExpertQuant<Q, T, SOME> P; \
    DYNAMIC_SHARED(typename P::E, shared); \
    P::run(shared, (const typename P::E*)x, w, ExpertResults<T>{out, bias, order, n}, tiles, (u32)k, share); \
  }
#define EXPERT_QUANT_SIZES(Q, T) EXPERT_QUANT(_some, true, Q, T) EXPERT_QUANT(, false, Q, T)
#define EXPERT_QUANTS(Q) EXPERT_QUANT_SIZES(Q, bf16) EXPERT_QUANT_SIZES(Q, f16) EXPERT_QUANT_SIZES(Q, f32)
QUANT_TYPES(EXPERT_QUANTS)

}  // namespace gpu
