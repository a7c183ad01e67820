// Products of up to 16 rows of halves with quantized weights on Hopper (quant-batch.h). Launch: a block per 16 · WARPS / splits lines of W, or
// fewer. `chunk` is QUANT_FAR or, where that leaves no room for as many splits and the type has small blocks of bytes, QUANT_NEAR.
#include "quant-batch.h"
namespace gpu {

#if GPU_WARPGROUPS
#define QUANT_BATCH_BODY(Q, T) \
  DYNAMIC_SHARED(T, shared); \
  SHARED(u16, table, TableSize<Q>::value); \
  fill_table<Q>(table); \
  constexpr u32 NEAR = Q::Fine && Q::Elements <= QUANT_NEAR ? QUANT_NEAR : QUANT_FAR; \
  if (NEAR == QUANT_FAR || chunk == QUANT_FAR) QuantBatch<Q, T, QUANT_FAR>::run(shared, table, x, w, out, (u32)rows, n, (u32)k, splits); \
  else QuantBatch<Q, T, NEAR>::run(shared, table, x, w, out, (u32)rows, n, (u32)k, splits);
#else
#define QUANT_BATCH_BODY(Q, T)
#endif
#define QUANT_BATCH_KERNEL(Q, T) \
  KERNEL_EARLY(QUANT_BATCH_WARPS * 32, 1, quant_batch_##Q##_##T, const T* x, const u8* w, T* out, size_t rows, size_t n, size_t k, u32 splits, u32 chunk) { QUANT_BATCH_BODY(Q, T) }
#define QUANT_BATCH(Q) QUANT_BATCH_KERNEL(Q, bf16) QUANT_BATCH_KERNEL(Q, f16)
QUANT_TYPES(QUANT_BATCH)

}  // namespace gpu
