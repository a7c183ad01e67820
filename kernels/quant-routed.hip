// One new token through the experts that its router chooses, with quantized weights, where the device has an engine for copies of many
// bytes (sm_90a); for others there are topk_T, expert_linear_Q and expert_sum_Q, and these kernels are empty. Each block finds the choice by
// itself from the scores (1, experts) of 16 bits, so that none is written.
//
//   routed_open_Q  act(gate) · up of norm(x) (k) through each of the `slots` chosen matrices of W (experts, 2 · width, k), times its share
//     of the softmax of their scores. out: of slots · width elements the two bytes, one plane behind the other, then of each sixteen
//     a scale and scale · Σ integers (quant-activations.h). `early`: the kernel before this one made the scores, and none of x.
//   routed_down_Q  y (n) = Σ over slots of that · W (experts, n, k), and a residual. The kernel before this one is routed_open_Q.
//
// Launch: slots · per_slot blocks of splits · width / per_slot / 8 warps; n / 16 blocks. Traffic: the chosen experts' weights once.
#include "quant-routed.h"
namespace gpu {

#if GPU_BYTE_TILES
#define ROUTED_BODY(count, call) \
  DYNAMIC_SHARED(u32, shared); \
  SHARED(Signal, signals, BULK_COPIES ? count : 1); \
  call;
#else
#define ROUTED_BODY(count, call)
#endif
#define ROUTED(Q) \
  KERNEL_EARLY(ROUTED_OPEN_WARPS * 32, 1, routed_open_##Q, const void* x, const u8* w, const void* alpha, const void* scores, u8* out, size_t width, size_t k, \
               f64 eps, u32 per_slot, u32 slots, u32 experts, u32 glu, u32 splits, u32 early, u32 dtype) { \
    ROUTED_BODY(ROUTED_OPEN_WARPS, \
                RoutedOpen<Q>::run(shared, signals, x, w, alpha, scores, out, (u32)width, (u32)k, (f32)eps, per_slot, slots, experts, glu, splits, early, dtype)) \
  } \
  KERNEL_EARLY(ROUTED_DOWN_WARPS * 32, 1, routed_down_##Q, const u8* x, const u8* w, const void* scores, const void* residual, void* out, size_t n, size_t k, \
               u32 slots, u32 experts, u32 dtype) { \
    ROUTED_BODY(ROUTED_SLOTS + 1, RoutedDown<Q>::run(shared, signals, x, w, scores, residual, out, (u32)n, (u32)k, slots, experts, dtype)) \
  }
QUANT_q4_k(ROUTED)
QUANT_q5_k(ROUTED)

}  // namespace gpu
