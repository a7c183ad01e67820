// Linear layers of 17 to 64 rows of halves with weights in pieces of 256 by warpgroups, which only Hopper has. x is in the order of
// quant-wide.h; the name says how many lines and rows a block takes. Launch: `cuts` blocks for each LINES lines of W, all on the device
// at once where there are several, for which `parts` has their sums and `counters` a zero per tile.
#include "quant-flow.h"
namespace gpu {

#if GPU_WARPGROUPS
#define QUANT_FLOW_BODY(Q, LINES, BN) \
  DYNAMIC_SHARED(u16, shared); \
  const typename QuantFlow<Q, LINES, BN>::Given given{(const u16*)x, w, map, bias, residual, out, parts, counters, (u32)n, (u32)k, batch, glu, cuts, dtype, \
                                               OrderedRows{ordered, next_alpha, lower, order, (u32)(glu ? n / 2 : n), batch}, \
                                               RowFactors{(const u16*)x, told, batch, (u32)k, raise, eps}}; \
  QuantFlow<Q, LINES, BN>(shared, given).run();
#else
#define QUANT_FLOW_BODY(Q, LINES, BN)
#endif
#define QUANT_FLOW_KERNEL(LINES, BN, Q) \
  KERNEL_EARLY(2 * LINES + 128, 1, quant_flow_##LINES##_##BN##_##Q, const void* x, const u8* w, const BoxMap* map, const void* bias, const void* residual, void* out, \
               f32* parts, u32* counters, u16* ordered, const u16* next_alpha, size_t n, size_t k, u32 batch, u32 glu, u32 cuts, u32 dtype, u32 order, u32 told, f64 lower, f64 raise, f64 eps) { QUANT_FLOW_BODY(Q, LINES, BN) }
#define QUANT_FLOW_LINES(LINES, Q) \
  QUANT_FLOW_KERNEL(LINES, 24, Q) QUANT_FLOW_KERNEL(LINES, 32, Q) QUANT_FLOW_KERNEL(LINES, 40, Q) QUANT_FLOW_KERNEL(LINES, 48, Q) \
  QUANT_FLOW_KERNEL(LINES, 56, Q) QUANT_FLOW_KERNEL(LINES, 64, Q)
#define QUANT_FLOW(Q) QUANT_FLOW_LINES(128, Q) QUANT_FLOW_LINES(256, Q)
QUANT_q8_0(QUANT_FLOW)
QUANT_q4_0(QUANT_FLOW)

}  // namespace gpu
