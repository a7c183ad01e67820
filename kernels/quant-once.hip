// y (n) = x (k) · W (n, k)ᵀ + bias + residual of one row of halves with quantized weights, where all of them are on their way at once, in few
// copies of whole rows, and each warp has no more than its registers hold. bias and residual may be null. Where the device has no engine
// for copies of many bytes (sm_90a), there is linear_Q_b1, and these kernels are empty.
//
// Launch: n / 16 groups of rows over blocks of as many as there is room for, a warp to each 256 weights of their rows. Traffic: weights
// once; x once per block, from the cache.
#include "quant-once.h"
namespace gpu {

#if GPU_BYTE_TILES
#define ONCE_BODY(call) \
  DYNAMIC_SHARED(u32, shared); \
  SHARED(Signal, signals, BULK_COPIES ? ONCE_WARPS : 1); \
  call;
#else
#define ONCE_BODY(call)
#endif
#define ONCE(Q) \
  KERNEL_EARLY(ONCE_WARPS * 32, 1, linear_once_##Q, const void* x, const u8* w, const void* bias, const void* residual, void* out, size_t n, size_t k, u32 splits, \
               u32 dtype) { \
    ONCE_BODY(Once<Q>::run(shared, signals, x, w, bias, residual, out, (u32)n, (u32)k, splits, dtype)) \
  }
QUANT_q4_k(ONCE)
QUANT_q5_k(ONCE)

}  // namespace gpu
