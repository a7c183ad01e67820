// Linear layers of up to 16 rows of halves with quantized weights, whose rows are whole pieces, on Hopper (quant-held.h). Launch: `parts`
// blocks for each share of the rows of W, which lie side by side; `sums` has as many f32 for each row of W and part, `counters` a zero
// for each share.
#include "quant-held.h"
namespace gpu {

#if GPU_WARPGROUPS
#define QUANT_HELD_BODY(Q) \
  typedef QuantHeld<Q, QUANT_HELD_ROWS> Product; \
  DYNAMIC_SHARED(u32, shared); \
  SHARED(Signal, signals, QUANT_HELD_WARPS * Product::PLACES); \
  SHARED(u64, meetings, QUANT_HELD_WARPS + 1); \
  const u32 share = bid_x() / parts; \
  const typename Product::Out result(n, bias, residual, out, batch, glu, dtype, Share{share, gdim_x() / parts, 0}); \
  const typename Product::Parts others{parts, bid_x() - share * parts, sums, counters + share}; \
  if (batch > 8) Product::template run<2>(shared, signals, meetings, result, (u32)k, w, map, x, splits, others); \
  else Product::template run<1>(shared, signals, meetings, result, (u32)k, w, map, x, splits, others);
#else
#define QUANT_HELD_BODY(Q)
#endif
#define QUANT_HELD(Q) \
  KERNEL_EARLY(QUANT_HELD_WARPS * 32, 1, quant_held_##Q, const void* x, const u8* w, const BoxMap* map, const void* bias, const void* residual, void* out, f32* sums, \
               u32* counters, size_t n, size_t k, u32 batch, u32 glu, u32 splits, u32 parts, u32 dtype) { QUANT_HELD_BODY(Q) }
QUANT_HELD(q8_0)
QUANT_HELD(q4_0)

}  // namespace gpu
