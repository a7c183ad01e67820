// Linear layers of up to 8 or 16 rows of halves with weights in pieces of 256 on Hopper (quant-even.h). x is in the order of quant-wide.h,
// in a tile of as many rows. Launch: `cuts` blocks for each share of the rows of W, which lie side by side, all of them on the device at
// once; where there are several, `parts` has as many f32 for each row of W and part, and `counters` a zero for each 16 rows of W. A warp more
// than multiply where squares are `told`.
//
// Most layers of a model in f16 have a kernel that knows what comes behind the product: nothing (plain), a gate by SiLU before a product with
// weights of the same type (gate), a residual and a norm before such a product (add). `any` is for all else. With fewer cases the compiler
// makes a third to a half of the code, and loops that hold less.
#include "quant-even.h"
namespace gpu {

#define EVEN_any 0
#define EVEN_plain 1
#define EVEN_gate 2
#define EVEN_add 3
#if GPU_WARPGROUPS
#define QUANT_EVEN_BODY(KIND, ROWS, Q) \
  typedef QuantEven<Q, ROWS> Product; \
  constexpr bool ANY = EVEN_##KIND == EVEN_any, GATE = EVEN_##KIND == EVEN_gate, ADD = EVEN_##KIND == EVEN_add; \
  DYNAMIC_SHARED(u32, shared); \
  const u32 parts_of_k = ANY || ADD ? cuts : 1, share = quotient(bid_x(), approx_recip((f32)parts_of_k)), gated = ANY ? glu : GATE ? GLU_silu : 0; \
  Product::run(shared, typename Product::Given{(const u16*)x, w, map, parts, counters, (u32)k, parts_of_k, bid_x() - share * parts_of_k, raw, RowFactors{(const u16*)x, told, ROWS, (u32)k, raise, eps}, \
                                               OrderedRows{ANY || GATE || ADD ? ordered : nullptr, ANY || ADD ? next_alpha : nullptr, lower, ANY ? order : QuantSlice<Q>::ORDER, (u32)(gated ? n / 2 : n), ROWS}}, \
               typename Product::Out(n, ANY ? bias : nullptr, ANY || ADD ? residual : nullptr, out, batch, gated, ANY ? dtype : DTYPE_f16, Share{share, quotient(gdim_x(), approx_recip((f32)parts_of_k)), 0}));
#else
#define QUANT_EVEN_BODY(KIND, ROWS, Q)
#endif
#define QUANT_EVEN_KERNEL(KIND, ROWS, Q) \
  KERNEL_EARLY(QUANT_EVEN_WARPS * 32, 1, quant_even_##KIND##_##ROWS##_##Q, const void* x, const u8* w, const BoxMap* map, const void* bias, const void* residual, void* out, \
               f32* parts, u32* counters, u16* ordered, const u16* next_alpha, size_t n, size_t k, u32 batch, u32 glu, u32 cuts, u32 dtype, u32 order, u32 raw, u32 told, f64 lower, f64 raise, f64 eps) { QUANT_EVEN_BODY(KIND, ROWS, Q) }
#define QUANT_EVEN_KINDS(ROWS, Q) QUANT_EVEN_KERNEL(any, ROWS, Q) QUANT_EVEN_KERNEL(plain, ROWS, Q) QUANT_EVEN_KERNEL(gate, ROWS, Q) QUANT_EVEN_KERNEL(add, ROWS, Q)
#define QUANT_EVEN(Q) QUANT_EVEN_KINDS(8, Q) QUANT_EVEN_KINDS(16, Q)
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
