// Tells by the name of its one kernel which matrix unit the compiler has for its target: matrix_unit_<TILE_…>. The host reads
// it off the code and plans launches by it, so that the two agree with whatever compiler and card there are.
#include "tile.h"

namespace gpu {
#define PROBE(unit) PROBE_NAMED(unit)
#define PROBE_NAMED(unit) KERNEL(matrix_unit_##unit, u32* out) { out[tid_x()] = unit; }
PROBE(GPU_TILE)
}  // namespace gpu
