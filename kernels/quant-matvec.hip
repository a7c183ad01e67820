// Linear layers of up to eight activation rows with quantized weights, bound by reading the weights once.
//
//   linear_Q_bN  for N/2 < batch ≤ N; dtype of x, out and what is added: DTYPE_f32, DTYPE_f16, DTYPE_bf16
#include "quant-matvec.h"
#include "quant-tile.h"
namespace gpu {

// Five rows and more are worth a matrix unit, where there is one.
#if GPU_BYTE_TILES
#define MAT_VEC_8(Q) \
  MAT_VEC_LAUNCH(TILE_WARPS * 32, 1, linear_##Q##_b8) { MAT_VEC_BODY(Q, TileVec<Q>) }
#else
#define MAT_VEC_8(Q) MAT_VEC_KERNEL(linear_##Q##_b8, Q, 8, MATVEC_ROWS, MATVEC_PLACES)
#endif
#define MAT_VEC(Q) \
  MAT_VEC_KERNEL(linear_##Q##_b1, Q, 1, MATVEC_ROWS, MATVEC_PLACES) \
  MAT_VEC_KERNEL(linear_##Q##_b2, Q, 2, MATVEC_ROWS, MATVEC_PLACES) \
  MAT_VEC_KERNEL(linear_##Q##_b4, Q, 4, MATVEC_ROWS, MATVEC_PLACES) \
  MAT_VEC_8(Q)
QUANT_TYPES(MAT_VEC)

}  // namespace gpu
