// Products of up to 16 rows of halves with quantized weights on Hopper (quant-batch.h). Launch: a block per 16 · WARPS / splits lines of W, or fewer.
#include "quant-batch.h"
namespace gpu {

#if GPU_WARPGROUPS
#define QUANT_BATCH_BODY(Q, T) \
  typedef QuantBatch<Q, T> Product; \
  DYNAMIC_SHARED(T, shared); \
  SHARED(u16, table, TableSize<Q>::value); \
  fill_table<Q>(table); \
  const u32 depth = (u32)k, together = Product::WARPS / splits; \
  const Product product{shared, table, x, w, out, n, (u32)rows, depth, splits, (depth + Product::CHUNK - 1) / Product::CHUNK}; \
  for (size_t group = (size_t)bid_x() * together; group * 16 < n; group += (size_t)gdim_x() * together) product.run(group);
#else
#define QUANT_BATCH_BODY(Q, T)
#endif
#define QUANT_BATCH_KERNEL(Q, T) \
  KERNEL_EARLY(QUANT_BATCH_WARPS * 32, 1, quant_batch_##Q##_##T, const T* x, const u8* w, T* out, size_t rows, size_t n, size_t k, u32 splits) { QUANT_BATCH_BODY(Q, T) }
#define QUANT_BATCH(Q) QUANT_BATCH_KERNEL(Q, bf16) QUANT_BATCH_KERNEL(Q, f16)
QUANT_TYPES(QUANT_BATCH)

}  // namespace gpu
