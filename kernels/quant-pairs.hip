// Linear layers of many rows of halves with weights in pieces of 256 by pairs of blocks, which only Hopper has. x is in the order of
// quant-wide.h. Launch: pairs of blocks that make `alone` tiles of 256 lines of W by themselves; the first `sharers` of them share the
// others, all of them on the device at once, for which `parts` has as many sums as there are sharers and such tiles, and `counters` two zeros per tile.
#include "quant-pairs.h"
namespace gpu {

#if GPU_WARPGROUPS
#define QUANT_PAIRS_BODY(Q) \
  DYNAMIC_SHARED(u16, shared); \
  const Outputs<16, QUANT_WIDE_ROWS> outputs(n, bias, residual, out, batch, glu, dtype, all_blocks()); \
  QuantPairs<Q>(shared, outputs, (const u16*)x, w, map, parts, counters, (u32)k, alone, sharers).run();
#else
#define QUANT_PAIRS_BODY(Q)
#endif
#define QUANT_PAIRS(Q) \
  KERNEL_PAIRED(QUANT_PAIRS_THREADS, quant_pairs_##Q, const void* x, const u8* w, const BoxMap* map, const void* bias, const void* residual, void* out, \
                f32* parts, u32* counters, size_t n, size_t k, u32 batch, u32 glu, u32 alone, u32 sharers, u32 dtype) { QUANT_PAIRS_BODY(Q) }
QUANT_q8_0(QUANT_PAIRS)
QUANT_q4_0(QUANT_PAIRS)

}  // namespace gpu
