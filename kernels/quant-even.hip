// Linear layers of up to 16 rows of halves with weights in pieces of 256 on Hopper (quant-even.h). x is in the order of quant-wide.h, in
// tiles of 16 rows. Launch: `cuts` blocks for each share of the rows of W, which lie side by side, all of them on the device at once;
// where there are several, `parts` has 16 f32 for each row of W and part, and `counters` a zero for each 16 rows of W.
#include "quant-even.h"
namespace gpu {

#if GPU_WARPGROUPS
#define QUANT_EVEN_BODY(Q) \
  typedef QuantEven<Q> Product; \
  DYNAMIC_SHARED(u32, shared); \
  const u32 share = bid_x() / cuts; \
  Product::run(shared, typename Product::Given{(const u16*)x, w, map, parts, counters, (u32)k, cuts, bid_x() - share * cuts, plain}, \
               typename Product::Out(n, bias, residual, out, batch, glu, dtype, Share{share, gdim_x() / cuts, 0}));
#else
#define QUANT_EVEN_BODY(Q)
#endif
#define QUANT_EVEN(Q) \
  KERNEL_EARLY(QUANT_EVEN_WARPS * 32, 1, quant_even_##Q, const void* x, const u8* w, const BoxMap* map, const void* bias, const void* residual, void* out, f32* parts, \
               u32* counters, size_t n, size_t k, u32 batch, u32 glu, u32 cuts, u32 plain, u32 dtype) { QUANT_EVEN_BODY(Q) }
QUANT_q8_0(QUANT_EVEN)
QUANT_q4_0(QUANT_EVEN)

}  // namespace gpu
