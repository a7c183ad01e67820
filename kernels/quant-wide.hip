// Products of nine rows and more of halves with quantized weights by warpgroups, which only Hopper has; the name says how many rows a
// block takes. Launch: `splits` blocks per tile of 128 lines of W; `parts` has as many sums as they make, `counters` a zero per tile.
#include "quant-wide.h"
namespace gpu {

#if GPU_WARPGROUPS
template <class Q, class T, class P> GPU_FN void quant_wide(T* shared, u64* meetings, u16* table, const T* x, const u8* w, T* out, f32* parts, u32* counters, size_t rows, size_t n, size_t k, u32 splits) {
  typename P::Places places{shared, meetings, meetings + QUANT_WIDE_STAGES, 0};
  places.open();
  fill_table<Q>(table);
  signals_made();
  barrier();
  constexpr size_t BN = P::FeedX::SIZE / P::BK;
  const size_t down = ceil_div(n, (size_t)P::LINES), across = ceil_div(rows, BN);
  const u32 chunks = (u32)ceil_div(k, (size_t)QUANT_FAR), slices = (u32)ceil_div(k, (size_t)P::BK);
  constexpr u32 EACH = QUANT_FAR / P::BK;
  for (size_t i = bid_x(); i < down * across * splits; i += gdim_x()) {
    const size_t tile = divide(i, splits);
    const TileAt at = tile_at(tile, down, across);
    const u32 own = (u32)(i - tile * splits), end = chunks * (own + 1) / splits * EACH;
    const typename P::Work work{Blocks{w, n, (u32)k, 0, (u32)k}, Operand<T>{x, rows, k, (i64)k}, at.row * P::LINES, at.column * BN, chunks * own / splits * EACH, end < slices ? end : slices};
    P::run(work, places, table, out, typename P::Shares{splits, own, parts + tile * splits * (P::LINES * BN), counters + tile});
  }
}
#define QUANT_WIDE_BODY(Q, T, BN, S, XS) \
  typedef QuantWide<Q, T, BN, WideChunk<Q, BN>::value, S, XS> Product; \
  DYNAMIC_SHARED(T, shared); \
  SHARED(u64, meetings, 2 * QUANT_WIDE_STAGES); \
  SHARED(u16, table, TableSize<Q>::value); \
  quant_wide<Q, T, Product>(shared, meetings, table, x, w, out, parts, counters, rows, n, k, splits);
#else
#define QUANT_WIDE_BODY(Q, T, BN, S, XS)
#endif
#define QUANT_WIDE_KERNEL(BN, S, XS, together, Q, T) \
  KERNEL_EARLY(BN > 64 ? 384 : 256, together, quant_wide_##BN##_##Q##_##T, const T* x, const u8* w, T* out, f32* parts, u32* counters, \
               size_t rows, size_t n, size_t k, u32 splits) { QUANT_WIDE_BODY(Q, T, BN, S, XS) }
#define QUANT_WIDE_SIZES(Q, T) \
  QUANT_WIDE_KERNEL(16, QUANT_WIDE_FEW_STAGES, QUANT_WIDE_FEW_X_STAGES, 3, Q, T) QUANT_WIDE_KERNEL(64, QUANT_WIDE_FEW_STAGES, QUANT_WIDE_FEW_X_STAGES, 2, Q, T) \
  QUANT_WIDE_KERNEL(128, QUANT_WIDE_STAGES, QUANT_WIDE_STAGES, 1, Q, T) QUANT_WIDE_KERNEL(256, QUANT_WIDE_STAGES, QUANT_WIDE_STAGES, 1, Q, T)
#define QUANT_WIDE(Q) QUANT_WIDE_SIZES(Q, bf16) QUANT_WIDE_SIZES(Q, f16)
QUANT_TYPES(QUANT_WIDE)

}  // namespace gpu
