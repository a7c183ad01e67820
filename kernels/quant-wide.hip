// Linear layers of many rows of halves with quantized weights by warpgroups, which only Hopper has. x is in the order of quant-wide.h;
// the name says how many rows a block takes: 24 to 64 in eights, or (without) 256. Launch: blocks that make `alone` tiles of 128 lines of W by
// themselves; the first `sharers` of them share the others, for which `parts` has as many sums as there are sharers and such tiles,
// and `counters` a zero per tile.
#include "quant-wide.h"
namespace gpu {

#if GPU_WARPGROUPS
template <class Q, int BN>
GPU_FN void quant_wide(u16* shared, const u16* x, const u8* w, const Outputs<16, BN>& out, f32* parts, u32* counters, u32 k, u32 alone, u32 sharers,
                       const RowFactors& factors) {
  typedef QuantWide<Q, BN> P;
  // Slices of x, their signals and a word, and every warp's places.
  Signal* const signals = (Signal*)(shared + P::RING * P::X_SIZE);
  Signal* const landed = signals + 2 * P::RING + tid_x() / 32 * P::PLACES;
  u32* const words = (u32*)(signals + 2 * P::RING + P::PLACES * (P::THREADS / 32));
  const u32 down = (out.groups() + P::LINES / 16 - 1) / (P::LINES / 16), across = (out.batch + BN - 1) / BN;
  const P product{shared, signals, signals + P::RING, landed, words + 4 + tid_x() / 32 * (P::PLACES * P::PLACE_WORDS), x, w, out.batch,
                  k / Q::Elements * Q::Bytes, k, down, across, uniform_ref(warpgroup_ref(shared, 8 * WIDE_ROW, P::BK * WIDE_ROW)), factors,
                  (f32*)(words + 4 + P::THREADS / 32 * P::PLACES * P::PLACE_WORDS)};
  if (lane_id() < P::PLACES) make_signal(landed + lane_id(), 16);
  if (tid_x() == 0) {
    UNROLL for (u32 j = 0; j < P::RING; j++) {
      make_signal(product.full + j, 1);
      make_signal(product.free + j, P::THREADS / 32);
    }
  }
  signals_made();
  barrier();
  product.run(out, typename P::Shares{parts, counters, alone, sharers, down * across, words});
}
#define QUANT_WIDE_BODY(Q, BN) \
  DYNAMIC_SHARED(u16, shared); \
  quant_wide<Q, BN>(shared, (const u16*)x, w, Outputs<16, BN>(n, bias, residual, out, batch, glu, dtype, all_blocks()), parts, counters, (u32)k, alone, sharers, \
                    RowFactors{(const u16*)x, told, batch, (u32)k, raise, eps});
#else
#define QUANT_WIDE_BODY(Q, BN)
#endif
#define QUANT_WIDE_KERNEL(size, BN, Q) \
  KERNEL_EARLY(GPU_BLOCK, BN > 128 ? 1 : 2, quant_wide##size##_##Q, const void* x, const u8* w, const void* bias, const void* residual, void* out, f32* parts, \
               u32* counters, size_t n, size_t k, u32 batch, u32 glu, u32 alone, u32 sharers, u32 dtype, u32 told, f64 raise, f64 eps) { QUANT_WIDE_BODY(Q, BN) }
#define QUANT_WIDE(Q) \
  QUANT_WIDE_KERNEL(_24, 24, Q) QUANT_WIDE_KERNEL(_32, 32, Q) QUANT_WIDE_KERNEL(_40, 40, Q) QUANT_WIDE_KERNEL(_48, 48, Q) QUANT_WIDE_KERNEL(_56, 56, Q) \
  QUANT_WIDE_KERNEL(_64, 64, Q) QUANT_WIDE_KERNEL(, QUANT_WIDE_ROWS, Q)
QUANT_TYPES(QUANT_WIDE)

// x as quant-wide.h wants it, with a norm where there is an alpha; k is a multiple of 32. Launch: a block per row, of which there are eights.
#if GPU_WARPGROUPS
#define QUANT_ORDER_BODY(T) \
  SHARED(f32, shared, 96 + QUANT_ORDER_BLOCK * 4); \
  OrderedRow<T>(x, alpha, (u32)bid_x(), rows, k).write(shared, (u16*)out, (u32)bid_x(), rows, tile_rows, order, (f32)eps);
#else
#define QUANT_ORDER_BODY(T) wait_for_previous();
#endif
#define QUANT_ORDER(T) \
  KERNEL_EARLY(QUANT_ORDER_BLOCK, 1, quant_order_##T, const T* x, const T* alpha, void* out, u32 rows, u32 k, u32 tile_rows, u32 order, f64 eps) { QUANT_ORDER_BODY(T) }
GPU_bf16(QUANT_ORDER)
GPU_f16(QUANT_ORDER)

}  // namespace gpu
