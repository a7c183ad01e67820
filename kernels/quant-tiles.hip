// Linear layers of many rows of halves with weights in pieces of 256 by warpgroups, which only Hopper has. x is in the order of
// quant-wide.h. Launch: blocks that make `alone` tiles of 128 lines of W by themselves; the first `sharers` of them share the
// others, all of them on the device at once, for which `parts` has as many sums as there are sharers and such tiles, and `counters` a zero per tile.
#include "quant-tiles.h"
namespace gpu {

#if GPU_WARPGROUPS
#define QUANT_TILES_BODY(Q) \
  DYNAMIC_SHARED(u16, shared); \
  const Outputs<16, QUANT_WIDE_ROWS> outputs(n, bias, residual, out, batch, glu, dtype, all_blocks()); \
  QuantTiles<Q>(shared, outputs, (const u16*)x, w, map, parts, counters, (u32)k, alone, sharers).run();
#else
#define QUANT_TILES_BODY(Q)
#endif
#define QUANT_TILES(Q) \
  KERNEL_EARLY(QUANT_TILES_THREADS, 1, quant_tiles_##Q, const void* x, const u8* w, const BoxMap* map, const void* bias, const void* residual, void* out, \
                f32* parts, u32* counters, size_t n, size_t k, u32 batch, u32 glu, u32 alone, u32 sharers, u32 dtype) { QUANT_TILES_BODY(Q) }
QUANT_q8_0(QUANT_TILES)
QUANT_q4_0(QUANT_TILES)

}  // namespace gpu
