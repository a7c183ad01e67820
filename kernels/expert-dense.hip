// Products of many rows by expert with plain weights (expert-product.h), on a matrix unit in the blocks of product.h; by multiply-adds
// in small ones alone. Launch: as many blocks as run at once; they share the tiles.
#include "expert-product.h"
namespace gpu {

// Where there is no matrix unit for T.
template <class T> struct PlainBlock {
  static constexpr int BM = EXPERT_TILE, BN = EXPERT_TILE, BK = PRODUCT_SLICE, THREADS = 4 * tile_t<T>::LANES;
  static constexpr bool GROUPS = false;
  template <class A, class B> using Of = TileProduct<T, BM, BN, BK, BM / 2, BN / 2, 1, A, B>;
};
template <class T, Size SIZE, bool = tile_t<T>::REGISTERS> struct ExpertBlock : Block<T, SIZE> {};
template <class T> struct ExpertBlock<T, SMALL, false> : PlainBlock<T> { static constexpr bool EXISTS = true; };

template <class T, Size SIZE>
GPU_FN void expert_products(T* shared, const T* x, const T* w, const ExpertResults<T>& results, const u32* tiles, size_t k, u32 share) {
  typedef ExpertBlock<T, SIZE> Blk;
  typedef GatheredFeed<T, Blk::BM, Blk::BK, Blk::THREADS, Blk::GROUPS, false> FeedX;
  typedef DenseFeed<T, Blk::BN, Blk::BK, ALONG_K, Blk::THREADS, Blk::GROUPS> FeedW;
  const size_t n = results.n;
  each_expert_tile(tiles, n, Blk::BN, [&](const ExpertTile& tile, size_t column) {
    const FeedX fx(Gathered<T>{x, tile.end, k, (i64)k, results.order, share}, tile.first);
    const FeedW fw(Operand<T>{w + tile.expert * n * k, n, k, (i64)k}, column);
    Blk::template Of<FeedX, FeedW>::run(shared, fx, fw, (u32)k, ExpertSink<T>(results, tile), tile.first, column);
  });
}

#define EXPERT_DENSE(size, SIZE, T) \
  KERNEL_MATRIX(T, GPU_BLOCK, expert_dense##size##_##T, const T* x, const T* w, const T* bias, T* out, const u32* order, const u32* tiles, \
                size_t n, size_t k, u32 share) { \
    if constexpr (ExpertBlock<T, SIZE>::EXISTS) { \
      DYNAMIC_SHARED(T, shared); \
      expert_products<T, SIZE>(shared, x, w, ExpertResults<T>{out, bias, order, n}, tiles, k, share); \
    } \
  }
#define EXPERT_DENSES(T) EXPERT_DENSE(_small, SMALL, T) EXPERT_DENSE(, LARGE, T) EXPERT_DENSE(_wide, WIDE, T)
GPU_bf16(EXPERT_DENSES)
GPU_f16(EXPERT_DENSES)
#define EXPERT_F32(T) EXPERT_DENSE(_small, SMALL, T)
GPU_f32(EXPERT_F32)

}  // namespace gpu
