// Linear layers of up to 8 or 16 rows of halves with weights in pieces of 256 on Hopper (quant-even.h). x is in the order of quant-wide.h,
// in a tile of as many rows. Launch: `cuts` blocks for each share of the rows of W, which lie side by side, all of them on the device at
// once; where there are several, `parts` has as many f32 for each row of W and part, and `counters` a zero for each 16 rows of W. A warp more
// than multiply where squares are `told`.
#include "quant-even.h"
namespace gpu {

#if GPU_WARPGROUPS
#define QUANT_EVEN_BODY(ROWS, Q) \
  typedef QuantEven<Q, ROWS> Product; \
  DYNAMIC_SHARED(u32, shared); \
  const u32 share = quotient(bid_x(), approx_recip((f32)cuts)); \
  Product::run(shared, typename Product::Given{(const u16*)x, w, map, parts, counters, (u32)k, cuts, bid_x() - share * cuts, raw, \
               RowFactors{(const u16*)x, told, ROWS, (u32)k, raise, eps}, OrderedRows{ordered, next_alpha, lower, order, (u32)(glu ? n / 2 : n), ROWS}}, \
               typename Product::Out(n, bias, residual, out, batch, glu, dtype, Share{share, quotient(gdim_x(), approx_recip((f32)cuts)), 0}));
#else
#define QUANT_EVEN_BODY(ROWS, Q)
#endif
#define QUANT_EVEN_KERNEL(ROWS, Q) \
  KERNEL_EARLY(QUANT_EVEN_WARPS * 32, 1, quant_even_##ROWS##_##Q, const void* x, const u8* w, const BoxMap* map, const void* bias, const void* residual, void* out, \
               f32* parts, u32* counters, u16* ordered, const u16* next_alpha, size_t n, size_t k, u32 batch, u32 glu, u32 cuts, u32 dtype, u32 order, u32 raw, u32 told, f64 lower, f64 raise, f64 eps) { QUANT_EVEN_BODY(ROWS, Q) }
#define QUANT_EVEN(Q) QUANT_EVEN_KERNEL(8, Q) QUANT_EVEN_KERNEL(16, Q)
QUANT_q8_0(QUANT_EVEN)
QUANT_q4_0(QUANT_EVEN)

// x as these products want it, with a norm where there is an alpha; k is a multiple of 256. Launch: a block per row, of which there are eights,
// and a thread for each eight elements.
#if GPU_WARPGROUPS
#define EVEN_ORDER_BODY(T) \
  SHARED(f32, shared, 64 + QUANT_ORDER_BLOCK * 4); \
  order_row<T>(shared, x, alpha, (u16*)out, (u32)bid_x(), rows, k, order, (f32)eps);
#else
#define EVEN_ORDER_BODY(T) wait_for_previous();
#endif
#define EVEN_ORDER(T) \
  KERNEL_EARLY(QUANT_ORDER_BLOCK, 2, even_order_##T, const T* x, const T* alpha, void* out, u32 rows, u32 k, u32 order, f64 eps) { EVEN_ORDER_BODY(T) }
GPU_bf16(EVEN_ORDER)
GPU_f16(EVEN_ORDER)

}  // namespace gpu
