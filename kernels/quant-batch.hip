// Linear layers of up to 16 rows of halves with quantized weights on Hopper (quant-batch.h). Launch: `parts` blocks for each share
// of the rows of W, which lie side by side; `sums` has as many f32 for each row of W and part, `counters` a zero for each warp of a
// share's block.
#include "quant-batch.h"
namespace gpu {

#if GPU_WARPGROUPS
#define QUANT_BATCH_BODY(Q, ROWS) \
  typedef QuantBatch<Q, ROWS> Product; \
  DYNAMIC_SHARED(u32, shared); \
  SHARED(Signal, signals, BULK_COPIES ? QUANT_BATCH_WARPS * Product::PLACES : 1); \
  const u32 share = bid_x() / parts; \
  Product::run(shared, signals, typename Product::Out(n, bias, residual, out, batch, glu, dtype, Share{share, gdim_x() / parts, 0}), (u32)k, w, x, splits, \
               typename Product::Parts{parts, bid_x() - share * parts, sums, counters});
#else
#define QUANT_BATCH_BODY(Q, ROWS)
#endif
#define QUANT_BATCH(Q) \
  KERNEL_EARLY(QUANT_BATCH_WARPS * 32, 1, quant_batch_##Q, const void* x, const u8* w, const void* bias, const void* residual, void* out, f32* sums, u32* counters, \
               size_t n, size_t k, u32 batch, u32 glu, u32 splits, u32 parts, u32 dtype) { QUANT_BATCH_BODY(Q, QUANT_BATCH_ROWS) }
QUANT_TYPES(QUANT_BATCH)

}  // namespace gpu
