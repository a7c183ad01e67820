// y (n) = f(x) (k) · W (n, k)ᵀ + bias + residual of one row of halves with quantized weights, where all of them are on their way at once, in few
// copies of whole rows. f is nothing, or with _norm an RMS norm with weight alpha. bias and residual may be null. Where the device has no
// engine for copies of many bytes (sm_90a), there is linear_Q_b1, and these kernels are empty.
//
// Launch: n / 16 groups of rows over blocks of as many as there is room for, a warp to each 256 weights of their rows, with a norm to
// ONCE_STEPS times as many. Traffic: weights once; x once for each group, from the cache.
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
#define ONCE(name, Q, Norm) \
  KERNEL_EARLY(ONCE_WARPS * 32, 1, name##_##Q, const void* x, const u8* w, const void* alpha, const void* bias, const void* residual, void* out, size_t n, size_t k, \
               f64 eps, u32 splits, u32 dtype) { \
    ONCE_BODY((Once<Q, Norm>::run(shared, signals, x, w, alpha, bias, residual, out, (u32)n, (u32)k, (f32)eps, splits, dtype))) \
  }
#define ONCE_BOTH(Q) ONCE(linear_once, Q, false) ONCE(linear_once_norm, Q, true)
QUANT_q4_k(ONCE_BOTH)
QUANT_q5_k(ONCE_BOTH)

}  // namespace gpu
