// Products of many rows by expert, in one launch: row s of out = row s / share of x · W[ids[s]]ᵀ + bias[ids[s]]. Slots are sorted by
// expert first (expert_order in experts.hip): `order` has them so, and `tiles` how many tiles of rows there are and then, of each,
// {expert, first, end} in that order. Rows of x are gathered on their way into shared memory, results scattered on their way out.
// Traffic: x once per tile of columns, W once per tile of rows, both mostly from the cache.
#ifndef WICK_EXPERT_PRODUCT_H
#define WICK_EXPERT_PRODUCT_H
#include "product.h"
namespace gpu {

template <class T> struct ExpertResults {
  T* out;
  const T* bias;  // of all experts, or null
  const u32* order;
  size_t n;
};
struct ExpertTile {
  u32 expert, first, end;
};
GPU_FN ExpertTile expert_tile(const u32* tiles, u32 i) {
  const Words4 tile = ((const Words4*)tiles)[1 + i];
  return ExpertTile{tile.v[0], tile.v[1], tile.v[2]};
}
// Results of a tile's rows, by their places among the sorted ones.
template <class T> struct ExpertSink {
  static constexpr bool IN_ROWS = true;
  T* out;
  const T* bias;
  const u32* order;
  size_t n, end;
  GPU_METHOD ExpertSink(const ExpertResults<T>& r, const ExpertTile& tile)
      : out(r.out), bias(r.bias ? r.bias + tile.expert * r.n : nullptr), order(r.order), n(r.n), end(tile.end) {}

  template <int R> GPU_METHOD bool takes() const { return n % R == 0 && vector_aligned<R>(out); }
  template <int R> GPU_METHOD void put(size_t row, size_t col, const f32 (&x)[R]) const {
    if (row >= end) return;
    T* const to = out + order[row] * n + col;
    Vec<T, R> y;
    UNROLL for (int r = 0; r < R; r++) y.v[r] = narrow<T>(bias && col + r < n ? x[r] + widen(bias[col + r]) : x[r]);
    if (takes<R>()) {
      if (col < n) gpu::put(to, y);
    } else UNROLL for (int r = 0; r < R; r++)
      if (col + r < n) to[r] = y.v[r];
  }
};

// make(tile, first column) for the tiles of `columns` columns that are this block's.
template <class Make> GPU_FN void each_expert_tile(const u32* tiles, size_t n, u32 columns, Make make) {
  const u32 across = (u32)ceil_div(n, (size_t)columns), all = tiles[0] * across;
  for (u32 i = bid_x(); i < all; i += gdim_x()) {
    const u32 tile = i / across;
    make(expert_tile(tiles, tile), (size_t)(i - tile * across) * columns);
  }
}

}  // namespace gpu
#endif
