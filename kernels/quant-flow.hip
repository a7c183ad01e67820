// Linear layers of 17 to 64 rows of halves with weights in pieces of 256 by warpgroups, which only Hopper has. x is in the order of
// quant-wide.h; the name says how many lines of W and rows a block takes, of which a pair takes 128. Launch: `cuts` blocks for each so many
// lines, two for a pair; where there are several all are on the device at once, `parts` has their sums and `counters` a zero per tile.
#include "quant-flow.h"
namespace gpu {

#if GPU_WARPGROUPS
#define QUANT_FLOW_BODY(...) \
  DYNAMIC_SHARED(u16, shared); \
  const typename QuantFlow<__VA_ARGS__>::Given given{(const u16*)x, w, map, bias, residual, out, parts, counters, (u32)n, (u32)k, batch, glu, cuts, dtype, \
                                                     OrderedRows{ordered, next_alpha, lower, order, (u32)(glu ? n / 2 : n), batch}, \
                                                     RowFactors{(const u16*)x, told, batch, (u32)k, raise, eps}}; \
  QuantFlow<__VA_ARGS__>(shared, given).run();
#else
#define QUANT_FLOW_BODY(...)
#endif
#define QUANT_FLOW_ARGUMENTS \
  const void *x, const u8 *w, const BoxMap *map, const void *bias, const void *residual, void *out, f32 *parts, u32 *counters, u16 *ordered, const u16 *next_alpha, \
      size_t n, size_t k, u32 batch, u32 glu, u32 cuts, u32 dtype, u32 order, u32 told, f64 lower, f64 raise, f64 eps
#define QUANT_FLOW_KERNEL(BN, Q) \
  KERNEL_EARLY(384, 1, quant_flow_128_##BN##_##Q, QUANT_FLOW_ARGUMENTS) { QUANT_FLOW_BODY(Q, 128, BN, false) } \
  KERNEL_EARLY(640, 1, quant_flow_256_##BN##_##Q, QUANT_FLOW_ARGUMENTS) { QUANT_FLOW_BODY(Q, 256, BN, false) } \
  KERNEL_CLUSTER(384, 1, 2, quant_flow_pair_##BN##_##Q, QUANT_FLOW_ARGUMENTS) { QUANT_FLOW_BODY(Q, 128, BN, true) }
#define QUANT_FLOW(Q) \
  QUANT_FLOW_KERNEL(24, Q) QUANT_FLOW_KERNEL(32, Q) QUANT_FLOW_KERNEL(40, Q) QUANT_FLOW_KERNEL(48, Q) QUANT_FLOW_KERNEL(56, Q) QUANT_FLOW_KERNEL(64, Q)
QUANT_q8_0(QUANT_FLOW)
QUANT_q4_0(QUANT_FLOW)

}  // namespace gpu
